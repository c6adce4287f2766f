"""What was read is checked as soon as it has been read, and before anybody sees it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from tests.engine.test_observers import Kept
from tests.stores.proxy import Proxy
from tests.stores.s3 import S3Server, storage_options
from txn import FailedException, Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.dataflow.graph import Source
from txn.engine.work.spouts import Spouts
from txn.observers import AttemptFailed, BatchCommitted, StationEnded
from txn.storage.opening import open_store
from txn.testing import run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: list[Any] = [[("a", 1), ("b", 2)], [("c", 3)]]
SCHEMA = "k string, v bigint"
ONE_BY_ONE = {"retry_backoff_ms": 1, "max_spout_pending": 1}


class Checked(MemoryTransactionalSpout):
    """Knows when it was asked, and refuses some attempts."""

    def __init__(self, rows: Any, schema: str, refused: tuple[str, ...] = ()) -> None:
        super().__init__(rows, schema)
        self._refused = refused
        self.asked: list[str] = []

    def check_read(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> None:
        """See the class."""
        self.asked.append(str(attempt))
        if str(attempt) in self._refused:
            raise FailedException("another file was read")


def test_a_remote_file_is_looked_at_twice_and_in_no_commit_turn(
    spark: SparkSession, s3: S3Server, warehouse: Path
) -> None:
    """Before it is read, and when its rows are staged: a turn asks its source for nothing.

    Once more when it is planned, if its listing is older than a second by then.
    """
    bucket = s3.bucket("check-read")
    straight, _ = open_store(f"s3://{bucket}/in", storage_options(s3.url))
    for name in "abcd":
        straight.put(f"{name}.csv", f"{name},1\n".encode())
    kept, since = Kept(), time.time() - time.monotonic()
    with Proxy(s3.url) as proxy:
        spout = FileSpout(
            f"s3://{bucket}/in/*.csv",
            format="csv",
            schema=SCHEMA,
            files_per_batch=1,
            storage_options=storage_options(proxy.url),
        )
        topology = Topology("looks", TopologyConfig(**ONE_BY_ONE))
        topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows"))
        run_in_memory(topology, spark, observers=[kept])
        looks = [e for e in proxy.log if (e.client, e.operation) == ("obstore", "HEAD")]
    found = Counter(look.key for look in looks)
    assert (found.keys(), found["in/a.csv"]) == ({f"in/{name}.csv" for name in "abcd"}, 2)
    assert set(found.values()) <= {2, 3}
    turns = [(e.began, e.at) for e in kept.of(StationEnded) if e.station == "turn"]
    assert len(turns) == 4
    times = [look.request.at + since for look in looks]
    assert not [at for at in times for began, ended in turns if began <= at <= ended]


def test_what_may_have_been_read_otherwise_is_read_again(
    spark: SparkSession, warehouse: Path
) -> None:
    """An attempt whose check fails has no turn; the replay is checked again, and is there once."""
    spout, kept = Checked(ROWS, SCHEMA, refused=("1:0", "2:0")), Kept()
    topology = Topology("checks", TopologyConfig(**ONE_BY_ONE))
    topology.stream("s", spout).partition_persist(AppendTable(warehouse / "rows"))
    run_in_memory(topology, spark, observers=[kept])
    assert spout.asked == ["1:0", "1:1", "2:0", "2:1"]
    assert [str(event.attempt) for event in kept.of(AttemptFailed)] == ["1:0", "2:0"]
    assert [str(event.attempt) for event in kept.of(BatchCommitted)] == ["1:1", "2:1"]
    turns = [str(e.attempts[0]) for e in kept.of(StationEnded) if e.station == "turn"]
    assert turns == ["1:1", "2:1"]
    found = AppendTable(warehouse / "rows").read(spark).orderBy("k").collect()
    assert [(row.k, row.v) for row in found] == [("a", 1), ("b", 2), ("c", 3)]


def test_what_only_a_turn_reads_is_checked_there_before_anything_is_published(
    spark: SparkSession, warehouse: Path
) -> None:
    """A stream that meets a table's new values is read in the turn, and may still fail it."""
    words = Checked(ROWS, SCHEMA)
    names = Checked([[("a", "alpha")], [("c", "gamma")]], "k string, name string", ("1:0",))
    topology = Topology("late", TopologyConfig(**ONE_BY_ONE))
    counts = (
        topology.stream("words", words)
        .group_by("k")
        .persistent_aggregate(StateTable(warehouse / "words"), n=Count())
    )
    counts.new_values().join(topology.stream("names", names), on="k").partition_persist(
        AppendTable(warehouse / "named")
    )
    kept = Kept()
    run_in_memory(topology, spark, observers=[kept])
    assert names.asked == ["1:0", "1:1", "2:0"]
    assert words.asked == ["1:0", "1:1", "2:0"]
    published = [str(e.attempts[0]) for e in kept.of(StationEnded) if e.station == "publish"]
    assert "1:0" not in published
    found = AppendTable(warehouse / "named").read(spark).orderBy("name").collect()
    assert [(row.name, row.n) for row in found] == [("alpha", 1), ("gamma", 1)]


def test_attempts_that_were_read_together_are_checked_side_by_side() -> None:
    """A round trip for each would add up; the first error is raised when all have an answer."""

    class Meets(Checked):
        def check_read(self, attempt: TransactionAttempt, metadata: MemoryPosition) -> None:
            met.wait(30)
            super().check_read(attempt, metadata)

    met = threading.Barrier(3)
    spout = Meets(ROWS, SCHEMA, refused=("2:0",))
    spouts = Spouts("beside", [Source("s", spout)])
    read = [(TransactionAttempt(txid), {"s": {"index": txid}}) for txid in (1, 2, 3)]
    with pytest.raises(FailedException, match="another file was read"):
        spouts.check_read(read)
    assert sorted(spout.asked) == ["1:0", "2:0", "3:0"]
