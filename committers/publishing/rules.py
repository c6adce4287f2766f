"""Decide when a publication may be appended: pure rules over the content of the log.

`require_newer` checks the newest publication in the table, `judge` one commit that another writer
appended between the version that a publication was computed from and its own.
"""

from __future__ import annotations

from txn.delta.commits import Commit
from txn.errors import CommitConflictError, FencedError, RecoveryRefusedError
from txn.interfaces import Publication

__all__ = ["fenced", "judge", "led_elsewhere", "require_newer", "require_unsettled"]


def require_newer(
    publication: Publication, last: tuple[int, Publication] | None, epoch: int, table: str
) -> None:
    """Refuse a publication that is not newer than the table's newest one.

    `first_txid` is committed + 1, so it never goes back as long as the coordinator keeps its state.

    Args:
        last: (version, newest publication), None without one.
        epoch: the newest epoch in the log.

    Raises:
        FencedError: the log holds a newer epoch.
        RecoveryRefusedError: a new leader has lost txids that an older one committed.
        CommitConflictError: the attempt is not the newest of its txid.
    """
    if epoch > publication.epoch:
        raise fenced(table, publication.topology, epoch, publication.epoch)
    if last is None:
        return
    version, held = last
    attempt = f"Attempt {publication.last_txid}:{publication.attempt_id}"
    if held.is_lost and publication.first_txid <= held.last_txid:
        raise RecoveryRefusedError(
            f"{attempt} would start at txid {publication.first_txid}, but table {table} holds "
            f"txid {held.last_txid}, whose commit file is no longer in its log. Restore the "
            "commit file from a backup, or give the topology a new name and new tables.",
            number="TXN-805",
        )
    goes_back = publication.first_txid < held.first_txid
    if goes_back and publication.epoch > held.epoch:
        raise RecoveryRefusedError(
            f"{attempt} would start at txid {publication.first_txid}, but when version {version} "
            f"of table {table} was published, txid {held.first_txid - 1} was committed already. "
            "The coordinator's state is older than the table: run `txn recover`.",
            number="TXN-803",
        )
    if publication.epoch == held.epoch and (goes_back or _repeats(publication, held)):
        raise CommitConflictError(
            f"{attempt} of epoch {publication.epoch} is not newer than what version {version} of "
            f"table {table} holds: {held.last_txid}:{held.attempt_id}. It is dropped."
        )


def _repeats(publication: Publication, held: Publication) -> bool:
    """Return whether the attempt of a txid in both is not newer than the held one."""
    attempts = {member.txid: member.attempt_id for member in held.txids}
    return any(
        member.attempt_id <= attempts[member.txid]
        for member in publication.txids
        if member.txid in attempts
    )


def require_unsettled(publication: Publication, settled: int, table: str) -> None:
    """Refuse to replace a txid that the log marks as final: readers may have acted on it.

    Args:
        settled: the newest final txid, 0 if the log has no such mark.

    Raises:
        RecoveryRefusedError: the coordinator's state is older than the table.
    """
    if publication.first_txid <= settled:
        raise RecoveryRefusedError(
            f"Attempt {publication.last_txid}:{publication.attempt_id} would start at txid "
            f"{publication.first_txid}, but table {table} records txid {settled} as committed "
            "and final. The coordinator's state is older than the table: run `txn recover`.",
            number="TXN-803",
        )


def judge(commit: Commit | None, version: int, publication: Publication, table: str) -> None:
    """Refuse to publish over another writer's commit that changed rows.

    `committers.verifying.foreign_commits` has already refused changes that last; those seen here
    were undone since.

    Args:
        commit: the commit of `version`; None when its file is gone.

    Raises:
        FencedError: it is a newer leader's.
        CommitConflictError: it changed rows, or this is unknown.
    """
    if commit is None:
        raise CommitConflictError(
            f"Version {version} of table {table} is not in its log any more. The batch is "
            "prepared again."
        )
    if commit.epoch > publication.epoch:
        raise fenced(table, publication.topology, commit.epoch, publication.epoch)
    if commit.publication is not None:
        held = commit.publication
        raise CommitConflictError(
            f"Version {version} of table {table} was published meanwhile by epoch {held.epoch} as "
            f"{held.last_txid}:{held.attempt_id}. The batch is prepared again."
        )
    if commit.data_change:
        raise CommitConflictError(
            f"Version {version} of table {table} changed rows ({commit.operation}) after the batch "
            f"was prepared. Only topology '{publication.topology}' should write to this table; the "
            "batch is prepared again on top of the change."
        )


def fenced(table: str, topology: str, newer: int, own: int) -> FencedError:
    """The error for a leader that has been replaced."""
    return FencedError(
        f"Table {table} was taken over by epoch {newer} of topology '{topology}'; this process "
        f"has epoch {own} and must publish nothing more. Let the newer process go on, or stop it "
        "before you start this one again."
    )


def led_elsewhere(table: str, topology: str, recorded: int, own: int) -> RecoveryRefusedError:
    """The error for a leader whose table is led from another ensemble.

    Args:
        recorded: the incarnation that the table names.
        own: the incarnation of this process.
    """
    return RecoveryRefusedError(
        f"Table {table} is led by topology '{topology}' from another ensemble: its log names "
        f"incarnation {recorded:016x}, but the ZooKeeper of this run has {own:016x}. Epochs of two "
        "ensembles may be equal, so neither run would fence the other. Nothing was changed. Name "
        "the ensemble that leads the table (--zookeeper; an embedded one is a folder). If that "
        "one was wiped or must not lead any more, `txn recover FILE.py:TOPOLOGY` makes this one "
        "take over.",
        number="TXN-808",
    )
