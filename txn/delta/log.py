"""Read the log of one Delta table, one commit file at a time: a topology's records, newest first.

Every publication stands in the `commitInfo` of one version of each table (`txn.interfaces`), and
every other version of a topology repeats the newest one before it, for logs whose old files are
gone. This module writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txn.delta.commits import (
    FIRST_TXID,
    Commit,
    commit_path,
    epoch_app,
    incarnation_app,
    parse_commit,
    txid_app,
)
from txn.delta.definition import TableDefinition
from txn.delta.delta_rs import DeltaTable
from txn.delta.loading import load
from txn.errors import RecoveryRefusedError
from txn.interfaces import Semantics, TablePublication
from txn.storage.storage import Storage

__all__ = ["TableLog"]


class TableLog:
    """The log of one table, for reading.

    Args:
        storage: the table's folder.
        table: as delta-rs has loaded it; None: load it at the first question about a topology.
    """

    def __init__(self, storage: Storage, table: DeltaTable | None = None) -> None:
        self._storage = storage
        self._loaded = table

    def commit(self, version: int) -> Commit | None:
        """One version, from its commit file; None when that does not exist (any more).

        Raises:
            RecoveryRefusedError: it is not a commit file, or has an unknown format.
        """
        text = self.text(version)
        return None if text is None else self.parsed(version, text)

    def text(self, version: int) -> bytes | None:
        """The bytes of a version's commit file; None when it does not exist (any more)."""
        return self._storage.read(commit_path(version))

    def parsed(
        self, version: int, text: bytes, written: Sequence[Mapping[str, Any]] | None = None
    ) -> Commit:
        """Parse a commit file of this table; arguments and errors as `parse_commit`."""
        return parse_commit(version, text, self._storage.location, written)

    def backwards(self, version: int) -> Iterator[Commit]:
        """Versions from this one down to the first whose file is gone; raises as `commit`."""
        while version >= 0 and (commit := self.commit(version)) is not None:
            yield commit
            version -= 1

    def foreign_definition(self, own: Commit | None, commits: Sequence[Commit]) -> Commit | None:
        """Return the newest version in which others changed what describes a topology's table.

        Properties that are not the topology's, comments and the protocol do not describe it.

        Args:
            own: the topology's newest version; None: its commit file is gone.
            commits: the versions after it that wrote metadata, oldest first.
        """
        if own is None or not commits:
            return commits[-1] if commits else None
        former = definition = TableDefinition.of(load(self._storage, own.version))
        culprit = None
        for commit in commits:
            before, definition = definition, definition.after(commit, self._storage.location)
            culprit = culprit if definition.is_like(before) else commit
        return None if definition.is_like(former) else culprit

    # --- of a topology -----------------------------------------------------------------------

    @property
    def _table(self) -> DeltaTable:
        if self._loaded is None:
            self._loaded = load(self._storage)
        return self._loaded

    def epoch(self, topology: str) -> int:
        """The newest epoch of a topology in this table; 0 if none is recorded."""
        return self._table.transaction_version(epoch_app(topology)) or 0

    def incarnation(self, topology: str) -> int:
        """The incarnation that leads this table; 0 if none is recorded."""
        return self._table.transaction_version(incarnation_app(topology)) or 0

    @property
    def first_txid(self) -> int:
        """The table's first txid: 1, unless it was created after others had committed.

        Raises:
            ValueError: the property was changed by hand.
        """
        return int(self._table.metadata().configuration.get(FIRST_TXID) or 1)

    def require_nothing_of(self, topology: str) -> None:
        """Refuse a table whose log has lost every publication that it had.

        Raises:
            RecoveryRefusedError: the table holds a txid of the topology.
        """
        txid = self._table.transaction_version(txid_app(topology))
        if txid is not None:
            raise RecoveryRefusedError(
                f"Table '{self._storage.location}' holds txid {txid} of topology '{topology}', "
                "but the commit file that records what was read for it was cleaned out of the "
                "log. Nothing was changed. Restore that file from a backup, or give the topology "
                "a new name and new tables.",
                number="TXN-805",
            )

    def publications(self) -> Iterator[TablePublication]:
        """Every publication, newest first, as far back as commit files are kept.

        If the log has lost them all, the one that the newest mark repeats.
        """
        mark: Commit | None = None
        is_empty = True
        semantics = self._table.metadata().configuration.get("txn.semantics")
        for commit in self.backwards(self._table.version()):
            if commit.publication is not None:
                is_empty = False
                skips = semantics == Semantics.TRANSACTIONAL.value
                yield TablePublication(
                    commit.version, commit.publication, commit.timestamp_ms, skips
                )
            elif mark is None and commit.mark is not None:
                mark = commit
            if commit.change is not None:
                semantics = commit.change.get("semantics_were", semantics)
        if is_empty and mark is not None and mark.last is not None and not mark.last[1].is_lost:
            yield TablePublication(*mark.last, 0)
