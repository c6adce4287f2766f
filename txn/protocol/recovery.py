"""Compare the tables with ZooKeeper and decide where a new leader starts.

The tables are read first, after they have been fenced: from then on no older leader can add to
them, so their logs are final. Four cases per topology (DESIGN, "Recovery reads the tables
first"), with C = ZooKeeper's committed txid and F..L = the txids of the newest publication in a
table's log, one txid or a group:

    every L = C                       go on
    every F = C + 1, the same group   the crash came between publication and COMMITTED: roll
    with the same attempts            ZooKeeper forward to L, adopting the positions in the tables
    some F = C + 1, others L = C, or  replay from C + 1 on, with attempts above any that a table
    other groups or attempts          has seen; the guards make it land once
    any F > C + 1, or L < C           refuse: something was wiped or replaced

An open batch that no table holds loses what it was to read of a stream that the program has left
out (`dropped_streams`); the position of that stream stays.

Two attempts of a txid with identical replays are equivalent. ZooKeeper is then rolled forward to
the smallest L, unless that is inside a group that some table can only replay as a whole. A table
that skips what it holds may have F <= C < L: it holds a whole group whose replay came in smaller
groups, some of which are committed.

Pure: a function from the state read to the actions to take.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from txn.errors import RecoveryRefusedError
from txn.interfaces import Member, Publication
from txn.protocol.records import BatchRecord, CommittedRecord, Progress, QuarantineRecord

__all__ = [
    "Newest",
    "Recovered",
    "attempts_of",
    "check_streams",
    "newest_metadata",
    "reconcile",
    "require_tables",
    "splits_no_group",
    "started",
    "with_rows",
]

Newest = Mapping[str, "tuple[int, Publication] | None"]
"""Table -> version and publication of its newest txid; None: the table is empty."""


@dataclass(frozen=True)
class Recovered:
    """The state from which the run starts."""

    committed: CommittedRecord
    batches: tuple[BatchRecord, ...]
    roll_forward: bool = False
    """True: `committed` is newer than ZooKeeper's and must be written there first."""
    quarantine: QuarantineRecord | None = None
    """To be written with `committed` if its txid was published empty."""
    replay_of: int | None = None
    """The quarantined txid that `committed` has replayed; its record is deleted."""
    published: frozenset[int] = frozenset()
    """Open txids that some tables, but not all, hold already."""

    def quarantined(self, before: Collection[int]) -> frozenset[int]:
        """Return the txids in quarantine when the run begins; `before`: those in ZooKeeper."""
        new = {self.quarantine.txid} if self.quarantine is not None else set()
        return (frozenset(before) | new) - {self.replay_of}


Ahead = Mapping[str, "tuple[int, Publication]"]
"""table that holds more than is committed -> (version, newest publication)."""


def reconcile(
    topology: str,
    streams: Sequence[str],
    opaque: Collection[str],
    progress: Progress,
    newest: Newest,
    *,
    replays_differ: bool = False,
    skipping: Collection[str] = (),
    dropped: Collection[str] = (),
) -> Recovered:
    """Decide where to start from ZooKeeper (`progress`) and every table's log (`newest`).

    Args:
        streams: the streams that the program declares.
        opaque: those of them that are planned anew on replay.
        newest: table -> (version, newest publication), or None for an empty table.
        replays_differ: two attempts of a txid may differ, whatever the spouts promise (a query of
            a state as of the last committed txid).
        skipping: the tables that skip, txid by txid, what they hold (transactional ones).
        dropped: streams that the program may have left out.

    Raises:
        RecoveryRefusedError: the two contradict each other; names table, txids and the way out.
    """
    check_streams(topology, streams, opaque, progress, dropped)
    committed = progress.committed
    for table, publication in newest.items():
        _check_table(topology, table, publication, committed, skips=table in skipping)
        if publication is not None:
            _check_same(topology, table, publication, committed, skips=table in skipping)
    ahead = _beyond(committed.txid, newest)
    identical = not opaque and not replays_differ
    result = Recovered(committed, progress.batches)
    if (
        ahead
        and len(ahead) == len(newest)
        and (_same_attempts(ahead) or (identical and _may_end_apart(ahead, skipping)))
    ):
        result = _rolled_forward(committed, progress.batches, ahead)
        ahead = _beyond(result.committed.txid, newest)
    first = result.committed.txid + 1
    last = max((publication.last_txid for _, publication in ahead.values()), default=0)
    published = frozenset(range(first, last + 1))
    batches = _with_attempts(result.batches, ahead, first)
    batches = _without_unread(topology, streams, batches, published)
    return replace(result, batches=batches, published=published)


def started(publication: Publication, member: Member, opaque: Collection[str] = ()) -> BatchRecord:
    """Return the START of one txid, from a publication that holds it.

    Args:
        opaque: the streams to record as opaque; empty for a record that is not written.
    """
    return BatchRecord(
        txid=member.txid,
        attempt=member.attempt_id,
        epoch=publication.epoch,
        spouts=member.read,
        opaque=sorted(opaque),
        quarantined=publication.quarantined,
        replay_of=publication.replay_of,
        watermark=member.watermark,
        dimensions=member.dimensions,
    )


def check_streams(
    topology: str,
    streams: Sequence[str],
    opaque: Collection[str],
    progress: Progress,
    dropped: Collection[str],
) -> None:
    """Refuse a program whose streams do not match the progress.

    Args:
        dropped: streams that the program may have left out.

    Raises:
        RecoveryRefusedError: a stream is gone, or is of another kind while its batches are open.
    """
    _check_kinds(topology, streams, opaque, progress)
    recorded = set(progress.committed.spouts).union(*(batch.spouts for batch in progress.batches))
    lost = sorted(recorded - set(streams) - set(dropped))
    if lost:
        names = ", ".join(map(repr, lost))
        new = sorted(set(streams) - recorded)
        renamed = "".join(
            f"If '{lost[0]}' was renamed, write stream({name!r}, SPOUT, was={lost[0]!r}): it goes "
            "on from its position. "
            for name in new[:1]
        )
        raise RecoveryRefusedError(
            f"Topology '{topology}' has progress for stream {names} in ZooKeeper, but the program "
            f"declares only {', '.join(sorted(streams))}. Nothing was changed. If this is an older "
            f"program, start the newer one. {renamed}To leave it out, set "
            f"TopologyConfig(dropped_streams=({names},)), or --set dropped_streams="
            f"{','.join(lost)}: its position is kept, and a program that declares it again goes on "
            f"from there.{_begins(new)}",
            number="TXN-806",
        )


def _begins(new: Sequence[str]) -> str:
    """Say what becomes of streams without a position, if another one is left out for them."""
    if not new:
        return ""
    names = ", ".join(map(repr, new))
    return f" {names} then begins at its beginning: all that it has is added to the tables."


def _check_kinds(
    topology: str, streams: Collection[str], opaque: Collection[str], progress: Progress
) -> None:
    """Refuse a transactional spout over the open batches of an opaque one: they may be outdated."""
    for batch in progress.batches:
        changed = sorted(set(batch.opaque).intersection(streams) - set(opaque))
        if changed:
            last = progress.batches[-1].txid
            raise RecoveryRefusedError(
                f"Txid {batch.txid} of topology '{topology}' is open, and was started when "
                f"stream '{changed[0]}' had an opaque spout; it is transactional now. The stored "
                "metadata may be outdated. Nothing was changed. Run the opaque spout once more, "
                f"with `--until {last}` (until={last}), which commits the open batches and starts "
                "no others; then change the kind.",
                number="TXN-806",
            )


def _without_unread(
    topology: str,
    streams: Sequence[str],
    batches: Sequence[BatchRecord],
    published: Collection[int],
) -> tuple[BatchRecord, ...]:
    """Return the open batches without what they can no longer read; it is planned anew later.

    A batch reads nothing of a dropped stream. Its START may have been replaced by one without that
    stream while those of later batches were not; if the stream is declared again by then, the
    records between them would be skipped. So a stream that an open batch does not name is taken out
    of all later ones, too: its position stays where it was before the first of them.

    Raises:
        RecoveryRefusedError: some tables, not all, hold what a batch read of a dropped stream.
    """
    left: list[BatchRecord] = []
    unread: set[str] = set()
    for batch in batches:
        read = {stream for stream, metadata in batch.spouts.items() if metadata is not None}
        gone = sorted(read - set(streams))
        if gone and batch.txid in published:
            raise RecoveryRefusedError(
                f"Txid {batch.txid} of topology '{topology}' is in some tables and not in all of "
                f"them. It has read stream '{gone[0]}', which the program does not declare. "
                "Nothing was changed. Run the former program once more, with `--until "
                f"{max(published)}` (until={max(published)}), which completes the txid; then leave "
                "the stream out.",
                number="TXN-806",
            )
        if batch.replay_of is not None:
            # Without its replay, the quarantined txid stays in quarantine.
            emptied = batch.model_copy(update={"spouts": {}, "replay_of": None})
            left.append(emptied if gone else batch)
            continue
        if batch.txid not in published:
            readable = set(streams) - unread
            spouts = {name: m for name, m in batch.spouts.items() if name in readable}
            unread |= readable - batch.spouts.keys()
            batch = batch.model_copy(update={"spouts": spouts})
        left.append(batch)
    return tuple(left)


def _check_table(
    topology: str,
    table: str,
    entry: tuple[int, Publication] | None,
    committed: CommittedRecord,
    *,
    skips: bool,
) -> None:
    last = entry[1].last_txid if entry else 0
    first = entry[1].first_txid if entry else 0
    if entry and last > committed.txid and entry[1].is_lost:
        raise RecoveryRefusedError(
            f"Table '{table}' holds txid {last}, but the commit file that records what was read "
            "for it was cleaned out of the log, and ZooKeeper's committed txid of topology "
            f"'{topology}' is {committed.txid}. Nothing was changed. Restore that file from a "
            "backup, or give the topology a new name and new tables.",
            number="TXN-805",
        )
    fits = first <= committed.txid + 1 if skips else first == committed.txid + 1
    fits = fits and (entry is None or len(entry[1].txids) == last - first + 1)
    if entry and last > committed.txid and not fits:
        raise RecoveryRefusedError(
            f"Table '{table}' holds txid {last} (version {entry[0]}), but ZooKeeper's committed "
            f"txid of topology '{topology}' is {committed.txid}: ZooKeeper was wiped, or this "
            "run uses another ensemble. Nothing was changed. `txn recover FILE.py:TOPOLOGY` "
            "rebuilds ZooKeeper's state from the tables.",
            number="TXN-803",
        )
    if last < committed.txid and (last > 0 or table in committed.tables):
        raise _behind(topology, table, last, committed)


def require_tables(topology: str, committed: CommittedRecord, newest: Newest) -> None:
    """Refuse tables that are unexpectedly empty, before a table is made in their place.

    Args:
        newest: of the tables that `committed` names.

    Raises:
        RecoveryRefusedError: naming the first.
    """
    for table, entry in newest.items():
        if entry is None and committed.txid and table in committed.tables:
            raise _behind(topology, table, 0, committed)


def _behind(
    topology: str, table: str, last: int, committed: CommittedRecord
) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"Table '{table}' holds txid {last or 'none'}, but ZooKeeper says that txid "
        f"{committed.txid} of topology '{topology}' is committed (there: version "
        f"{committed.tables.get(table, 'none')}): the table was deleted, replaced, restored to an "
        "older version, or left out for a while; a relative path starts at the working directory. "
        "Nothing was changed. Restore the table. If it may be filled with the txids that it lacks, "
        f"which are read anew, set TopologyConfig(backfilled_tables=({table!r},)).",
        number="TXN-804",
    )


def _check_same(
    topology: str,
    table: str,
    entry: tuple[int, Publication],
    committed: CommittedRecord,
    *,
    skips: bool,
) -> None:
    """Refuse a table that holds the right txid in another version or with other positions.

    A table that skips what it holds may have a txid from another attempt than the committed one,
    with other positions of the streams that it does not read.
    """
    version, publication = entry
    committed_version = committed.tables.get(table)
    if committed_version is None or not committed.txid or publication.is_lost:
        return
    is_newest = publication.last_txid == committed.txid
    differs = version != committed_version if is_newest else version < committed_version
    moved = is_newest and not skips and _moved(publication, committed)
    if not differs and not moved:
        return
    detail = (
        f"in version {version}, but ZooKeeper knows version {committed_version}"
        if differs
        else f"with another position of stream '{moved}' than ZooKeeper knows"
    )
    raise RecoveryRefusedError(
        f"Table '{table}' holds txid {publication.last_txid} of topology '{topology}' {detail}: "
        "another table was put in its place, or this run uses another ensemble. Nothing was "
        "changed. Put the former table back, or give the topology a new name and new tables.",
        number="TXN-808",
    )


def _moved(publication: Publication, committed: CommittedRecord) -> str | None:
    """Return a stream whose position differs, or None."""
    positions = publication.spouts.items()
    return next((s for s, at in positions if committed.spouts.get(s, at) != at), None)


def _beyond(txid: int, newest: Newest) -> Ahead:
    return {t: entry for t, entry in newest.items() if entry and entry[1].last_txid > txid}


def _same_attempts(ahead: Ahead) -> bool:
    return len({attempts_of(entry) for _, entry in ahead.values()}) == 1


def attempts_of(publication: Publication) -> tuple[tuple[int, int, int], ...]:
    """Return a publication's identity: (epoch, txid, attempt id) of every txid."""
    return tuple((publication.epoch, m.txid, m.attempt_id) for m in publication.txids)


def splits_no_group(txid: int, held: Mapping[str, Publication], skipping: Collection[str]) -> bool:
    """True if a run may begin after `txid`: every group that reaches beyond it can be split."""
    return all(
        publication.last_txid <= txid or publication.first_txid > txid or table in skipping
        for table, publication in held.items()
    )


def _may_end_apart(ahead: Ahead, skipping: Collection[str]) -> bool:
    held = {table: publication for table, (_, publication) in ahead.items()}
    return splits_no_group(_smallest(ahead).last_txid, held, skipping)


def _smallest(ahead: Ahead) -> Publication:
    """Return the publication that ends first: a table that holds more has other positions."""
    return min((entry for _, entry in ahead.values()), key=lambda entry: entry.last_txid)


def _rolled_forward(
    committed: CommittedRecord, batches: tuple[BatchRecord, ...], ahead: Ahead
) -> Recovered:
    publication = _smallest(ahead)
    record = CommittedRecord(
        txid=publication.last_txid,
        epoch=publication.epoch,
        spouts={**committed.spouts, **publication.spouts},
        tables={**committed.tables, **{table: version for table, (version, _) in ahead.items()}},
        event_time=publication.event_time or committed.event_time,
    )
    rest = tuple(batch for batch in batches if batch.txid > record.txid)
    # A txid is emptied, or becomes a replay, before its first commit turn, so its newest START
    # holds for every attempt that can have published. Neither is ever in a group.
    start = next((batch for batch in batches if batch.txid == record.txid), None)
    source = start if start and start.attempt >= publication.attempt_id else publication
    error = source.quarantined
    quarantine = error and QuarantineRecord(
        txid=record.txid, attempt=publication.attempt_id, spouts=publication.read, error=error
    )
    return Recovered(record, rest, True, quarantine or None, source.replay_of)


def _with_attempts(
    batches: tuple[BatchRecord, ...], ahead: Ahead, first: int
) -> tuple[BatchRecord, ...]:
    """Return the open batches with attempt numbers at least as high as in any table.

    A publication replaces a missing START, as after ZooKeeper was restored from a backup: its
    metadata is in the log, and so is the error of an emptied txid.
    """
    by_txid = {batch.txid: batch for batch in batches}
    for _, publication in ahead.values():
        for member in publication.txids:
            batch = by_txid.get(member.txid)
            if member.txid >= first and (batch is None or batch.attempt < member.attempt_id):
                opaque = batch.opaque if batch else ()
                by_txid[member.txid] = started(publication, member, opaque)
    return tuple(by_txid[txid] for txid in sorted(by_txid))


def newest_metadata(progress: Progress) -> dict[str, Any]:
    """Return each stream's newest durable metadata, open batches included, replays left out."""
    newest = dict(progress.committed.spouts)
    for batch in progress.batches:
        if batch.replay_of is not None:
            continue
        newest.update({name: m for name, m in batch.spouts.items() if m is not None})
    return newest


def with_rows(progress: Progress, newest: Newest) -> tuple[list[str], list[str]]:
    """Return the tables, and the streams, of which it is certain that a commit brought rows."""
    committed = progress.committed
    tables = [
        table
        for table, entry in newest.items()
        if entry and entry[1].rows and entry[1].last_txid <= committed.txid
    ]
    streams = [
        stream
        for stream, read in committed.spouts.items()
        if read is not None
        and stream in progress.columns
        and stream not in progress.quarantined_streams
    ]
    return tables, streams
