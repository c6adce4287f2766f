"""What a start does with a first batch that was planned for another schema."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from committers.append_table import AppendTable
from spouts.files import FileSpout
from spouts.memory import MemoryTransactionalSpout
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.errors import BatchError, RecoveryRefusedError, TopologyError
from txn.testing import MemoryNodes, run_in_memory


def program(folder: Path, schema: str, *, other: bool) -> Topology:
    """A file of texts; and, if it is wanted, a stream of another kind beside it."""
    topology = Topology("t", TopologyConfig(retry_backoff_ms=0))
    files = topology.stream("files", FileSpout(f"{folder}/*.csv", format="csv", schema=schema))
    files.transform(lambda df: df.selectExpr("CAST(n AS string) AS n")).partition_persist(
        AppendTable(folder / "out")
    )
    if other:
        rows = topology.stream("rows", MemoryTransactionalSpout([[(1,)]], "n int"))
        rows.partition_persist(AppendTable(folder / "rows"))
    return topology


@pytest.mark.parametrize("other", [False, True])
def test_a_first_batch_is_planned_anew_where_no_record_can_be_missed(
    other: bool, tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a source that may begin otherwise the former schema is asked for, as ever."""
    (tmp_path / "a.csv").write_text("7\nx\n")
    nodes = MemoryNodes()
    with pytest.raises(BatchError, match="MALFORMED"):
        run_in_memory(program(tmp_path, "n int", other=other), spark, nodes)
    caplog.set_level(logging.WARNING, "txn")
    anew = "nothing is committed yet, so what was planned is planned anew"
    if other:
        planned = {path: text for path, text in nodes.data.items() if "batches/" in path}
        with pytest.raises(TopologyError, match="has changed: field 1 was `n` int"):
            run_in_memory(program(tmp_path, "n string", other=other), spark, nodes)
        assert planned
        assert planned.items() <= nodes.data.items()
        assert anew not in caplog.text
        return
    run_in_memory(program(tmp_path, "n string", other=other), spark, nodes)
    assert rows_of(tmp_path / "out", "n") == [("7",), ("x",)]
    assert anew in caplog.text


@pytest.mark.parametrize("case", ["filtered", "idle", "merged"])
def test_a_table_that_would_begin_in_the_middle_is_refused_whatever_was_read_last(
    case: str, tmp_path: Path, spark: SparkSession
) -> None:
    """No row was left of the newest txid; or another stream had it; or the table reads two."""

    def made(*, late: bool) -> Topology:
        topology = Topology("t", TopologyConfig(max_group_commit=1))
        one, two = (
            topology.stream(n, FileSpout(f"{tmp_path}/{n}/*.csv", format="csv", schema="n int"))
            for n in ("one", "two")
        )
        kept = one.transform(lambda df: df.where("n > 0"))
        kept.partition_persist(AppendTable(tmp_path / "kept"))
        two.partition_persist(AppendTable(tmp_path / "other"))
        if late:
            read = one.merge(two) if case == "merged" else one
            read.partition_persist(AppendTable(tmp_path / "late"))
        return topology

    nodes = MemoryNodes()
    for name, text in (
        ("one/a.csv", "7"),
        ("two/a.csv", "8"),
        *([("one/b.csv", "-7")] if case == "filtered" else [("two/b.csv", "8")]),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        run_in_memory(made(late=False), spark, nodes)
    with pytest.raises(RecoveryRefusedError, match="late' is new to topology 't'"):
        run_in_memory(made(late=True), spark, nodes)
