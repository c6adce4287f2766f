"""What a run, a plan and a recovery read off a topology's definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from txn import Topology
from txn.dataflow.definition import Definition
from txn.errors import TopologyError
from txn.interfaces import Spout, SpoutKind

SCHEMA = "k string"


def made(folder: Path, *, opaque: bool = False, new_values: bool = False) -> Definition:
    """Two streams, each with an append table; an opaque one has one more, of running counts."""
    topology = Topology("t")
    first = topology.stream("fixed", MemoryTransactionalSpout([], SCHEMA))
    first.partition_persist(AppendTable(folder / "fixed", "transactional"))
    second: Any = MemoryOpaqueSpout({}, SCHEMA) if opaque else MemoryTransactionalSpout([], SCHEMA)
    other = topology.stream("other", second)
    other.partition_persist(AppendTable(folder / "other", "opaque"))
    if new_values:
        kept = other.group_by("k").persistent_aggregate(StateTable(folder / "n"), n=Count())
        kept.new_values().partition_persist(AppendTable(folder / "changes", "opaque"))
    return topology.definition


def test_a_definition_says_what_replays_may_change(tmp_path: Path) -> None:
    """Streams that are planned anew, tables that skip what they hold, whether rows may differ."""
    fixed, opaque = made(tmp_path), made(tmp_path, opaque=True)
    assert fixed.streams == opaque.streams == ("fixed", "other")
    assert (fixed.opaque_streams, opaque.opaque_streams) == (frozenset(), {"other"})
    assert fixed.skipping_tables == opaque.skipping_tables == {str(tmp_path / "fixed")}
    assert (fixed.replays_differ, opaque.replays_differ) == (False, True)


def test_what_is_staged_in_the_commit_turn_is_not_grouped(tmp_path: Path) -> None:
    """New values are those of one txid, so every txid gets a version of its own."""
    assert made(tmp_path).can_group
    assert not made(tmp_path, new_values=True).can_group


def test_which_tables_may_never_have_been_made(tmp_path: Path) -> None:
    """All but those whose streams were read, or are what a table that holds rows reads alone."""
    topology = Topology("t", bad_rows=AppendTable(tmp_path / "bad"))
    one, two = (topology.stream(n, MemoryTransactionalSpout([], SCHEMA)) for n in ("one", "two"))
    away = StateTable(tmp_path / "away")
    for name, stream in (
        ("first", one),
        ("second", one.transform(lambda df: df)),
        ("both", one.join(two, on="k")),
        ("asking", one.state_query(away, on="k")),
        ("set", one.expect("known", "k IS NOT NULL", "set_aside")),
    ):
        stream.partition_persist(AppendTable(tmp_path / name))

    def unborn(*holding: str, seen: tuple[str, ...] = ()) -> set[str]:
        names = [str(tmp_path / name) for name in holding]
        return {Path(name).name for name in topology.definition.unborn_tables(names, seen)}

    everything = {"first", "second", "both", "asking", "set", "bad"}
    assert unborn() == unborn("both") == everything
    assert unborn("first") == unborn(seen=("one",)) == {"both", "asking", "bad"}
    assert unborn(seen=("one", "two")) == unborn("first", seen=("two",)) == {"asking", "bad"}

    # A table that the former program did not name is new if something was read for it.
    def added(*read: str, seen: tuple[str, ...] = ()) -> set[str]:
        declared = [str(tmp_path / "first")]
        names = topology.definition.unborn_tables((), seen, declared, read)
        return {Path(name).name for name in names}

    assert added() == everything
    assert added("one") == {"first", "bad"}
    assert added("one", seen=("one",)) == {"bad"}


def test_a_definition_is_what_was_declared_so_far(tmp_path: Path) -> None:
    """What is declared later is in a later definition; one that leads nowhere is refused."""
    topology = Topology("t")
    stream = topology.stream("s", MemoryTransactionalSpout([], SCHEMA))
    before = topology.definition
    stream.partition_persist(AppendTable(tmp_path / "rows"))
    assert (before.sinks, len(topology.definition.sinks)) == ((), 1)
    topology.definition.check_complete()
    with pytest.raises(TopologyError, match="ends nowhere"):
        before.check_complete()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({}, r"Positions\.kind must be a SpoutKind.* and is None"),
        ({"kind": "opaque"}, r"Positions\.kind must be a SpoutKind.* and is 'opaque'"),
        ({"kind": SpoutKind.OPAQUE}, r"metadata_type must be a pydantic model.* and is None"),
        (
            {"kind": SpoutKind.OPAQUE, "metadata_type": dict},
            r"metadata_type must be a pydantic model.* and is <class 'dict'>",
        ),
    ],
)
def test_a_spout_says_what_it_is(said: dict[str, Any], error: str) -> None:
    """One whose class lacks its promise, or the model of its positions, is refused at once."""
    methods = {"initialize_transaction": print, "emit_batch": print}
    spout = type("Positions", (Spout,), {**methods, **said})()
    with pytest.raises(TopologyError, match=error):
        Topology("t").stream("rows", spout)
