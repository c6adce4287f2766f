"""A table takes the shape of a changed program between two txids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Avg, Count, Fold, Last, Max, Min, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from txn.delta.log import TableLog
from txn.errors import TableRefusedError
from txn.interfaces import Aggregate, Committer, CommitterContext
from txn.interfaces.committer_capabilities import ChangesShape
from txn.storage.storage import Storage

ROWS = "k string, c string, v bigint"
FIRST = [("a", "x", 1), ("a", "y", 2), ("b", "x", 10), (None, "x", 5)]
SECOND = [("a", "x", 7), ("c", "y", 100)]
THIRD = [("b", "y", 3), (None, "y", 4)]

LAYOUTS = ("upsert", "log")
SEMANTICS = ("opaque", "transactional")


class World:
    """One table and the programs that open it, one after the other."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        self.path = path
        self.epoch = 0
        self.committed = 0
        self.committer: Any = None

    def start(
        self,
        committer: Committer,
        schema: str = ROWS,
        *,
        dropped: Sequence[str] = (),
        rebuilt: bool = False,
    ) -> tuple[str, ...]:
        """Begin a run of another program; return what was changed."""
        self.epoch += 1
        context = CommitterContext(
            "tests",
            self.epoch,
            first_txid=self.committed + 1,
            dropped_columns=tuple(f"{self.path}:{name}" for name in dropped),
            rebuilt_tables=(str(self.path),) if rebuilt else (),
        )
        partials = committer.partials(self.driver.frame([], schema))
        committer.open(self.driver.spark, context, partials.schema)
        committer.fence()
        self.committer, self.schema = committer, schema
        assert isinstance(committer, ChangesShape)
        publish = committer.change_shape(self.committed)
        return () if publish is None else publish()

    def stop(self) -> None:
        """End the run."""
        self.committer.close()

    def commit(self, rows: Sequence[tuple[Any, ...]], attempt: int = 0) -> None:
        """Commit the next txid."""
        self.publish(rows, attempt)
        self.committed += 1

    def publish(self, rows: Sequence[tuple[Any, ...]], attempt: int = 0) -> None:
        """Publish the next txid, which is not committed yet."""
        batch = self.driver.frame(rows, self.schema)
        self.driver.commit(self.committer, batch, self.committed + 1, attempt, self.epoch)

    def state(
        self,
        keys: Sequence[str] = ("k",),
        values: Mapping[str, Aggregate] | None = None,
        **options: Any,
    ) -> Committer:
        """A committer of a program with these values."""
        table = StateTable(self.path, **options)
        return table.bind(list(keys), dict(values or {"n": Count(), "s": Sum("v")}))

    def read(self, txid: int | None = None) -> set[tuple[Any, ...]]:
        """Keys and values, each row once."""
        rows = [tuple(r) for r in StateTable(self.path).read(self.driver.spark, txid).collect()]
        assert len(set(rows)) == len(rows)
        return set(rows)

    def columns(self, txid: int | None = None) -> list[str]:
        """The columns that a reader sees."""
        return list(StateTable(self.path).read(self.driver.spark, txid).columns)

    def appended(self) -> list[dict[str, Any]]:
        """The rows of an append table, as delta-rs reads them."""
        rows = DeltaTable(str(self.path)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: tuple(map(str, row.values())))


@pytest.fixture
def world(driver: Any, warehouse: Path) -> World:
    """A new table."""
    return World(driver, warehouse / "t")


# --- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_new_value_begins_with_the_next_txid(world: World, layout: str, semantics: str) -> None:
    """A value that the program adds is NULL for keys that no later txid has touched, the others
    stay as they are, and the txid before shows the former columns.
    """
    options = {"layout": layout, "semantics": semantics}
    world.start(world.state(**options))
    world.commit(FIRST)
    more = {"n": Count(), "most": Max("v"), "mean": Avg("v"), "s": Sum("v"), "again": Count()}
    told = world.start(world.state(values=more, **options))
    assert told == ("value 'most' is new", "value 'mean' is new", "value 'again' is new")
    world.commit(SECOND)
    none = 0 if layout == "log" else None  # the count of no partials
    assert world.columns() == ["k", "n", "most", "mean", "s", "again"]
    assert world.read() == {
        ("a", 3, 7, 7.0, 10, 1),
        ("b", 1, None, None, 10, none),
        (None, 1, None, None, 5, none),
        ("c", 1, 100, 100.0, 100, 1),
    }
    assert world.read(txid=1) == {("a", 2, 3), ("b", 1, 10), (None, 1, 5)}
    world.commit(THIRD)
    assert {row for row in world.read() if row[0] in ("b", None)} == {
        ("b", 2, 3, 3.0, 13, 1),
        (None, 2, 4, 4.0, 9, 1),
    }
    properties = DeltaTable(str(world.path)).metadata().configuration
    assert properties["txn.since"] == '{"most": 2, "mean": 2, "again": 2}'


def test_the_log_tells_when_a_table_skipped_replays(world: World) -> None:
    """What such a table records may be a dead attempt's plan, also if it is opaque by now."""
    for semantics in ("transactional", "opaque", "transactional"):
        world.start(world.state(semantics=semantics))
        world.commit(FIRST)
    entries = list(TableLog(Storage(str(world.path))).publications())
    assert [(one.publication.last_txid, one.of_skipping) for one in entries] == [
        (3, True),
        (2, False),
        (1, True),
    ]


def test_a_former_txid_has_its_shape_if_only_delta_can_read_it(world: World) -> None:
    """The txid before a change shows the former columns also of a table with a type that needs
    Delta's own reader.
    """
    rows = "k string, c string, v timestamp_ntz"
    last = {"last": Max("v")}
    world.start(world.state(values=last), rows)
    world.commit([("a", "x", datetime(2026, 1, 1))])
    world.start(world.state(values={**last, "n": Count()}), rows)
    world.commit([("a", "x", datetime(2027, 1, 1))])
    assert world.read() == {("a", datetime(2027, 1, 1), 1)}
    assert world.read(txid=1) == {("a", datetime(2026, 1, 1))}


def test_a_new_fold_begins_with_the_next_txid(world: World) -> None:
    """A value that stores another type than its partial begins with its first rows, too."""
    world.start(world.state())
    world.commit(FIRST)
    fold = Fold("0L", "acc * 2 + row.v", "c", "v")
    world.start(world.state(values={"n": Count(), "s": Sum("v"), "f": fold}))
    world.commit([("a", "x", 1), ("a", "y", 2)])
    world.commit([("a", "x", 1), ("b", "x", 1)])
    assert {row[0]: row[3] for row in world.read()} == {"a": 9, "b": 1, None: None}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_value_goes_away_only_if_a_setting_says_so(world: World, layout: str) -> None:
    """A program without a value of the table is refused, with the txid that brought the value; the
    setting of the message ends it; old files keep it, so putting it back takes a rebuild, after
    which it begins afresh.
    """
    world.start(world.state(layout=layout))
    world.commit(FIRST)
    more = {"n": Count(), "s": Sum("v"), "most": Max("v")}
    world.start(world.state(values=more, layout=layout))
    world.commit(SECOND)
    less = {"n": Count(), "s": Sum("v")}
    with pytest.raises(TableRefusedError) as refused:
        world.start(world.state(values=less, layout=layout))
    assert "value 'most' of the table (added with txid 2) is not in the program" in str(
        refused.value
    )
    assert f"dropped_columns={world.path}:most" in str(refused.value)
    world.start(world.state(values=less, layout=layout), dropped=["most"])
    world.commit(THIRD)
    assert world.read() == {("a", 3, 10), ("b", 2, 13), (None, 2, 9), ("c", 1, 100)}
    with pytest.raises(
        TableRefusedError, match="old files of the table have a column of that name"
    ):
        world.start(world.state(values=more, layout=layout))
    world.start(world.state(values=more, layout=layout), rebuilt=True)
    assert {row[3] for row in world.read()} == {None}
    world.commit(SECOND)
    assert {row[0]: row[3] for row in world.read()} == {"a": 7, "b": None, None: None, "c": 100}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_in_another_order_change_nothing(world: World, layout: str) -> None:
    """No version is written for another order, which readers see with the next change."""
    world.start(world.state(layout=layout))
    world.commit(FIRST)
    other = {"s": Sum("v"), "n": Count()}
    assert world.start(world.state(values=other, layout=layout)) == ()
    world.commit(SECOND)
    assert world.columns() == ["k", "n", "s"]
    world.start(world.state(values={**other, "most": Max("v")}, layout=layout))
    assert world.columns() == ["k", "s", "n", "most"]
    assert {row[:3] for row in world.read()} == {
        ("a", 10, 3),
        ("b", 10, 1),
        (None, 5, 1),
        ("c", 100, 1),
    }


def test_another_aggregate_under_the_same_name_is_refused(world: World) -> None:
    """A sum is not continued as a maximum; under another name it begins with the next txid."""
    world.start(world.state())
    world.commit(FIRST)
    with pytest.raises(TableRefusedError, match=r"value 's' is Sum\(v\) .* Give Max\(v\) another"):
        world.start(world.state(values={"n": Count(), "s": Max("v")}))
    world.start(world.state(values={"n": Count(), "s": Sum("v"), "m": Max("v")}))


def test_every_difference_is_told_at_once(world: World) -> None:
    """One error has all differences, and each way out once; no setting helps beside one that is
    refused for good.
    """
    world.start(world.state())
    world.commit(FIRST)
    with pytest.raises(TableRefusedError) as refused:
        world.start(world.state(["k", "c"], {"n": Sum("v")}, buckets=2))
    told = str(refused.value)
    parts = ("key 'c' is new", "from 4 to 2", "value 'n' is Count(*) in the table", "value 's' of")
    assert [part for part in parts if part not in told] == []
    assert "rebuilt_tables=" not in told
    with pytest.raises(TableRefusedError) as allowed:
        world.start(world.state(values={"s": Sum("v")}, buckets=2))
    assert str(allowed.value).count("rebuilt_tables=") == 2
    assert str(allowed.value).count("dropped_columns=") == 2


# --- rebuilds --------------------------------------------------------------------------------


SHAPES: Mapping[str, Mapping[str, Any]] = {
    "buckets": {"buckets": 7},
    "layout": {"other_layout": True},
    "key renamed": {"keys": ["kk"], "columns_were": {"kk": "k"}},
    "value renamed": {
        "values": {"n": Count(), "total": Sum("v"), "mean": Avg("v"), "last": Last("c", "v")},
        "columns_were": {"total": "s"},
    },
    "semantics": {"semantics": "transactional"},
    "key dropped": {"keys": []},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", SHAPES)
def test_a_rebuilt_table_goes_on_as_if_it_had_always_been_so(
    world: World, layout: str, case: str
) -> None:
    """After a change of buckets, layout, names, keys or semantics the table has what the changed
    program gives over all records, also when the run has ended, and a reader as of the txid before
    sees the former shape.
    """
    asked = dict(SHAPES[case])
    values = {"n": Count(), "s": Sum("v"), "mean": Avg("v"), "last": Last("c", "v")}
    options: dict[str, Any] = {"values": values, "layout": layout}
    world.start(world.state(**options))
    world.commit(FIRST)
    world.commit(SECOND)
    before, columns = world.read(), world.columns()
    if asked.pop("other_layout", False):
        asked["layout"] = "log" if layout == "upsert" else "upsert"
    after = {**options, **asked}
    schema = ROWS.replace("k string", "kk string") if case == "key renamed" else ROWS
    needs = case != "semantics" and not (case == "buckets" and layout == "log")
    if needs:
        with pytest.raises(TableRefusedError, match="rebuilt_tables="):
            world.start(world.state(**after), schema)
        assert world.read() == before
    told = world.start(world.state(**after), schema, rebuilt=needs)
    assert bool(told) == (needs or case == "semantics")
    assert (world.read(2), world.columns(2)) == (before, columns)
    world.commit(THIRD)
    world.committer.close()
    other = World(world.driver, world.path.parent / "other")
    other.start(other.state(**after), schema)
    for rows in (FIRST, SECOND, THIRD):
        other.commit(rows)
    assert (world.columns(), world.read()) == (other.columns(), other.read())
    assert DeltaTable(str(world.path)).to_pyarrow_table().num_rows >= len(world.read())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_types_are_widened_by_a_rebuild(world: World, layout: str) -> None:
    """An int becomes a bigint in keys and values."""
    narrow = "k int, c string, v int"
    options = {"values": {"n": Count(), "most": Max("v")}, "layout": layout}
    world.start(world.state(**options), narrow)
    world.commit([(1, "x", 2), (2, "x", 3)])
    wide = "k bigint, c string, v bigint"
    with pytest.raises(TableRefusedError, match="'k' changes from integer to long; .*'most'"):
        world.start(world.state(**options), wide)
    world.start(world.state(**options), wide, rebuilt=True)
    world.commit([(1, "x", 2**40), (2**40, "x", 5)])
    assert world.read() == {(1, 2, 2**40), (2, 1, 3), (2**40, 1, 5)}
    world.commit([(2, "x", 1)])
    with pytest.raises(TableRefusedError, match="1 of column 'k' do not fit int, 1 of .*'most'"):
        world.start(world.state(**options), narrow, rebuilt=True)
    assert world.read() == {(1, 2, 2**40), (2, 2, 3), (2**40, 1, 5)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rebuilt_table_outlives_its_run(world: World, layout: str) -> None:
    """The end of the run that has rebuilt a table deletes nothing of it, nor does the next start,
    and no record of the rebuild is left.
    """
    world.start(world.state(["k", "c"], layout=layout))
    world.commit(FIRST)
    options = {"layout": layout}
    world.start(world.state(**options), rebuilt=True)
    for rows in (SECOND, THIRD):
        before = world.read()
        world.stop()
        assert world.read() == before
        world.start(world.state(**options))
        world.commit(rows)
    assert world.read() == {("a", 3, 10), ("b", 2, 13), (None, 2, 9), ("c", 1, 100)}
    world.stop()
    assert not list(world.path.glob("_txn/compaction-*"))


def test_the_files_of_a_rebuild_stay_for_its_readers(world: World) -> None:
    """The versions before a rebuild and of it stay readable, also after OPTIMIZE has replaced the
    files of the rebuild and another leader has started.
    """
    world.start(AppendTable(world.path), "v bigint, k string")
    world.commit([(1, "a")])
    before = DeltaTable(str(world.path)).version()
    world.start(
        AppendTable(world.path, columns_were={"user": "k"}), "v bigint, user string", rebuilt=True
    )
    table = DeltaTable(str(world.path))
    rebuilt = table.version()
    table.optimize.z_order(["v"])
    world.stop()
    world.start(AppendTable(world.path), "v bigint, user string")
    for version, name in ((before, "k"), (rebuilt, "user"), (None, "user")):
        table = DeltaTable(str(world.path), version=version)
        assert table.to_pyarrow_table().to_pylist() == [{"v": 1, name: "a", "txid": 1}]


def test_a_generation_is_compared_before_it_takes_the_tables_place(world: World) -> None:
    """A next generation that another program has filled is refused also if the columns of the
    stream were not known yet when it was attached.
    """
    world.start(world.state())
    world.commit(FIRST)
    batch = world.driver.frame(FIRST, ROWS)
    other = world.committer.generation(begin=True)
    context = CommitterContext("tests", 1)
    other.open(world.driver.spark, context, other.partials(batch).schema)
    world.driver.commit(other, batch, 1)
    committer: Any = world.state(values={"n": Count(), "s": Sum("v"), "most": Max("v")})
    context = CommitterContext("tests", 2, first_txid=2)
    committer.open(world.driver.spark, context, None)
    committer.generation(begin=False)
    committer.open(world.driver.spark, context, committer.partials(batch).schema)
    committer.fence()
    with pytest.raises(TableRefusedError, match="next generation of table .* 'most' is new"):
        committer.change_shape(1)


def test_a_key_that_goes_away_merges_its_rows(world: World) -> None:
    """Rows that differ only in a key that the program no longer has become one."""
    world.start(world.state(["k", "c"]))
    world.commit(FIRST)
    world.start(world.state(["c"]), rebuilt=True)
    world.commit(SECOND)
    assert world.read() == {("x", 4, 23), ("y", 2, 102)}


def test_a_fold_cannot_be_merged(world: World) -> None:
    """Keys whose values are no partials are not merged."""
    fold = {"f": Fold("0L", "acc + row.v", "c", "v")}
    world.start(world.state(["k", "c"], fold))
    world.commit(FIRST)
    with pytest.raises(TableRefusedError, match="Value 'f' of table .* cannot be merged"):
        world.start(world.state(["c"], fold), rebuilt=True)
    world.start(world.state(["k", "c"], fold, buckets=2), rebuilt=True)
    world.commit(SECOND)
    assert {row for row in world.read() if row[0] == "a"} == {("a", "x", 8), ("a", "y", 2)}


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_removal_begins_and_ends(world: World, layout: str, semantics: str) -> None:
    """A condition takes keys away from the next txid on, and without it they come back only when
    rows bring them.
    """
    options = {"layout": layout, "semantics": semantics}
    world.start(world.state(**options))
    world.commit(FIRST)
    needs = layout == "log"
    world.start(world.state(remove_where="s > 10", **options), rebuilt=needs)
    world.commit(SECOND)
    assert world.read() == {("a", 3, 10), ("b", 1, 10), (None, 1, 5)}
    world.commit([("b", "x", 1)])
    assert world.read() == {("a", 3, 10), (None, 1, 5)}
    with pytest.raises(TableRefusedError, match="remove_where changes from 's > 10' to nothing"):
        world.start(world.state(**options))
    world.start(world.state(**options), rebuilt=True)
    world.commit([("b", "x", 50)])
    assert world.read() == {("a", 3, 10), (None, 1, 5), ("b", 1, 50)}


def test_removed_keys_stay_away_under_other_semantics(world: World) -> None:
    """An opaque table's marks of removed keys do not become keys of a transactional one."""
    removal = {"remove_where": "s > 5"}
    world.start(world.state(**removal))
    world.commit(FIRST)
    world.commit(SECOND)
    assert world.read() == {(None, 1, 5)}
    other = {**removal, "semantics": "transactional"}
    with pytest.raises(TableRefusedError, match="rebuilt_tables="):
        world.start(world.state(**other))
    world.start(world.state(**other), rebuilt=True)
    assert world.read() == {(None, 1, 5)}
    world.commit([("a", "x", 1)])
    assert world.read() == {("a", 1, 1), (None, 1, 5)}


def test_previous_values_do_not_become_a_value(world: World) -> None:
    """Old files of a table that was opaque have columns of that name."""
    world.start(world.state())
    world.commit(FIRST)
    world.commit(SECOND)
    other: dict[str, Any] = {"semantics": "transactional"}
    world.start(world.state(**other))
    other["values"] = {"n": Count(), "s": Sum("v"), "prev_s": Sum("v")}
    with pytest.raises(TableRefusedError, match="old files of the table have a column"):
        world.start(world.state(**other))
    world.start(world.state(**other), rebuilt=True)
    assert {row[3] for row in world.read()} == {None}


FOLDED = {"n": Count(), "s": Sum("v"), "f": Fold("0L", "acc + row.v", "c", "v")}


@pytest.mark.parametrize("former", [{"layout": "log"}, {"keys": ("k", "c")}], ids=str)
def test_a_value_that_a_rebuild_adds_begins_afresh(world: World, former: dict[str, Any]) -> None:
    """A new value whose partials have another type needs none of the rows that there are."""
    world.start(world.state(**former))
    world.commit(FIRST)
    world.start(world.state(values=FOLDED), rebuilt=True)
    world.commit(SECOND)
    assert world.read() == {
        ("a", 3, 10, 7),
        ("b", 1, 10, None),
        (None, 1, 5, None),
        ("c", 1, 100, 100),
    }


# --- half a txid -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_opaque_replay_straddles_a_new_value(world: World, layout: str) -> None:
    """A txid that a crash left in an opaque table is taken back after the change as before it."""
    world.start(world.state(layout=layout))
    world.commit(FIRST)
    world.publish(SECOND)
    more = {"n": Count(), "s": Sum("v"), "most": Max("v")}
    world.start(world.state(values=more, layout=layout))
    world.commit(THIRD, attempt=1)
    assert world.read() == {("a", 2, 3, None), ("b", 2, 13, 3), (None, 2, 9, 4)}


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_rebuild_waits_for_half_a_txid(world: World, semantics: str) -> None:
    """A table with rows that are not committed is not rebuilt, and a transactional one takes no
    new value; the former program commits the txid, then it works.
    """
    former = {"semantics": semantics}
    world.start(world.state(**former))
    world.commit(FIRST)
    world.publish(SECOND)
    more = {"n": Count(), "s": Sum("v"), "most": Max("v")}
    tried = [{"buckets": 2}] + [{"values": more}] * (semantics == "transactional")
    for asked in tried:
        with pytest.raises(TableRefusedError, match=r"rows of txid 2, .* \(--until 2\)"):
            world.start(world.state(**former, **asked), rebuilt=True)
    world.start(world.state(**former))
    world.commit(SECOND, attempt=1)
    world.start(world.state(**former, buckets=2, values=more), rebuilt=True)
    world.commit(THIRD)
    assert {row[:3] for row in world.read()} == {
        ("a", 3, 10),
        ("b", 2, 13),
        (None, 2, 9),
        ("c", 1, 100),
    }


# --- append tables ---------------------------------------------------------------------------


def test_columns_of_an_append_table(world: World) -> None:
    """Columns are added, reordered and dropped at once, and renamed by a rebuild."""
    world.start(AppendTable(world.path))
    world.commit([("a", "x", 1)])
    world.start(AppendTable(world.path), "v bigint, k string, c string, more double")
    world.commit([(2, "b", "y", 0.5)])
    both = [
        {"v": 1, "k": "a", "c": "x", "more": None, "txid": 1},
        {"v": 2, "k": "b", "c": "y", "more": 0.5, "txid": 2},
    ]
    assert world.appended() == both
    with pytest.raises(TableRefusedError, match="column 'c' of the table is not in the program"):
        world.start(AppendTable(world.path), "v bigint, k string, more double")
    world.start(AppendTable(world.path), "v bigint, k string, more double", dropped=["c"])
    assert world.appended() == [{k: v for k, v in row.items() if k != "c"} for row in both]
    renamed = AppendTable(world.path, columns_were={"user": "k"})
    world.start(renamed, "v bigint, user string, more double", rebuilt=True)
    world.commit([(3, "c", None)])
    assert [row["user"] for row in world.appended()] == ["a", "b", "c"]
    again = "v bigint, user string, more double, c string"
    world.start(AppendTable(world.path), again)
    assert {row["c"] for row in world.appended()} == {None}


def test_types_of_an_append_table(world: World) -> None:
    """A wider type takes a rebuild; a narrower one too, if every value fits."""
    world.start(AppendTable(world.path), "k string, v bigint")
    world.commit([("a", 1), ("b", 2**40)])
    with pytest.raises(TableRefusedError, match="1 of column 'v' do not fit int"):
        world.start(AppendTable(world.path), "k string, v int", rebuilt=True)
    world.start(AppendTable(world.path), "k string, v decimal(20,2)", rebuilt=True)
    assert [str(row["v"]) for row in world.appended()] == ["1.00", "1099511627776.00"]


def test_names_of_any_kind(world: World) -> None:
    """A column with a colon is dropped by its name, and fields of any names get other types."""
    world.start(AppendTable(world.path), "`ns:a` string, s struct<`first-name`:int>")
    world.commit([("x", (1,))])
    wide = "s struct<`first-name`:bigint>"
    world.start(AppendTable(world.path), wide, dropped=["ns:a"], rebuilt=True)
    assert world.appended() == [{"s": {"first-name": 1}, "txid": 1}]


def test_types_without_a_cast(world: World) -> None:
    """The refusal names the column, and says what Spark says."""
    world.start(AppendTable(world.path), "v boolean")
    world.commit([(True,)])
    with pytest.raises(TableRefusedError, match="Column 'v' .* cannot get its new type: .*BOOLEAN"):
        world.start(AppendTable(world.path), "v date", rebuilt=True)


NTZ = datetime(2026, 1, 1)
COLUMNS = {
    "t timestamp_ntz": NTZ,
    "t array<timestamp_ntz>": [NTZ],
    "t struct<x:timestamp_ntz>": (NTZ,),
    "t array<struct<x:timestamp_ntz>>": [(NTZ,)],
}
BRINGS = [
    *(("column", column) for column in COLUMNS),
    *((case, "t timestamp_ntz") for case in ("upsert", "log", "type", "empty")),
]


def protocol(path: Path) -> tuple[int, int, set[str], set[str]]:
    """Versions and features that a table's log asks of readers and writers."""
    found = DeltaTable(str(path)).protocol()
    versions = found.min_reader_version, found.min_writer_version
    return *versions, {*(found.reader_features or ())}, {*(found.writer_features or ())}


@pytest.mark.parametrize(("case", "column"), BRINGS)
def test_a_time_without_zone_brings_its_feature(world: World, case: str, column: str) -> None:
    """A table that gets a `timestamp_ntz`, nested or not, by a new column or value, by a rebuild or
    while it is empty, has the table feature that a table created with it has, so that Spark and
    delta-rs read it.
    """
    value = COLUMNS[column]
    former, rows = "k string, v bigint", f"k string, v bigint, {column}"
    values: dict[str, Aggregate] = {"n": Count()}
    more = {**values, "last": Last("t", "v")}
    if case in LAYOUTS:
        options = {"layout": case}
        world.start(world.state(values=values, **options), former)
        world.commit([("a", 1), ("b", 1)])
        world.start(world.state(values=more, **options), rows)
        names = ["k", "n", "last"]
    else:
        if case == "type":
            former = rows.replace("timestamp_ntz", "timestamp")
        world.start(AppendTable(world.path), former)
        if case != "empty":
            world.commit([("a", 1) if case == "column" else ("a", 1, None)])
        world.start(AppendTable(world.path), rows, rebuilt=case == "type")
        names = ["k", "v", "t"]
    world.commit([("a", 2, value)])
    created = World(world.driver, world.path.parent / "created")
    program = created.state(values=more, layout=case) if case in LAYOUTS else None
    created.start(program or AppendTable(created.path), rows)
    *asked, features = protocol(created.path)
    assert protocol(world.path) == (*asked, features | {"appendOnly", "invariants"})
    by_spark = world.driver.spark.read.format("delta").load(str(world.path))
    assert by_spark.schema == world.driver.spark.read.format("delta").load(str(created.path)).schema
    by_delta_rs = DeltaTable(str(world.path)).to_pyarrow_table()
    assert by_spark.count() == by_delta_rs.num_rows > 0
    if case in LAYOUTS:
        found = StateTable(world.path).read(world.driver.spark)
        own = [row["last"] for row in found.collect() if row["k"] == "a"]
        assert found.columns == names
    else:
        own = [row["t"] for row in by_spark.collect() if row["v"] == 2]
    assert own == [value]


def test_a_feature_beside_those_of_an_older_protocol(world: World) -> None:
    """A table whose writer version implies features keeps them, by name, beside the new one."""
    world.start(AppendTable(world.path), "v bigint")
    world.commit([(1,)])
    path = f"delta.`{world.path}`"
    world.driver.spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.minWriterVersion' = '4')")
    world.commit([(1,)])
    world.start(AppendTable(world.path), "v bigint, t timestamp_ntz")
    world.commit([(2, NTZ)])
    implied = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}
    assert protocol(world.path) == (3, 7, {"timestampNtz"}, {"timestampNtz", *implied})
    world.start(AppendTable(world.path), "v bigint, t timestamp_ntz, u timestamp_ntz")
    world.commit([(3, NTZ, NTZ)])
    assert [row["v"] for row in world.appended()] == [1, 1, 2, 3]
    assert world.driver.spark.sql(f"SELECT count(u) AS n FROM {path}").first()["n"] == 1


# --- the next generation ---------------------------------------------------------------------


def test_a_generation_is_compared_with_columns_that_come_late(world: World) -> None:
    """Where the columns of a stream are known with its first batch only, a generation that another
    program has filled is refused by then.
    """
    former = "k string, v bigint"
    world.start(AppendTable(world.path), former)
    world.commit([("a", 1)])
    context = CommitterContext("tests", 1, first_txid=2, rebuilt_tables=(str(world.path),))

    def opened(table: AppendTable, rows: str, *, begin: bool) -> None:
        table.open(world.driver.spark, context, None)
        generation = table.generation(begin=begin)
        assert generation is not None
        committer = generation if begin else table
        committer.open(world.driver.spark, context, world.driver.frame([], rows).schema)

    opened(AppendTable(world.path), former, begin=True)
    opened(AppendTable(world.path), former, begin=False)
    renamed = AppendTable(world.path, columns_were={"user": "k"})
    opened(renamed, "user string, v bigint", begin=False)
    with pytest.raises(TableRefusedError, match="'user'.* delete the folder .*generation-1, and"):
        renamed.change_shape(1)


def test_a_generation_has_the_new_names(world: World) -> None:
    """Two names that change places are no rename in a next generation, whose rows come from the
    source; the table's own rows do not tell which name is meant.
    """
    world.start(world.state(values={"n": Count(), "s": Sum("v")}))
    world.commit(FIRST)
    swapped = {"values": {"n": Sum("v"), "s": Count()}, "columns_were": {"n": "s", "s": "n"}}
    with pytest.raises(TableRefusedError, match="renames 's' to 'n', and the table has both"):
        world.start(world.state(**swapped))
    context = CommitterContext("tests", 3, first_txid=2)
    committer: Any = world.state(**swapped)
    batch = world.driver.frame(FIRST, ROWS)
    committer.open(world.driver.spark, context, None)
    generation = committer.generation(begin=True)
    generation.open(world.driver.spark, context, generation.partials(batch).schema)
    world.driver.commit(generation, batch, 1, 0, 3)
    committer = world.state(**swapped)
    committer.open(world.driver.spark, context, None)
    committer.generation(begin=False)
    committer.open(world.driver.spark, context, committer.partials(batch).schema)
    committer.fence()
    committer.change_shape(1)()
    assert world.read() == {("a", 3, 2), ("b", 10, 1), (None, 5, 1)}


# --- who changed it --------------------------------------------------------------------------


def test_a_change_by_somebody_else_is_not_taken_for_the_programs(world: World) -> None:
    """A column that ALTER TABLE has added stops the run, and the next start, by name."""
    world.start(AppendTable(world.path))
    world.commit([("a", "x", 1)])
    world.driver.spark.sql(f"ALTER TABLE delta.`{world.path}` ADD COLUMNS (w bigint)")
    with pytest.raises(TableRefusedError, match="column 'w' .*It was changed in version 2 "):
        world.commit([("b", "x", 1)])
    with pytest.raises(TableRefusedError, match="column 'w' .*It was changed in version 2 "):
        world.start(AppendTable(world.path))


def test_properties_by_somebody_else_are_carried_over(world: World) -> None:
    """What ALTER TABLE has set or noted at a table stays in its changed shapes, while a property of
    the topology's that it has changed is refused by name.
    """
    table = f"delta.`{world.path}`"
    world.start(world.state())
    world.commit(FIRST)
    world.driver.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('team' = 'sales')")
    retention = "'delta.logRetentionDuration' = 'interval 9 days'"
    world.driver.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({retention})")
    world.driver.spark.sql(f"ALTER TABLE {table} ALTER COLUMN s COMMENT 'of all'")
    values = {"n": Count(), "s": Sum("v"), "most": Max("v")}
    assert world.start(world.state(values=values)) == ("value 'most' is new",)
    world.commit(SECOND)
    world.driver.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('steward' = 'ann')")
    world.start(world.state(values=values, buckets=3), rebuilt=True)
    stored = DeltaTable(str(world.path))
    kept = {"team": "sales", "delta.logRetentionDuration": "interval 9 days", "steward": "ann"}
    assert kept.items() <= stored.metadata().configuration.items()
    (noted,) = (f.metadata for f in stored.schema().fields if f.name == "s")
    assert noted == {"comment": "of all"}
    assert world.read() == {
        ("a", 3, 10, 7),
        ("b", 1, 10, None),
        (None, 1, 5, None),
        ("c", 1, 100, 100),
    }
    world.driver.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('txn.buckets' = '3')")
    world.driver.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('txn.buckets' = '7')")
    world.driver.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('team' = 'none')")
    culprit = f"It was changed in version {stored.version() + 2} "
    with pytest.raises(TableRefusedError, match=rf"from 7 to 3\. {culprit}"):
        world.start(world.state(values=values, buckets=3), rebuilt=True)


def test_an_older_release_refuses_a_changed_table(world: World) -> None:
    """A changed table has format 2, which release 0.1.0 refuses by name; others keep format 1."""
    world.start(world.state())
    world.commit(FIRST)

    def written() -> str | None:
        return DeltaTable(str(world.path)).metadata().configuration.get("txn.format")

    assert written() == "1"
    world.start(world.state(values={"n": Count(), "s": Sum("v"), "least": Min("v")}))
    assert written() == "2"
    world.commit(SECOND)
