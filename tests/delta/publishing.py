"""Tables with publications in their logs, made without Spark and without committers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from txn.interfaces import Publication


def append(table: Path, key: str | None, value: Any, epoch: int = 1, topology: str = "t") -> None:
    """A commit with something of ours in its commitInfo."""
    write_deltalake(
        str(table),
        pa.table({"x": [1]}),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={key: value} if key else None,
            app_transactions=[Transaction(f"txn/{topology}/epoch", epoch)],
        ),
    )


def publish(table: Path, txid: int, attempt: int = 0, topology: str = "t", **more: Any) -> None:
    """A publication of a txid, appended to a table of one column."""
    found = publication(txid, attempt, topology, **more)
    append(table, "txn", found, found["epoch"], topology)


def publication(txid: int, attempt: int = 0, topology: str = "t", **more: Any) -> dict[str, Any]:
    """A publication as it stands in `commitInfo`."""
    default = {"epoch": 1, "first_txid": txid, "rows": txid * 10, "read": {"s": txid}}
    fields = {**default, **more}
    return Publication(topology=topology, last_txid=txid, attempt_id=attempt, **fields).model_dump(
        mode="json"
    )
