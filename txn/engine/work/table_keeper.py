"""Keep content for spouts that is too large for a position, beside every table under its digest.

Every table of the topology gets a copy. So any one table is enough to read the content that the
positions in its log name: for a standby on another machine, and for `txn recover` after ZooKeeper
was lost. Content is never changed or deleted, because logs and exported progress name old content.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from hashlib import blake2b

from txn.errors import ProgressUnreadableError, StorageRefusedError, StorageUnavailableError
from txn.interfaces import Committer, Keeper
from txn.interfaces.committer_capabilities import KeepsBytes

__all__ = ["TableKeeper"]

_DIGEST_BYTES = 16
_NAME = re.compile(r"[0-9a-f]{32}")
_FAILURES = (OSError, StorageUnavailableError, StorageRefusedError)
"""Failures of one table's storage: the other tables are still tried."""

log = logging.getLogger("txn.keeping")


class TableKeeper(Keeper):
    """Stores content beside all tables of a topology; any one of them is enough to read it.

    Not safe for several threads: the start uses it, then the planner.
    """

    def __init__(self, topology: str, committers: Sequence[Committer]) -> None:
        self._topology = topology
        self._names = ", ".join(committer.name for committer in committers)
        self._tables = {one.name: one for one in committers if isinstance(one, KeepsBytes)}
        self._lacking: set[str] = set()
        """Names of content that some table lacks, or may lack because it did not answer."""
        self._warned = False

    def keep(self, content: bytes) -> str | None:
        """Store the content beside every table that takes it; None if none does."""
        name = _digest_name(content)
        stored, failed = self._store(name, content, self._tables)
        if stored:
            return name
        if not failed:
            self._warn_of_no_place()
        return None

    def kept(self, name: str) -> bytes:
        """The bytes from the first table with a whole copy; tables without one get a copy.

        Raises:
            OSError, StorageUnavailableError, StorageRefusedError: no table that answers has it, and
                one does not answer.
            ProgressUnreadableError: no table has it.
        """
        intact: bytes | None = None
        failures: list[Exception] = []
        without: list[str] = []
        for table, committer in self._tables.items() if _NAME.fullmatch(name) else ():
            try:
                content = committer.kept(name)
            except _FAILURES as error:
                failures.append(error)
                log.warning("[%s] '%s': %s", self._topology, table, error)
                continue
            if content is not None and _digest_name(content) == name:
                intact = content
                continue
            if content is not None:
                log.warning("'%s' beside table %s is damaged", name, table)
            without.append(table)
        if intact is not None:
            self._lacking.discard(name)
            self._store(name, intact, without)
            if failures:
                self._lacking.add(name)
            return intact
        if failures:
            # Prefer errors that waiting can cure: that table may have it.
            raise min(failures, key=lambda error: isinstance(error, StorageRefusedError))
        raise ProgressUnreadableError(
            f"A position of topology '{self._topology}' names {name!r}, but none of its tables "
            f"({self._names}) has an intact copy beside it. Restore the folder `_txn_progress` "
            "of one of these tables from a backup or from a copy of the table, or add the table "
            "that has it to the topology again; without it, the record of what was read is lost. "
            "To start over, use a new topology name and new tables.",
            number="TXN-416",
        )

    def mend(self) -> None:
        """Give tables the copies that they lack, now that they are open. Best effort."""
        for name in sorted(self._lacking):
            try:
                self.kept(name)
            except _FAILURES as error:
                log.warning("[%s] '%s' is not copied: %s", self._topology, name, error)

    def _store(self, name: str, content: bytes, tables: Collection[str]) -> tuple[bool, bool]:
        """Return whether one of these tables stored it, and whether the storage of one failed."""
        stored, failed = 0, 0
        for table in tables:
            try:
                stored += self._tables[table].keep(name, content)
            except _FAILURES as error:
                failed += 1
                log.warning(
                    "[%s] could not keep %d bytes of a spout beside table '%s': %s. Until a "
                    "table takes them they stay in the spout's position, which grows.",
                    self._topology,
                    len(content),
                    table,
                    error,
                )
        if stored < len(tables):
            self._lacking.add(name)
        return stored > 0, failed > 0

    def _warn_of_no_place(self) -> None:
        if self._warned:
            return
        self._warned = True
        if not self._tables:
            why = (
                "their committers keep nothing. The position grows with everything that is read: "
                "define `keep` and `kept` in one of them, or add a table that has them "
                "(AppendTable, StateTable)"
            )
        else:
            why = "no table that keeps exists yet. Until one does, the position grows"
        log.warning(
            "[%s] a spout's position still holds what a table should keep (%s): %s.",
            self._topology,
            self._names,
            why,
        )


def _digest_name(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
