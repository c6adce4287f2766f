"""`ProgressBackend`: the durable state of many topologies, as people and tools use it.

A run asks the `ProgressStore` that `open` returns. Operations, the command line and the page ask
the backend: it lists topologies, reads their status, takes requests for their leaders, and keeps
the ledger of replayed rows. `txn.zookeeper.backend.ZooKeeperBackend` is one ZooKeeper,
`txn.testing.MemoryNodes` a dictionary. tests/protocol/test_backend.py tests the contract over both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from txn.errors import UserError
from txn.protocol.records import (
    IncarnationRecord,
    LeaderIdentity,
    NoticesRecord,
    Progress,
    QuarantineRecord,
    RowReplayRecord,
    StandbyIdentity,
)
from txn.protocol.store import ProgressStore

__all__ = ["ProgressBackend", "TopologyStatus", "check_quarantined"]


@dataclass(frozen=True)
class TopologyStatus:
    """The durable state of a topology at one moment."""

    topology: str
    progress: Progress
    epoch: int
    """The newest epoch; 0 before the first leader."""
    leader: LeaderIdentity | None
    """The present leader, or None."""
    last_leader: LeaderIdentity | None
    """The process that took the newest epoch, alive or not."""
    quarantine: tuple[QuarantineRecord, ...]
    """Txids that were committed empty, ascending."""
    replays_requested: frozenset[int] = frozenset()
    """The quarantined txids that the topology will replay."""
    standbys: tuple[tuple[StandbyIdentity, str], ...] = ()
    """Each standby with the id of its program (empty: unknown), the longest waiting first."""
    incarnation: IncarnationRecord | None = None
    """The present incarnation; None before the first leader."""
    notices: NoticesRecord | None = None
    """The newest notices of the newest run's spouts; None if there were none."""
    drops_requested: frozenset[int] = frozenset()
    """The quarantined txids that the topology will give up."""


class ProgressBackend(Protocol):
    """The durable state of many topologies, as one thread at a time reads it and asks for changes.

    Only `open` writes what a leader writes. Nothing here waits for a leader or disturbs one.

    Raises:
        TopologyError: by all that take a topology, except `open` and `is_led`: it does not exist,
            because it had no leader yet. Lists the existing ones.
        ProgressUnreadableError: by all that reads: the stored data is damaged or foreign.
        ProgressUnavailableError: by all but `open` and `close`: no answer in time.
    """

    def open(self, topology: str) -> ProgressStore:
        """Return a new store of a topology, which may not exist yet. The caller closes it."""

    def close(self) -> None:
        """End the connection. Idempotent; stores that were opened stay open."""

    def topologies(self) -> list[str]:
        """Return the names of all topologies, sorted."""

    def is_led(self, topology: str) -> bool:
        """True if the topology has a leader. Cheaper than `status`."""

    def status(self, topology: str) -> TopologyStatus:
        """Read the whole state of a topology, whether it runs or not."""

    def request_replays(self, topology: str, txids: Collection[int] | None) -> list[int]:
        """Request that the present or next leader replays quarantined txids. Idempotent.

        Args:
            txids: the txids; None: all quarantined ones.

        Returns:
            The txids, ascending.

        Raises:
            UserError: as `check_quarantined`; nothing is requested then.
        """

    def request_drops(self, topology: str, txids: Collection[int] | None) -> list[int]:
        """Give quarantined txids up: their records are never read; as `request_replays`."""

    def row_replays(self, topology: str) -> dict[str, tuple[RowReplayRecord, ...]]:
        """Read the replays of rows so far: stream -> replays by number."""

    def begin_row_replay(self, topology: str, record: RowReplayRecord) -> RowReplayRecord:
        """Store a replay of rows, unless its number is taken; return the replay of that number."""

    def settle_row_replay(self, topology: str, record: RowReplayRecord) -> None:
        """Store that the file of a replay exists. Idempotent."""


def check_quarantined(topology: str, chosen: Collection[int], quarantined: Collection[int]) -> None:
    """Refuse a request for txids that are not quarantined.

    Raises:
        UserError: one of `chosen` is not quarantined, or none is at all.
    """
    if not quarantined:
        raise UserError(
            f"Topology '{topology}' has no quarantined txids: there is nothing to replay or to "
            "drop. A txid is quarantined when its attempts are used up and on_exhausted is "
            '"quarantine".',
            number="TXN-610",
        )
    unknown = sorted(set(chosen) - set(quarantined))
    if unknown:
        listed = ", ".join(str(txid) for txid in sorted(quarantined))
        raise UserError(
            f"Txid {unknown[0]} of topology '{topology}' is not quarantined: it never was, or it "
            f"has been replayed or dropped since. The quarantined txids are {listed}. Nothing was "
            f"requested. `txn quarantine list {topology}` shows what they were to read.",
            number="TXN-610",
        )
