"""Random histories of a log table: commits, crashes, replays, compactions, somebody's OPTIMIZE."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.sql import SparkSession

from committers.aggregates import Count, Sum
from committers.staging.parquet_stats import delta_stats
from committers.state import stored
from committers.state_table import StateTable
from tests.committers.conftest import Driver
from txn.attempts import TransactionAttempt
from txn.interfaces import Committer, Staged, StagedFile

SCHEMA = "k int, v bigint"
Rows = list[tuple[int | None, int]]
Totals = dict[int | None, tuple[int, int]]

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(-9, 9)), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("commit"), ROWS),
    st.tuples(st.just("commit"), ROWS),
    st.tuples(st.just("die published"), ROWS),
    st.tuples(st.just("die staged"), ROWS),
    st.tuples(
        st.sampled_from(
            [
                "compact",
                "compact, and commit before it is published",
                "compact, and die before it is published",
                "compact, and die in the middle",
                "compact, and die right after",
                "compact, and OPTIMIZE before it is published",
                "OPTIMIZE",
            ]
        ),
        ROWS,
    ),
)


def added_up(batches: Iterable[Rows]) -> Totals:
    """The oracle: (rows, sum) of each key."""
    totals: Totals = {}
    for rows in batches:
        for k, v in rows:
            n, s = totals.get(k, (0, 0))
            totals[k] = n + 1, s + v
    return totals


class World:
    """A log table, the process that writes it, and what each version must hold."""

    def __init__(self, driver: Driver, path: Path, semantics: str) -> None:
        self.driver = driver
        self.path = path
        self.opaque = semantics == "opaque"
        self.state = StateTable(path, semantics, "log", compact_files=2, compact_share=1)
        self.batches: dict[int, Rows] = {}
        self.expected: dict[int, Totals] = {}
        self.committed = self.epoch = 0
        self.attempt = -1
        self.committer: Committer
        self.start()

    def start(self) -> None:
        """A new process takes over; a dead one may have left anything."""
        self.epoch += 1
        self.committer = self.state.bind(["k"], {"n": Count(), "s": Sum("v")})
        self.driver.open(self.committer, SCHEMA, self.epoch)
        self.note()

    def step(self, what: str, rows: Rows) -> None:
        """One step of a history."""
        if what.startswith(("commit", "die")):
            self.publish(what, rows)
        elif what == "OPTIMIZE":
            DeltaTable(str(self.path)).optimize.compact()
        else:
            self.compact(what, rows)
        self.note()

    def publish(self, what: str, rows: Rows) -> None:
        """A batch, up to the point at which it ends or the process dies."""
        txid = self.committed + 1
        if not self.opaque:
            rows = self.batches.get(txid, rows)
        self.attempt += 1
        staged = self.stage(TransactionAttempt(txid, self.attempt), rows)
        if what != "die staged":
            self.driver.turn(self.committer, staged, self.epoch)
            self.batches[txid] = rows
            self.note()
        if what == "commit":
            self.committer.committed(staged.attempt)
            self.committed = txid
        else:
            self.start()

    def stage(self, attempt: TransactionAttempt, rows: Rows) -> Staged:
        """What the processing phase would have written, without a Spark job."""
        totals = added_up([rows])
        if not totals:
            return Staged(attempt, ())
        columns = {
            "k": pa.array(totals, pa.int32()),
            "n": pa.array([n for n, _ in totals.values()], pa.int64()),
            "s": pa.array([s for _, s in totals.values()], pa.int64()),
            "txid": pa.array([attempt.txid] * len(totals), pa.int64()),
        }
        path = f"data/{attempt.txid}-{attempt.attempt_id}-test/part-0.parquet"
        file = self.path / path
        file.parent.mkdir(parents=True)
        parquet.write_table(pa.table(columns), file)
        stats = delta_stats(parquet.read_metadata(file))
        return Staged(attempt, (StagedFile(path, file.stat().st_size, len(totals), {}, stats),))

    def compact(self, what: str, rows: Rows) -> None:
        """A compaction, and what comes between its two halves."""
        if what == "compact, and die in the middle":
            folder = self.committer._compactor._intents.begin(self.committer._log.version)  # type: ignore[attr-defined]
            (self.path / folder).mkdir(parents=True)
            (self.path / folder / "part-0.parquet").write_bytes(b"half a file")
            return self.start()
        publish = self.committer.maintain(self.committed)
        if publish is None:
            return None
        if "die before" in what:
            return self.start()
        if "OPTIMIZE" in what:
            DeltaTable(str(self.path)).optimize.compact()
            self.note()
        if "commit" in what:
            self.publish("commit", rows)
        publish()
        self.note()
        return self.start() if "die right" in what else None

    def note(self) -> None:
        """Every version up to now that is new holds the totals of now."""
        totals = added_up(self.batches.values())
        newest = DeltaTable(str(self.path)).version()
        for version in range(len(self.expected), newest + 1):
            self.expected[version] = totals

    def found(self, version: int) -> Totals:
        """What the files of a version add up to, without Spark."""
        n: Counter[int | None] = Counter()
        s: Counter[int | None] = Counter()
        table = DeltaTable(str(self.path), version=version).to_pyarrow_table()
        for row in table.to_pylist():
            n[row["k"]] += row["n"]
            s[row["k"]] += row["s"]
        return {k: (n[k], s[k]) for k in n}

    def check(self) -> None:
        """Every version, read now, is what it was; nothing lies about that no version has."""
        self.start()
        assert {v: self.found(v) for v in self.expected} == self.expected
        added: set[str] = set()
        for version in self.expected:
            commit = self.committer._log.read_commit(version)  # type: ignore[attr-defined]
            added |= {file.path for file in commit.adds}
        compacted = self.path.rglob("data/compaction-*/*.parquet")
        lying = {str(file.relative_to(self.path)) for file in compacted}
        assert lying - added == set()
        assert [p.name for p in self.path.glob("_txn/*")] == []
        for share in (0.0, 100.0):  # all of it merged at once, and in two parts
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stored, "SMALL_SHARE", share)
                patch.setattr(stored, "SPLIT_FROM_BYTES", 0)
                shown = self.state.read(self.driver.spark).collect()
            assert len(shown) == len(self.expected[max(self.expected)])
            assert {k: (n, s) for k, n, s in shown} == self.expected[max(self.expected)]


@given(history=st.lists(STEPS, min_size=4, max_size=10), semantics=st.booleans())
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_version_holds_what_was_published(
    spark: SparkSession, history: list[Any], semantics: bool
) -> None:
    """Whatever is committed, replayed, compacted, optimized or killed, and wherever: each version
    holds the totals of its txids, before and after, and of a compaction nothing is left that no
    version has.
    """
    with tempfile.TemporaryDirectory() as folder:
        world = World(Driver(spark), Path(folder), "opaque" if semantics else "transactional")
        for what, rows in history:
            world.step(what, rows)
        world.check()
