"""The txids that the versions of a published table show, as its log names them."""

from __future__ import annotations

from collections.abc import Iterator

from txn.delta.loading import require
from txn.delta.log import TableLog
from txn.delta.published import record_in
from txn.errors import TableRefusedError
from txn.storage.storage import Storage

__all__ = ["shown_versions", "version_showing"]

_MOST_NAMED = 10
"""The most txids that an error names."""


def shown_versions(storage: Storage) -> Iterator[tuple[int, int]]:
    """(txid, version) of each version that names a txid, the newest first.

    Raises:
        TableAbsentError: the table does not exist.
    """
    version, log = require(storage).version(), TableLog(storage)
    while version >= 0 and (text := log.text(version)) is not None:
        if (record := record_in(text)) is not None:
            yield record["txid"], version
        version -= 1


def version_showing(storage: Storage, txid: int | None) -> int | None:
    """The version that shows a txid; None: the newest one, of any writer.

    Raises:
        TableRefusedError: no version does, or the log does not go back to it.
    """
    if txid is None:
        return None
    shown = dict(reversed([*shown_versions(storage)]))
    if txid not in shown:
        some = ", ".join(map(str, sorted(shown)[-_MOST_NAMED:])) or "none"
        raise TableRefusedError(
            f"Published table {storage.location} does not show txid {txid}. The newest ones that "
            f"it shows are {some}.",
            number="TXN-309",
        )
    return shown[txid]
