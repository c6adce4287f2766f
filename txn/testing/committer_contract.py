"""The contract kit for committers: tests that every table must pass.

    from txn.testing import CommitterContract

    class TestSqliteTable(CommitterContract):
        def make_committer(self, folder):
            return SqliteTable(folder / "app.db", "events")

        def read(self, spark, committer):
            return query(committer.name, "SELECT k, v FROM events")

Run by pytest, with a session-scoped fixture `spark` (`txn.testing.fixtures` has one). Each test
gets a new object of the class and an empty folder.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txn.interfaces import Committer, Semantics
from txn.testing.capability_check import unfit_method
from txn.testing.committer_bench import Batches, CommitterBench, CommitterTarget, Rows
from txn.testing.spout_bench import ContractError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CommitterContract"]

FIRST: Rows = [("a", 1), ("a", 1), ("b", 10)]
DEAD: Rows = [("a", 5), ("dead", 7)]
"""Rows of an attempt that dies: an existing key and a new one."""
NEXT: Rows = [("a", 100), ("dead", 1)]
REPLAYS: Sequence[Rows] = (
    [("a", 6), ("dead", 9)],
    [("e", 8), ("a", 2)],
)
"""Rows that an opaque source may emit in place of `DEAD`: other values and other keys."""
STEPS = ("staged", "prepared", "published")
"""The steps after which the process may die."""


class CommitterContract(CommitterTarget):
    """Inherit under a name that begins with `Test`; implement how to make and read the table.

    The batches of the kit have the columns `k string, v bigint`. A committer whose semantics is an
    argument gets one subclass per semantics, one with several layouts one per layout.

    A table on a server is a fixture of the test module, with one table per folder.

    Not checked: speed, other writers, and faults of the storage itself.
    """

    seeds: Sequence[int] = (1,)
    """Seeds of random histories of commits, crashes and replays."""

    def test_it_says_what_it_is(self, tmp_path: Path) -> None:
        """It is a `Committer` with a name and a semantics; its capabilities take what they get."""
        committer = self.make_committer(tmp_path)
        kind = type(committer).__name__
        if not isinstance(committer, Committer):
            raise ContractError(f"make_committer returned {kind}, which is not a Committer.")
        if not isinstance(getattr(committer, "name", None), str) or not committer.name:
            raise ContractError(f"{kind}.name must say where the table lies, as text.")
        if not isinstance(getattr(committer, "semantics", None), Semantics):
            raise ContractError(f"{kind}.semantics must be a Semantics: what does a replay do?")
        if (unfit := unfit_method(committer)) is not None:
            raise ContractError(f"{unfit}.")

    def test_a_txid_shows_when_it_is_published(self, spark: SparkSession, tmp_path: Path) -> None:
        """Rows show at once and for good, never before; a txid without rows counts like others."""
        with self._bench(spark, tmp_path) as bench:
            bench.start()
            bench.commit({1: FIRST})
            bench.commit({2: []})
            bench.settle()
            bench.settle()
            bench.start()
            bench.commit({3: NEXT})

    def test_columns_may_be_learned_late(self, spark: SparkSession, tmp_path: Path) -> None:
        """While the columns are unknown a txid passes without a table; then the table is made."""
        with self._bench(spark, tmp_path) as bench:
            bench.start(columns_known=False)
            idle = bench.idle()
            bench.publish(idle)
            bench.finish(idle)
            bench.open_for_rows()
            bench.commit({2: FIRST})

    def test_a_crash_between_any_two_steps(self, spark: SparkSession, tmp_path: Path) -> None:
        """A process dies after any step; the next one replays the txid as promised."""
        with self._bench(spark, tmp_path) as bench:
            bench.start()
            for txid, step in enumerate(STEPS, 1):
                turn = bench.stage({txid: DEAD})
                if step != "staged":
                    bench.prepare(turn)
                if step == "published":
                    bench.publish(turn)
                bench.crash()
                bench.check_leftovers()
                bench.commit({txid: _replay(bench)})

    def test_a_replay_of_what_was_published(self, spark: SparkSession, tmp_path: Path) -> None:
        """The answer of publish is lost again and again: every replay counts as promised."""
        with self._bench(spark, tmp_path) as bench:
            bench.start()
            for txid, replays in enumerate(([[]], REPLAYS), 1):
                turn = bench.stage({txid: DEAD})
                bench.publish(turn)
                for rows in replays if bench.semantics is Semantics.OPAQUE else [DEAD]:
                    turn = bench.stage({txid: rows})
                    bench.publish(turn)
                bench.finish(turn)
            bench.commit({3: NEXT})
            if bench.semantics is Semantics.TRANSACTIONAL:
                # An attempt that came to its commit turn is not discarded: the next leader must
                # delete its files.
                bench.crash()
                bench.check_leftovers()

    def test_a_transactional_source_that_lies(self, spark: SparkSession, tmp_path: Path) -> None:
        """A transactional table never applies a replay with other rows; others may skip this test.

        It may refuse the replay with `SourceChangedError`, or keep its rows.
        """
        with self._bench(spark, tmp_path) as bench:
            if bench.semantics is not Semantics.TRANSACTIONAL:
                return
            bench.start()
            bench.publish(bench.stage({1: FIRST}))
            bench.differ(bench.stage({1: DEAD}))

    def test_a_group_is_one_version(self, spark: SparkSession, tmp_path: Path) -> None:
        """Consecutive txids that are published together are also replayed as promised."""
        with self._bench(spark, tmp_path) as bench:
            if not bench.leader.committer.groups:
                return
            bench.start()
            bench.commit({1: FIRST})
            bench.publish(bench.stage({2: DEAD, 3: NEXT}))
            bench.crash()
            bench.commit({2: _replay(bench)})
            bench.commit({3: NEXT, 4: FIRST})

    def test_an_older_leader_that_wakes_up(self, spark: SparkSession, tmp_path: Path) -> None:
        """A leader paused before prepare, publish or fence changes nothing any more."""
        with self._bench(spark, tmp_path) as bench:
            bench.start()
            bench.commit({1: FIRST})
            older, staged = bench.leader, bench.stage({2: DEAD})
            prepared = bench.prepare(bench.stage({2: DEAD}))
            bench.start()
            bench.wake_up(prepared)
            bench.wake_up(staged)
            (restaged,) = bench.stage_apart({2: DEAD}, by=older)
            bench.wake_up(restaged)
            bench.commit({2: DEAD})
            bench.fence_late(older)
            bench.discard(restaged)

    def test_dead_attempts_leave_nothing(self, spark: SparkSession, tmp_path: Path) -> None:
        """Dead attempts are cleaned up or come too late, and never remove published rows."""
        with self._bench(spark, tmp_path) as bench:
            bench.start()
            given_up = bench.prepare(bench.stage({1: DEAD}))
            late = bench.stage({1: DEAD})
            bench.discard(given_up)
            bench.discard(given_up)
            turn = bench.stage({1: DEAD})
            bench.publish(turn)
            bench.come_late(late)
            bench.discard(late)
            bench.discard(turn)
            bench.finish(turn)
            bench.finish(turn)
            bench.check_leftovers()

    def test_txids_are_staged_side_by_side(self, spark: SparkSession, tmp_path: Path) -> None:
        """Txids are staged on several threads or with one call, while earlier ones wait."""
        with self._bench(spark, tmp_path) as bench:
            bench.start()
            turns = bench.stage_apart({1: FIRST, 2: DEAD})
            turns += bench.stage_apart({3: NEXT, 4: []}, together=True)
            for turn in turns:
                bench.publish(turn)
                bench.finish(turn)

    def test_random_histories(self, spark: SparkSession, tmp_path: Path) -> None:
        """Commits, groups, crashes and replays come in a random order."""
        for seed in self.seeds:
            place = tmp_path / str(seed)
            place.mkdir()
            try:
                with self._bench(spark, place) as bench:
                    _History(bench, random.Random(seed)).run()
            except ContractError as error:
                raise ContractError(f"{error}\n  (seed {seed})") from error

    def _bench(self, spark: SparkSession, folder: Path) -> CommitterBench:
        return CommitterBench(spark, type(self)(), folder)


def _replay(bench: CommitterBench) -> Rows:
    return DEAD if bench.semantics is Semantics.TRANSACTIONAL else REPLAYS[-1]


class _History:
    """The events that may happen to a table, in random order."""

    def __init__(self, bench: CommitterBench, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.rows: dict[int, Rows] = {}
        self.most = 3 if bench.leader.committer.groups else 1

    def run(self) -> None:
        """Run some turns, each of which may die after any step, and then one that does not."""
        self.bench.start()
        for end in self.chance.choices((*STEPS, "committed"), k=5):
            self.turn(end)
        self.turn("committed")

    def turn(self, end: str) -> None:
        bench = self.bench
        first = bench.committed + 1
        turn = bench.stage(self.batches(first, first + self.chance.randrange(self.most)))
        if end == "committed":
            bench.publish(turn)
            bench.finish(turn)
            return
        if end != "staged":
            bench.prepare(turn)
        if end == "published":
            bench.publish(turn)
        if self.chance.random() < 0.5:
            bench.crash()
        else:
            bench.discard(turn)

    def batches(self, first: int, last: int) -> Batches:
        """Rows of these txids: always the same ones for a transactional table, else new ones."""
        for txid in range(first, last + 1):
            if self.bench.semantics is not Semantics.TRANSACTIONAL or txid not in self.rows:
                count = self.chance.randrange(4)
                self.rows[txid] = [
                    (self.chance.choice("abcd"), self.chance.randrange(100)) for _ in range(count)
                ]
        return {txid: self.rows[txid] for txid in range(first, last + 1)}
