"""The tables of a topology publish side by side, and a turn ends when all of them have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from types import SimpleNamespace
from typing import Any

import pytest

from txn.attempts import TransactionAttempt
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.work.commit import Committing, TurnGivenUpError
from txn.errors import FencedError, StagedFileError
from txn.interfaces import Prepared, Publication, Published, Staged

WAIT_SECS = 30.0
LONG_SECS = 0.3
"""In which a turn that does not wait for its tables would have ended."""
STAGED = Staged(TransactionAttempt(1), ())
PUBLICATION = Publication(topology="t", epoch=1, first_txid=1, last_txid=1, attempt_id=0)


class Table:
    """A committer, as far as a turn publishes with it, and its sink."""

    in_commit_turn = False
    publish_waits = False

    def __init__(self, name: str, does: Callable[[], object]) -> None:
        self.name = name
        self.committer = self
        self._does = does

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Do what the test says."""
        self._does()
        return Published(len(self.name), ())


def publish(
    *tables: Table,
    leads: Callable[[], None] = lambda: None,
    monotonic: Callable[[], float] = time.monotonic,
    turns: int = 1,
) -> dict[str, Published]:
    """The publications of the last of some turns over these tables."""
    doubles: Any = SimpleNamespace(all=tables, early=tables, late=())
    shell: Any = SimpleNamespace(assert_leading=leads)
    turn: Any = SimpleNamespace(attempts=(STAGED.attempt,), is_cancelled=False)
    told = Broadcast("t", lambda: 0.0)
    committing = Committing(doubles, doubles, doubles, doubles, doubles, told, monotonic)
    try:
        prepared = {table.name: Prepared(STAGED, ()) for table in tables}
        for _ in range(turns - 1):
            committing.publish(turn, PUBLICATION, prepared, shell)
        return committing.publish(turn, PUBLICATION, prepared, shell)
    finally:
        committing.close()


def raises(error: BaseException) -> Callable[[], None]:
    """What raises it."""

    def does() -> None:
        raise error

    return does


def test_tables_publish_side_by_side() -> None:
    """A turn takes as long as its slowest table, not as all of them: three wait for each other."""
    meeting = threading.Barrier(3)
    tables = [Table(name, lambda: meeting.wait(WAIT_SECS)) for name in ("a", "bb", "ccc")]
    assert {name: found.version for name, found in publish(*tables).items()} == {
        "a": 1,
        "bb": 2,
        "ccc": 3,
    }


@pytest.mark.parametrize("first", [True, False])
def test_a_turn_fails_when_every_table_has_ended(first: bool) -> None:
    """A table that is refused lets no replay begin while another still publishes."""
    failed, go_on = threading.Event(), threading.Event()

    def refused() -> None:
        failed.set()
        raise StagedFileError("gone")

    tables = [Table("a", refused), Table("b", lambda: go_on.wait(WAIT_SECS))]
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(publish, *(tables if first else tables[::-1]))
        assert failed.wait(WAIT_SECS)
        with pytest.raises(FutureTimeout):
            turn.result(LONG_SECS)
        go_on.set()
        with pytest.raises(StagedFileError, match="gone"):
            turn.result(WAIT_SECS)


def test_the_error_of_the_first_table_that_fails_is_the_turns() -> None:
    """First as declared, so that two runs of one failure tell the same."""
    tables = [
        Table("a", lambda: None),
        Table("b", raises(StagedFileError("b's"))),
        Table("c", raises(StagedFileError("c's"))),
    ]
    with pytest.raises(StagedFileError, match="b's"):
        publish(*tables)

    names = [str(number) for number in range(8)]
    with pytest.raises(StagedFileError, match="1's"):
        publish(*(Table(name, raises(StagedFileError(f"{name}'s"))) for name in names[1:]))


def test_tables_that_wait_for_storage_have_a_thread_each() -> None:
    """Known from the turns before; of the others three are published at once, and each of them is,
    also behind one that fails.
    """
    lock = threading.Lock()
    at_work: dict[int, int] = {}
    most: dict[int, int] = {}
    now = 0.0

    class Slow(Table):
        """Takes a tenth of a second of the test's clock, with all others of its turn at once."""

        turn = 0

        def publish(self, prepared: Prepared, publication: Publication) -> Published:
            """One turn's."""
            nonlocal now
            self.turn += 1
            with lock:
                at_work[self.turn] = at_work.get(self.turn, 0) + 1
                most[self.turn] = max(most.get(self.turn, 0), at_work[self.turn])
            if self.turn == 2:
                meeting.wait(WAIT_SECS)
            else:
                time.sleep(0.02)
            with lock:
                now += 0.1
                at_work[self.turn] -= 1
            return super().publish(prepared, publication)

    meeting = threading.Barrier(8)
    slow = [Slow(str(number), lambda: None) for number in range(8)]
    quick = [Table(f"quick {number}", lambda: None) for number in range(4)]
    done = publish(*slow, *quick, turns=2, monotonic=lambda: now)
    assert list(done) == [table.name for table in (*slow, *quick)]
    assert most == {1: 3, 2: 8}
    asked: list[str] = []
    tables = [Table(str(number), lambda n=number: asked.append(str(n))) for number in range(1, 9)]
    with pytest.raises(StagedFileError, match="gone"):
        publish(Table("0", raises(StagedFileError("gone"))), *tables)
    assert sorted(asked) == [table.name for table in tables]


def test_tables_far_away_are_published_at_once_from_the_first_turn_on() -> None:
    """Also while they fail, which tells nothing of how long they take."""
    meeting = threading.Barrier(5)

    class Far(Table):
        publish_waits = True

    def refused() -> None:
        meeting.wait(WAIT_SECS)
        raise StagedFileError("away")

    with pytest.raises(StagedFileError, match="away"):
        publish(*(Far(str(number), refused) for number in range(5)))


@pytest.mark.parametrize("ended", ["closed", "cancelled"])
def test_nothing_begins_once_nobody_waits_for_the_turn(
    ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that hung and comes back takes no other with it: the run may be over by then."""
    monkeypatch.setattr("txn.engine.work.commit._AT_ONCE", 1)
    asked: list[str] = []
    turn: Any = SimpleNamespace(attempts=(STAGED.attempt,), is_cancelled=False)
    shell: Any = SimpleNamespace(assert_leading=lambda: None)

    def end() -> None:
        turn.is_cancelled = ended == "cancelled"
        if ended == "closed":
            committing.close()
        asked.append("0")

    others = (Table(str(n), lambda n=n: asked.append(str(n))) for n in (1, 2, 3))
    tables = [Table("0", end), *others]
    doubles: Any = SimpleNamespace(all=tables, early=tables, late=())
    told = Broadcast("t", lambda: 0.0)
    committing = Committing(doubles, doubles, doubles, doubles, doubles, told, time.monotonic)
    prepared = {table.name: Prepared(STAGED, ()) for table in tables}
    with pytest.raises(TurnGivenUpError, match="'1' had not begun"):
        committing.publish(turn, PUBLICATION, prepared, shell)
    assert asked == ["0"]
    committing.close()


def test_no_table_is_asked_once_this_process_does_not_lead() -> None:
    """Leadership is asserted before the first of them, and once for all: ZooKeeper answers one
    question after the other.
    """
    asked: list[str] = []
    tables = [Table(name, lambda: asked.append("published")) for name in "ab"]
    with pytest.raises(FencedError):
        publish(*tables, leads=raises(FencedError("another one leads")))
    assert asked == []
    publish(*tables, leads=lambda: asked.append("leads"))
    assert asked == ["leads", "published", "published"]
