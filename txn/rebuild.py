"""The coordinator's state out of the tables alone: what `txn recover` writes into ZooKeeper.

With L = the newest txid that any table has published:

    every table at L                 committed = L, positions as published with L
    some at L, the others at L - 1   committed = L - 1, positions as published with L - 1; L is an
                                     open batch, which the next run replays everywhere
    anything else                    refuse, and name the difference: no run can leave that behind

Opaque batches that all tables have, but not all from the same attempt, are the second case too:
their replays may differ, so the tables may disagree about L.

Pure: a function from what was read to what is to be written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.records import BatchRecord, CommittedRecord, Progress, QuarantineRecord
from txn.recovery import is_replay

__all__ = ["Publications", "rebuild", "replayed"]

Publications = Mapping[str, Sequence[tuple[int, Publication]]]
"""table -> (table version, publication), newest first; L and L - 1 are enough."""


def rebuild(topology: str, opaque: Collection[str], found: Publications) -> Progress:
    """What ZooKeeper must have said when the newest of the publications was made.

    Args:
        opaque: the streams that are planned anew on replay.

    Raises:
        RecoveryRefusedError: the tables do not fit each other; names tables and txids.
    """
    newest = {table: entries[0][1] if entries else None for table, entries in found.items()}
    for table, publication in newest.items():
        if publication is not None and publication.topology != topology:
            raise RecoveryRefusedError(
                f"Table '{table}' belongs to topology '{publication.topology}', not to "
                f"'{topology}'. Nothing was changed. Name the file of the right topology."
            )
    known = [publication for publication in newest.values() if publication is not None]
    if not known:
        return Progress()
    last = max(known, key=lambda p: (p.last_txid, p.epoch, p.attempt_id))
    before = last.first_txid - 1
    _check_distance(topology, newest, before, last.last_txid)
    everywhere = all(p is not None and p.last_txid == last.last_txid for p in newest.values())
    if everywhere and (not opaque or len({(p.epoch, p.attempt_id) for p in known}) == 1):
        return Progress(committed=_committed(last.last_txid, found))
    return Progress(
        committed=_committed(before, found),
        batches=(
            BatchRecord(
                txid=last.last_txid,
                attempt=last.attempt_id,
                epoch=last.epoch,
                spouts=last.read,
                opaque=sorted(opaque),
                replay_of=0 if is_replay(last) else None,
            ),
        ),
    )


def replayed(
    quarantine: Iterable[QuarantineRecord], publications: Iterable[Publication], committed: int
) -> dict[int, int]:
    """Which of the quarantined txids the tables have been given since: txid -> txid of the replay.

    For a ZooKeeper that lags behind the tables and has kept its quarantine records: what was
    replayed meanwhile must not be replayed again. A replay reads just what the record says; no
    other txid does, but for spouts whose metadata does not tell batches apart. A committed txid
    that brought no rows may have been emptied in its turn, and replaces no record.
    """
    waiting = sorted(quarantine, key=lambda record: record.txid)
    found: dict[int, int] = {}
    for publication in publications:
        if publication.last_txid <= committed and not publication.rows:
            continue
        for record in waiting:
            if record.txid < publication.last_txid and _reads(publication.read, record.spouts):
                found[record.txid] = publication.last_txid
    return found


def _reads(read: Mapping[str, Any], aside: Mapping[str, Any]) -> bool:
    something = any(metadata is not None for metadata in aside.values())
    return something and all(read.get(s) == aside.get(s) for s in {**read, **aside})


def _check_distance(
    topology: str, newest: Mapping[str, Publication | None], before: int, last: int
) -> None:
    ahead = next(table for table, p in newest.items() if p is not None and p.last_txid == last)
    for table, publication in newest.items():
        txid = publication.last_txid if publication is not None else 0
        if txid not in (before, last):
            raise RecoveryRefusedError(
                f"The tables of topology '{topology}' do not belong together: '{ahead}' holds "
                f"txid {last}, but '{table}' holds {f'txid {txid}' if txid else 'none'}; a run "
                f"leaves them at most one txid apart. Nothing was changed. Restore '{table}' to "
                f"txid {before} or {last}, or give the topology a new name and new tables."
            )


def _committed(txid: int, found: Publications) -> CommittedRecord:
    """The COMMITTED record of `txid`, with the positions that were published with it."""
    if txid == 0:
        return CommittedRecord()
    held = {
        table: next(((v, p) for v, p in entries if p.last_txid == txid), None)
        for table, entries in found.items()
    }
    known = [entry[1] for entry in held.values() if entry is not None]
    if not known:
        raise RecoveryRefusedError(
            f"No table says any more what the streams had read by txid {txid}: the commit files "
            "that said so were cleaned out of the logs. Nothing was changed. Restore them from a "
            "backup, or give the topology a new name and new tables."
        )
    publication = max(known, key=lambda p: (p.epoch, p.attempt_id))
    return CommittedRecord(
        txid=txid,
        epoch=publication.epoch,
        spouts=publication.spouts,
        tables={table: entry[0] for table, entry in held.items() if entry is not None},
    )
