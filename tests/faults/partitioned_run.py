"""Random histories of a partitioned spout over real Spark, ZooKeeper and Delta tables.

What happens at a point of a batch's life follows from the seed, the run and the attempt, whatever
the threads do in between: a partition goes, comes back or is added; the attempt fails; or the run
is abandoned there (nothing after that point is carried out) and a new one is started, by new
objects, on the same ZooKeeper and tables. At the end every partition is back and all is read.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryPartitionedSpout
from tests.faults.support import observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import BatchError
from txn.interfaces import SpoutKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["History", "Literals"]

Record = tuple[str, int, str, int]
FAILING = ("after-plan", "mid-processing", "after-staging", "before-publish", "after-publish")
CRASHES = 2
FAILURES = 3
FIRST, MOST = ("p3", "p6"), 4
"""The partitions at the beginning, and how many there may come to be."""
SCHEMA = "p string, i int, k string, v bigint"


class Abandoned(Exception):  # noqa: N818 - no error of the project's
    """The run ends here, as if the process had died."""


class Literals(MemoryPartitionedSpout):
    """Emits its rows as Spark's own literals: no Python worker has to be started for them."""

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """The rows at these positions."""
        records = self.rows_at(attempt, positions)
        values = ", ".join(f"('{p}', {i}, '{k}', {v}L)" for p, i, k, v in records)
        return spark.sql(f"SELECT * FROM VALUES {values} AS records(p, i, k, v)")


class Source:
    """What outlives the runs: which partitions there are, and which of them are away."""

    def __init__(self, chance: random.Random, kind: SpoutKind) -> None:
        self.kind = kind
        self.take = chance.choice([1, 2])
        self.rows = {name: records(name, 2 * self.take + chance.choice([0, 1])) for name in FIRST}
        self.disabled: set[str] = set()
        self.removed: set[str] = set()
        self.spout = self.opened()

    def opened(self) -> Literals:
        """A new object over what is there now."""
        there = {name: rows for name, rows in self.rows.items() if name not in self.removed}
        spout = Literals(there, SCHEMA, take_per_partition=self.take, kind=self.kind)
        for name in self.disabled:
            spout.set_disabled(name, True)
        self.spout = spout
        return spout

    def change(self, chance: random.Random) -> str:
        """Something happens to a partition; returns what."""
        name = chance.choice([*sorted(self.rows), "new"])
        if name == "new":
            name = chance.choice([f"p{n}" for n in range(10)])
            if name in self.rows or len(self.rows) >= MOST:
                return "nothing"
            self.rows[name] = records(name, chance.choice([1, 3]))
            self.spout.add_partition(name, self.rows[name])
            return f"add {name}"
        if name in self.removed or name in self.disabled:
            self.bring_back(name)
            return f"bring back {name}"
        if chance.random() < 0.7:
            self.disabled.add(name)
            self.spout.set_disabled(name, True)
            return f"disable {name}"
        self.removed.add(name)
        self.spout.remove_partition(name)
        return f"remove {name}"

    def bring_back(self, *names: str) -> None:
        """These partitions, or all, are there again."""
        for name in names or tuple(self.rows):
            if name in self.removed:
                self.removed.discard(name)
                self.spout.add_partition(name, self.rows[name])
            if name in self.disabled:
                self.disabled.discard(name)
                self.spout.set_disabled(name, False)


def records(partition: str, count: int) -> list[Record]:
    """Rows that say where they are from."""
    return [(partition, i, "ab"[i % 2], 10 * i + int(partition[1:])) for i in range(count)]


class History:
    """One history: `live` it, then `judge` the tables.

    Args:
        seed: decides everything that is not decided by threads.
        folder: of the tables; its parent's name is part of the topology's.
    """

    def __init__(self, seed: int, kind: SpoutKind, folder: Path) -> None:
        self.seed = seed
        self.kind = kind
        self.folder = folder
        self.source = Source(random.Random(seed), kind)
        # In one of eight histories, of either kind: an upsert costs more than all the rest.
        self.with_totals = seed % 16 in (1, 8)
        self.happened: list[str] = []
        self._run = 0
        self._crashes = 0
        self._failures = 0
        self._lock = threading.Lock()

    def live(self, spark: SparkSession, zookeeper: str) -> None:
        """Runs until nothing more is there to read, then one without incidents."""
        with observing(self._at):
            while not self._ran_to_its_end(spark, zookeeper):
                self._run += 1
        self.source.bring_back()
        self._topology().run(spark, zookeeper=zookeeper, until="caught_up")

    def _ran_to_its_end(self, spark: SparkSession, zookeeper: str) -> bool:
        try:
            self._topology().run(spark, zookeeper=zookeeper, until="caught_up")
        except (Abandoned, BatchError) as error:
            if not isinstance(error, Abandoned) and not isinstance(error.__cause__, Abandoned):
                raise
            return False
        return True

    def _topology(self) -> Topology:
        config = TopologyConfig(max_spout_pending=3, max_batch_attempts=1000, retry_backoff_ms=1)
        topology = Topology(f"{self.folder.parent.name}-{self.seed}", config)
        stream = topology.stream("s", self.source.opened())
        stream.partition_persist(AppendTable(self.folder / "rows", self.kind.value))
        if self.with_totals:
            state = StateTable(self.folder / "totals", self.kind.value, buckets=2)
            stream.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
        return topology

    def _at(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        chance = random.Random(f"{self.seed} {self._run} {point} {attempt}")
        with self._lock:
            if point == "after-start" and attempt.attempt_id > 1:
                self.source.bring_back()  # what waits for a partition is not to wait for ever
            elif chance.random() < 0.3:
                self._note(point, attempt, self.source.change(chance))
            # Idle spouts are asked again and again: those questions are not to use up the faults.
            odds = 0.2 if point == "after-plan" else 1.0
            lot = chance.random()
            if lot < 0.06 * odds and self._crashes < CRASHES:
                self._crashes += 1
                self._note(point, attempt, "crash")
                raise Abandoned
            if lot > 1 - 0.2 * odds and point in FAILING and self._failures < FAILURES:
                self._failures += 1
                self._note(point, attempt, "fail")
                raise FailedException(f"told to fail {attempt} at {point}")

    def _note(self, point: str, attempt: TransactionAttempt, what: str) -> None:
        self.happened.append(f"run {self._run}, {attempt} {point}: {what}")

    def judge(self) -> None:
        """Every record once, each partition in order, totals as plain Python computes them."""
        expected = sorted(row for rows in self.source.rows.values() for row in rows)
        assert rows_of(self.folder / "rows", "p", "i", "k", "v") == expected
        placed = rows_of(self.folder / "rows", "p", "i", "txid")
        for partition in self.source.rows:
            txids = [txid for p, _, txid in placed if p == partition]
            assert txids == sorted(txids), f"{partition} was read out of order"
        if self.with_totals:
            count, total = Counter[str](), Counter[str]()
            for _, _, key, value in expected:
                count[key] += 1
                total[key] += value
            totals = sorted((key, count[key], total[key]) for key in count)
            assert rows_of(self.folder / "totals", "k", "n", "total") == totals
