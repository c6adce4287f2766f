"""The versions of a state table: the newest, the one with a txid, missing files of one."""

from __future__ import annotations

from committers.publishing.files import load_files
from txn.delta.delta_rs import DeltaError
from txn.delta.loading import load, require
from txn.delta.log import TableLog
from txn.errors import TableRefusedError, TxnError
from txn.storage.storage import Storage

__all__ = ["missing_file", "newest_version", "version_of", "watermark_at"]


def newest_version(storage: Storage) -> int:
    """The newest version of a table."""
    return require(storage).version()


def watermark_at(storage: Storage, version: int) -> int | None:
    """The watermark of the newest txid in a version; None without one.

    Reads one commit file, and one more for each version of other writers behind it.
    """
    commits = TableLog(storage).backwards(version)
    held = next((commit.last_publication for commit in commits if commit.last_publication), None)
    return None if held is None else held[1].watermark


def missing_file(storage: Storage, version: int) -> str | None:
    """A file of a version that is gone from storage; None if all exist or it is unknown."""
    try:
        return storage.first_missing(sorted(load_files(load(storage, version))))
    except (DeltaError, OSError, TxnError):
        return None


def version_of(storage: Storage, txid: int) -> int:
    """The table version that holds the state as of `txid`.

    Walks back from the newest version, one commit file each. For a txid that was published again,
    the last publication counts. Before its first publication a table is empty. Among versions with
    the same rows (a compaction, OPTIMIZE, a fence) it takes the last: VACUUM keeps its files
    longest. A change of the table's shape stands behind its txid, which keeps the former shape.

    Raises:
        TableRefusedError: the table does not exist or has not reached the txid, or the txid was
            published together with later ones, or was cleaned out of the log.
    """
    where = storage.location
    version = newest_version(storage)
    log = TableLog(storage)
    newest = later = None
    same_rows = version
    while version >= 0:
        commit = log.commit(version)
        if commit is None:
            raise TableRefusedError(
                f"State table {where} cannot be read as of txid {txid}: version {version} and "
                "those before it were cleaned out of its log. The oldest readable txid is "
                f"{later}. Raise delta.logRetentionDuration to keep more.",
                number="TXN-309",
            )
        if held := commit.publication:
            newest = newest or held.last_txid
            if newest < txid:
                break
            if held.last_txid <= txid:
                return same_rows
            if held.first_txid <= txid:
                raise TableRefusedError(
                    f"State table {where} cannot be read as of txid {txid}: version {version} "
                    f"holds txids {held.first_txid} to {held.last_txid} together. Read it as of "
                    f"{held.last_txid}, or of {held.first_txid - 1}.",
                    number="TXN-309",
                )
            later = held.last_txid
        version -= 1
        if commit.publication or commit.data_change or commit.change:
            same_rows = version
    if newest is None or newest < txid:
        raise TableRefusedError(
            f"State table {where} has not reached txid {txid}: the newest one that it holds is "
            f"{newest or 'none'}. Run the topology further, or ask for an earlier txid.",
            number="TXN-309",
        )
    return 0
