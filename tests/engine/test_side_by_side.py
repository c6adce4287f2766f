"""The tables of a topology publish side by side, and a turn ends when all of them have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from types import SimpleNamespace
from typing import Any

import pytest

from txn.attempts import TransactionAttempt
from txn.engine.broadcast import Broadcast
from txn.engine.commit import Committing
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

    def __init__(self, name: str, does: Callable[[], object]) -> None:
        self.name = name
        self.committer = self
        self._does = does

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Do what the test says."""
        self._does()
        return Published(len(self.name), ())


def publish(*tables: Table, leads: Callable[[], None] = lambda: None) -> dict[str, Published]:
    """The publications of one turn over these tables."""
    doubles: Any = SimpleNamespace(all=tables, early=tables, late=())
    shell: Any = SimpleNamespace(assert_leading=leads)
    turn: Any = SimpleNamespace(attempts=(STAGED.attempt,))
    told = Broadcast("t", lambda: 0.0)
    committing = Committing(doubles, doubles, doubles, doubles, doubles, told)
    try:
        prepared = {table.name: Prepared(STAGED, ()) for table in tables}
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
