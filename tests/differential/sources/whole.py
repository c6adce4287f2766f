"""Reads a case with a whole topology: an append table, a table of bad rows, and their way back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from committers.append_table import AppendTable
from tests.differential.sources.declaration import Case
from tests.differential.sources.run import (
    Found,
    collected,
    columns_of,
    listening,
    spout_of,
    values_of,
    write_files,
)
from txn import Topology
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["read_through_a_topology"]


def read_through_a_topology(case: Case, spark: SparkSession, folder: Path) -> Found:
    """Run until caught up; rows and bad rows are what the two tables hold."""
    write_files(case, folder / "in")
    found = Found(attempted=tuple(file.name for file in case.files))
    with listening() as told:
        try:
            _run(case, spark, folder)
        except Exception as error:  # noqa: BLE001 - the judge looks at it
            found.error = error
    found.told = "\n".join(told)
    if (folder / "rows" / "_delta_log").exists():
        _read_tables(case, spark, folder, found)
    return found


def _run(case: Case, spark: SparkSession, folder: Path) -> None:
    topology = Topology(f"eye{case.seed}", bad_rows=AppendTable(folder / "bad"))
    stream = topology.stream("s", spout_of(case, folder / "in"))
    stream.partition_persist(AppendTable(folder / "rows"))
    run_in_memory(topology, spark, MemoryNodes())


def _read_tables(case: Case, spark: SparkSession, folder: Path, found: Found) -> None:
    rows = spark.read.format("delta").load(str(folder / "rows")).drop("txid")
    found.columns = columns_of(rows.schema)
    for row in collected(rows, found):
        found.add("", values_of(row, found.columns))
    if (folder / "bad" / "_delta_log").exists():
        aside = spark.read.format("delta").load(str(folder / "bad"))
        for row in collected(aside.select("position", "row"), found):
            found.set_aside(unquote(Path(row["position"]).name), row["row"])
