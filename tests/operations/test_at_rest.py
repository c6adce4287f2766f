"""`txn plan`: what a table whose rows end comes to, by how it has grown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.rate import RateSpout
from txn import Topology, TopologyConfig
from txn.operations.changes.at_rest import AtRest, sizes_at_rest
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR = 3_600_000_000
ROWS = 4_000
"""Of a txid, which is an hour of event time."""


def topology(warehouse: Path, until: int) -> Topology:
    """A new key per row, and keys that stay for ten hours; events are known for as long."""
    made = Topology("rest", TopologyConfig(max_spout_pending=1))
    spout = RateSpout(ROWS, total=until * ROWS, interval_us=HOUR // ROWS)
    rows = made.stream("rows", spout).watermark("timestamp", "1 second")
    once = rows.drop_duplicates("value", within="10 hours")
    once.group_by("value").persistent_aggregate(
        StateTable(warehouse / "state"), expire_after="10 hours", by="last event", n=Count()
    )
    once.partition_persist(AppendTable(warehouse / "rows"))
    return made


def test_the_size_at_rest_is_told_while_a_table_grows(spark: SparkSession, warehouse: Path) -> None:
    """After four of the ten txids whose rows stay, the estimate is what ten of them have."""
    nodes, sizes = MemoryNodes(), []
    assert sizes_at_rest(topology(warehouse, 1).definition) == ()
    for until in (4, 8):
        made = topology(warehouse, until)
        run_in_memory(made, spark, nodes)
        sizes.append({one.table: one for one in sizes_at_rest(made.definition)})
    early, late = sizes
    assert set(early) == {str(warehouse / "state"), str(warehouse / "rest_rows_keys_value")}
    for table, one in late.items():
        whole = one.bytes / 8 * 10
        for estimate in (early[table].estimate, one.estimate):
            assert whole / 1.2 < (estimate or 0) < whole * 1.2
        assert "10 h 00 min of event time" in one.text


@pytest.mark.parametrize(
    ("one", "estimate", "told"),
    [
        (AtRest("t", 30 * HOUR, 500), None, "500 bytes now"),
        (AtRest("t", 30 * HOUR, 2_000, 1_000, 10 * HOUR), 3_000, "roughly 3.0 kB at rest"),
        (AtRest("t", 30 * HOUR, 2_000, -500, 10 * HOUR), 2_000, "roughly 2.0 kB at rest"),
    ],
)
def test_an_estimate_is_never_less_than_what_is_there(
    one: AtRest, estimate: int | None, told: str
) -> None:
    """Without a watermark that goes on there is none; a table that shrinks is at rest."""
    assert one.estimate == estimate
    assert told in one.text
