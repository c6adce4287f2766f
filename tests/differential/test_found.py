"""Programs that the machine has found, each a defect that was mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.differential.declaration import Life, Program, Source, Step
from tests.differential.judge import judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def dotted(value: str) -> Program:
    """A key and a total whose names have a dot, in every place that names a column."""
    source = Source(
        name="s0",
        kind="transactional",
        partitions=0,
        known=True,
        columns=(("dot.ted", "string"), (value, "bigint")),
        batches=((((("a", 1), ("a", 2), (None, 3)),),), (((("a", 4),),),)),
    )
    grouped: dict[str, Any] = {"keys": ["dot.ted"], "aggregates": {"to.tal": ["Sum", value]}}
    state = {**grouped, "layout": "upsert", "semantics": "transactional"}
    asked = {"on": ["dot.ted"], "as_of": "txid-1"}
    stored = {"semantics": "transactional"}
    steps = (
        Step(id="n1", op="aggregate", of=("s0",), args=grouped),
        Step(id="t1", op="append", of=("n1",), args=stored),
        Step(id="t2", op="state", of=("s0",), args=state),
        Step(id="n2", op="query", of=("s0", "t2"), args=asked),
        Step(id="t3", op="append", of=("n2",), args=stored),
        Step(id="n3", op="new_values", of=("t2",)),
        Step(id="t4", op="append", of=("n3",), args=stored),
    )
    return Program(seed=0, sources=(source,), steps=steps, lives=(Life(),))


@pytest.mark.parametrize("value", ["v", "txn_key_dot.ted"])
def test_a_name_is_the_users_own(spark: SparkSession, tmp_path: Path, value: str) -> None:
    """Names with a dot, or one that a query might have for itself, are handed on."""
    verdict = judge(dotted(value), spark, tmp_path / "run")
    assert verdict.kind == "equal", verdict.what
