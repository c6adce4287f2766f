"""Streams that are renamed, left out, put back and added, through crashes around the change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from tests.faults.chains import assert_consistent, live_through
from tests.faults.driver import LogSpout, Span
from tests.faults.harness import Spec, make_records
from tests.faults.support import CrashedError, Points, crash_at, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.backends import open_backend
from txn.errors import ProgressUnreadableError, RecoveryRefusedError
from txn.interfaces import Spout, SpoutKind
from txn.operations.changes.topology import compare_topology
from txn.operations.history import history
from txn.operations.recover import is_needed, read_tables, write
from txn.protocol.backend import TopologyStatus
from txn.zookeeper import read_status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.embedded import EmbeddedZooKeeper

KINDS = ("transactional", "opaque")
TABLES = ("rows", "log", "totals")


class Log(LogSpout):
    """Records that name their stream; those in `poison` cannot be read."""

    poison: frozenset[str] = frozenset()

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Span
    ) -> DataFrame:
        """The planned records."""
        keys = {key for key, _ in self._records[metadata.start : metadata.end]}
        if keys & self.poison:
            raise FailedException("poisonous")
        return super().emit_batch(spark, attempt, metadata)


def records(name: str, count: int) -> list[tuple[str, int]]:
    """Records that are all different."""
    return [(f"{name}{number}", number) for number in range(count)]


@dataclass
class World:
    """A topology over three tables and any streams, on a ZooKeeper that can be wiped."""

    spark: SparkSession
    server: str
    folder: Path
    kind: str
    wiped: int = 0
    poison: frozenset[str] = frozenset()
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def hosts(self) -> str:
        """The ensemble."""
        return f"{self.server}/{self.folder.parent.name}-{self.wiped}"

    def topology(
        self,
        streams: Mapping[str, Sequence[tuple[str, int]]],
        was: Mapping[str, str] | None = None,
        late: Mapping[str, str] | None = None,
        **others: Spout[Any],
    ) -> Topology:
        """All streams merged into three tables; `was`: stream -> its former name; `late`: a table
        that was not there -> the stream that it gets; `others`: stream -> another spout.
        """
        settings = {
            "max_group_commit": 1,
            "max_spout_pending": 4,
            "retry_backoff_ms": 1,
            **self.config,
        }
        topology = Topology("changed", TopologyConfig(**settings))
        spouts = {name: Log(list(rows), SpoutKind(self.kind)) for name, rows in streams.items()}
        for spout in spouts.values():
            spout.poison = self.poison
        by_name = {
            name: topology.stream(name, spout, was=(was or {}).get(name))
            for name, spout in {**spouts, **others}.items()
        }
        first, *rest = by_name.values()
        merged = first.merge(*rest) if rest else first
        for table, stream in (late or {}).items():
            by_name[stream].partition_persist(AppendTable(self.folder / table, self.kind))
        merged.partition_persist(AppendTable(self.folder / "rows", self.kind))
        for name, layout in (("log", "log"), ("totals", "upsert")):
            state = StateTable(self.folder / name, self.kind, layout=layout)
            merged.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
        return topology

    def run(self, topology: Topology, until: Any = "caught_up", at: Points | None = None) -> int:
        """Run it; the newest txid."""
        with observing(at or Points()):
            report = topology.run(self.spark, zookeeper=self.hosts, until=until, progress=False)
        return report.committed_txid

    def crash(self, topology: Topology, point: str, txid: int = 1) -> None:
        """Run it, and let it die when a txid from this one on comes to a point."""
        with pytest.raises(CrashedError):
            self.run(topology, at=crash_at(point, txid))

    def status(self) -> TopologyStatus:
        """The durable state."""
        return read_status(self.hosts, "changed", TopologyConfig())

    def assert_holds(self, *streams: Sequence[tuple[str, int]]) -> None:
        """Every table holds each of these records once."""
        expected = sorted(row for rows in streams for row in rows)
        assert rows_of(self.folder / "rows", "k", "v") == expected
        for name in ("log", "totals"):
            shown = StateTable(self.folder / name).read(self.spark).select("k", "n", "total")
            assert sorted(map(tuple, shown.collect())) == [(k, 1, v) for k, v in expected]


@pytest.fixture(params=KINDS)
def world(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    warehouse: Path,
) -> World:
    """A world of this test alone, for either kind of spout."""
    return World(spark, zookeeper.hosts, warehouse, request.param)


CRASHES = (
    ("after-start", "between-publications"),
    ("between-publications", "after-start"),
    ("after-publish", "before-committed"),
    ("between-publications", "after-committed"),
)
"""Where the former program dies, and where the one that renames the stream does."""


@pytest.mark.parametrize(("before", "after"), CRASHES)
def test_a_renamed_stream_reads_every_record_once(world: World, before: str, after: str) -> None:
    """A stream that is renamed with `was=` reads every record once."""
    world.crash(world.topology({"orders": records("o", 30), "other": records("x", 9)}), before, 3)
    renamed = {"sales": records("o", 30), "other": records("x", 9)}
    world.crash(world.topology(renamed, {"sales": "orders"}), after)
    world.run(world.topology(renamed, {"sales": "orders"}))
    world.assert_holds(records("o", 30), records("x", 9))
    assert world.status().progress.committed.spouts.keys() == {"sales", "other"}
    more = {"sales": records("o", 40), "other": records("x", 9)}
    world.run(world.topology(more, {"sales": "orders"}))
    more = {"sales": records("o", 50), "other": records("x", 9)}
    world.run(world.topology(more))
    world.assert_holds(records("o", 50), records("x", 9))


def test_the_former_program_is_refused_and_goes_on_if_it_says_so(world: World) -> None:
    """A deployment that is taken back names the stream by its former name, with `was=` too."""
    world.run(world.topology({"orders": records("o", 9)}))
    world.run(world.topology({"sales": records("o", 14)}, {"sales": "orders"}))
    with pytest.raises(RecoveryRefusedError, match=r"'sales'.*stream\('orders', SPOUT, was='sal"):
        world.run(world.topology({"orders": records("o", 20)}))
    world.run(world.topology({"orders": records("o", 20)}, {"orders": "sales"}))
    world.assert_holds(records("o", 20))


@pytest.mark.parametrize("point", ["between-publications", "after-publish"])
def test_a_renamed_stream_is_recovered_from_the_tables(world: World, point: str) -> None:
    """`txn recover`, a status and a history have the present name, with the tables' former one."""
    world.crash(world.topology({"orders": records("o", 20)}), point, 3)
    renamed = world.topology({"sales": records("o", 20)}, {"sales": "orders"})
    world.wiped += 1
    with open_backend(world.hosts, renamed.settings) as backend:
        recovered = read_tables(renamed)
        assert is_needed(backend, renamed, recovered)
        write(backend, renamed, recovered)
    progress = world.status().progress
    assert progress.committed.spouts.keys() == {"sales"}
    assert all(batch.spouts.keys() == {"sales"} for batch in progress.batches)
    world.run(renamed)
    world.assert_holds(records("o", 20))
    committers = {sink.name: sink.committer for sink in renamed.sinks}
    as_read = history("changed", committers, committers=committers)
    shown = history("changed", committers, committers=committers, renamed={"orders": "sales"})
    assert {name for entry in as_read for name in entry.read} == {"orders", "sales"}
    assert {name for entry in shown for name in entry.read} == {"sales"}


def test_records_that_were_quarantined_under_the_former_name_are_replayed(world: World) -> None:
    """The record of the quarantine keeps the name; its replay reads the renamed stream."""
    world.config = {"max_batch_attempts": 1, "on_exhausted": "quarantine"}
    world.poison = frozenset({"o4"})
    world.run(world.topology({"orders": records("o", 12)}))
    (aside,) = world.status().quarantine
    assert aside.spouts.keys() == {"orders"}
    world.poison = frozenset()
    renamed = world.topology({"sales": records("o", 15)}, {"sales": "orders"})
    with open_backend(world.hosts, renamed.settings) as backend:
        backend.request_replays("changed", None)
    world.run(renamed)
    world.assert_holds(records("o", 15))
    assert world.status().quarantine == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("after-start", "after-start"),
        ("after-start", "between-publications"),
        ("after-publish", "after-start"),
        ("after-committed", "before-committed"),
    ],
)
def test_a_dropped_stream_goes_on_where_it_was(world: World, before: str, after: str) -> None:
    """A stream that is left out with `dropped_streams` keeps its position; declared again, it reads
    every record once, also those of batches that were open.
    """
    both = {"orders": records("o", 30), "returns": records("r", 30)}
    world.crash(world.topology(both), before, 3)
    open_ = world.status().progress.batches
    assert open_ or before != "after-start"
    without = {"orders": records("o", 40)}
    with pytest.raises(RecoveryRefusedError, match=r"'returns'.*dropped_streams=\('returns',\)"):
        world.run(world.topology(without))
    world.config = {"dropped_streams": ("returns",)}
    world.crash(world.topology(without), after)
    if before == "after-start" and after != "after-start":
        world.run(world.topology(without))
        held = {key for key, _ in rows_of(world.folder / "rows", "k", "v")}
        assert {key for key, _ in records("o", 40)} <= held
        assert len(held) < 70
    world.config = {}
    world.run(world.topology({"orders": records("o", 45), "returns": records("r", 33)}))
    world.assert_holds(records("o", 45), records("r", 33))


def test_a_stream_is_not_dropped_while_some_tables_hold_its_rows(world: World) -> None:
    """The error names the txid that the former program has to complete; then it may go."""
    both = {"orders": records("o", 30), "returns": records("r", 30)}
    world.crash(world.topology(both), "between-publications", 3)
    world.config = {"dropped_streams": ("returns",)}
    without = {"orders": records("o", 30)}
    with pytest.raises(RecoveryRefusedError, match="Txid 3 .*'returns'.*`--until 3`"):
        world.run(world.topology(without))
    world.config = {}
    assert world.run(world.topology(both), until=3) == 3
    world.config = {"dropped_streams": ("returns",)}
    world.run(world.topology(without))
    world.config = {}
    world.run(world.topology(both))
    world.assert_holds(*both.values())


def test_quarantined_records_of_a_dropped_stream_stay_in_quarantine(world: World) -> None:
    """A request to replay them is refused while the program does not read the stream."""
    world.config = {"max_batch_attempts": 1, "on_exhausted": "quarantine"}
    world.poison = frozenset({"r4"})
    both = {"orders": records("o", 4), "returns": records("r", 12)}
    world.run(world.topology(both))
    world.poison = frozenset()
    world.config["dropped_streams"] = ("returns",)
    without = world.topology({"orders": records("o", 9)})
    for topology in (without, world.topology(both)):
        with open_backend(world.hosts, topology.settings) as backend:
            backend.request_replays("changed", None)
        world.run(topology)
        if topology is without:
            (aside,) = world.status().quarantine
            assert "stream 'returns', which the program does not declare" in aside.error
            assert world.status().replays_requested == frozenset()
        both["orders"] = records("o", 9)
    assert world.status().quarantine == ()
    rows = Counter(rows_of(world.folder / "rows", "k", "v"))
    assert rows == Counter(records("o", 9) + records("r", 12))


@dataclass
class Exchange:
    """A program that reads "orders" from a log, and one that reads files in its place."""

    world: World
    rows: list[tuple[str, int]] = field(default_factory=lambda: records("f", 12))
    dropped: tuple[str, ...] = ("orders",)
    orders: list[tuple[str, int]] = field(default_factory=lambda: records("o", 30))

    def __post_init__(self) -> None:
        self.place = self.world.folder.parent / "in"
        self.place.mkdir()
        for number in range(3):
            lines = [json.dumps({"k": k, "v": v}) for k, v in self.rows[number * 4 :][:4]]
            (self.place / f"{number}.json").write_text("\n".join(lines))

    def log(self, **more: Any) -> Topology:
        """The program with the log."""
        self.world.config = {}
        return self.world.topology({"orders": self.orders}, **more)

    def files(self, name: str = "files", **more: Any) -> Topology:
        """The program with the files."""
        spout = FileSpout(self.place / "*.json", format="json", schema="k string, v long")
        self.world.config = {"dropped_streams": self.dropped, **more.pop("config", {})}
        return self.world.topology(more.pop("streams", {}), **{name: spout}, **more)

    def read_of_orders(self) -> list[tuple[str, int]]:
        """The orders that were read, by the log's position."""
        position = self.world.status().progress.committed.spouts.get("orders")
        return self.orders[: position["end"] if position else 0]


@pytest.mark.parametrize(("before", "after"), CRASHES)
def test_a_spout_is_exchanged_and_taken_back(world: World, before: str, after: str) -> None:
    """Another spout under a new name begins at its own beginning, where the former one ended; taken
    back, the former one reads on from its position: each record comes once, whatever is killed.
    """
    exchange = Exchange(world)
    world.crash(exchange.log(), before, 3)
    words = r"exchange.*dropped_streams=\('orders',\)"
    if world.kind == "transactional":  # open opaque batches are refused before that
        with pytest.raises(ProgressUnreadableError, match=words):
            world.run(exchange.files("orders"))
    if before == "between-publications":
        with pytest.raises(RecoveryRefusedError, match="Txid 3 .*'orders'.*`--until 3`"):
            world.run(exchange.files())
        world.run(exchange.log(), until=3)
    world.crash(exchange.files(), after)
    world.run(exchange.files())
    world.assert_holds(exchange.read_of_orders(), exchange.rows)
    assert len(exchange.read_of_orders()) < len(exchange.orders)
    world.config = {"dropped_streams": ("files",)}
    world.crash(world.topology({"orders": exchange.orders}), after)
    world.run(world.topology({"orders": exchange.orders}))
    world.assert_holds(exchange.orders, exchange.rows)


def test_no_table_is_filled_over_an_exchange(world: World) -> None:
    """A table of the new stream gets the txids since the exchange, and the refusal names the first;
    one of a stream that was there all the time gets them all.
    """
    exchange = Exchange(world)
    other = {"other": records("x", 9)}
    exchange_at = world.run(world.topology({"orders": exchange.orders, **other}))
    world.run(exchange.files(streams=other))
    late = str(world.folder / "late")
    filled = {"streams": other, "late": {"late": "files"}}
    message = rf"from txid {exchange_at + 1} on: earlier txids read stream 'orders'.*new_tables"
    refused = exchange.files(config={"backfilled_tables": (late,)}, **filled)
    with pytest.raises(RecoveryRefusedError, match=message):
        world.run(refused)
    (change,) = (
        p.change for p in compare_topology(refused, world.hosts).changes if not p.change.allowed
    )
    assert f"from txid {exchange_at + 1} on" in change.what
    accepted = {"backfilled_tables": (late,), "new_tables": (late,)}
    world.run(exchange.files(config=accepted, **filled))
    assert rows_of(world.folder / "late", "k", "v") == sorted(exchange.rows)
    both = {"late": "files", "others": "other"}
    named = (late, str(world.folder / "others"))
    world.run(exchange.files(streams=other, late=both, config={"backfilled_tables": named}))
    assert rows_of(world.folder / "others", "k", "v") == other["other"]


def test_another_folder_under_the_same_name_is_read_once(world: World) -> None:
    """A stream whose files are in another folder goes on with those, and remembers the former ones:
    back in the former folder, only new files are read.
    """
    folders = [world.folder.parent / name for name in ("monday", "tuesday")]

    def topology(folder: Path) -> Topology:
        return world.topology(
            {}, files=FileSpout(folder / "*.json", format="json", schema="k string, v long")
        )

    expected: list[tuple[str, int]] = []
    for number, folder in enumerate((*folders, folders[0])):
        folder.mkdir(exist_ok=True)
        new = records(f"day{number}", 2)
        (folder / f"{number}.json").write_text(
            "\n".join(json.dumps({"k": k, "v": v}) for k, v in new)
        )
        expected += new
        world.run(topology(folder))
        world.assert_holds(expected)


def test_a_table_left_out_over_an_exchange_begins_anew(world: World) -> None:
    """A table that was left out before the exchange cannot have the txids until it: the refusal
    names them, and its way out works.
    """
    exchange = Exchange(world)
    late = str(world.folder / "late")
    held = world.run(exchange.log(late={"late": "orders"}), until=3)
    world.config = {"dropped_tables": (late,)}
    last = world.run(world.topology({"orders": exchange.orders}))
    world.run(exchange.files())
    back = exchange.files(config={"backfilled_tables": (late,)}, late={"late": "files"})
    lacks = rf"up to {held} and would lack txids {held + 1} to {last}: .* stream 'orders'"
    with pytest.raises(RecoveryRefusedError, match=rf"{lacks}.*new path .* with txid {last + 1}"):
        world.run(back)
    anew = (str(world.folder / "anew"),)
    named = {"backfilled_tables": anew, "new_tables": anew}
    world.run(exchange.files(config=named, late={"anew": "files"}))
    assert rows_of(world.folder / "anew", "k", "v") == sorted(exchange.rows)


def test_an_added_stream_begins_with_the_next_txid(world: World) -> None:
    """It reads its source from the beginning, in the next txid that is planned: an open batch is
    planned anew for opaque streams only.
    """
    world.crash(world.topology({"orders": records("o", 20)}), "before-publish", 3)
    progress = world.status().progress
    assert progress.committed.txid == 2
    world.crash(
        world.topology({"orders": records("o", 20), "added": records("n", 9)}), "after-start"
    )
    world.run(world.topology({"orders": records("o", 20), "added": records("n", 9)}))
    world.assert_holds(records("o", 20), records("n", 9))
    added = [txid for key, txid in rows_of(world.folder / "rows", "k", "txid") if key[0] == "n"]
    assert min(added) == (3 if world.kind == "opaque" else progress.batches[-1].txid + 1)


@pytest.mark.parametrize("world", ["opaque"], indirect=True)
def test_an_opaque_stream_becomes_transactional_once_nothing_is_open(world: World) -> None:
    """The refusal names the txid up to which the opaque spout has to run once more."""
    world.crash(world.topology({"orders": records("o", 20)}), "after-start", 3)
    last = world.status().progress.batches[-1].txid
    transactional = World(world.spark, world.server, world.folder, "transactional")

    def changed(count: int) -> Topology:
        topology = Topology("changed", TopologyConfig(max_group_commit=1))
        spout = Log(records("o", count), SpoutKind.TRANSACTIONAL)
        merged = topology.stream("orders", spout)
        merged.partition_persist(AppendTable(world.folder / "rows", "opaque"))
        for name, layout in (("log", "log"), ("totals", "upsert")):
            state = StateTable(world.folder / name, "opaque", layout=layout)
            merged.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
        return topology

    with pytest.raises(RecoveryRefusedError, match=rf"'orders' had an opaque.*`--until {last}`"):
        transactional.run(changed(20))
    assert world.run(world.topology({"orders": records("o", 30)}), until=last) == last
    assert world.status().progress.batches == ()
    transactional.run(changed(30))
    world.assert_holds(records("o", 30))


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_is_killed_around_the_first_txid_of_a_renamed_stream(
    tmp_path: Path, kind: str
) -> None:
    """SIGKILL with the former name, then twice with the new one, before its first COMMITTED."""
    lives = (
        ("between-publications", "records", None, False),
        ("after-start", "renamed", "records", True),
        ("before-committed", "renamed", "records", True),
    )
    crashes = [
        Spec(
            folder=str(tmp_path),
            kind=kind,
            zookeeper=f"embedded:{tmp_path}/zookeeper",
            at=point,
            stream=stream,
            was=was,
            fresh=fresh,
            config={"max_group_commit": 1, "max_spout_pending": 4},
        )
        for point, stream, was, fresh in lives
    ]
    chain = live_through(
        make_records(tmp_path, 42),
        crashes,
        lambda spec: spec.model_copy(update={"at": None}),
    )
    assert chain.ended == "caught_up"
    for table, image in chain.end.items():
        assert image.end == 42
        assert_consistent(chain.records, table, image)
