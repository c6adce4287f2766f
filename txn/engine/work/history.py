"""What a topology has read, txid by txid, as the logs of its tables record it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from txn.attempts import LONGEST_GROUP
from txn.delta.loading import is_there
from txn.delta.log import TableLog
from txn.errors import RecoveryRefusedError
from txn.interfaces import Committer, Member, Publication, Semantics
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.interfaces.publication import TablePublication
from txn.protocol.records import CommittedRecord
from txn.protocol.stream_names import rename_in_publication
from txn.storage.locations import identity
from txn.storage.storage import Storage

__all__ = ["History", "Step", "read_history"]


@dataclass(frozen=True)
class Step:
    """One txid or several that are read anew together."""

    members: tuple[Member, ...]
    """What each of them read, in the order of txids."""
    positions: dict[str, Any]
    """Stream -> its newest metadata as of the last one."""
    quarantined: str | None = None
    """The error for which the only one was committed empty."""
    replay_of: int | None = None
    """The quarantined txid that the only one has replayed."""


@dataclass(frozen=True)
class History:
    """The txids that a log still records, up to the committed one."""

    publications: tuple[Publication, ...]
    """Oldest first; together every txid from `first` on."""
    unread: str | None = None
    """The stream that an earlier txid read, and that the program does not declare."""

    @property
    def first(self) -> int:
        """The oldest txid; 0 if there is none."""
        return self.publications[0].first_txid if self.publications else 0

    def readable(self, streams: Collection[str], declared: Collection[str]) -> History:
        """Return the txids that a table can be given, from the first that has all before it out.

        A txid that read a stream which the program does not declare may have read for one of
        `streams` that had not begun: the same source through another spout.

        Args:
            streams: those whose rows the table gets.
            declared: those of the program.
        """
        begun: set[str] = set()
        last, unread = 0, self.unread
        for publication in self.publications:
            read = [(m.txid, s) for m in publication.txids for s in m.read if m.read[s] is not None]
            begun.update(publication.spouts, (stream for _, stream in read))
            for txid, stream in read:
                if stream not in declared and not begun.issuperset(streams):
                    last, unread = txid, stream
        later = tuple(one for one in self.publications if one.first_txid > last)
        return History(later, unread)

    def steps(self, after: int, most: int) -> Iterator[Step]:
        """Yield every txid above `after`, ordinary ones in groups.

        Args:
            most: the most txids of a group.
        """
        positions: dict[str, Any] = {}
        waiting: list[Member] = []
        for publication in self.publications:
            alone = publication.quarantined is not None or publication.replay_of is not None
            for member in publication.txids:
                if (alone or len(waiting) >= min(most, LONGEST_GROUP)) and waiting:
                    yield Step(tuple(waiting), dict(positions))
                    waiting = []
                positions |= _moved(publication, member)
                if member.txid > after:
                    waiting.append(member)
            if alone and waiting:
                yield Step(
                    tuple(waiting),
                    dict(positions),
                    publication.quarantined,
                    publication.replay_of,
                )
                waiting = []
        if waiting:
            yield Step(tuple(waiting), dict(positions))


def _moved(publication: Publication, member: Member) -> dict[str, Any]:
    """Return the positions that a txid has moved, as far as its publication records them."""
    if member.txid == publication.last_txid:
        return dict(publication.spouts)
    return {stream: read for stream, read in member.read.items() if read is not None}


def read_history(
    donors: Iterable[Committer],
    committed: CommittedRecord,
    renamed: Mapping[str, str] = MappingProxyType({}),
    planned_anew: Collection[str] = (),
    *,
    since: int = 1,
) -> History:
    """Return the longest history that a table records without a gap up to the committed txid.

    Args:
        donors: committers of tables that hold that txid.
        committed: the txid, and the versions of the tables that hold it.
        renamed: former name of a stream -> its name in the program.
        planned_anew: the streams of which a replay may read something else. What a table that
            skips a replay has recorded then need not be what was committed.
        since: the oldest txid that is needed.

    Raises:
        RecoveryRefusedError: a log does not reach the version that ZooKeeper names.
    """
    versions = {identity(table): version for table, version in committed.tables.items()}
    longest = History(())
    for committer in sorted(donors, key=_skips):
        least = versions.get(identity(committer.name), 0)
        history = History(_unbroken(committer, committed.txid, least, renamed, planned_anew, since))
        if history.first and (not longest.first or history.first < longest.first):
            longest = history
        if 0 < longest.first <= since:
            break  # reading a log takes as long as it has versions
    return longest


def _skips(committer: Committer) -> bool:
    return committer.semantics is Semantics.TRANSACTIONAL


def _unbroken(
    committer: Committer,
    committed: int,
    least: int,
    renamed: Mapping[str, str],
    planned_anew: Collection[str],
    since: int,
) -> tuple[Publication, ...]:
    """Return the publications that stand, oldest first, back to `since` or to the first gap.

    Args:
        least: the version that has the committed txid, or one before it.
        planned_anew: as for `read_history`.
    """
    standing: list[Publication] = []
    below = committed + 1
    for entry in _entries(committer):
        publication = entry.publication
        if publication.first_txid > committed or publication.is_lost:
            continue
        if not standing and entry.version < least:
            raise _too_old(committer, entry.version, committed, least)
        kept = _up_to(publication, below - 1)
        if kept is None:
            continue  # published again later
        own = rename_in_publication(renamed, kept)
        declared = {stream for member in own.txids for stream in member.read}
        unsure = entry.of_skipping or _skips(committer)
        if own.last_txid != below - 1 or (unsure and not declared.isdisjoint(planned_anew)):
            break
        standing.append(own)
        below = own.first_txid
        if below <= since:
            break
    return tuple(reversed(standing))


def _entries(committer: Committer) -> Iterable[TablePublication]:
    storage = Storage(committer.name, committer.storage_options)
    if isinstance(committer, KeepsOwnLog):
        return committer.publications()
    if is_there(storage):
        return TableLog(storage).publications()
    return ()  # a table that no batch has needed yet


def _too_old(committer: Committer, version: int, txid: int, least: int) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"Table '{committer.name}' has version {version} as its newest one with txid {txid}, and "
        f"ZooKeeper names version {least}: the table was restored to an older version, or its log "
        "was listed before that version could be seen. Nothing was changed. Start again; if that "
        "does not help, restore the table.",
        number="TXN-804",
    )


def _up_to(publication: Publication, last: int) -> Publication | None:
    """Return the part of a publication up to a txid, which no later publication repeats."""
    if publication.last_txid <= last:
        return publication
    members: Sequence[Member] = [m for m in publication.txids if m.txid <= last]
    if not members:
        return None
    newest = members[-1]
    return publication.model_copy(
        update={
            "last_txid": newest.txid,
            "attempt_id": newest.attempt_id,
            "read": newest.read,
            "watermark": newest.watermark,
            "dimensions": newest.dimensions,
            "spouts": {},
            "event_time": None,
            "members": tuple(members) if len(members) > 1 else (),
        }
    )
