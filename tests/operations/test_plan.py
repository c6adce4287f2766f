"""`txn plan`: what a topology will do and what it guarantees, without running any of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from txn import Topology
from txn.cli.app import cli
from txn.errors import TopologyError
from txn.interfaces import SpoutKind
from txn.operations.plan import TopologyPlan, plan_topology

ROOT = Path(__file__).parents[2]
SCHEMA = "k string, v int"

PROGRAM = """
from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from txn import Topology

topology = Topology("orders")
orders = topology.stream("orders", MemoryTransactionalSpout([], "k string, v int"))
clicks = topology.stream("clicks", MemoryOpaqueSpout({}, "k string, v int"))
prices = orders.transform(lambda df: df.where("v > 0"))
per_key = prices.group_by("k").aggregate(v=Sum("v"))
both = orders.merge(clicks).transform(lambda df: df.distinct())
joined = per_key.join(clicks, on="k", how="left")

totals = prices.group_by("k").persistent_aggregate(StateTable("t/totals"), n=Count(), v=Sum("v"))
joined.partition_persist(AppendTable("t/joined"))
both.partition_persist(AppendTable("t/both", semantics="non_transactional"))
totals.new_values().partition_persist(AppendTable("t/changes"))
clicks.state_query(totals, on="k").partition_persist(AppendTable("t/looked_up"))

loose = Topology("loose")
loose.stream("loose", MemoryTransactionalSpout([], "v int"))
"""


def txn_plan(
    folder: Path, *arguments: str, seed: str = "0", program: str = PROGRAM
) -> subprocess.CompletedProcess[str]:
    """`txn plan` in a process of its own, as a user starts it."""
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "txn", "plan", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )


def test_stage_ids_are_the_same_in_every_process(tmp_path: Path) -> None:
    """The same program gives the same ids, names and places, whatever Python's hashes are.

    Trident row 23.
    """
    plans = [txn_plan(tmp_path, "program.py:topology", "--json", seed=seed).stdout for seed in "12"]
    assert plans[0] == plans[1]
    stages = json.loads(plans[0])["stages"]
    assert [(stage["id"], stage["reads"]) for stage in stages] == [
        ("orders/transform-1", ["spout-orders"]),
        ("orders/aggregate-1", ["orders/transform-1"]),
        ("orders+clicks/join-1", ["orders/aggregate-1", "spout-clicks"]),
        ("orders+clicks/merge-1", ["spout-orders", "spout-clicks"]),
        ("orders+clicks/transform-1", ["orders+clicks/merge-1"]),
        ("orders/new_values-1", ["t/totals"]),
        ("clicks/state_query-1", ["spout-clicks"]),
    ]
    assert [stage["detail"] for stage in stages[:3]] == [
        "<lambda> (program.py:11)",
        "by k: v=Sum(v)",
        "left on k",
    ]


def test_text_names_streams_stages_tables_and_guarantees(tmp_path: Path) -> None:
    """A person sees kinds, stages with what they read, and per table a guarantee and its reason."""
    told = txn_plan(tmp_path, "program.py:topology")
    assert (told.returncode, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    assert lines[:5] == [
        "topology orders",
        "",
        "streams",
        "  spout-orders  MemoryTransactionalSpout  transactional",
        "  spout-clicks  MemoryOpaqueSpout         opaque",
    ]
    (values,) = (line for line in lines if line.startswith("  orders/new_values-1 "))
    assert values.split() == [
        "orders/new_values-1", "<-", "t/totals", "in", "the", "commit", "turn",
    ]  # fmt: skip
    place = next(n for n, line in enumerate(lines) if line.startswith("  t/both "))
    assert lines[place].endswith(
        "<- orders+clicks/transform-1  AppendTable, append, non_transactional"
    )
    assert lines[place + 1].startswith("    at least once: The table is non_transactional: ")


def test_a_table_of_bad_rows_without_a_rule_reads_nothing(tmp_path: Path) -> None:
    """It is named as what it is: there is no stage without inputs."""
    program = PROGRAM.replace('Topology("orders")', 'Topology("orders", bad_rows=AppendTable("b"))')
    told = txn_plan(tmp_path, "program.py:topology", program=program).stdout
    assert "set_aside-1" not in told
    assert "  b  no stream sets rows aside  AppendTable, append, opaque" in told


def test_a_plan_loads_neither_spark_nor_zookeeper(tmp_path: Path) -> None:
    """Planning needs no Java: pyspark and kazoo stay unloaded."""
    (tmp_path / "program.py").write_text(PROGRAM)
    code = (
        "import sys\n"
        "from txn.operations.loading import load_topology\n"
        "from txn.operations.plan import plan_topology\n"
        "plan_topology(load_topology('program.py:topology'))\n"
        "print([m for m in ('pyspark', 'kazoo') if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (said.stdout, said.stderr) == ("[]\n", "")


def test_a_plan_refuses_what_a_run_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topology that ends nowhere is refused in the words of `txn run`, with code 1."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(cli, ["plan", "program.py:loose"])
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert result.output.startswith("error: Topology 'loose' ends nowhere")


TRANSACTIONAL, OPAQUE, LOOSE = (
    SpoutKind.TRANSACTIONAL,
    SpoutKind.OPAQUE,
    SpoutKind.NON_TRANSACTIONAL,
)
ONCE, REPEATED, NONE, REFUSED = "exactly once", "at least once", "none", "refused"


def planned(kinds: list[SpoutKind], semantics: str) -> TopologyPlan:
    """The plan of one table over the merged streams of spouts of these kinds."""
    topology = Topology("pairs")
    streams = [
        topology.stream(
            f"s{n}",
            MemoryTransactionalSpout([], SCHEMA)
            if kind is TRANSACTIONAL
            else MemoryOpaqueSpout({}, SCHEMA, kind=kind),
        )
        for n, kind in enumerate(kinds)
    ]
    merged = streams[0].merge(*streams[1:]) if len(streams) > 1 else streams[0]
    merged.partition_persist(AppendTable("t", semantics=semantics))
    return plan_topology(topology)


@pytest.mark.parametrize(
    ("kinds", "semantics", "guarantee", "why"),
    [
        ([TRANSACTIONAL], "transactional", ONCE, "skips a txid that it holds"),
        ([TRANSACTIONAL], "opaque", ONCE, "Every replay is identical"),
        ([TRANSACTIONAL], "non_transactional", REPEATED, "is applied again"),
        ([OPAQUE], "transactional", REFUSED, "'s0' has an opaque spout"),
        ([OPAQUE], "opaque", ONCE, "reverts what a dead attempt published"),
        ([OPAQUE], "non_transactional", REPEATED, "is applied again"),
        ([LOOSE], "transactional", REFUSED, "'s0' has a non_transactional spout"),
        ([LOOSE], "opaque", REFUSED, "'s0' has a non_transactional spout"),
        ([LOOSE], "non_transactional", NONE, "may leave out what was read before"),
        ([TRANSACTIONAL, OPAQUE], "opaque", ONCE, "'s1' has an opaque spout"),
        ([TRANSACTIONAL, LOOSE], "non_transactional", NONE, "'s1' has a non_transactional spout"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_row_61_each_pair_has_its_guarantee(
    kinds: list[SpoutKind], semantics: str, guarantee: str, why: str
) -> None:
    """Row 61, guarantee matrix: exactly once for three pairs of nine; a weaker pair is refused."""
    if guarantee == REFUSED:
        with pytest.raises(TopologyError, match=why):
            planned(kinds, semantics)
        return
    (table,) = planned(kinds, semantics).tables
    assert guarantee == table.guarantee
    assert why in table.why


def test_an_operation_more_on_one_stream_renames_nothing_in_another() -> None:
    """Row 23, deterministic ids: they are numbered within their streams and operation."""

    def ids(extra: bool) -> set[str]:
        topology = Topology("t")
        left = topology.stream("left", MemoryTransactionalSpout([], SCHEMA))
        right = topology.stream("right", MemoryTransactionalSpout([], SCHEMA))
        if extra:
            left = left.transform(lambda df: df)
        left.partition_persist(AppendTable("a"))
        doubled = right.transform(lambda df: df)
        doubled.transform(lambda df: df).partition_persist(AppendTable("b"))
        doubled.group_by("k").persistent_aggregate(StateTable("c"), n=Count(), v=Sum("v"))
        return {stage.id for stage in plan_topology(topology).stages}

    assert ids(extra=False) == {"right/transform-1", "right/transform-2"}
    assert ids(extra=True) - ids(extra=False) == {"left/transform-1"}


@pytest.mark.parametrize(
    ("after", "as_of", "said"),
    [
        (
            False,
            "txid-1",
            "NULL from table 't' for each key that stream 'names' brings in the same",
        ),
        (False, "committed", "pass it to the other as stream(..., after=[...])"),
        (True, "committed", "for each key that is not committed when their batch is processed"),
        (True, "txid-1", None),
    ],
)
def test_a_plan_says_what_a_query_does_not_see(after: bool, as_of: Any, said: str | None) -> None:
    """A state that another stream of the topology fills has nothing for the first batch, unless
    that one is read before.
    """
    topology = Topology("sales")
    names = topology.stream("names", MemoryTransactionalSpout([], SCHEMA))
    state = names.group_by("k").persistent_aggregate(StateTable("t"), v=Sum("v"))
    middle = topology.stream("more", MemoryTransactionalSpout([], SCHEMA), after=[names] * after)
    middle.partition_persist(AppendTable("more"))
    facts = topology.stream(
        "facts", MemoryTransactionalSpout([], SCHEMA), after=[middle.merge(names)] * after
    )
    facts.state_query(state, on="k", as_of=as_of).partition_persist(AppendTable("seen"))
    # Running totals that a stream has of itself are meant so.
    names.state_query(state, on="k", as_of=as_of).partition_persist(AppendTable("own"))
    plan = plan_topology(topology)
    assert [stream.after for stream in plan.streams] == [
        (), ("names",) * after, ("more", "names") * after,
    ]  # fmt: skip
    assert len(plan.notes) == (said is not None)
    assert said is None or said in plan.notes[0]
    with pytest.raises(TopologyError, match="is to be read after <txn.topology.Stream .*after=\\["):
        Topology("other").stream("x", MemoryTransactionalSpout([], SCHEMA), after=[names])
