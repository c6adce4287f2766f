"""The checks of tables and their storage.

`txn run` refuses a table that the publisher cannot honour before anything runs. These checks find
such a table without Spark, and also problems that only hurt later.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txn.config import TopologyConfig
from txn.delta.commits import LAST_CHECKPOINT, checkpoint_version, commit_path
from txn.delta.definition import TableDefinition
from txn.delta.durations import FILE_RETENTION, LOG_RETENTION, duration_secs
from txn.delta.features import refused_features
from txn.doctor.findings import Finding, error, note, ok, warning
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.storage.locations import is_local, is_on_s3, local_path
from txn.text import first_said

if TYPE_CHECKING:
    from txn.storage.storage import Storage

__all__ = ["check_own_log", "check_storage", "check_table", "check_writers"]

_ROUNDS = 5
_WRITERS = 2
_DAY = 86_400.0
_LEAST_LOG_RETENTION = 7 * _DAY
_MANY_FILES = 50_000
"""Half of what docs/scaling.md has as a table's limit."""


def check_table(
    table: str,
    topology: str | None,
    config: TopologyConfig,
    options: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Check owner, features, retention and checkpoints of one table.

    Args:
        table: a local path or a URI.
        topology: the topology that must own it; None: any.
        options: its committer's `storage_options`.
    """
    from txn.delta.loading import find
    from txn.storage.storage import Storage

    area, storage = f"table {table}", Storage(table, options)
    delta = find(storage)
    if delta is None:
        yield note(area, "table", "is not there yet: the first batch of its topology makes it")
        return
    properties = {k: v or "" for k, v in delta.metadata().configuration.items()}
    yield _owner(area, properties, topology)
    yield _features(area, delta, properties)
    yield _log_retention(area, properties)
    yield _file_retention(area, properties, config)
    last = checkpoint_version(storage.read(LAST_CHECKPOINT))
    yield _checkpoints(area, delta, last, properties)
    yield _active_files(area, delta.get_add_actions().num_rows)


def check_own_log(table: str, log: KeepsOwnLog) -> Iterator[Finding]:
    """Check that the log of a table that is not a Delta table can be read."""
    newest = next(log.publications(), None)
    txid = f"txid {newest.publication.last_txid}" if newest else "nothing yet"
    text = f"its own log can be read: {txid}, epoch {log.newest_epoch()}"
    yield ok(f"table {table}", "log", text)


def check_writers(table: str) -> Iterator[Finding]:
    """Warn if another writer may overwrite a version of the table's log."""
    if is_on_s3(table):
        yield warning(
            f"table {table}",
            "other writers",
            "Spark's Delta writer does not ask S3 to refuse a version that exists already",
            "OPTIMIZE, VACUUM, INSERT, DELETE, ALTER and every other statement of Spark that "
            "writes to the table may overwrite a version that a running topology has just "
            "committed, which loses its rows. The topology's own commits are conditional.",
            "Maintain the table with `txn optimize` and `txn vacuum` or deltalake, whose commits "
            "are conditional, or with Spark while the topology is stopped.",
        )


def _owner(area: str, properties: Mapping[str, str], topology: str | None) -> Finding:
    owner = properties.get("txn.topology")
    kind = f"{properties.get('txn.kind', '?')}, {properties.get('txn.semantics', '?')}"
    if owner is not None and topology in (None, owner):
        return ok(area, "owner", f"topology '{owner}' ({kind})")
    text = f"belongs to topology '{owner}'" if owner else "no topology has made it"
    if topology is None:
        return note(area, "owner", text)
    return error(
        area,
        "owner",
        text,
        f"`txn run` refuses it for topology '{topology}'.",
        "Give the committer a path of its own.",
    )


def _features(area: str, delta: Any, properties: Mapping[str, str]) -> Finding:
    definition = TableDefinition.of(delta)
    refused = refused_features(
        definition,
        kind=properties.get("txn.kind"),
        opaque=properties.get("txn.semantics") == "opaque",
    )
    text = f"reader version {definition.min_reader}, writer {definition.min_writer}"
    text += f" ({', '.join(sorted(definition.features))})" if definition.features else ""
    if not refused:
        return ok(area, "features", text)
    return error(
        area,
        "features",
        f"{', '.join(refused)}; {text}",
        "The publisher writes the log itself and cannot honour that: `txn run` refuses the table.",
        "ALTER TABLE ... DROP FEATURE, or unset the property; or give the committer another path.",
    )


def _log_retention(area: str, properties: Mapping[str, str]) -> Finding:
    stated = properties.get(LOG_RETENTION, "interval 30 days")
    seconds = duration_secs(stated)
    if seconds is None:
        return note(area, "log retention", f"{stated!r}: cannot be understood")
    text = f"{seconds / _DAY:g} days"
    if seconds >= _LEAST_LOG_RETENTION:
        return ok(area, "log retention", text)
    return warning(
        area,
        "log retention",
        text,
        "Commit files older than that are cleaned out of the log. `txn history` no longer shows "
        "their txids, and `txn recover` fails if it needs them after a long downtime.",
        f"Set {LOG_RETENTION} to longer than a topology may ever be down.",
    )


def _file_retention(area: str, properties: Mapping[str, str], config: TopologyConfig) -> Finding:
    stated = properties.get(FILE_RETENTION, "interval 1 week")
    seconds = duration_secs(stated)
    if seconds is None:
        return note(area, "file retention", f"{stated!r}: cannot be understood")
    longest = config.message_timeout_secs * config.max_batch_attempts
    text = f"{seconds / _DAY:g} days"
    if seconds > max(longest, 3600.0):
        return ok(area, "file retention", text)
    return warning(
        area,
        "file retention",
        f"{text}, and a batch may take {longest / 60:g} min with all of its attempts",
        "VACUUM may delete staged files that are not published yet: the batch fails and is "
        "replayed. Readers of an older version may lose theirs.",
        f"Set {FILE_RETENTION} to a day or more.",
    )


def _checkpoints(area: str, delta: Any, last: int | None, properties: Mapping[str, str]) -> Finding:
    every = properties.get("delta.checkpointInterval", "100")
    interval = int(every) if every.isdecimal() and len(every) < 10 else 100
    behind = delta.version() - (last if last is not None else 0)
    text = f"every {interval} versions; {behind} versions since the last one"
    if behind <= 10 * max(interval, 1):
        return ok(area, "checkpoints", text)
    return warning(
        area,
        "checkpoints",
        text,
        "Every start of a topology and every new reader reads all commits since then.",
        "Check that _delta_log can be written to; DeltaTable(...).create_checkpoint() makes one.",
    )


def _active_files(area: str, count: int) -> Finding:
    text = f"{count:,} active"
    if count < _MANY_FILES:
        return ok(area, "files", text)
    return warning(
        area,
        "files",
        text,
        "Every start, every reader and every checkpoint goes through all of them: with 100,000 a "
        "run commits its first txid some 15 s later (docs/scaling.md).",
        "`txn optimize` puts the small files of an append table together. A state with "
        "layout='log' compacts itself, one with layout='upsert' has as many files as buckets.",
    )


# --- can the storage refuse? -----------------------------------------------------------------


def check_storage(folder: str, options: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Check that storage refuses one of two writers of a version: a race on a table of the doctor.

    The table is made in `folder`, or in the first existing folder above it, and deleted.

    Args:
        options: `storage_options` of a committer whose table is there.
    """
    from txn.delta.delta_rs import DeltaTable
    from txn.storage.storage import Storage

    area = f"storage {folder}"
    where = str(_existing(Path(local_path(folder) or ""))) if is_local(folder) else folder
    storage = Storage(f"{where.rstrip('/')}/.txn-doctor-{secrets.token_hex(8)}", options)
    table, table_options = storage.uri, storage.options
    try:
        DeltaTable.create(table, _schema(), mode="error", storage_options=table_options)
        races = [_race(storage, version) for version in range(1, _ROUNDS + 1)]
        yield _judged(area, races, DeltaTable(table, storage_options=table_options).version())
    except Exception as failure:  # noqa: BLE001 - whatever the storage's library raises
        yield error(
            area,
            "put-if-absent",
            f"no table can be written there: {first_said(failure)}",
            "No batch can be committed.",
            "Check the path, its permissions and credentials.",
        )
    finally:
        with contextlib.suppress(Exception):  # what failed before has been reported
            storage.store.delete_folder("")


def _schema() -> Any:
    from txn.delta.delta_rs import Schema

    field = {"name": "x", "type": "long", "nullable": True, "metadata": {}}
    return Schema.from_json(json.dumps({"type": "struct", "fields": [field]}))


def _race(storage: Storage, version: int) -> list[str]:
    """Let several writers race for one version. Returns "won" or the refusal of each."""
    start = threading.Barrier(_WRITERS)
    ended: list[str] = []

    def write(number: int) -> None:
        start.wait()
        text = b'{"commitInfo":{"operation":"WRITE","writer":%d}}\n' % number
        try:
            landed = storage.put_if_absent(commit_path(version), text)
        except Exception as failure:  # noqa: BLE001 - which error a loser gets is the storage's
            ended.append(first_said(failure))
        else:
            ended.append("won" if landed else "there is such a version")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(_WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return ended


def _judged(area: str, rounds: list[list[str]], version: int) -> Finding:
    winners = [ended.count("won") for ended in rounds]
    if all(count == 1 for count in winners) and version == len(rounds):
        return ok(
            area, "put-if-absent", f"in {len(rounds)} of {len(rounds)} races one writer was refused"
        )
    if max(winners) > 1 or version < sum(winners):
        return error(
            area,
            "put-if-absent",
            f"in {sum(count > 1 for count in winners)} of {len(rounds)} races both writers were "
            "told that their version was written",
            "Two leaders, or a leader and an OPTIMIZE, could overwrite each other's version: "
            "exactly-once does not hold on this storage.",
            "On S3 use a store with conditional writes; else choose another storage.",
        )
    refusal = next(what for ended in rounds for what in ended if what != "won")
    return error(
        area,
        "put-if-absent",
        f"no writer succeeded: {refusal}",
        "No batch can be committed.",
        "Check permissions and free space of the storage.",
    )


def _existing(folder: Path) -> Path:
    while not folder.is_dir():
        folder = folder.parent
    return folder
