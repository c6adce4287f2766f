"""The files of a topology's table: of its newest version, and those that a commit adds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txn.delta.commits import TXID, Commit, file_path, txid_in
from txn.errors import RecoveryRefusedError
from txn.interfaces import StagedFile

if TYPE_CHECKING:
    from txn.delta.delta_rs import DeltaTable

__all__ = [
    "BUCKET",
    "ActiveFile",
    "Generation",
    "active_files",
    "columns_without_null",
    "load_files",
    "require_inside",
]

BUCKET = "txn_bucket"
"""The partition column of state tables: the hash bucket of the keys."""


@dataclass(frozen=True)
class ActiveFile:
    """A file of the current version of a table."""

    path: str
    size: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    txid_min: int | None = None
    """Smallest txid of its rows; None if the log does not record it, or some rows have none: rows
    of other writers that a user has accepted are older than any txid."""
    txid_max: int | None = None

    def may_hold(self, txid: int) -> bool:
        """Return whether the file may have a row written at `txid` or later."""
        return self.txid_max is None or self.txid_max >= txid

    def holds_only(self, txid: int) -> bool:
        """Return whether every row was certainly written at `txid` or later."""
        return self.txid_min is not None and self.txid_min >= txid

    @property
    def bucket(self) -> int:
        """The hash bucket; raises KeyError for a table without buckets."""
        return int(self.partition[BUCKET] or 0)


@dataclass(frozen=True)
class Generation:
    """The files of a table's next generation, and all of its files until now."""

    adds: tuple[StagedFile, ...]
    removes: tuple[ActiveFile, ...]
    begins: int
    """The first txid of the values that the former generation lacks; 1: it has their history."""
    is_filled: bool = False
    """True if it was filled as a table of its own, beside the former one."""


def active_files(adds: Iterable[StagedFile]) -> dict[str, ActiveFile]:
    """Path -> active file, for files that a commit adds."""
    return {add.path: _active(add) for add in adds}


def load_files(table: DeltaTable) -> dict[str, ActiveFile]:
    """Path -> active file of a freshly loaded table, with the statistics of `txid`."""
    actions = pa.table(table.get_add_actions())
    unknown = [None] * actions.num_rows
    names = ("min", "max", "null_count")
    low, high, nulls = (_inner(actions, name, TXID) or unknown for name in names)
    keys = table.metadata().partition_columns
    values = [_inner(actions, "partition", key) or unknown for key in keys]
    partitions = list(zip(*values, strict=True)) if keys else [()] * actions.num_rows
    paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    files = (
        ActiveFile(
            _inside(path, table.table_uri),
            size,
            {k: None if v is None else str(v) for k, v in zip(keys, partition, strict=True)},
            None if missing else first,
            last,
        )
        for path, size, partition, first, last, missing in zip(
            paths, sizes, partitions, low, high, nulls, strict=True
        )
    )
    return {file.path: file for file in files}


def columns_without_null(table: DeltaTable) -> dict[str, frozenset[str]]:
    """Path -> columns without any NULL in the file, according to the log."""
    actions = pa.table(table.get_add_actions())
    paths = actions["path"].to_pylist()
    if "null_count" not in actions.column_names:
        return {}
    counts = actions["null_count"].combine_chunks().to_pylist()
    return {
        file_path(path)[0]: frozenset(name for name, nulls in (columns or {}).items() if nulls == 0)
        for path, columns in zip(paths, counts, strict=True)
    }


def _inner(actions: pa.Table, name: str, field_name: str) -> list[Any] | None:
    """One field of a struct column; None if the table has no such statistics."""
    if name not in actions.column_names:
        return None
    column = actions[name].combine_chunks()
    if column.type.get_field_index(field_name) < 0:
        return None
    values: list[Any] = pc.struct_field(column, field_name).to_pylist()
    return values


def _active(add: StagedFile) -> ActiveFile:
    stats = json.loads(add.stats)
    return ActiveFile(
        path=add.path,
        size=add.size,
        partition=add.partition,
        txid_min=None if txid_in(stats.get("nullCount")) else txid_in(stats.get("minValues")),
        txid_max=txid_in(stats.get("maxValues")),
    )


def require_inside(commit: Commit, table: str) -> None:
    """Refuse a version with a file that a topology must not read or delete.

    Raises:
        RecoveryRefusedError: it names a file outside of the table's folder.
    """
    for path in sorted(commit.elsewhere):
        raise _outside(path, f"Version {commit.version} of table {table}")


def _inside(path: str, table: str) -> str:
    decoded, is_inside = file_path(path)
    if not is_inside:
        raise _outside(decoded, f"Table {table}")
    return decoded


def _outside(path: str, where: str) -> RecoveryRefusedError:
    return RecoveryRefusedError(
        f"{where} names a file outside of the table's folder: {path!r}. A topology never writes "
        "such a path; a shallow clone does. Restore the table to an earlier version, or give "
        "this committer a path of its own.",
        number="TXN-315",
    )
