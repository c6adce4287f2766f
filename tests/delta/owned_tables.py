"""Tables of a topology, made without Spark: many small files, and files that no version needs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake

__all__ = ["WEEK", "add_txids", "age", "make_table", "put_file"]

WEEK = 7 * 24


def make_table(
    location: Path | str,
    txids: int = 4,
    *,
    kind: str = "append",
    topology: str | None = "orders",
    options: Mapping[str, str] | None = None,
    **properties: str,
) -> None:
    """A table with one small file for each txid; `delta_...` are properties `delta....`."""
    own = {"txn.kind": kind} | ({"txn.topology": topology} if topology else {})
    more = {name.replace("_", ".", 1): value for name, value in properties.items()}
    DeltaTable.create(
        str(location),
        Schema([Field("x", "long"), Field("txid", "long")]),
        configuration=own | more,
        storage_options=dict(options or {}),
        raise_if_key_not_exists=False,
    )
    add_txids(location, range(1, txids + 1), topology, options)


def add_txids(
    location: Path | str,
    txids: Iterable[int],
    topology: str | None = "orders",
    options: Mapping[str, str] | None = None,
) -> None:
    """One file of one row for each of these txids."""
    for txid in txids:
        write_deltalake(
            str(location),
            pa.table({"x": [txid], "txid": [txid]}),
            mode="append",
            storage_options=dict(options or {}),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(f"txn/{topology}", txid)]
            ),
        )


def put_file(table: Path, name: str, hours: float) -> Path:
    """A file that no version refers to, last written so many hours ago."""
    file = table / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"rows")
    age(file, hours)
    return file


def age(file: Path, hours: float) -> None:
    """Let a file look so many hours old."""
    then = time.time() - hours * 3600
    os.utime(file, (then, then))
