"""Files and records of strangers: what the product makes of them, against an independent reader."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.differential.sources.declaration import Case, File
from tests.differential.sources.expect import expected_of
from tests.differential.sources.generate import generate
from tests.differential.sources.judge import judge, judged_files
from tests.differential.sources.records import Good
from tests.differential.sources.run import Found
from tests.differential.sources.writers import CSV_WRITERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = (2, 4, 5, 8, 9, 12, 13, 14, 15, 16, 17, 18, 20, 22, 23, 25, 26, 28)
"""A sample of what `make differential ARGS='--sources'` runs."""
COLUMNS = (("id", "int"), ("name", "string"))
TEXTS = ('say "hi" ok', "a,b", "two\nlines", "\\", " x ", "é")


def test_files_of_strangers_are_accounted_for(spark: SparkSession, tmp_path: Path) -> None:
    """Every record is a row with the oracle's values, set aside, dropped or refused by name."""
    found = {seed: judge(generate(seed), spark, tmp_path / str(seed)) for seed in SEEDS}
    assert {seed: verdict for seed, verdict in found.items() if verdict.is_finding} == {}
    kinds = Counter(verdict.kind for verdict in found.values())
    assert kinds["equal"] >= len(SEEDS) // 3, kinds


@pytest.mark.parametrize("writer", ["python excel", "python minimal", "python unix", "pandas"])
def test_the_oracle_reads_what_was_written(writer: str) -> None:
    """The state machine finds the values that a program of another's wrote."""
    rows = [(n, text) for n, text in enumerate(TEXTS)]
    data = CSV_WRITERS[writer](random.Random(2), COLUMNS, rows, ",", True)
    assert list(csv.reader(io.StringIO(data.decode(), newline="")))[1][1] == TEXTS[0]
    case = case_of(data.decode("latin-1"), multiLine=True, header=True)
    read = expected_of(case, case.files[0], COLUMNS).records
    outcomes = [one.outcomes[0][0] for one in read]
    assert [
        tuple(f.values[0] for f in one.fields) for one in outcomes if isinstance(one, Good)
    ] == (rows)


MUTANTS: dict[str, Any] = {
    "none": ([(1, "a"), (2, "b")], ["x,y"]),
    "a row is lost": ([(1, "a")], ["x,y"]),
    "a row is there twice": ([(1, "a"), (2, "b"), (2, "b")], ["x,y"]),
    "a value is another": ([(1, "a"), (2, "B")], ["x,y"]),
    "a bad row is lost": ([(1, "a"), (2, "b")], []),
    "a bad row is there twice": ([(1, "a"), (2, "b")], ["x,y", "x,y"]),
    "a bad row is stored": ([(1, "a"), (2, "b"), (None, "y")], []),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_judge_sees_what_is_lost_doubled_or_changed(mutant: str) -> None:
    """Only the reading in which each record is in one place, with its values, is equal."""
    rows, aside = MUTANTS[mutant]
    found = Found(columns=COLUMNS, rows={"0.csv": rows}, bad={"0.csv": aside})
    verdict = judged_files(case_of("1,a\nx,y\n2,b\n"), found)
    assert verdict.is_finding == (mutant != "none"), verdict


def case_of(content: str, **options: Any) -> Case:
    """One file of CSV."""
    file = File(name="0.csv", content=content)
    return Case(seed=0, form="csv", schema_=COLUMNS, options=options, files=(file,))
