"""Keeping for spouts what grows beyond a position: beside every table, under its own digest.

Every table of the topology gets a copy. So whoever has one of the tables has what the positions in
its log name: a standby on another machine, and `txn recover` after ZooKeeper was lost. Nothing is
ever changed or deleted, because logs and exported progress name what is old, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from hashlib import blake2b

from txn.errors import ProgressUnreadableError
from txn.interfaces import Committer, Keeper

__all__ = ["TableKeeper"]

_DIGEST_BYTES = 16
_NAME = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger("txn.keeping")


class TableKeeper(Keeper):
    """Keeps with all tables of a topology; any one of them is enough to find it again."""

    def __init__(self, topology: str, committers: Sequence[Committer]) -> None:
        self._topology = topology
        self._committers = tuple(committers)

    def keep(self, content: bytes) -> str | None:
        """Keep with every table that is there; None if there is none, or one does not answer."""
        name = _name_of(content)
        try:
            kept = [committer.keep(name, content) for committer in self._committers]
        except OSError as error:
            log.warning(
                "[%s] could not keep %d bytes of a spout beside the tables: %s. Until that works "
                "they stay in the spout's position, which grows.",
                self._topology,
                len(content),
                error,
            )
            return None
        return name if any(kept) else None

    def kept(self, name: str) -> bytes:
        """What the first table has that holds it whole; tables without it are given it."""
        found: bytes | None = None
        failed: OSError | None = None
        without: list[Committer] = []
        for committer in self._committers if _NAME.fullmatch(name) else ():
            try:
                content = committer.kept(name)
            except OSError as error:
                failed = error
                continue
            if content is not None and _name_of(content) == name:
                found = content
                continue
            if content is not None:
                log.warning("'%s' beside table %s is damaged", name, committer.name)
            without.append(committer)
        if found is not None:
            self._repair(name, found, without)
            return found
        if failed is not None:
            raise failed
        raise ProgressUnreadableError(
            f"A position of topology '{self._topology}' names {name!r}, and beside none of its "
            f"tables ({', '.join(c.name for c in self._committers)}) anything whole of that name "
            "is kept. Restore the folder `_txn_progress` of one of these tables from a backup or "
            "from a copy of the table, or add the table that has it to the topology again; without "
            "it nobody can tell what was read. To start over, use a new topology name and new "
            "tables."
        )

    def _repair(self, name: str, content: bytes, without: Sequence[Committer]) -> None:
        for committer in without:
            try:
                committer.keep(name, content)
            except OSError as error:
                log.warning("[%s] '%s': %s", self._topology, committer.name, error)


def _name_of(content: bytes) -> str:
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
