"""Txids whose records can never be read again: set aside, given up; the order goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from committers.append_table import AppendTable
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from spouts.memory_partitions import MemoryPartitionedSpout
from tests.faults.support import Points, observing, rows_of
from tests.spouts.kafka_broker import Broker
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.errors import FailedException, SourceChangedError
from txn.interfaces import Spout
from txn.operations.history import history
from txn.testing import MemoryNodes, MemoryProgress, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONFIG = TopologyConfig(max_batch_attempts=2, retry_backoff_ms=1, max_group_processing=1)
QUARANTINE = CONFIG.model_copy(update={"on_exhausted": "quarantine"})
_names = itertools.count()


@dataclass
class Source:
    """A source of numbers."""

    make: Callable[[], Spout[Any]]
    column: str
    """SQL of the number."""
    add: Callable[[int], None]
    lose: Callable[[], None]
    """Everything that was added so far can never be read again."""
    kind: str = "transactional"


@pytest.fixture(params=["kafka", "kafka opaque", "delta", "changes", "files", "memory"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """A real source, empty."""
    where = tmp_path / "source"
    if request.param.startswith("kafka"):
        kind = "opaque" if request.param.endswith("opaque") else "transactional"
        yield kafka_source(request.getfixturevalue("kafka"), kind)
    elif request.param == "files":
        where.mkdir()

        def put(number: int) -> None:
            (where / f".{number}.csv").write_text(f"{number}\n")
            (where / f".{number}.csv").rename(where / f"{number}.csv")

        yield Source(
            lambda: FileSpout(str(where / "*.csv"), format="csv", schema="v int"),
            "v",
            put,
            lambda: [file.unlink() for file in where.glob("[0-9]*.csv")] and None,
        )
    elif request.param == "memory":
        spout = MemoryPartitionedSpout({}, "v int", take_per_partition=1)
        yield Source(
            lambda: spout,
            "v",
            lambda number: spout.add_partition(f"p{number}", [(number,)]),
            lambda: [spout.remove_partition(name) for name in spout.get_partitions()] and None,
        )
    else:
        yield delta_source(where, changes=request.param == "changes")


def kafka_source(kafka: Broker, kind: str = "transactional") -> Source:
    """A topic of its own."""
    topic, added = kafka.create(f"lost-{next(_names)}"), itertools.count(1)
    numbers: list[int] = []

    def add(number: int) -> None:
        kafka.produce(topic, [number])
        numbers.append(next(added))

    return Source(
        lambda: KafkaSpout(kafka.servers, topics=[topic], kind=kind, max_records_per_batch=1),
        "CAST(CAST(value AS STRING) AS INT)",
        add,
        lambda: kafka.expire(topic, 0, numbers[-1]),
        kind,
    )


def delta_source(where: Path, *, changes: bool) -> Source:
    """A table with a version per number, whose files are vacuumed."""

    def add(number: int) -> None:
        write_deltalake(
            str(where),
            pa.table({"v": pa.array([number], pa.int32())}),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"} if changes else None,
        )

    def lose() -> None:
        table = DeltaTable(str(where))
        table.optimize.compact()
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)

    return Source(lambda: DeltaSpout(where, changes=changes), "v", add, lose)


@dataclass
class Runs:
    """A topology of one stream into one table: every run goes on where the last one ended."""

    spark: SparkSession
    source: Source
    table: Path
    poison: set[int]
    """Numbers at which the transform fails."""
    nodes: MemoryNodes
    config: TopologyConfig = QUARANTINE

    def add(self, *numbers: int) -> None:
        """Add each to the source, and let a run read it."""
        for number in numbers:
            self.source.add(number)
            self.run()

    def run(self) -> Any:
        """Until caught up."""
        topology = Topology("lost", self.config)
        stream = topology.stream("s", self.source.make()).transform(self._picky)
        stream.partition_persist(AppendTable(self.table, self.source.kind))
        return run_in_memory(topology, self.spark, self.nodes)

    def _picky(self, df: DataFrame) -> DataFrame:
        numbers = df.selectExpr(f"{self.source.column} AS v")
        found = {row.v for row in numbers.collect()} & self.poison if self.poison else set()
        if found:
            raise FailedException(f"poison {found}")
        return numbers

    @property
    def store(self) -> MemoryProgress:
        """What is durable."""
        return MemoryProgress("lost", self.nodes)

    @property
    def aside(self) -> dict[int, str]:
        """Quarantined txid -> its error."""
        return {txid: record.error for txid, record in self.store.quarantined().items()}

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(number, txid) of the table."""
        return rows_of(self.table, "v", "txid") if self.table.exists() else []


@pytest.fixture
def runs(spark: SparkSession, source: Source, warehouse: Path) -> Runs:
    """A topology over the source."""
    return Runs(spark, source, warehouse / "rows", set(), MemoryNodes())


def test_a_txid_that_can_never_be_read_again_is_no_dead_end(runs: Runs) -> None:
    """If the records of a quarantined txid are gone, its replay is refused before it is durable and
    new records go on; `txn quarantine drop` gives the txid up, and the history shows what was lost.
    """
    runs.poison = {1}
    runs.add(1, 2)
    assert (set(runs.aside), runs.rows) == ({1}, [(2, 2)])

    runs.source.lose()
    runs.poison = set()
    runs.nodes.request_replays("lost", [1])
    runs.config = CONFIG
    runs.add(3)
    assert [number for number, _ in runs.rows] == [2, 3]
    assert "poison" in runs.aside[1]
    assert "(replay refused)" in runs.aside[1]
    assert runs.store.peek().batches == ()

    before = runs.store.peek().committed
    runs.nodes.request_drops("lost", [1])
    runs.add(4)
    assert runs.aside == {}
    assert [number for number, _ in runs.rows] == [2, 3, 4]
    entries = {entry.txid: entry for entry in history("lost", [str(runs.table)])}
    dropped = entries[before.txid + 1]
    assert (dropped.gives_up, dropped.replay_of, dropped.rows) == (True, 1, {str(runs.table): 0})
    assert dropped.lost == entries[1].read
    assert dropped.to_json()["lost"] == entries[1].to_json()["metadata"]


@pytest.mark.parametrize(
    "source", ["kafka", "kafka opaque", "delta", "changes", "files"], indirect=True
)
def test_a_replay_that_fails_goes_back_to_quarantine(runs: Runs) -> None:
    """A replay that loses its records or uses up its attempts before a table has its rows goes back
    into quarantine, whatever on_exhausted says, and the txids after it go on in order.
    """
    runs.poison = {1}
    runs.add(1, 2)
    runs.poison = set()
    runs.nodes.request_replays("lost", [1])
    runs.config = CONFIG

    def lose(attempt: TransactionAttempt) -> None:
        if attempt == TransactionAttempt(3):
            runs.source.lose()
            runs.source.add(3)

    with observing(Points(after_start=lose)):
        runs.run()
    assert [number for number, _ in runs.rows] == [2, 3]
    assert set(runs.aside) == {3}


@pytest.mark.parametrize("source", ["kafka", "delta", "files"], indirect=True)
def test_lost_records_of_a_transactional_batch_can_be_quarantined(runs: Runs) -> None:
    """With on_exhausted="quarantine", a transactional batch that loses its records between START
    and reading is quarantined, and the others go on; without it, the run's error names this way
    out.
    """
    runs.config = CONFIG
    runs.add(1)
    runs.source.add(2)

    def lose(attempt: TransactionAttempt) -> None:
        if attempt == TransactionAttempt(2):
            runs.source.lose()

    with (
        observing(Points(after_start=lose)),
        pytest.raises(SourceChangedError, match="on_exhausted='quarantine'.*quarantine drop"),
    ):
        runs.run()
    runs.config = QUARANTINE
    runs.add(3)
    assert (set(runs.aside), runs.rows) == ({2}, [(1, 1), (3, 3)])


def test_what_is_left_of_an_opaque_txid_is_read(
    spark: SparkSession, kafka: Broker, warehouse: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With kind="opaque", the replay of a quarantined txid reads the records that are left, and the
    log and the history name those that are gone.
    """
    topic = kafka.create(f"left-{next(_names)}")
    source = Source(
        lambda: KafkaSpout(kafka.servers, topics=[topic]),
        "CAST(CAST(value AS STRING) AS INT)",
        lambda number: kafka.produce(topic, range(number, number + 3)),
        lambda: kafka.expire(topic, 0, 1),
        "opaque",
    )
    runs = Runs(spark, source, warehouse / "rows", {1}, MemoryNodes())
    runs.add(1)
    assert set(runs.aside) == {1}
    source.lose()
    runs.poison = set()
    runs.nodes.request_replays("lost", [1])
    runs.run()
    assert (runs.rows, runs.aside) == ([(2, 2), (3, 2)], {})
    assert "offsets 0 to 0 of" in caplog.text
    (newest, *_) = history("lost", [str(runs.table)])
    read = newest.read["s"]["read"][f"{topic}-0"]
    assert (read["start"], read["end"], newest.gives_up) == (1, 3, False)
    assert read["skipped"] == {"reason": "retention", "first": 0, "next": 1}
