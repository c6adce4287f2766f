"""Rebuild the coordinator's state from the tables alone, for `txn recover`.

With F..L = the txids of the newest publication of a table, one or a group:

    every table at the same L       committed = L, positions as published with L
    tables at L, others at F - 1    committed = F - 1, positions as published with F - 1; F to L
                                    are open batches, which the next run replays everywhere
    anything else                   refuse, and name the difference: no run can leave that behind

Opaque batches that all tables hold, but from different attempts, are the second case too: their
replays may differ, so the tables may disagree about them. Identical replays never disagree: then
committed is what all tables hold, even if that is only a part of some table's group.

Pure: a function from the publications read to the progress to write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.interfaces.event_time import EventTime
from txn.protocol.records import BatchRecord, CommittedRecord, Progress, QuarantineRecord
from txn.protocol.recovery import attempts_of, splits_no_group, started

__all__ = ["Publications", "quarantined", "rebuild", "replayed"]

Publications = Mapping[str, Sequence[tuple[int, Publication]]]
"""table -> (table version, publication), newest first; back to F - 1 is enough."""


def rebuild(
    topology: str,
    opaque: Collection[str],
    publications: Publications,
    *,
    skipping: Collection[str] = (),
) -> Progress:
    """Return the progress that ZooKeeper had when the newest of the publications was made.

    Args:
        opaque: as for `txn.protocol.recovery.reconcile`; so is `skipping`.

    Raises:
        RecoveryRefusedError: the tables contradict each other; names tables and txids.
    """
    newest = {table: entries[0][1] if entries else None for table, entries in publications.items()}
    for table, publication in newest.items():
        if publication is not None and publication.topology != topology:
            raise RecoveryRefusedError(
                f"Table '{table}' belongs to topology '{publication.topology}', not to "
                f"'{topology}'. Nothing was changed. Name the file of the right topology.",
                number="TXN-302",
            )
    held = {table: publication for table, publication in newest.items() if publication is not None}
    if not held:
        return Progress()
    ends = [publication.last_txid if publication else 0 for publication in newest.values()]
    same = len(held) == len(publications) and len({attempts_of(p) for p in held.values()}) == 1
    if same or (not opaque and splits_no_group(min(ends), held, skipping)):
        txid = min(ends)
    else:
        txid = max(publication.first_txid for publication in held.values()) - 1
    _check_distance(topology, newest, txid, opaque)
    batches = _open(txid, held.values(), opaque)
    return Progress(committed=_committed(txid, publications), batches=batches)


def _open(
    txid: int, newest: Iterable[Publication], opaque: Collection[str]
) -> tuple[BatchRecord, ...]:
    """Return the txids above `txid` that some table holds, each with its newest attempt."""
    batches: dict[int, BatchRecord] = {}
    for publication in sorted(newest, key=lambda p: p.epoch):
        for member in publication.txids:
            batch = batches.get(member.txid)
            candidate = (publication.epoch, member.attempt_id)
            if member.txid <= txid or (batch and (batch.epoch, batch.attempt) > candidate):
                continue
            batches[member.txid] = started(publication, member, opaque)
    return tuple(batches[txid] for txid in sorted(batches))


def replayed(
    quarantine: Iterable[QuarantineRecord], publications: Iterable[Publication]
) -> dict[int, int]:
    """Find the quarantined txids that the tables hold by now: txid -> txid of the replay.

    For a ZooKeeper that lags behind the tables and still has its quarantine records: what was
    replayed meanwhile must not be replayed again. A replay may have read less than the record, or
    nothing: it has given the txid up. One that was emptied itself has replayed nothing.
    """
    waiting = {record.txid for record in quarantine}
    return {
        publication.replay_of: publication.last_txid
        for publication in publications
        if publication.replay_of in waiting and publication.quarantined is None
    }


def quarantined(
    publications: Iterable[Publication], committed: int
) -> tuple[QuarantineRecord, ...]:
    """Find the txids that were committed empty and not replayed, in the tables' logs.

    Args:
        publications: of all tables, in any order, as far back as there are commit files.
        committed: later txids are open; the next run empties or replays them.
    """
    newest: dict[int, Publication] = {}
    for publication in publications:
        held = newest.get(publication.last_txid)
        candidate = (publication.epoch, publication.attempt_id)
        if publication.last_txid <= committed and (
            held is None or candidate > (held.epoch, held.attempt_id)
        ):
            newest[publication.last_txid] = publication
    done = {publication.replay_of for publication in newest.values()}
    return tuple(
        QuarantineRecord(
            txid=txid,
            attempt=publication.attempt_id,
            spouts=publication.read,
            error=publication.quarantined,
        )
        for txid, publication in sorted(newest.items())
        if publication.quarantined is not None and txid not in done
    )


def _check_distance(
    topology: str,
    newest: Mapping[str, Publication | None],
    committed: int,
    opaque: Collection[str],
) -> None:
    """Refuse a combination of tables that no run can leave behind.

    Each table is at `committed`, or its newest publication begins right above it; an identical
    replay may also be in a group that began earlier.
    """
    for table, publication in newest.items():
        first, last = _span(publication)
        begins = first == committed + 1 or (not opaque and first <= committed)
        if last == committed or (last > committed and begins):
            continue
        ahead = max(newest, key=lambda name: _span(newest[name])[1])
        least = min(newest, key=lambda name: _span(newest[name])[1])
        behind = least if table == ahead else table
        if newest[behind] is None:
            raise RecoveryRefusedError(
                f"Table '{behind}' of topology '{topology}' holds no txid, but '{ahead}' holds "
                f"txid {_span(newest[ahead])[1]}: '{behind}' was lost, or was never written to. "
                "Nothing was changed. If it was lost, restore it from a backup. If it never held "
                f"anything, run `txn recover FILE.py:TOPOLOGY --new '{behind}'`; the next run "
                "then makes it, and it begins with that run's first txid.",
                number="TXN-804",
            )
        before, most = _span(newest[ahead])
        held = _span(newest[behind])[1]
        raise RecoveryRefusedError(
            f"The tables of topology '{topology}' do not belong together: '{ahead}' holds txid "
            f"{most}, but '{behind}' holds txid {held}; a run leaves them "
            f"at most one publication apart. Nothing was changed. Restore '{behind}' to txid "
            f"{before - 1} or {most}, or give the topology a new name and new tables.",
            number="TXN-804",
        )


def _span(publication: Publication | None) -> tuple[int, int]:
    return (publication.first_txid, publication.last_txid) if publication else (0, 0)


def _committed(txid: int, publications: Publications) -> CommittedRecord:
    """Return the COMMITTED record of `txid`, with the positions published with it."""
    if txid == 0:
        return CommittedRecord()
    held = {
        table: next(((v, p) for v, p in entries if p.first_txid <= txid <= p.last_txid), None)
        for table, entries in publications.items()
    }
    # A group records positions for its last txid only.
    candidates = [entry[1] for entry in held.values() if entry and entry[1].last_txid == txid]
    if not candidates:
        raise RecoveryRefusedError(
            f"No table records any more what the streams had read by txid {txid}: those commit "
            "files were cleaned out of the logs. Nothing was changed. Restore them from a "
            "backup, or give the topology a new name and new tables.",
            number="TXN-805",
        )
    publication = max(candidates, key=lambda p: (p.epoch, p.attempt_id))
    return CommittedRecord(
        txid=txid,
        epoch=publication.epoch,
        spouts=publication.spouts,
        tables={table: entry[0] for table, entry in held.items() if entry is not None},
        event_time=_event_time(candidates),
    )


def _event_time(candidates: Sequence[Publication]) -> EventTime | None:
    """Return event time as published; of tables that were filled, only the last watermark."""
    recorded = [p for p in candidates if p.event_time is not None]
    if recorded:
        return max(recorded, key=lambda p: (p.epoch, p.attempt_id)).event_time
    watermarks = [p.watermark for p in candidates if p.watermark is not None]
    if not watermarks:
        return None
    return EventTime(own=max(watermarks), watermarks=[max(watermarks)])
