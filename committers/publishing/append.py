"""The pieces of an append to a Delta log: its commit file, application ids, failures.

And the first append, which creates the table.

Source: Delta's PROTOCOL.md, "Delta Log Entries", "Add File and Remove File", "Transaction
Identifiers" and "Commit Provenance Information".
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic_core import to_json

from committers.publishing.files import ActiveFile
from committers.publishing.spec import TableSpec
from txn.delta.commits import EXACT, TXID, commit_path, epoch_app, incarnation_app
from txn.delta.delta_rs import CommitProperties, DeltaError, DeltaTable, Schema, Transaction
from txn.delta.loading import is_there
from txn.errors import (
    CommitConflictError,
    StagedFileError,
    StorageRefusedError,
)
from txn.interfaces import FENCE_KEY, StagedFile
from txn.storage.retrying import client_message, is_refusal, retried
from txn.storage.storage import Storage

__all__ = [
    "CHECKPOINT_INTERVAL",
    "AppendFailedError",
    "StaleFilesError",
    "commit_actions",
    "commit_text",
    "create_table",
    "feed_actions",
    "file_actions",
    "first_commit",
    "leading",
    "not_appended",
    "require_staged",
    "stats_columns",
]

_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")

CHECKPOINT_INTERVAL = 25
"""Versions between checkpoints. A start, and every new reader, reads all versions after a
checkpoint one by one; a checkpoint costs 10 ms, or 100 ms with 20,000 files."""

_PLAIN = "/!$&'()+,-.:;=@_~"
"""Characters that are not encoded in a path, besides letters and digits, as in delta-rs. Every
reader decodes paths; the choice only shows to a program that compares encoded paths."""


class StaleFilesError(CommitConflictError):
    """OPTIMIZE has rewritten files to be removed: prepare again, nothing is lost."""


class AppendFailedError(CommitConflictError):
    """An append failed and is not in the log; a request in flight may still land there."""

    number = "TXN-314"


def not_appended(version: int, table: str, failure: BaseException | None) -> AppendFailedError:
    """The error for a version that is not in the log, and for which a retry is pointless."""
    if failure is None:
        return AppendFailedError(
            f"Version {version} of table {table} was not appended: storage says that it has it, "
            "and does not give it back. The batch is tried again. If this goes on, look whether "
            "something deletes files in _delta_log."
        )
    return AppendFailedError(
        f"Version {version} of table {table} could not be appended: {client_message(failure)}. "
        "The log does not hold it; the batch is tried again. If this goes on, check that the "
        "table's folder can be written to."
    )


def leading(topology: str, epoch: int, incarnation: int) -> dict[str, int]:
    """The application ids of a fence with the new leader's versions.

    Args:
        incarnation: 0 if unknown.
    """
    own = {incarnation_app(topology): incarnation} if incarnation else {}
    return {epoch_app(topology): epoch, **own}


def create_table(storage: Storage, spec: TableSpec, epoch: int, incarnation: int = 0) -> None:
    """Create an empty table, fenced by `epoch`; nothing happens if it exists meanwhile.

    Raises:
        AppendFailedError: it could not be created.
        StorageRefusedError: storage refuses it for good.
        StorageUnavailableError: storage was away for longer than the retries take.
    """
    from obstore.exceptions import BaseError

    try:
        _make(storage, spec, epoch, incarnation)
    except (BaseError, DeltaError, OSError) as error:
        # If this or another process has just created it, it is checked like any other table.
        if not is_there(storage):
            if is_refusal(error):
                raise StorageRefusedError(
                    f"Storage refuses to make table {storage.location}: {client_message(error)}. "
                    "Correct the permission, the credentials or the name, then run again."
                ) from error
            raise AppendFailedError(
                f"Table {storage.location} could not be created: {client_message(error)}. It is "
                "tried again; if this goes on, check that the table's folder can be written to."
            ) from error


def _make(storage: Storage, spec: TableSpec, epoch: int, incarnation: int) -> None:
    if storage.is_local:
        _create(storage.uri, spec, epoch, incarnation)
    else:
        text = first_commit(lambda folder: _create(folder, spec, epoch, incarnation))
        retried(lambda: _send_first(storage, text), f"make table {storage.location}")


def _send_first(storage: Storage, text: bytes) -> None:
    try:
        storage.put_if_absent(commit_path(0), text)
    except Exception:
        if not is_there(storage):
            raise


def first_commit(create: Callable[[str], None]) -> bytes:
    """The commit file of a new table.

    Made on this machine: on the table's storage, delta-rs would send twelve requests about files
    that it has just written.

    Args:
        create: creates the table in a folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        create(folder)
        return Path(folder, commit_path(0)).read_bytes()


def _create(folder: str, spec: TableSpec, epoch: int, incarnation: int) -> None:
    fence = {"topology": spec.topology, "epoch": epoch, "last": None}
    settings = {
        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
        "delta.dataSkippingStatsColumns": stats_columns(spec),
    }
    DeltaTable.create(
        folder,
        Schema.from_json(spec.schema_json()),
        mode="error",
        partition_by=spec.partition_by,
        description=spec.description,
        configuration={
            **spec.properties(),
            **spec.session_properties(),
            **spec.first_properties(),
            **settings,
        },
        commit_properties=CommitProperties(
            custom_metadata={FENCE_KEY: fence},
            app_transactions=[
                Transaction(app, version)
                for app, version in leading(spec.topology, epoch, incarnation).items()
            ],
        ),
        raise_if_key_not_exists=False,
    )


def stats_columns(spec: TableSpec) -> str:
    """The columns with bounds in the log, in the form of Delta's property: `txid` among them.

    Not a state's values: each txid changes them, so that bounds of a file exclude nothing.
    delta-rs skips every file that lacks a bound of one of them, and its own bounds are wrong for
    some other types (NaN, decimals of more than 16 digits).
    """
    kinds = dict(spec.columns)
    some = (*spec.keys, TXID) if spec.values else kinds
    names = (name for name in kinds if name in some and name not in spec.partition_by)
    exact = (name for name in names if isinstance(kinds[name], str) and kinds[name] in EXACT)
    return ",".join(name if _IDENTIFIER.fullmatch(name) else f"`{name}`" for name in exact)


def file_actions(
    adds: Sequence[StagedFile], removes: Sequence[ActiveFile], now_ms: int, *, data_change: bool
) -> list[dict[str, Any]]:
    """Actions for the files of one version.

    Args:
        data_change: False: the version has the same rows in other files.
    """
    return [
        *(
            {
                "add": {
                    "path": _encoded_path(add.path),
                    "partitionValues": dict(add.partition),
                    "size": add.size,
                    "modificationTime": now_ms,
                    "dataChange": data_change,
                    "stats": add.stats,
                }
            }
            for add in adds
        ),
        *(
            {
                "remove": {
                    "path": _encoded_path(remove.path),
                    "dataChange": data_change,
                    "deletionTimestamp": now_ms,
                    "extendedFileMetadata": True,
                    "partitionValues": dict(remove.partition),
                    "size": remove.size,
                }
            }
            for remove in removes
        ),
    ]


def feed_actions(files: Sequence[StagedFile]) -> list[dict[str, Any]]:
    """Actions for files of Delta's change data feed."""
    return [
        {
            "cdc": {
                "path": _encoded_path(file.path),
                "partitionValues": {},
                "size": file.size,
                "dataChange": False,
            }
        }
        for file in files
    ]


def _encoded_path(path: str) -> str:
    return quote(path, safe=_PLAIN)


def commit_actions(
    actions: Iterable[Mapping[str, Any]],
    apps: Mapping[str, int],
    *,
    now_ms: int,
    partition_columns: Sequence[str],
    info: Mapping[str, Any],
) -> list[Mapping[str, Any]]:
    """All actions of a commit file, its commitInfo first.

    Args:
        apps: application id -> version.
        info: the topology's records of the version (`txn.interfaces`).
    """
    provenance = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {
            "mode": "Append",
            "partitionBy": json.dumps([*partition_columns], separators=(",", ":")),
        },
        "engineInfo": "txn",
        **info,
    }
    return [
        {"commitInfo": provenance},
        *({"txn": {"appId": app, "version": version}} for app, version in apps.items()),
        *actions,
    ]


def commit_text(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """A commit file: the JSON of one action per line.

    Raises:
        ValueError: an action has a value that JSON lacks, such as NaN.
    """
    return b"".join(_line(action) + b"\n" for action in actions)


def _line(action: Mapping[str, Any]) -> bytes:
    # Not escaped: readers refuse escaped lone surrogates, which cannot occur in UTF-8.
    line = to_json(action)
    if b"NaN" in line or b"Infinity" in line:
        json.dumps(json.loads(line), allow_nan=False)  # raises, unless it is in a text
    return line


def require_staged(files: Sequence[StagedFile], sizes: Sequence[int | None], table: str) -> None:
    """Check that files exist in storage with the size that they had when they were staged.

    Args:
        sizes: the current size of each file, None if it does not exist.

    Raises:
        StagedFileError: naming the first file that differs.
    """
    for file, size in zip(files, sizes, strict=True):
        if size != file.size:
            state = "is gone" if size is None else f"now has {size} bytes"
            raise StagedFileError(
                f"Staged file {file.path} of table {table} {state}; {file.size} bytes "
                "were written. Something else deletes or writes files below this path; the "
                "batch is staged again."
            )
