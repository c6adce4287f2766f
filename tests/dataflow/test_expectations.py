"""Rules as they are declared: what is refused, what a plan shows. No Spark."""

from __future__ import annotations

from typing import Any

import pytest

from committers.append_table import AppendTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from txn import Topology
from txn.dataflow.evaluation import consumers
from txn.dataflow.expectations import rules_by_stream
from txn.errors import TopologyError
from txn.operations.plan import plan_topology

SCHEMA = "k string, v bigint"


def stream(**arguments: Any) -> tuple[Topology, Any]:
    """A topology and its one stream."""
    topology = Topology("ruled", **arguments)
    return topology, topology.stream("s", MemoryTransactionalSpout([], SCHEMA))


@pytest.mark.parametrize(
    ("name", "condition", "fate", "said"),
    [
        ("", "v > 0", "drop", "expect() of stream 's' needs a name, not ''"),
        ("positive", 1, "drop", "rule 'positive' needs a condition as SQL or as a Column, not int"),
        ("positive", "v > 0", "ignore", "on_violation='ignore' is none of 'fail', 'drop' and 'set"),
        ("positive", "v > 0", "set_aside", "bad_rows=AppendTable('warehouse/bad_rows'))"),
        ("known", "v > 0", "drop", "there is a rule 'known' already"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(name: str, condition: Any, fate: Any, said: str) -> None:
    """A name, a condition, a known fate and a place for rows: missing ones are named."""
    _, rows = stream()
    known = rows.expect("known", "k IS NOT NULL")
    with pytest.raises(TopologyError) as caught:
        known.expect(name, condition, fate)
    assert said in str(caught.value)


def test_a_rule_that_leads_nowhere_is_refused() -> None:
    """A table below the old stream is refused, as the rule would never be checked."""
    topology, rows = stream()
    rows.expect("known", "k IS NOT NULL")
    rows.partition_persist(AppendTable("rows"))
    with pytest.raises(TopologyError, match="Rule 'known' of stream 's' reaches no committer"):
        topology.check_complete("caught_up")


def test_the_table_of_bad_rows_is_a_table_of_the_topology() -> None:
    """It is checked like any other: its type, its place, and what its semantics rely on."""
    with pytest.raises(TopologyError, match="needs an AppendTable for bad_rows, not str"):
        Topology("ruled", bad_rows="bad")  # type: ignore[arg-type]
    topology, rows = stream(bad_rows=AppendTable("bad"))
    with pytest.raises(TopologyError, match="has a committer for table './bad' already"):
        rows.partition_persist(AppendTable("./bad"))
    with pytest.raises(TopologyError, match="ends nowhere"):
        topology.check_complete("caught_up")
    weak = Topology("ruled", bad_rows=AppendTable("bad", "transactional"))
    opaque = weak.stream("s", MemoryOpaqueSpout({}, SCHEMA))
    with pytest.raises(TopologyError, match="Stream 's' has an opaque spout, so its replays may"):
        opaque.expect("known", "k IS NOT NULL", "set_aside")


def test_a_plan_shows_rules_and_the_table_of_bad_rows() -> None:
    """Each rule is a stage with its condition; the table of bad rows is published last."""
    topology, rows = stream(bad_rows=AppendTable("bad"))
    known = rows.expect("known", "k IS NOT NULL", "set_aside")
    known.expect("positive", "v > 0", "drop").partition_persist(AppendTable("rows"))
    plan = plan_topology(topology)
    assert [(stage.id, stage.reads, stage.detail) for stage in plan.stages] == [
        ("s/expect-1", ("spout-s",), "known: k IS NOT NULL, else set aside"),
        ("s/expect-2", ("s/expect-1",), "positive: v > 0, else drop"),
        ("s/set_aside-1", ("s/expect-1",), ""),
    ]
    assert [(table.name, table.reads) for table in plan.tables] == [
        ("rows", "s/expect-2"),
        ("bad", "s/set_aside-1"),
    ]


def test_the_rules_of_a_stream_read_it_once() -> None:
    """Branches of rules share one look at the rows above them."""
    topology, rows = stream(bad_rows=AppendTable("bad"))
    known = rows.expect("known", "k IS NOT NULL", "set_aside")
    known.partition_persist(AppendTable("all"))
    known.expect("positive", "v > 0", "drop").partition_persist(AppendTable("more"))
    known.expect("negative", "v < 0", "drop").partition_persist(AppendTable("less"))
    (source,) = topology.sources
    assert consumers(topology.sinks)[source] == 1
    rules = rules_by_stream(topology.sinks)[source]
    assert [rule.name for rule in rules] == ["known", "positive", "negative"]
