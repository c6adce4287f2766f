"""The history of a topology as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txn
from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.errors import TopologyError
from txn.testing import run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_history_is_a_table_of_spark_arrow_and_pandas(
    spark: SparkSession, warehouse: Path
) -> None:
    """A row for each txid, the newest first; the same in each form, and as a plot."""
    topology = Topology("kept", TopologyConfig(max_spout_pending=1))
    batches = [[("a", 1), ("b", 2)], [("a", 3)], [("<b>", 4)]]
    stream = topology.stream("s", MemoryTransactionalSpout(batches, "k string, v int"))
    stream.partition_persist(AppendTable(warehouse / "rows"))
    stream.group_by("k").persistent_aggregate(StateTable(warehouse / "counts"), n=Count())
    report = run_in_memory(topology, spark)

    history = txn.history(topology)
    assert [entry.txid for entry in history] == [3, 2, 1]
    assert len(txn.history(topology, limit=2)) == 2
    assert [entry.txid for entry in history[1:]] == [2, 1]
    assert repr(history) == "<History of 'kept': 3 txids, 1 to 3>"
    table = history.to_arrow()
    assert table.column("txid").to_pylist() == [3, 2, 1]
    newest = table.slice(0, 1).to_pylist()[0]
    assert dict(newest["versions"]) == report.batches[-1].tables
    assert (newest["topology"], newest["attempt"], newest["committed"]) == ("kept", 0, True)
    assert json.loads(newest["metadata"])["s"]["index"] == 2
    assert newest["quarantined"] is None
    pandas = history.to_pandas()
    assert pandas["rows"][2] == {str(warehouse / "rows"): 2, str(warehouse / "counts"): 2}
    frame = history.to_spark(spark)
    (row,) = frame.where("txid = 2").collect()
    assert dict(row["versions"]) == report.batches[1].tables
    assert frame.schema["published_at"].dataType.simpleString() == "timestamp"
    assert history.plot()._suptitle is not None  # type: ignore[attr-defined]
    assert "<td>3</td>" in history._repr_html_()

    figure = report.plot()
    assert [axes.get_title(loc="left").split(" ")[0] for axes in figure.axes] == [
        *("Throughput", "Latency", "Lag:", "Timeline")
    ]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    """As by `txn history`; the oldest txids are not left out in silence."""
    with pytest.raises(TopologyError, match=f"limit={limit}: it must be 1 or more"):
        txn.history(Topology("t"), limit=limit)


def test_a_topology_that_has_committed_nothing(spark: SparkSession, warehouse: Path) -> None:
    """A table without a row, with all columns; a plot that says so."""
    empty = txn.operations.txids.History("empty", ())
    assert repr(empty) == "<History of 'empty': no txid>"
    assert (empty.to_arrow().num_rows, empty.to_arrow().num_columns) == (0, 13)
    (text,) = empty.plot().axes[0].texts
    assert text.get_text() == "Nothing was committed."
