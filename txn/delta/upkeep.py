"""OPTIMIZE and VACUUM of a topology's tables, by a writer whose commits are conditional.

Both may run beside the topology. OPTIMIZE appends a version that brings and takes no rows, through
delta-rs; whoever loses a race for a version tries the next one. VACUUM is delta-rs's own choice of
files, deleted here: what an attempt or a compaction may still publish is left out of it, however
old it is, and no version is appended.
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
]

Operation = Literal["optimize", "vacuum"]

LEAST_HOURS = 1
"""Clocks of storage and of this machine may differ, and a query may be reading older versions."""
_TARGET_BYTES = 100 * 1024 * 1024
"""delta-rs's own, where the table's property does not say another one."""


@dataclass(frozen=True)
class UpkeepPlan:
    """What one operation does to one table, before or after it was done."""

    table: str
    operation: Operation
    files: int = 0
    """Of the newest version, before."""
    bytes: int = 0
    chosen: int = 0
    """Files that are rewritten or deleted. Of OPTIMIZE, before it is done: at most."""
    chosen_bytes: int = 0
    paths: tuple[str, ...] = ()
    """The files that VACUUM deletes."""
    written: int | None = None
    """Files that OPTIMIZE has written in their place; None: nothing was done."""
    skipped: str | None = None
    """Why nothing is done to this table."""
    error: str | None = None
    """Why it failed; the table is as it was, but for the files that VACUUM had deleted by then."""

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
    """Hours that VACUUM keeps files at least while a topology may use them.

    As long as a batch may take with all of its attempts, and never below an hour.
    """
    return max(LEAST_HOURS, math.ceil(message_timeout_secs * max_batch_attempts / 3600))


# --- optimize --------------------------------------------------------------------------------


def plan_optimize(storage: Storage, topology: str) -> UpkeepPlan:
    """Which files OPTIMIZE would put together, by their sizes in the log. Changes nothing.

    Raises:
        TxnError, DeltaError: the table cannot be read.
    """
    plan = UpkeepPlan(storage.location, "optimize")
    table, skipped = _own(storage, topology)
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
    # Expired commit files are deleted by the topology's own clean-up.
    hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
    try:
        done = table.optimize.compact(
            max_concurrent_tasks=1,
            writer_properties=_writing(table),
            post_commithook_properties=hooks,
        )
    except DeltaError as error:
        raise CommitConflictError(
            f"OPTIMIZE of table {storage.location} was not committed: "
            f"{in_one_line(error)}. The table is as it was. If another writer was faster, "
            "run it again."
        ) from error
    read = json.loads(done["filesRemoved"])["totalSize"] if done["numFilesRemoved"] else 0
    gone, come = done["numFilesRemoved"], done["numFilesAdded"]
    return replace(plan, chosen=gone, chosen_bytes=read, written=come)


def _writing(table: DeltaTable) -> WriterProperties:
    """As delta-rs writes by itself, but with bounds of those columns only for which it knows them.

    Readers skip files by bounds. Those of delta-rs leave NaN out, have decimals rounded to 16
    digits, and timestamps to milliseconds.
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
    """Which files VACUUM would delete: those that no version needs. Changes nothing.

    What attempts or a compaction may still publish is never among them.

    Args:
        hours: how long files are kept after the newest version no longer needs them; None: as
            long as the table's property says, or a week.
        least: hours below which it is refused.

    Raises:
        UserError: the retention is below `least`.
        TxnError, DeltaError: the table cannot be read.
    """
    plan = UpkeepPlan(storage.location, "vacuum")
    table, skipped = _own(storage, topology)
    if table is None:
        return replace(plan, skipped=skipped)
    own = file_retention_secs(table.metadata().configuration.get(FILE_RETENTION)) / 3600
    kept = own if hours is None else hours
    if kept < least:
        whose = "its property delta.deletedFileRetentionDuration" if hours is None else "the option"
        raise UserError(
            f"VACUUM of table {storage.location} is to keep files for {kept:g} hours ({whose}), "
            f"but topology '{topology}' runs, has open batches, or cannot be looked at: a batch "
            f"may take up to {least} hours with all of its attempts, and queries may read files "
            f"that were replaced meanwhile. Nothing was deleted. Keep them for {least} hours or "
            "more (--retain-hours), or stop the topology first.",
            number="TXN-320",
        )
    files = file_sizes(table)
    plan = replace(plan, files=len(files), bytes=sum(files.values()))
    expired = retried(lambda: _expired(table, math.ceil(kept)), f"list table {storage.location}")
    # Of what was replaced, a checkpoint remembers no more than the table's own retention.
    young = _replaced(storage, table.version(), kept) if kept > own else set()
    if young is None:
        why = f"its log does not reach back {kept:g} hours, so when files were replaced is unknown"
        return replace(plan, skipped=f"{why} (use --retain-hours {math.floor(own)} or less)")
    newest = table.transaction_version(txid_app(topology)) or 0
    free = {*_free(expired, newest, storage)} - young
    if not free:
        return plan
    stored = dict(_stored(storage))
    others = _tables_within(stored)
    sizes = {path: stored[path] for path in free & stored.keys() if not path.startswith(others)}
    paths, total = tuple(sorted(sizes)), sum(sizes.values())
    return replace(plan, chosen=len(paths), chosen_bytes=total, paths=paths)


def _expired(table: DeltaTable, hours: int) -> list[str]:
    # "full", by a listing: a checkpoint forgets removed files as soon as they expire.
    return table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)


def _replaced(storage: Storage, version: int, hours: float) -> set[str] | None:
    """The files that versions of the last hours have taken away, by the log up to `version`.

    None: the log begins later, because its older files have expired.
    """
    since, found = (time.time() - hours * 3600) * 1000, set[str]()
    for number in range(version, -1, -1):
        text = storage.read(commit_path(number))
        if text is None:
            return None
        commit = parse_commit(number, text, storage.location)
        if 0 < commit.timestamp_ms < since:
            break
        found.update(commit.removes)
    return found


def _free(expired: Iterable[str], newest: int, storage: Storage) -> Iterable[str]:
    """Without what live attempts have staged, and what compactions have written.

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
    found = retried(lambda: [*storage.store.walk()], f"list table {storage.location}")
    return ((entry.path, entry.size) for entry in found)


def _tables_within(paths: Iterable[str]) -> tuple[str, ...]:
    """Folders of other tables below this one's: what they need, this table's log does not know."""
    found = {path.partition("/_delta_log/")[0] for path in paths if "/_delta_log/" in path}
    # Staging without a JVM has a log of its own in the folder of a job, which a crash may leave.
    return tuple(f"{folder}/" for folder in found if not _is_of_a_job(folder))


def _is_of_a_job(folder: str) -> bool:
    below, _, name = folder.partition("/")
    return below == DATA and staged_txid(name) is not None


def _vacuum(storage: Storage, plan: UpkeepPlan) -> UpkeepPlan:
    storage.delete_files(plan.paths)
    return plan


# --- both ------------------------------------------------------------------------------------


def carry_out(storage: Storage, plan: UpkeepPlan) -> UpkeepPlan:
    """Do what was planned. Returns what was done.

    Raises:
        CommitConflictError: OPTIMIZE was not committed.
        TxnError: storage failed.
    """
    if not plan.chosen:
        return plan
    return (_optimize if plan.operation == "optimize" else _vacuum)(storage, plan)


def _own(storage: Storage, topology: str) -> tuple[DeltaTable | None, str | None]:
    """The table, if the topology has made it; else why it is left alone."""
    table = find(storage)
    if table is None:
        return None, "there is no table yet"
    owner = table.metadata().configuration.get("txn.topology")
    if owner != topology:
        return None, f"it belongs to topology '{owner}'" if owner else "no topology has made it"
    return table, None


def in_one_line(error: BaseException) -> str:
    """The first line of what an error says, without its stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
