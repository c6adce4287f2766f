"""What one commit costs as the state grows: our layouts beside Delta's own MERGE.

Workload (c): a table of running counts and sums by key, of 10^4 to 10^7 keys; each batch has 10,000
rows with random keys, one in a hundred of them new. Timed is what holds up the next commit: for
ours `prepare` and `publish`, for MERGE its execution; the batch's aggregates are made before, by
the processing phase or by a local checkpoint.

    python -m tests.benchmarks.commit --keys 100000 --batches 10 upsert merge
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from committers.aggregates import Count, Sum
from committers.state_table import StateTable
from txn.attempts import TransactionAttempt
from txn.interfaces import Committer, CommitterContext, Member, Publication, Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Way", "measure"]

Way = Literal["upsert", "log", "merge"]
TOPOLOGY = "commit-cost"
NEW_SHARE = 0.01
"""Share of a batch's rows whose key was never seen before."""
SEMANTICS = "opaque"

_Commit = Callable[[int], float]


def measure(
    spark: SparkSession,
    folder: Path,
    *,
    way: Way,
    keys: int,
    batches: int,
    rows: int = 10_000,
    warm: int = 3,
    group: int = 1,
) -> dict[str, Any]:
    """Commit `warm` and then `batches` batches into a state of `keys` keys.

    Args:
        folder: an empty folder for the table.
        group: consecutive txids that are published as one version (not for "merge").

    Returns:
        "way", "keys", "rows", "commit_ms" (one entry per measured version, the warm ones left
        out), "build_s" (the first state), "correct" (counts and sums against an oracle), "detail".
    """
    batch = _Batches(spark, keys, rows)
    started = time.perf_counter()
    table: _Merged | _Ours = _Merged(batch, folder) if way == "merge" else _Ours(batch, folder, way)
    table.build()
    built = time.perf_counter() - started
    spent: list[float] = []
    for number in range(warm + batches):
        first = 1 + number * group
        spent.append(table.commit(range(first, first + group)))
    return {
        "way": way,
        "keys": keys,
        "rows": rows,
        "commit_ms": [round(1000 * seconds, 1) for seconds in spent[warm:]],
        "build_s": round(built, 2),
        "correct": _correct(batch, table.read(), (warm + batches) * group),
        "detail": {"warm_ms": [round(1000 * s, 1) for s in spent[:warm]], "group": group},
    }


@dataclass(frozen=True)
class _Batches:
    """The rows of every batch, made of hashes: the same for every way, and for the oracle."""

    spark: SparkSession
    keys: int
    rows: int

    def first(self) -> DataFrame:
        """One row for each key of the first state."""
        return self.spark.range(self.keys).selectExpr("concat('key-', id) AS k", "id % 97 AS v")

    def of(self, number: int) -> DataFrame:
        """Batch `number`, from 1 on."""
        fresh = int(self.rows * NEW_SHARE)
        known = f"pmod(xxhash64(id, {number}), {self.keys})"
        late = f"{self.keys} + {number * fresh} + id"
        key = f"concat('key-', if(id < {fresh}, {late}, {known}))"
        return self.spark.range(self.rows).selectExpr(f"{key} AS k", f"id % 13 + {number} AS v")


def _correct(batch: _Batches, found: DataFrame, batches: int) -> bool:
    """Whether a table of (k, n, s) is what a plain aggregation over all rows gives."""
    rows = batch.first()
    for number in range(1, batches + 1):
        rows = rows.unionAll(batch.of(number))
    expected = _totals(rows)
    wanted, got = (
        frame.selectExpr("count(*) AS c", "bit_xor(xxhash64(k, n, s)) AS x").first()
        for frame in (expected, found)
    )
    return wanted == got


def _totals(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    return rows.groupBy("k").agg(sf.count("*").alias("n"), sf.sum("v").alias("s"))


class _Ours:
    """A state table, taken through its commit turns as the pipeline does."""

    def __init__(self, batch: _Batches, folder: Path, layout: str) -> None:
        self._batch = batch
        self._state = StateTable(folder / "table", SEMANTICS, layout)
        self._committer: Committer = self._state.bind(["k"], {"n": Count(), "s": Sum("v")})

    def build(self) -> None:
        """The first state, as txid 1."""
        committer, rows = self._committer, self._batch.first()
        context = CommitterContext(TOPOLOGY, 1)
        committer.open(self._batch.spark, context, committer.partials(rows).schema)
        committer.fence()
        self._publish(Staged.together([self._stage(1, rows)]))

    def commit(self, numbers: range) -> float:
        """Stage batches, then publish them as one version; seconds of the commit turn."""
        staged = [self._stage(number + 1, self._batch.of(number)) for number in numbers]
        started = time.perf_counter()
        self._publish(Staged.together(staged))
        spent = time.perf_counter() - started
        for one in staged:
            self._committer.committed(one.attempt)
        return spent

    def read(self) -> DataFrame:
        """Keys and values."""
        return self._state.read(self._batch.spark)

    def _stage(self, txid: int, rows: DataFrame) -> Staged:
        return self._committer.stage(self._committer.partials(rows), TransactionAttempt(txid, 0))

    def _publish(self, staged: Staged) -> None:
        members = tuple(
            Member(txid=one.attempt.txid, attempt_id=0, rows=one.rows, digest=one.digest)
            for one in staged.members
        )
        last = staged.attempt.txid
        publication = Publication(
            topology=TOPOLOGY,
            epoch=1,
            first_txid=members[0].txid if members else last,
            last_txid=last,
            attempt_id=0,
            rows=staged.rows,
            digest=staged.digest,
            members=members,
        )
        self._committer.publish(self._committer.prepare(staged, publication), publication)


class _Merged:
    """Delta's MERGE, tuned: no statistics, a source that is not materialised again."""

    def __init__(self, batch: _Batches, folder: Path) -> None:
        self._batch, self._path = batch, str(folder / "table")
        batch.spark.conf.set("spark.databricks.delta.stats.collect", "false")
        batch.spark.conf.set("spark.databricks.delta.merge.materializeSource", "none")

    def build(self) -> None:
        """The first state, as txid 0."""
        self._counts(0).write.format("delta").save(self._path)

    def commit(self, numbers: range) -> float:
        """Merge the given batches; seconds of the merge alone."""
        from delta.tables import DeltaTable

        spent = 0.0
        for number in numbers:
            source = self._counts(number).localCheckpoint()
            table = DeltaTable.forPath(self._batch.spark, self._path)
            started = time.perf_counter()
            (
                table.alias("t")
                .merge(source.alias("b"), "t.k = b.k")
                .whenMatchedUpdate(
                    condition="t.txid < b.txid",
                    set={"n": "t.n + b.n", "s": "t.s + b.s", "txid": "b.txid"},
                )
                .whenNotMatchedInsertAll()
                .execute()
            )
            spent += time.perf_counter() - started
        return spent

    def read(self) -> DataFrame:
        """Keys and values."""
        return self._batch.spark.read.format("delta").load(self._path).select("k", "n", "s")

    def _counts(self, number: int) -> DataFrame:
        rows = self._batch.of(number) if number else self._batch.first()
        return _totals(rows).selectExpr("*", f"CAST({number} AS BIGINT) AS txid")


def _main() -> int:
    from txn.session import delta_session

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="+", choices=["upsert", "log", "merge"])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--group", type=int, default=1)
    given = parser.parse_args()
    spark = delta_session("commit-cost", "local[2]", {"spark.driver.memory": "4g"})
    for way in given.ways:
        with tempfile.TemporaryDirectory(prefix="commit-cost-") as folder:
            found = measure(
                spark,
                Path(folder),
                way=way,
                keys=given.keys,
                batches=given.batches,
                rows=given.rows,
                warm=given.warm,
                group=given.group,
            )
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(_main())
