"""What the logs of a topology's tables say that its txids read, where they do not agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from txn.engine.work.history import read_history
from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication, Semantics
from txn.interfaces.publication import TablePublication
from txn.protocol.records import CommittedRecord


class Donor:
    """A table that keeps its log in a list, oldest first; a version for each entry."""

    storage_options: dict[str, str] | None = None
    skipped = False
    """Whether it skipped replays, whatever it does now."""

    def __init__(self, name: str, semantics: Semantics, *entries: Publication) -> None:
        self.name, self.semantics = name, semantics
        self._entries: Sequence[Publication] = entries

    def publications(self) -> Iterator[TablePublication]:
        """Yield them, newest first."""
        numbered = list(enumerate(self._entries))
        skipped = self.skipped
        return (TablePublication(version, one, 0, skipped) for version, one in reversed(numbered))

    def newest_epoch(self) -> int:
        """Return the epoch of all."""
        return 1


def publication(txid: int, attempt: int, **read: Any) -> Publication:
    """Return a publication of one txid."""
    return Publication(
        topology="t",
        epoch=1,
        first_txid=txid,
        last_txid=txid,
        attempt_id=attempt,
        read=read,
        spouts={stream: at for stream, at in read.items() if at is not None},
    )


FIRST = publication(1, 0, keyed={"start": 0, "end": 2}, free=None)
DEAD = publication(2, 1, keyed={"start": 2, "end": 3}, free=None)
REPLAY = publication(2, 2, keyed={"start": 2, "end": 3}, free={"start": 0, "end": 1})


def read(*donors: Donor, planned_anew: Sequence[str] = ("free",), version: int = 0) -> Any:
    """Return the publications up to txid 2, of which ZooKeeper names a version of each table."""
    tables = {donor.name: version for donor in donors}
    committed = CommittedRecord(txid=2, epoch=1, spouts={}, tables=tables)
    return read_history(donors, committed, planned_anew=planned_anew).publications  # type: ignore[arg-type]


def test_a_table_that_skips_a_replay_does_not_say_what_was_committed() -> None:
    """A transactional table keeps what a dead attempt planned for the streams of other tables."""
    skips = Donor("skips", Semantics.TRANSACTIONAL, FIRST, DEAD)
    takes_back = Donor("takes-back", Semantics.OPAQUE, FIRST, DEAD, REPLAY)
    assert (FIRST, REPLAY) == read(skips, takes_back) == read(takes_back, skips)
    assert () == read(skips)
    skipped = Donor("skipped", Semantics.OPAQUE, FIRST, DEAD)
    skipped.skipped = True
    assert (FIRST, REPLAY) == read(skipped, takes_back)


def test_it_does_where_every_replay_reads_the_same() -> None:
    """Without a stream that is planned anew, all attempts of a txid have read the same."""
    assert (FIRST, DEAD) == read(Donor("t", Semantics.TRANSACTIONAL, FIRST, DEAD), planned_anew=())


def test_a_log_must_reach_the_version_that_zookeeper_names() -> None:
    """A listing that is too old would give a table the rows of a dead attempt."""
    takes_back = Donor("/data/t", Semantics.OPAQUE, FIRST, DEAD)
    with pytest.raises(RecoveryRefusedError, match="'/data/t' has version 1.* names version 2"):
        read(takes_back, version=2)
    assert (FIRST, DEAD) == read(takes_back, version=1)
