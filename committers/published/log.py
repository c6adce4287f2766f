"""The log of a published table: what its newest version shows, and the next version."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from committers.published.request import DELETION_VECTORS
from committers.published.vectors import Vector, written
from committers.publishing.append import (
    CHECKPOINT_INTERVAL,
    commit_actions,
    commit_text,
    feed_actions,
    file_actions,
    first_commit,
    not_appended,
)
from committers.publishing.checkpoints import Checkpoints
from committers.publishing.files import ActiveFile, load_files
from committers.staging.parquet_stats import delta_stats
from txn.delta.commits import commit_path
from txn.delta.definition import TableDefinition
from txn.delta.delta_rs import DeltaTable, Schema
from txn.delta.loading import is_there, load
from txn.delta.log import TableLog
from txn.delta.published import record_in
from txn.delta.topology_table import refuse_foreign_folder
from txn.errors import CommitConflictError, TableRefusedError
from txn.interfaces import StagedFile
from txn.interfaces.published import PUBLISHED
from txn.storage.locations import identity
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyarrow import parquet

__all__ = ["Change", "PublishedLog", "Shown"]

_STATE = "txn.published_state"
_TOPOLOGY = "txn.topology"


@dataclass(frozen=True)
class Shown:
    """The newest version of a published table."""

    version: int
    definition: TableDefinition
    files: tuple[ActiveFile, ...]
    txid: int
    """The txid that it shows; 0: none yet, or another writer has changed rows since."""
    source: Mapping[str, Any]
    """Identifies the state and the request that its rows were computed from."""
    vectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Path of a file with deleted rows -> the descriptor of its deletion vector."""


@dataclass(frozen=True)
class Change:
    """The files of the next version."""

    adds: tuple[StagedFile, ...] = ()
    removes: tuple[ActiveFile, ...] = ()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    """Path of a file that stays -> its deleted rows."""
    feed: tuple[StagedFile, ...] = ()
    """The rows that change, with their `_change_type`; none: they follow from the files."""


class PublishedLog:
    """Reads and appends versions of one published table.

    Args:
        storage: the table's folder.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._checkpoints = Checkpoints(storage, lambda: None)

    def load(self, topology: str, state: str, needs: Mapping[str, str]) -> Shown | None:
        """Return what the newest version shows; None: there is no table.

        Args:
            state: the folder of the state table that it shows.
            needs: properties that only a new table can get.

        Raises:
            TableRefusedError: the folder holds another table, or other files, or lacks a property.
        """
        if not is_there(self._storage):
            refuse_foreign_folder(self._storage.entries(), self._storage.location)
            return None
        table = load(self._storage)
        definition, version = TableDefinition.of(table), table.version()
        self._require_own(definition.configuration, topology, state)
        if lacks := [name for name in needs if definition.configuration.get(name) != "true"]:
            raise TableRefusedError(
                f"Published table {self._storage.location} was made without {', '.join(lacks)}, "
                "which the program asks for. Delete its folder: it is written anew; or publish to "
                "another one.",
                number="TXN-308",
            )
        record, marked_by_others = self._newest_record(version)
        if marked_by_others or (
            version and not record and DELETION_VECTORS in definition.configuration
        ):
            raise TableRefusedError(
                f"Another writer has marked rows of published table {self._storage.location} as "
                "deleted, or its log does not name any more which ones are, so it cannot go on. "
                "Delete its folder: it is written anew.",
                number="TXN-308",
            )
        files = tuple(load_files(table).values())
        vectors = record.get("vectors", {})
        return Shown(
            version,
            definition,
            files,
            record.get("txid", 0),
            record.get("source", {}),
            {file.path: vectors[file.path] for file in files if file.path in vectors},
        )

    def create(
        self, topology: str, state: str, columns: str, properties: Mapping[str, str]
    ) -> None:
        """Create an empty table unless one exists.

        Args:
            state: the folder of the state table that it shows.
            columns: a schema as Delta's JSON.
            properties: those that the request needs.
        """
        own = {
            _TOPOLOGY: topology,
            "txn.kind": "published",
            _STATE: state,
            "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
            **properties,
        }

        def create(folder: str) -> None:
            schema = Schema.from_json(columns)
            DeltaTable.create(folder, schema, configuration=own, raise_if_key_not_exists=False)

        self._storage.put_if_absent(commit_path(0), first_commit(create))

    def prepare(
        self,
        topology: str,
        before: Shown,
        change: Change,
        txid: int,
        source: Mapping[str, Any],
        columns: Mapping[str, Any],
    ) -> bytes:
        """Write the deletion vectors; return the commit file after `before`, for a later txid."""
        now = int(time.time() * 1000)
        vectors = written(self._storage, change.vectors, uuid.uuid4().bytes)
        actions = self._file_actions(before, change, vectors, now)
        actions += feed_actions(change.feed)
        definition = before.definition
        if definition.columns != columns:
            actions = [*definition.reshaped(columns, [], definition.configuration), *actions]
        gone = {file.path for file in change.removes}
        kept = {path: one for path, one in before.vectors.items() if path not in gone}
        record = {"topology": topology, "txid": txid, "source": source}
        record |= {"vectors": {**kept, **vectors}} if kept or vectors else {}
        return commit_text(
            commit_actions(
                actions,
                {f"txn/{topology}/published": txid},
                now_ms=now,
                partition_columns=[],
                info={PUBLISHED: record},
            )
        )

    def append(self, version: int, text: bytes) -> None:
        """Append a version, by its commit file.

        Raises:
            CommitConflictError: there is such a version already; nothing was changed.
        """
        path = commit_path(version)
        if self._storage.put_if_absent(path, text):
            return
        stored = self._storage.read(path)
        if stored is None:
            raise not_appended(version, self._storage.location, None)
        if stored != text:
            raise CommitConflictError(
                f"Version {version} of table {self._storage.location} was written by somebody "
                "else meanwhile (OPTIMIZE, or a former leader). It is published again."
            )

    def keep_up(self, shown: Shown) -> None:
        """Make a checkpoint of the log, if one is due."""
        self._checkpoints.run(shown.version, shown.definition.configuration)

    def _file_actions(
        self, before: Shown, change: Change, vectors: Mapping[str, Mapping[str, Any]], now: int
    ) -> list[dict[str, Any]]:
        """The actions of the files: one whose vector changes is removed, and added with it."""
        files = {file.path: file for file in before.files}
        marked = [files[path] for path in vectors]
        again = (_added_again(file, change.vectors[file.path].footer) for file in marked)
        removes = [*change.removes, *marked]
        actions = file_actions([*change.adds, *again], removes, now, data_change=True)
        for action in actions:
            kind = "add" if "add" in action else "remove"
            descriptors = vectors if kind == "add" else before.vectors
            vector = descriptors.get(unquote(action[kind]["path"]))
            if vector is not None:
                action[kind]["deletionVector"] = dict(vector)
        return actions

    def _require_own(self, properties: Mapping[str, str | None], topology: str, state: str) -> None:
        shown, owner = properties.get(_STATE), properties.get(_TOPOLOGY)
        if shown is None or identity(shown) != identity(state) or owner != topology:
            made = "shows another state" if shown else "is none that publish() has made"
            raise TableRefusedError(
                f"Table {self._storage.location} {made}, so '{state}' of topology "
                f"'{topology}' cannot be published there. Give publish() an empty or new folder.",
                number="TXN-301",
            )

    def _newest_record(self, version: int) -> tuple[Mapping[str, Any], bool]:
        """(the newest record, whether another writer has marked rows as deleted since).

        The record is empty if another writer has changed rows since, or it is unknown.
        """
        log, changed = TableLog(self._storage), False
        while version >= 0 and (text := log.text(version)) is not None:
            if (record := record_in(text)) is not None:
                return {} if changed else record, False
            commit = log.parsed(version, text)
            changed |= commit.data_change
            if commit.deletion_vectors:
                return {}, True
            version -= 1
        return {}, False


def _added_again(file: ActiveFile, footer: parquet.FileMetaData) -> StagedFile:
    """The file as a version adds it with another deletion vector."""
    # Bounds are those of all rows, deleted ones included.
    stats = json.dumps({**json.loads(delta_stats(footer)), "tightBounds": False})
    return StagedFile(file.path, file.size, footer.num_rows, {}, stats)
