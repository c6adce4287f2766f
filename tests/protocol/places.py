"""Where topologies keep their progress, for tests of the contracts of stores and backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from txn.protocol.backend import ProgressBackend
from txn.protocol.records import QuarantineRecord
from txn.protocol.store import ProgressStore


@dataclass(frozen=True)
class Place:
    """An empty backend, and what happens around it."""

    backend: ProgressBackend
    interrupt: Callable[[Any], None]
    """A leader's session ends."""
    depose: Callable[[Any], None]
    """A leader is taken for dead, without being told."""
    damage: Callable[[str], None]
    """Somebody overwrites a node of topology t."""
    opened: list[ProgressStore] = field(default_factory=list)

    def open(self, topology: str = "t") -> ProgressStore:
        """Another process opens the store of a topology; it is closed in the end."""
        self.opened.append(self.backend.open(topology))
        return self.opened[-1]


def leading(place: Place, topology: str = "t") -> ProgressStore:
    """A store that leads and has loaded."""
    store = place.open(topology)
    store.lead()
    store.load()
    return store


def aside(txid: int) -> QuarantineRecord:
    """A quarantine record."""
    return QuarantineRecord(txid=txid, attempt=5, spouts={"s": {"at": txid}}, error="poison")
