"""Random programs, run and computed by the oracle; and mutants, which must differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.differential.generate import generate
from tests.differential.judge import judge
from tests.differential.mutants import MUTANTS, everything
from tests.differential.time_mutants import TIME_MUTANTS, everything_in_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = (3, 8, 12, 16, 23, 157)  # 157: two lives end before the point at which they were to die
"""A sample of what `make differential` runs."""


def test_random_programs_end_as_the_oracle_says(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever program a seed makes: it is refused clearly, or its tables equal the oracle's."""
    found = {seed: judge(generate(seed), spark, tmp_path / str(seed)) for seed in SEEDS}
    assert {seed: verdict for seed, verdict in found.items() if verdict.is_finding} == {}
    kinds = Counter(verdict.kind for verdict in found.values())
    assert kinds["equal"] > len(SEEDS) * 0.7, kinds


def test_the_program_without_a_mutant_is_equal(spark: SparkSession, tmp_path: Path) -> None:
    """What every mutant is to be seen in ends as the oracle says, a death and a replay included."""
    assert judge(everything(), spark, tmp_path / "run").kind == "equal"
    assert judge(everything_in_time(), spark, tmp_path / "time").kind == "equal"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_differs(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these mutants of the product or of the oracle makes a difference that is found."""
    monkeypatch.setattr(*MUTANTS[name])
    verdict = judge(everything(), spark, tmp_path / "run")
    assert verdict.kind in ("differs", "failed"), verdict  # "failed": its files cannot be read


@pytest.mark.parametrize("name", TIME_MUTANTS)
def test_a_mutant_in_event_time_differs(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these mutants of joins in time and of keys that end makes a difference."""
    monkeypatch.setattr(*TIME_MUTANTS[name])
    verdict = judge(everything_in_time(), spark, tmp_path / "run")
    assert verdict.kind == "differs", verdict
