"""A source that cannot be planned any further: what was planned before is committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from txn import Topology
from txn.errors import SourceChangedError, TopologyError
from txn.testing import run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 6


def files(_: SparkSession, folder: Path) -> FileSpout:
    """Six files, and a seventh whose name Hadoop cannot open; four files a batch."""
    folder.mkdir()
    for name in [*map(str, range(ROWS)), "9:00"]:
        (folder / f"{name}.csv").write_text(f"{name}\n")
    return FileSpout(str(folder / "*.csv"), format="csv", schema="v string", files_per_batch=4)


def versions(spark: SparkSession, folder: Path) -> DeltaSpout:
    """Six versions that append, then one with a DELETE."""
    for number in range(ROWS):
        frame = spark.sql(f"SELECT '{number}' AS v")
        frame.write.format("delta").mode("append").save(str(folder))
    spark.sql(f"DELETE FROM delta.`{folder}` WHERE v = '0'")
    return DeltaSpout(str(folder), versions_per_batch=4)


def slowly(rows: DataFrame) -> DataFrame:
    """Nothing of it is read before the next txids are planned."""
    return rows.repartition(2)


@pytest.mark.parametrize(
    ("source", "error", "told"),
    [(files, TopologyError, "9:00"), (versions, SourceChangedError, "DELETE")],
)
def test_an_error_of_planning_comes_after_what_was_planned(
    spark: SparkSession,
    warehouse: Path,
    source: Callable[[SparkSession, Path], Any],
    error: type[Exception],
    told: str,
) -> None:
    """Everything before it is delivered, whatever the batches' sizes; then the run ends with it."""
    topology = Topology("refused")
    rows = topology.stream("s", source(spark, warehouse / "source")).transform(slowly)
    rows.partition_persist(AppendTable(warehouse / "rows"))
    with pytest.raises(error, match=told):
        run_in_memory(topology, spark)
    stored = spark.read.format("delta").load(str(warehouse / "rows"))
    assert sorted(row.v for row in stored.collect()) == [str(n) for n in range(ROWS)]
