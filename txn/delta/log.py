"""The log of one Delta table, one commit file at a time: what it says of a topology, newest first.

Every publication stands in the `commitInfo` of one version of each table (`txn.interfaces`), and
every other version of a topology repeats the newest one before it, for logs whose old files are
gone. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from txn.delta.delta_rs import DeltaTable
from txn.delta.loading import load
from txn.errors import RecoveryRefusedError
from txn.interfaces import Publication
from txn.storage.storage import Storage

__all__ = ["TableLog", "TablePublication"]


@dataclass(frozen=True)
class TablePublication:
    """One publication, as one table's log has it."""

    version: int
    """Table version that holds it."""
    publication: Publication
    timestamp_ms: int
    """When it was appended, milliseconds since 1970; 0 if only a fence still records it."""


class TableLog:
    """The log of one table, for reading.

    Args:
        storage: the table's folder.
        table: as delta-rs has loaded it; None: it is loaded at the first question about a topology.
    """

    def __init__(self, storage: Storage, table: DeltaTable | None = None) -> None:
        self._storage = storage
        self._loaded = table

    def commit(self, version: int) -> Commit | None:
        """One version, from its commit file; None when that does not exist (any more).

        Raises:
            RecoveryRefusedError: it is none, or of a format that this program does not know.
        """
        text = self.text(version)
        return None if text is None else self.parsed(version, text)

    def text(self, version: int) -> bytes | None:
        """A version's commit file as it stands there; None when it does not exist (any more)."""
        return self._storage.read(commit_path(version))

    def parsed(
        self, version: int, text: bytes, written: Sequence[Mapping[str, Any]] | None = None
    ) -> Commit:
        """What a commit file of this table says; arguments and errors as `parse_commit`."""
        return parse_commit(version, text, self._storage.location, written)

    def backwards(self, version: int) -> Iterator[Commit]:
        """Versions from this one down to the first whose file is gone; raises as `commit`."""
        while version >= 0 and (commit := self.commit(version)) is not None:
            yield commit
            version -= 1

    # --- of a topology -----------------------------------------------------------------------

    @property
    def _table(self) -> DeltaTable:
        if self._loaded is None:
            self._loaded = load(self._storage)
        return self._loaded

    def epoch(self, topology: str) -> int:
        """The newest epoch that this table knows of a topology; 0: none."""
        return self._table.transaction_version(epoch_app(topology)) or 0

    def incarnation(self, topology: str) -> int:
        """The incarnation that leads this table; 0 if none is recorded."""
        return self._table.transaction_version(incarnation_app(topology)) or 0

    @property
    def first_txid(self) -> int:
        """The txid with which the table begins: 1, unless it was made after others had committed.

        Raises:
            ValueError: somebody has changed the property.
        """
        return int(self._table.metadata().configuration.get(FIRST_TXID) or 1)

    def require_nothing_of(self, topology: str) -> None:
        """Refuse a table without any publication in its log that has had one.

        Raises:
            RecoveryRefusedError: see there.
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

        If the log has none any more: the one that the newest mark repeats.
        """
        mark: Commit | None = None
        is_empty = True
        for commit in self.backwards(self._table.version()):
            if commit.publication is not None:
                is_empty = False
                yield TablePublication(commit.version, commit.publication, commit.timestamp_ms)
            elif mark is None and commit.mark is not None:
                mark = commit
        if is_empty and mark is not None and mark.last is not None and not mark.last[1].is_lost:
            yield TablePublication(*mark.last, 0)
