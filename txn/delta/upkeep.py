"""OPTIMIZE and VACUUM of a topology's tables, by a writer whose commits are conditional.

Both may run beside the topology. OPTIMIZE appends a version that adds and removes no rows, through
delta-rs; the loser of a race for a version tries the next one. VACUUM deletes the files that
delta-rs chooses, except those that an attempt or a compaction may still publish, however old they
are; it appends no version.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from txn.attempts import LONGEST_GROUP
from txn.delta.commits import EXACT, commit_path, parse_commit, txid_app
from txn.delta.delta_rs import (
    ColumnProperties,
    DeltaError,
    DeltaTable,
    PostCommitHookProperties,
    WriterProperties,
)
from txn.delta.durations import FILE_RETENTION, file_retention_secs
from txn.delta.folders import COMPACTION, DATA, SCRATCH, staged_txid
from txn.delta.loading import file_sizes, find
from txn.delta.published import record_in, vector_path
from txn.errors import CommitConflictError, UserError
from txn.storage.retrying import retried
from txn.storage.storage import Storage

__all__ = [
    "Operation",
    "UpkeepPlan",
    "carry_out",
    "in_one_line",
    "least_hours",
    "plan_optimize",
    "plan_vacuum",
    "stored_bytes",
]

Operation = Literal["optimize", "vacuum"]

LEAST_HOURS = 1
"""Clocks of storage and of this machine may differ, and a query may be reading older versions."""
_TARGET_BYTES = 100 * 1024 * 1024
"""delta-rs's default, unless the table's property sets another size."""


@dataclass(frozen=True)
class UpkeepPlan:
    """The effect of one operation on one table, planned or done."""

    table: str
    operation: Operation
    files: int = 0
    """Files of the newest version before the operation."""
    bytes: int = 0
    chosen: int = 0
    """Files that are rewritten or deleted. For a planned OPTIMIZE: at most."""
    chosen_bytes: int = 0
    paths: tuple[str, ...] = ()
    """The files that VACUUM deletes."""
    written: int | None = None
    """Files that OPTIMIZE has written in their place; None: it has not run."""
    skipped: str | None = None
    """Reason to leave this table alone."""
    error: str | None = None
    """The failure; the table is unchanged, but for files that VACUUM had already deleted."""

    def to_json(self) -> dict[str, Any]:
        """All fields but the paths."""
        return {
            "table": self.table,
            "files": self.files,
            "bytes": self.bytes,
            "chosen_files": self.chosen,
            "chosen_bytes": self.chosen_bytes,
            "written_files": self.written,
            "skipped": self.skipped,
            "error": self.error,
        }


def least_hours(message_timeout_secs: float, max_batch_attempts: int) -> int:
    """The least hours that VACUUM keeps files while a topology may use them.

    As long as a batch may take with all of its attempts, but at least an hour.
    """
    return max(LEAST_HOURS, math.ceil(message_timeout_secs * max_batch_attempts / 3600))


# --- optimize --------------------------------------------------------------------------------


def plan_optimize(storage: Storage, topology: str) -> UpkeepPlan:
    """Choose the files that OPTIMIZE would merge, by their sizes in the log. Changes nothing.

    Raises:
        TxnError, DeltaError: the table cannot be read.
    """
    plan = UpkeepPlan(storage.location, "optimize")
    table, skipped = _owned_table(storage, topology)
    if table is None:
        return replace(plan, skipped=skipped)
    properties = table.metadata().configuration
    files = file_sizes(table)
    plan = replace(plan, files=len(files), bytes=sum(files.values()))
    kind = properties.get("txn.kind", "")
    if kind == "upsert":
        return replace(plan, skipped="upsert: each bucket is one file already")
    if kind.startswith("log"):
        return replace(plan, skipped="log: the topology compacts its files itself (compact_files)")
    if kind == "published":
        return replace(plan, skipped="published: publish() keeps its files in order itself")
    small = [path for path, size in files.items() if size < _target(properties)]
    if len(small) < 2:
        return plan
    return replace(plan, chosen=len(small), chosen_bytes=sum(files[path] for path in small))


def _target(properties: Mapping[str, str | None]) -> int:
    stated = properties.get("delta.targetFileSize") or ""
    return int(stated) if stated.isascii() and stated.isdecimal() else _TARGET_BYTES


def _optimize(storage: Storage, plan: UpkeepPlan) -> UpkeepPlan:
    table = find(storage)
    assert table is not None
    # The topology's own clean-up deletes expired commit files.
    hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
    try:
        done = table.optimize.compact(
            max_concurrent_tasks=1,
            writer_properties=_writer_properties(table),
            post_commithook_properties=hooks,
        )
    except DeltaError as error:
        raise CommitConflictError(
            f"OPTIMIZE of table {storage.location} was not committed: "
            f"{in_one_line(error)}. The table is as it was. If another writer was faster, "
            "run it again."
        ) from error
    read = json.loads(done["filesRemoved"])["totalSize"] if done["numFilesRemoved"] else 0
    removed, added = done["numFilesRemoved"], done["numFilesAdded"]
    return replace(plan, chosen=removed, chosen_bytes=read, written=added)


def _writer_properties(table: DeltaTable) -> WriterProperties:
    """The defaults of delta-rs, with bounds only for columns where its bounds are right.

    Readers skip files by bounds. Those of delta-rs leave out NaN, and round decimals to 16 digits
    and timestamps to milliseconds.
    """
    fields = table.schema().fields
    sure = [field.name for field in fields if getattr(field.type, "type", None) in EXACT]
    return WriterProperties(
        compression="ZSTD",
        compression_level=4,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="PAGE") for name in sure},
    )


# --- vacuum ----------------------------------------------------------------------------------


def plan_vacuum(
    storage: Storage, topology: str, hours: int | None = None, least: int = 0
) -> UpkeepPlan:
    """Choose the files that VACUUM would delete: those that no version needs. Changes nothing.

    Never chooses files that an attempt or a compaction may still publish.

    Args:
        hours: how long to keep files after the newest version no longer needs them; None: the
            table's property, or a week.
        least: refuse fewer hours.

    Raises:
        UserError: the retention is below `least`.
        TxnError, DeltaError: the table cannot be read.
    """
    plan = UpkeepPlan(storage.location, "vacuum")
    table, skipped = _owned_table(storage, topology)
    if table is None:
        return replace(plan, skipped=skipped)
    properties = table.metadata().configuration
    kind = properties.get("txn.kind")
    own = file_retention_secs(properties.get(FILE_RETENTION)) / 3600
    keep = own if hours is None else hours
    if keep < least:
        source = (
            "its property delta.deletedFileRetentionDuration" if hours is None else "the option"
        )
        raise UserError(
            f"VACUUM of table {storage.location} is to keep files for {keep:g} hours ({source}), "
            f"but topology '{topology}' runs, has open batches, or cannot be looked at: a batch "
            f"may take up to {least} hours with all of its attempts, and queries may read files "
            f"that were replaced meanwhile. Nothing was deleted. Keep them for {least} hours or "
            "more (--retain-hours), or stop the topology first.",
            number="TXN-320",
        )
    files = file_sizes(table)
    plan = replace(plan, files=len(files), bytes=sum(files.values()))
    expired = retried(lambda: _expired(table, math.ceil(keep)), f"list table {storage.location}")
    # A checkpoint remembers replaced files only for the table's own retention.
    young = _replaced(storage, table.version(), keep) if keep > own else set()
    if young is None:
        why = f"its log does not reach back {keep:g} hours, so when files were replaced is unknown"
        return replace(plan, skipped=f"{why} (use --retain-hours {math.floor(own)} or less)")
    newest = table.transaction_version(txid_app(topology)) or 0
    free = {*_free(expired, newest, storage)} - young
    vectors = {path for path in free if path.endswith(".bin")}
    if vectors and kind == "published":
        free -= _vectors_in_use(storage, table.version(), keep, vectors)
    if not free:
        return plan
    stored = dict(_stored(storage))
    others = _tables_within(stored)
    sizes = {path: stored[path] for path in free & stored.keys() if not path.startswith(others)}
    paths, total = tuple(sorted(sizes)), sum(sizes.values())
    return replace(plan, chosen=len(paths), chosen_bytes=total, paths=paths)


def stored_bytes(storage: Storage) -> int:
    """Return the bytes of a table's files, those of its old versions included."""
    stored = dict(_stored(storage))
    others = ("_delta_log/", *_tables_within(stored))
    return sum(size for path, size in stored.items() if not path.startswith(others))


def _expired(table: DeltaTable, hours: int) -> list[str]:
    # "full", by a listing: a checkpoint forgets removed files as soon as they expire.
    return table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)


def _replaced(storage: Storage, version: int, hours: float) -> set[str] | None:
    """The files that versions of the last hours have removed, by the log up to `version`.

    None: the log begins later, because its older files have expired.
    """
    since, removed = (time.time() - hours * 3600) * 1000, set[str]()
    for number in range(version, -1, -1):
        text = storage.read(commit_path(number))
        if text is None:
            return None
        commit = parse_commit(number, text, storage.location)
        if 0 < commit.timestamp_ms < since:
            break
        removed.update(commit.removes)
    return removed


def _vectors_in_use(storage: Storage, version: int, hours: float, all_of: set[str]) -> set[str]:
    """The files of deletion vectors that versions of the last hours use: delta-rs knows none.

    Args:
        all_of: those in question; all are in use where the log does not tell.
    """
    since, used = (time.time() - hours * 3600) * 1000, set[str]()
    for number in range(version, -1, -1):
        text = storage.read(commit_path(number))
        if text is None:
            return all_of
        record, commit = record_in(text), parse_commit(number, text, storage.location)
        if record is None and commit.deletion_vectors:
            return all_of  # another writer's
        if record is not None:
            used.update(map(vector_path, record.get("vectors", {}).values()))
            if 0 < commit.timestamp_ms < since:
                break
    return used


def _free(expired: Iterable[str], newest: int, storage: Storage) -> Iterable[str]:
    """Leave out files that live attempts have staged or compactions have written.

    Args:
        newest: the newest txid that the table holds.
    """
    compacting = {name for name in storage.folders(SCRATCH) if name.startswith(COMPACTION)}
    for path in expired:
        below, _, rest = path.partition("/")
        folder, in_folder, _ = rest.partition("/")
        if below == DATA and in_folder:
            txid = staged_txid(folder)
            if folder in compacting or (txid is not None and txid > newest - LONGEST_GROUP):
                continue
        yield path


def _stored(storage: Storage) -> Iterable[tuple[str, int]]:
    """(path, bytes) of every file in the table's folder."""
    entries = retried(lambda: [*storage.store.walk()], f"list table {storage.location}")
    return ((entry.path, entry.size) for entry in entries)


def _tables_within(paths: Iterable[str]) -> tuple[str, ...]:
    """Folders of other tables below this one's, whose files this table's log does not list."""
    folders = {path.partition("/_delta_log/")[0] for path in paths if "/_delta_log/" in path}
    # Staging without a JVM has its own log in the folder of a job, which a crash may leave behind.
    return tuple(f"{folder}/" for folder in folders if not _is_job_folder(folder))


def _is_job_folder(folder: str) -> bool:
    below, _, name = folder.partition("/")
    return below == DATA and staged_txid(name) is not None


# --- both ------------------------------------------------------------------------------------


def carry_out(storage: Storage, plan: UpkeepPlan) -> UpkeepPlan:
    """Carry out a plan. Returns what was done.

    Raises:
        CommitConflictError: OPTIMIZE was not committed.
        TxnError: storage failed.
    """
    if not plan.chosen:
        return plan
    if plan.operation == "optimize":
        return _optimize(storage, plan)
    storage.delete_files(plan.paths)
    return plan


def _owned_table(storage: Storage, topology: str) -> tuple[DeltaTable | None, str | None]:
    """(the table, None) if the topology has made it, else (None, the reason to leave it alone)."""
    table = find(storage)
    if table is None:
        return None, "there is no table yet"
    owner = table.metadata().configuration.get("txn.topology")
    if owner != topology:
        return None, f"it belongs to topology '{owner}'" if owner else "no topology has made it"
    return table, None


def in_one_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
