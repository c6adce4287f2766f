"""Random histories of corrected rows, and the model that judges them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.differential.corrections import judged
from txn.dataflow.expectations import Judged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

SEEDS = (2, 3, 5, 7)
"""Histories of both formats. `make differential ARGS='--corrections'` finds what is still open."""


@pytest.mark.parametrize("seed", SEEDS)
def test_corrected_rows_end_where_the_model_says(
    seed: int, spark: SparkSession, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """Rows that are set aside, corrected and replayed while rules move end where they belong."""
    assert judged(seed, spark, zookeeper.hosts, tmp_path / "history") is None


def test_a_rule_that_lets_a_row_pass_is_found(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A product in which rows pass the rules that they break ends otherwise than the model."""
    monkeypatch.setattr(Judged, "passing", lambda self, rule: self.frame.select(*self.columns))
    assert judged(SEEDS[0], spark, f"{zookeeper.hosts}/mutant", tmp_path / "history") is not None
