"""Tables with layout="upsert" hold values as readers see them, under their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers import aggregates as agg
from committers.state_table import StateTable
from tests.committers.test_changing_shape import FIRST, SECOND, THIRD, World
from txn.errors import TableRefusedError, TopologyError

if TYPE_CHECKING:
    from pyspark.sql import Column

VALUES = {
    "n": agg.Count(),
    "mean": agg.Avg("v"),
    "kinds": agg.CountDistinct("c"),
    "last": agg.Last("c", "v"),
}


@pytest.fixture
def world(driver: Any, warehouse: Path) -> World:
    """A new table."""
    return World(driver, warehouse / "t")


def with_delta_alone(path: Path, names: list[str]) -> set[tuple[Any, ...]]:
    """Columns of a table, as delta-rs reads them."""
    rows = DeltaTable(str(path)).to_pyarrow_table(columns=names).to_pylist()
    return {tuple(row.values()) for row in rows}


def fields_of(path: Path) -> dict[str, Any]:
    """Column -> its description in the table's schema."""
    schema = json.loads(DeltaTable(str(path)).schema().to_json())
    return {field["name"]: field for field in schema["fields"]}


@pytest.mark.parametrize("semantics", ["opaque", "transactional", "non_transactional"])
def test_a_value_has_its_name_and_what_it_is_computed_from_stands_behind(
    world: World, semantics: str
) -> None:
    """With `layout="upsert"`, a table holds each value under its name as `StateTable.read` shows
    it. All other columns come after the values, and say so; Delta keeps bounds of keys and txid.
    """
    world.start(world.state(values=VALUES, semantics=semantics))
    for rows in (FIRST, SECOND):
        world.commit(rows)
    names = ["k", *VALUES]
    assert with_delta_alone(world.path, names) == world.read()
    assert ("a", 3, 10 / 3, 2, "x") in world.read()
    fields = fields_of(world.path)
    assert [*fields][: len(names)] == names
    kinds = [fields[name]["type"] for name in names]
    assert kinds == ["string", "long", "double", "long", "string"]
    notes = {name: field["metadata"].get("comment") for name, field in fields.items()}
    assert {name for name, note in notes.items() if note is None} == {*names}
    assert notes["txn_stored_mean"] == "internal to txn: what mean is computed from"
    properties = DeltaTable(str(world.path)).metadata().configuration
    assert properties["delta.dataSkippingStatsColumns"].startswith("k,txid")
    assert "mean" not in properties["delta.dataSkippingStatsColumns"]


def test_an_opaque_replay_takes_values_back(world: World) -> None:
    """The values of an attempt that failed are gone, also under their names."""
    world.start(world.state(values=VALUES))
    world.commit(FIRST)
    before = world.read()
    world.publish([("a", "q", 50), ("new", "q", 1)])
    assert with_delta_alone(world.path, ["k", *VALUES]) == world.read() != before
    world.start(world.state(values=VALUES))
    world.commit([("b", "x", 10)], attempt=1)
    assert with_delta_alone(world.path, ["k", *VALUES]) == world.read()
    assert world.read() == {row for row in before if row[0] != "b"} | {("b", 2, 10.0, 1, "x")}


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_table_of_a_former_release_goes_on(
    world: World, semantics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the stored forms under the names, shows the same, gains a new value under its name,
    and is written anew by `rebuilt_tables`.
    """
    options: dict[str, Any] = {"values": VALUES, "semantics": semantics}
    with monkeypatch.context() as former:
        former.setattr("committers.state_table.overrides", lambda *_: False)
        world.start(world.state(**options))
        world.commit(FIRST)
    old = fields_of(world.path)
    assert old["mean"]["type"] != "double"
    assert "txn_stored_mean" not in old
    assert world.start(world.state(**options)) == ()
    world.commit(SECOND)
    assert fields_of(world.path) == old
    more = {**options, "values": {**VALUES, "spread": agg.StdDev("v")}}
    assert len(world.start(world.state(**more))) == 1
    world.commit(THIRD)
    new = fields_of(world.path)
    assert (new["mean"], new["spread"]["type"]) == (old["mean"], "double")
    before = world.read()
    assert ("b", 2, 6.5, 2, "x", 4.949747468305833) not in before  # the value began with txid 3
    changed = world.start(world.state(**more), rebuilt=True)
    assert len(changed) == len(VALUES) - 1
    assert all("stands under its name as" in change for change in changed)
    assert world.read() == before == with_delta_alone(world.path, ["k", *VALUES, "spread"])
    world.commit(SECOND)
    assert world.read() == with_delta_alone(world.path, ["k", *VALUES, "spread"]) != before
    assert world.start(world.state(**more), rebuilt=True) == ()


def test_a_table_with_removals_keeps_its_values_when_it_is_rebuilt(world: World) -> None:
    """Rows that are written anew have no mark of removal, and all of their values."""
    options: dict[str, Any] = {"values": VALUES, "remove_where": "n > 100"}
    world.start(world.state(**options))
    world.commit(FIRST)
    before = world.read()
    world.start(world.state(**options, buckets=7), rebuilt=True)
    assert with_delta_alone(world.path, ["k", *VALUES]) == world.read() == before
    world.commit(SECOND)
    assert with_delta_alone(world.path, ["k", *VALUES]) == world.read()


class Doubled(agg.Sum):
    """Shows another value than it stores, as only its own program knows."""

    def result(self, stored: Column) -> Column:
        """Twice the sum."""
        return stored * 2


def test_a_value_of_ones_own_is_read_without_its_program(driver: Any, world: World) -> None:
    """Readers without the aggregate see its values; `aggregates=` may be passed still."""
    world.start(world.state(values={"twice": Doubled("v")}))
    world.commit(FIRST)
    wanted = {("a", 6), ("b", 20), (None, 10)}
    assert world.read() == with_delta_alone(world.path, ["k", "twice"]) == wanted
    state = StateTable(world.path)
    passed = state.read(driver.spark, aggregates={"twice": Doubled("v")})
    assert {tuple(row) for row in passed.collect()} == wanted
    got = state.get(driver.spark, ["a"], aggregates={"twice": Doubled("v")}).collect()
    assert [tuple(row) for row in got] == [("a", 6)]
    assert {tuple(row.values()) for row in state.to_arrow().to_pylist()} == wanted
    with pytest.raises(TableRefusedError, match="aggregates= has"):
        state.read(driver.spark, aggregates={"twice": agg.Sum("v")})


def test_a_key_cannot_have_the_name_of_a_stored_form(world: World) -> None:
    """The refusal names the column."""
    with pytest.raises(TopologyError, match="cannot use 'txn_stored_mean' as a key"):
        world.state(keys=["txn_stored_mean"], values={"mean": agg.Avg("v")})
