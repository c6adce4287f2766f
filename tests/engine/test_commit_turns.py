"""Commit turns in the shell: a group publishes or is given up, and never both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from txn.attempts import TransactionAttempt
from txn.engine.base.attempt import CommitResult, LiveAttempt
from txn.engine.base.threads import Threads
from txn.engine.loop.commit_turns import CommitTurns
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.commit import CommitTurn, TurnGivenUpError
from txn.errors import FencedError, StagedFileError
from txn.interfaces import Prepared, Published, Staged, StagedFile
from txn.protocol.events import BatchPublished, GroupFailed, Publish
from txn.protocol.ledgers import ProcessingLedger, Tracking
from txn.protocol.order_records import publication_of

WAIT_SECS = 30.0
FIVE, SIX = TransactionAttempt(5, 1), TransactionAttempt(6)


def live_of(attempt: TransactionAttempt) -> LiveAttempt:
    """An attempt that has staged one file for one table."""
    ids = count(attempt.txid * 1000)
    ledger = ProcessingLedger(ids.__next__, {})
    live = LiveAttempt(attempt, {"s": attempt.txid}, str(attempt), ledger)
    live.staged["a"] = Staged(attempt, (StagedFile(f"{attempt}.parquet", 1, 1),))
    return live


class Kit:
    """Turns of the attempts 5:1 and 6:0 with real threads; `turn` is what a turn does."""

    def __init__(self) -> None:
        self.lives = {attempt: live_of(attempt) for attempt in (FIVE, SIX)}
        self.threads = Threads("t", 2)
        self.tracking = Tracking(3, enabled=True)
        self.facts: list[Any] = []
        self.failed: list[tuple[str, str]] = []
        self.raised: list[tuple[str, BaseException]] = []
        self.ended: list[LiveAttempt] = []
        self.cancelled: list[str] = []
        self.turn: Callable[[CommitTurn], CommitResult] = self.publishes
        ids, kit = count(1), self

        class Doubles:
            """What turns need of the stations, of the attempts alive, and of the shell."""

            def planned_parts(self, metadata: Any, *, late: bool) -> dict[str, Any]:
                return {}

            def commit(self, turn: CommitTurn, *_: Any) -> CommitResult:
                return kit.turn(turn)

            def release(self, attempt: TransactionAttempt) -> None:
                pass

            def cancel(self, tag: str) -> None:
                kit.cancelled.append(tag)

            def __getitem__(self, attempt: TransactionAttempt) -> LiveAttempt:
                return kit.lives[attempt]

            def thread_ended(self, live: LiveAttempt) -> None:
                kit.ended.append(live)

            def post(self, fact: Any) -> None:
                kit.facts.append(fact)

            def failed(self, attempt: TransactionAttempt, why: str, cause: str) -> None:
                kit.failed.append((cause, why))

            def raised(self, attempt: TransactionAttempt, error: BaseException) -> None:
                kit.raised.append((str(attempt), error))

        doubles: Any = Doubles()
        self.turns = CommitTurns(
            doubles,
            doubles,
            self.tracking,
            Broadcast("t", lambda: 0.0),
            self.threads,
            doubles,
            ids.__next__,
        )

    def publishes(self, turn: CommitTurn) -> CommitResult:
        """The turn of a table that takes everything."""
        turn.begin_publishing()
        prepared = Prepared(turn.staged["a"], turn.staged["a"].files)
        return CommitResult({"a": prepared}, {"a": Published(9, prepared.adds)}, {})

    def begin(self, *attempts: TransactionAttempt) -> None:
        """A turn is ordered."""
        *earlier, last = [(at, self.lives[at].metadata) for at in attempts]
        order = Publish(*last, {}, tuple(earlier))
        self.turns.begin(self.turns.make(order), publication_of(order, "t", 1, {}))

    def settle(self) -> list[Any]:
        """Let the commit thread end, and the protocol's thread do all that it was handed."""
        self.threads.commit.submit(lambda: None).result(WAIT_SECS)
        events = []
        while self.facts:
            fact = self.facts.pop(0)
            events += [] if callable(fact) else [fact]
            if callable(fact):
                fact()
        self.threads.cleaner.submit(lambda: None).result(WAIT_SECS)
        return events


@pytest.fixture
def kit() -> Iterator[Kit]:
    """Threads that end with the test."""
    kit = Kit()
    yield kit
    kit.threads.join()


def test_a_group_ends_in_one_fact(kit: Kit) -> None:
    """Every staged file of every member was found published: the group is."""
    kit.begin(FIVE, SIX)
    assert kit.settle() == [BatchPublished(SIX, {"a": 9}, (FIVE,))]
    assert [live.threads for live in kit.lives.values()] == [1, 1]
    assert kit.ended == list(kit.lives.values())


def test_a_file_of_one_member_that_is_not_published_fails_the_group(kit: Kit) -> None:
    """What the tables' logs say is held against what all members have staged."""

    def forgets(turn: CommitTurn) -> CommitResult:
        turn.begin_publishing()
        prepared = Prepared(turn.staged["a"], turn.staged["a"].files)
        return CommitResult({"a": prepared}, {"a": Published(9, prepared.adds[1:])}, {})

    kit.turn = forgets
    kit.begin(FIVE, SIX)
    assert kit.settle() == []
    ((cause, error),) = kit.failed
    assert cause == "ledger"
    assert "file a 5:1.parquet" in error
    assert kit.turns.group_failed(SIX, error)
    assert kit.settle() == [GroupFailed((FIVE, SIX), error, published=True)]


def test_a_group_that_raises_before_it_publishes_is_in_no_table(kit: Kit) -> None:
    """Its members keep what they have staged, and may be discarded like any others."""

    def fails(turn: CommitTurn) -> CommitResult:
        raise StagedFileError("gone")

    kit.turn = fails
    kit.begin(FIVE, SIX)
    error = "StagedFileError: gone"
    assert kit.settle() == [GroupFailed((FIVE, SIX), error, published=False)]
    assert [live.had_turn for live in kit.lives.values()] == [False, False]


def test_a_group_that_raises_while_it_publishes_may_be_in_a_table(kit: Kit) -> None:
    """Its members' files must stay: a version may refer to them."""

    def fails(turn: CommitTurn) -> CommitResult:
        turn.begin_publishing()
        raise OSError("no answer")

    kit.turn = fails
    kit.begin(FIVE, SIX)
    error = "OSError: no answer"
    assert kit.settle() == [GroupFailed((FIVE, SIX), error, published=True)]
    assert [live.had_turn for live in kit.lives.values()] == [True, True]


def test_a_turn_of_one_txid_raises_for_itself(kit: Kit) -> None:
    """Its error is judged like that of any station."""
    error = OSError("no answer")

    def fails(turn: CommitTurn) -> CommitResult:
        raise error

    kit.turn = fails
    kit.begin(FIVE)
    assert (kit.settle(), kit.raised) == ([], [("5:1", error)])


def test_an_error_that_names_its_cause_ends_the_run(kit: Kit) -> None:
    """A newer leader, for one, is nothing that txids could have one by one."""
    error = FencedError("epoch 3 leads")

    def fails(turn: CommitTurn) -> CommitResult:
        raise error

    kit.turn = fails
    kit.begin(FIVE, SIX)
    assert (kit.settle(), kit.raised) == ([], [("6:0", error)])


def test_a_group_that_hangs_is_given_up_and_publishes_nothing(kit: Kit) -> None:
    """After its time it may not begin to publish, however late it comes to that."""
    begun, go_on, late = threading.Event(), threading.Event(), []

    def hangs(turn: CommitTurn) -> CommitResult:
        begun.set()
        assert go_on.wait(WAIT_SECS)
        try:
            return kit.publishes(turn)
        except TurnGivenUpError as error:
            late.append(error)
            raise

    kit.turn = hangs
    kit.begin(FIVE, SIX)
    assert begun.wait(WAIT_SECS)
    assert [attempt for _ in range(3) for attempt in kit.tracking.tick()] == [FIVE]
    assert kit.turns.group_failed(FIVE, "no progress")
    assert kit.facts == [GroupFailed((FIVE, SIX), "no progress", published=False)]
    go_on.set()
    kit.facts.clear()
    assert kit.settle() == []
    assert (len(late), kit.raised, kit.failed) == (1, [], [])
    assert kit.cancelled == ["5:1-to-6"]


def test_a_group_that_hangs_in_a_publication_may_be_in_a_table(kit: Kit) -> None:
    """What it publishes after its time is known to be possible, and its end is nobody's news."""
    begun, go_on = threading.Event(), threading.Event()

    def hangs(turn: CommitTurn) -> CommitResult:
        turn.begin_publishing()
        begun.set()
        assert go_on.wait(WAIT_SECS)
        return kit.publishes(turn)

    kit.turn = hangs
    kit.begin(FIVE, SIX)
    assert begun.wait(WAIT_SECS)
    assert kit.turns.group_failed(SIX, "no progress")
    assert kit.facts == [GroupFailed((FIVE, SIX), "no progress", published=True)]
    kit.facts.clear()
    go_on.set()
    assert kit.settle() == []


def test_the_end_of_a_run_cancels_the_jobs_of_a_group(kit: Kit) -> None:
    """They have a tag of their own, since a group's jobs may end and its attempts live on."""
    kit.turns.stop()
    kit.begin(FIVE)
    kit.turns.stop()
    kit.settle()
    kit.begin(FIVE, SIX)
    kit.turns.stop()
    assert kit.cancelled == ["5:1-to-6"]
    kit.settle()


def test_a_failure_is_of_the_group_only_while_its_turn_runs(kit: Kit) -> None:
    """An attempt that is not in the turn, or whose turn is over, fails by itself."""
    kit.begin(FIVE)
    assert not kit.turns.group_failed(FIVE, "disk on fire")
    kit.settle()
    kit.begin(FIVE, SIX)
    assert not kit.turns.group_failed(TransactionAttempt(7), "disk on fire")
    kit.settle()
    assert not kit.turns.group_failed(SIX, "disk on fire")
