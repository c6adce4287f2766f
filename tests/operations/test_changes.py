"""What differs between a program and what is durable, compared without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.changes import Verdict
from txn.dataflow.graph import NewValues
from txn.errors import TableRefusedError
from txn.interfaces import Aggregate
from txn.operations.changes.tables import RebuildCost, compare_tables, refuse_tables
from txn.operations.changes.topology import PlannedChange, TopologyChanges, compare_topology
from txn.testing import MemoryNodes, run_in_memory
from txn.topology import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES: list[Any] = [[("a", "x", 1), ("b", "x", 2)], [("a", "y", 3)]]
COLUMNS = "k string, c string, v bigint"
VALUES: dict[str, Aggregate] = {"n": Count(), "s": Sum("v")}


def whole(df: Any) -> Any:
    """A transform that changes nothing."""
    return df


def positive(df: Any) -> Any:
    """Another transform."""
    return df.where("v > 0")


def program(
    *,
    keys: Sequence[str] = ("k",),
    values: Mapping[str, Aggregate] | None = None,
    totals: str = "totals",
    rows: str = "rows",
    streams: Sequence[str] = ("s",),
    name: str = "changing",
    transform: Callable[[Any], Any] = whole,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Topology:
    """A state and an append table over one stream, or a change of that."""
    topology = Topology(name, TopologyConfig(max_group_commit=1, **(settings or {})))
    first, *others = (
        topology.stream(stream, MemoryTransactionalSpout(BATCHES, COLUMNS)) for stream in streams
    )
    first.transform(transform).partition_persist(AppendTable(rows))
    state = StateTable(totals, **options)
    first.group_by(*keys).persistent_aggregate(state, **(values or VALUES))
    for stream in others:
        stream.partition_persist(AppendTable("others"))
    return topology


class World:
    """The tables and the progress that one topology has left, in the working directory."""

    def __init__(self, history: Path, folder: Path, nodes: dict[int, MemoryNodes]) -> None:
        self._history, self._folder, self._nodes = history, folder, nodes
        self.nodes = MemoryNodes()
        self.take(2)

    def take(self, txid: int, *tables: str) -> None:
        """Bring these tables (or all, and the progress) to the end of this txid."""
        if not tables:
            self.nodes.data, self.nodes.epochs = (
                dict(self._nodes[txid].data),
                dict(self._nodes[txid].epochs),
            )
        for table in tables or ("totals", "rows"):
            shutil.rmtree(self._folder / table, ignore_errors=True)
            shutil.copytree(self._history / str(txid) / table, self._folder / table)

    def compare(self, topology: Topology, *, asked: bool = True) -> TopologyChanges:
        """Compare a program with all that is durable, or with the tables alone."""
        return compare_topology(topology, self.nodes if asked else None)


@pytest.fixture(scope="module")
def history(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[int, MemoryNodes]]:
    """The tables and the progress after txid 1, and after txid 2."""
    folder, nodes = tmp_path_factory.mktemp("history"), MemoryNodes()
    left = {}
    with pytest.MonkeyPatch.context() as patch:
        (folder / "live").mkdir()
        patch.chdir(folder / "live")
        for txid in (1, 2):
            run_in_memory(program(), spark, nodes, until=txid)
            shutil.copytree(folder / "live", folder / str(txid))
            left[txid] = MemoryNodes()
            left[txid].data, left[txid].epochs = dict(nodes.data), dict(nodes.epochs)
    return folder, left


@pytest.fixture
def world(
    history: tuple[Path, dict[int, MemoryNodes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> World:
    """What is left after txid 2."""
    monkeypatch.chdir(tmp_path)
    return World(history[0], tmp_path, history[1])


def shown(changes: TopologyChanges) -> list[tuple[str, Verdict, bool, int | None]]:
    """Subject, verdict, whether it is allowed, and its txid."""
    return [
        (p.change.subject, p.change.verdict, p.change.allowed, p.from_txid) for p in changes.changes
    ]


def only(changes: TopologyChanges) -> PlannedChange:
    """The one change."""
    (planned,) = changes.changes
    return planned


# --- a table's shape -------------------------------------------------------------------------


def test_nothing_differs_for_the_program_of_the_last_run(world: World) -> None:
    """The same program has no difference, whether the progress is asked or not."""
    changes = world.compare(program())
    assert (changes.changes, changes.committed, changes.is_refused) == ((), 2, False)
    alone = world.compare(program(), asked=False)
    assert (alone.changes, alone.committed) == ((), None)
    assert alone.unasked is not None


@pytest.mark.parametrize(
    ("change", "settings", "verdict", "what"),
    [
        ({"values": {**VALUES, "most": Max("v")}}, {}, Verdict.FROM_NEXT, "value 'most' is new"),
        (
            {"values": {"n": Count()}},
            {"dropped_columns": ("totals:s",)},
            Verdict.CHOICE,
            "value 's' of the table is not in the program",
        ),
        (
            {"buckets": 2},
            {"rebuilt_tables": ("./totals",)},
            Verdict.REBUILD,
            "its buckets change from 4 to 2",
        ),
    ],
)
def test_a_change_is_allowed_at_once_or_by_its_setting(
    world: World, change: dict[str, Any], settings: dict[str, Any], verdict: Verdict, what: str
) -> None:
    """What begins with the next txid needs no setting; a choice and a rebuild need theirs, which
    the way out names.
    """
    refused = only(world.compare(program(**change)))
    assert (refused.change.verdict, refused.change.what) == (verdict, what)
    assert refused.change.allowed is (not settings)
    for name in settings:
        assert (f"{name}=" in refused.change.way_out, refused.change.number) == (True, "TXN-304")
    allowed = only(world.compare(program(**change, settings=settings)))
    assert (allowed.change.allowed, allowed.from_txid) == (True, 3)


def test_a_rebuild_has_its_cost(world: World) -> None:
    """The rows and bytes of the table's files, and the time in proportion to its rows."""
    cost = only(world.compare(program(buckets=2))).cost
    files = DeltaTable("totals").get_add_actions()
    assert cost is not None
    assert (cost.rows, cost.bytes) == (2, sum(files["size_bytes"].to_pylist()))
    assert RebuildCost(10_000_000, 1).seconds > 5 * cost.seconds > 0
    assert only(world.compare(program(values={**VALUES, "m": Max("v")}))).cost is None


def test_a_key_that_the_rows_lack_is_refused(world: World) -> None:
    """No setting allows it, and the way out names another."""
    change = only(world.compare(program(keys=("k", "c")))).change
    assert (change.verdict, change.allowed) == (Verdict.REFUSED, False)
    assert "a table of its own path" in change.way_out


def test_all_differences_are_there_at_once(world: World) -> None:
    """Those of a table's shape, of tables, of streams and of the program, each with its number."""
    changed = program(
        values={"n": Sum("v")},
        rows="others_rows",
        streams=("t",),
        transform=positive,
        settings={"new_tables": ("others_rows",)},
        buckets=2,
    )
    changes = world.compare(changed)
    numbers = {p.change.subject: p.change.number for p in changes.changes}
    assert numbers == {
        "totals": "TXN-304",
        "rows": "TXN-812",
        "others_rows": "",
        "s": "TXN-806",
        "t": "",
        "changing": "",
    }
    assert [p.change.what for p in changes.changes if p.change.subject == "totals"] == [
        "its buckets change from 4 to 2",
        "value 'n' is Count(*) in the table and Sum(v) in the program",
        "value 's' of the table is not in the program",
    ]


def test_columns_are_compared_if_they_are_known(world: World) -> None:
    """An append table's columns and a state's keys count if Spark has told them."""
    columns = {
        "rows": {"k": "string", "v": "double", "w": "long"},
        "totals": {"k": "long", "n": "long", "s": "long"},
    }
    changes = compare_topology(program(), world.nodes, columns)
    assert sorted(p.change.what for p in changes.changes) == [
        "column 'c' of the table is not in the program",
        "column 'k' changes from string to long",
        "column 'v' changes from long to double",
        "column 'w' is new",
    ]


# --- whose table it is -----------------------------------------------------------------------


def newest(table: str) -> Path:
    """The newest commit file of a table."""
    return max(Path(table, "_delta_log").glob("*.json"))


def append_metadata(table: str, **properties: str) -> None:
    """Change a table's properties, as another writer does."""
    first = Path(table, "_delta_log", f"{0:020d}.json").read_text().splitlines()
    (metadata,) = (json.loads(line)["metaData"] for line in first if '"metaData"' in line)
    metadata["configuration"].update(properties)
    info = {"commitInfo": {"timestamp": 0, "operation": "SET TBLPROPERTIES", "engineInfo": "a"}}
    path = newest(table).with_name(f"{int(newest(table).stem) + 1:020d}.json")
    path.write_text("\n".join(map(json.dumps, (info, {"metaData": metadata}))))


@pytest.mark.parametrize(
    ("properties", "number", "told"),
    [
        ({"txn.topology": "other"}, "TXN-302", "belongs to topology 'other'"),
        ({"txn.format": "9"}, "TXN-802", "has format version 9"),
        ({"delta.enableRowTracking": "true"}, "TXN-303", "uses the Delta feature row tracking"),
        ({"txn.keys": "k"}, "TXN-311", "does not describe itself"),
    ],
)
def test_a_table_that_a_start_refuses_is_a_difference(
    world: World, properties: dict[str, str], number: str, told: str
) -> None:
    """Another topology's table, a newer format, a feature, a broken description: refused, with the
    version in which another writer made it so.
    """
    append_metadata("totals", **properties)
    change = only(world.compare(program())).change
    assert (change.verdict, change.number, told in change.what) == (Verdict.REFUSED, number, True)
    assert "It was changed in version" in change.what


def test_a_change_by_another_writer_is_not_the_programs(world: World) -> None:
    """What the settings would allow is refused if somebody else has changed the table."""
    append_metadata("totals", **{"txn.buckets": "2"})
    change = only(world.compare(program(settings={"rebuilt_tables": ("totals",)}))).change
    assert (change.verdict, change.what) == (Verdict.REFUSED, "its buckets change from 2 to 4")
    assert change.way_out.startswith("It was changed in version")


def test_properties_of_another_writer_do_not_matter(world: World) -> None:
    """Somebody else's own properties leave a change of the program possible."""
    append_metadata("totals", team="sales", **{"txn.accepted_version": "1"})
    assert world.compare(program()).changes == ()
    change = only(
        world.compare(program(buckets=2, settings={"rebuilt_tables": ("totals",)}))
    ).change
    assert (change.verdict, change.allowed) == (Verdict.REBUILD, True)


def test_a_folder_with_other_files_is_refused(world: World) -> None:
    """A folder that is no table and has files of something else is not used for one."""
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    settings = {"new_tables": ("full",), "dropped_tables": ("rows",)}
    changed = [p.change for p in world.compare(program(rows="full", settings=settings)).changes]
    assert [(c.subject, c.number) for c in changed] == [("full", "TXN-301"), ("rows", "")]


# --- tables and streams ----------------------------------------------------------------------


def test_a_moved_table_carries_on(world: World) -> None:
    """A table under another path that holds the committed txid is the same table."""
    shutil.move("totals", "sums")
    moved = only(world.compare(program(totals="sums")))
    assert (moved.change.subject, moved.change.verdict) == ("sums", Verdict.CARRIES_ON)
    assert (moved.change.what, moved.from_txid) == ("the table was 'totals' so far", None)


def test_a_table_under_a_path_where_nothing_is_may_be_a_moved_one(world: World) -> None:
    """Whether it is new or moved has to be said first."""
    change = only(world.compare(program(totals="sums"))).change
    assert (change.number, change.verdict) == ("TXN-807", Verdict.CHOICE)


def test_new_and_dropped_tables_need_their_settings(world: World) -> None:
    """A table with the rows from now on, and one that is given up."""
    added = world.compare(program(streams=("s", "t")))
    assert (
        shown(added)
        == [("t", Verdict.FROM_NEXT, True, 3), ("others", Verdict.FROM_NEXT, True, 3)][::-1]
    )
    both = program(rows="elsewhere", settings={"new_tables": ("elsewhere",)})
    assert [p.change.number for p in world.compare(both).changes] == ["TXN-812", ""]
    settings = {"new_tables": ("elsewhere",), "dropped_tables": ("rows",)}
    allowed = world.compare(program(rows="elsewhere", settings=settings))
    assert shown(allowed) == [
        ("elsewhere", Verdict.FROM_NEXT, True, 3),
        ("rows", Verdict.CHOICE, True, 3),
    ]
    assert "its rows stay" in allowed.changes[1].change.what


def test_a_setting_that_names_no_table_is_told(world: World) -> None:
    """A name that is misspelt, or left over from a former program, refuses nothing and is shown."""
    change = only(world.compare(program(settings={"backfilled_tables": ("row",)}))).change
    assert (change.verdict, change.allowed) == (Verdict.CARRIES_ON, True)
    assert change.what == (
        "backfilled_tables names 'row', which is no table of the program; did you mean 'rows'?"
    )


def test_a_setting_that_gives_up_nothing_is_told(world: World) -> None:
    """A dropped table or stream that nobody knows is misspelt, or left over; it refuses nothing."""
    settings = {"dropped_tables": ("totls",), "dropped_streams": ("t",)}
    changes = [p.change for p in world.compare(program(settings=settings)).changes]
    assert [(change.verdict, change.allowed) for change in changes] == [
        (Verdict.CARRIES_ON, True),
        (Verdict.CARRIES_ON, True),
    ]
    assert [change.what for change in changes] == [
        "dropped_tables names 'totls', of which nothing is recorded; did you mean 'totals'?",
        "dropped_streams names 't', of which nothing is recorded",
    ]


def test_each_new_table_is_named(world: World) -> None:
    """Two tables that would lack the past are two refusals, by the tables' logs alone as well."""

    def with_two() -> Topology:
        topology = program()
        stream = topology.stream("t", MemoryTransactionalSpout(BATCHES, COLUMNS))
        stream.partition_persist(AppendTable("of_t"))
        for name in ("first", "second"):
            Stream(topology, topology.sinks[0].parent).partition_persist(AppendTable(name))
        return topology

    expected = [("first", "TXN-809"), ("second", "TXN-809"), ("of_t", "")]
    alone = world.compare(with_two(), asked=False)
    assert [(p.change.subject, p.change.number) for p in alone.changes] == expected
    assert all(f"'{p.change.subject}' is new" in p.change.what for p in alone.changes[:2])
    asked = world.compare(with_two())
    assert [(p.change.subject, p.change.number) for p in asked.changes] == [*expected, ("t", "")]


def test_a_renamed_or_dropped_stream_is_no_refusal(world: World) -> None:
    """A stream with its former name carries on; one that the settings give up needs no more."""
    renamed = Topology("changing", TopologyConfig(max_group_commit=1))
    stream = renamed.stream("t", MemoryTransactionalSpout(BATCHES, COLUMNS), was="s")
    stream.transform(whole).partition_persist(AppendTable("rows"))
    stream.group_by("k").persistent_aggregate(StateTable("totals"), **VALUES)
    assert shown(world.compare(renamed)) == [("t", Verdict.CARRIES_ON, True, None)]
    dropped = world.compare(program(streams=("t",), settings={"dropped_streams": ("s",)}))
    assert shown(dropped)[:2] == [
        ("s", Verdict.CHOICE, True, 3),
        ("t", Verdict.FROM_NEXT, True, 3),
    ]


def test_a_table_may_get_its_history(world: World) -> None:
    """A new table of `backfilled_tables` needs no other setting, and one that reads a state is
    refused.
    """

    def with_late(*late: str) -> Topology:
        topology = program(settings={"backfilled_tables": late})
        stream = Stream(topology, topology.sinks[0].parent)
        stream.partition_persist(AppendTable("late"))
        totals = next(sink for sink in topology.sinks if sink.name == "totals")
        Stream(topology, NewValues(totals)).partition_persist(AppendTable("values"))
        return topology

    numbers = [p.change.number for p in world.compare(with_late()).changes]
    assert numbers == ["TXN-809", "TXN-809"]
    for asked in (True, False):
        late, values = (
            p.change for p in world.compare(with_late("late", "values"), asked=asked).changes
        )
        assert (late.verdict, late.allowed) == (Verdict.REBUILD, True)
        assert late.what == "it lacks txids 1 to 2: what they read is read anew for it"
        assert (values.subject, values.allowed, values.number) == ("values", False, "TXN-809")


def test_a_stream_is_new_or_gone(world: World) -> None:
    """A lost stream is refused; a new one begins with the next txid."""
    changes = world.compare(program(streams=("t",)))
    assert shown(changes)[:2] == [
        ("s", Verdict.CHOICE, False, None),
        ("t", Verdict.FROM_NEXT, True, 3),
    ]
    assert changes.changes[0].change.number == "TXN-806"


def test_changed_code_begins_with_the_next_txid(world: World) -> None:
    """A transform that computes something else is named with its place."""
    changed = only(world.compare(program(transform=positive)))
    assert (changed.change.verdict, changed.from_txid) == (Verdict.FROM_NEXT, 3)
    assert changed.change.what.startswith("transform positive (")


# --- where the run would begin ---------------------------------------------------------------


def test_the_txid_counts_from_what_the_tables_hold(world: World) -> None:
    """Progress that a crash has left behind its tables is rolled forward, as by a start."""
    world.take(1)
    world.take(2, "totals", "rows")
    changed = world.compare(program(values={**VALUES, "most": Max("v")}))
    assert (changed.committed, only(changed).from_txid) == (2, 3)


def test_a_table_that_is_half_published_is_not_changed(world: World) -> None:
    """Where only some tables hold a txid, a rebuild waits for it; an opaque table that only gets a
    value takes it back.
    """
    world.take(1)
    world.take(2, "totals")
    rebuilt = program(buckets=2, settings={"rebuilt_tables": ("totals",)})
    first, second = (p.change for p in world.compare(rebuilt).changes)
    assert (first.verdict, second.verdict) == (Verdict.REBUILD, Verdict.REFUSED)
    assert second.what.startswith("it holds rows of txid 2, which a crash left")
    assert world.compare(rebuilt).begun == (2,)
    added = world.compare(program(values={**VALUES, "most": Max("v")}))
    assert shown(added) == [("totals", Verdict.FROM_NEXT, True, 2)]


def test_tables_that_contradict_the_progress_are_refused_each(world: World) -> None:
    """One is behind the progress, and one is ahead: both are named."""
    world.take(1, "rows")
    behind = only(world.compare(program())).change
    assert (behind.subject, behind.number) == ("rows", "TXN-804")
    world.nodes = MemoryNodes()
    changes = world.compare(program())
    assert [(p.change.subject, p.change.number) for p in changes.changes] == [("totals", "TXN-803")]


def test_a_topology_that_runs_is_compared_without_its_txid(world: World) -> None:
    """Its leader goes on meanwhile: the next txid is not known."""
    store = world.nodes.open("changing")
    store.lead()
    changes = world.compare(program(values={**VALUES, "most": Max("v")}))
    store.close()
    assert changes.leader is not None
    assert shown(changes) == [("totals", Verdict.FROM_NEXT, True, None)]


def test_nothing_is_there_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topology has no differences."""
    monkeypatch.chdir(tmp_path)
    for asked in (None, MemoryNodes()):
        changes = compare_topology(program(), asked)
        assert (changes.is_new, changes.changes) == (True, ())


# --- before Spark ----------------------------------------------------------------------------


def test_the_refusal_has_the_words_of_the_start(world: World, spark: SparkSession) -> None:
    """What is refused before Spark is refused by a start with the same text and number."""
    changed = program(values={"n": Count()}, buckets=2)
    with pytest.raises(TableRefusedError) as early:
        refuse_tables(compare_tables(changed.definition))
    with pytest.raises(TableRefusedError) as late:
        run_in_memory(program(values={"n": Count()}, buckets=2), spark, world.nodes)
    assert (str(early.value), early.value.number) == (str(late.value), late.value.number)


def test_all_tables_are_refused_in_one_message(world: World) -> None:
    """The text of each refused table is there; a table that would be refused later is not."""
    append_metadata("rows", **{"txn.topology": "other"})
    with pytest.raises(TableRefusedError) as refused:
        refuse_tables(compare_tables(program(buckets=2).definition))
    text = str(refused.value)
    assert text.startswith("Table rows belongs to topology 'other'")
    assert "Table totals differs from the program: its buckets change from 4 to 2." in text
    assert refused.value.number == "TXN-302"
    refuse_tables(compare_tables(program(rows="new").definition)[:1])
