"""The txids that were committed empty: list them, ask for their replay, or give them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from txn.config import TopologyConfig
from txn.protocol.records import QuarantineRecord
from txn.zookeeper.replay_requests import request_drops, request_replays
from txn.zookeeper.status import TopologyStatus, read_status

__all__ = [
    "Quarantined",
    "list_quarantined",
    "quarantined_in",
    "request_drops",
    "request_replays",
]

Wish = Literal["requested", "drop requested"]


@dataclass(frozen=True)
class Quarantined:
    """One txid that was committed empty."""

    record: QuarantineRecord
    replay: int | Wish | None
    """The open txid that replays or drops it, or what is requested; None: nothing."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields of the record, and `replay`."""
        return {**self.record.model_dump(mode="json", exclude={"version"}), "replay": self.replay}


def list_quarantined(hosts: str, topology: str, config: TopologyConfig) -> tuple[Quarantined, ...]:
    """Read the quarantined txids of a topology, ascending. Changes nothing.

    Raises:
        TxnError: as `txn.zookeeper.status.read_status`.
    """
    return quarantined_in(read_status(hosts, topology, config))


def quarantined_in(status: TopologyStatus) -> tuple[Quarantined, ...]:
    """Return the quarantined txids in a status, ascending."""
    replays: dict[int, int | Wish] = dict.fromkeys(status.replays_requested, "requested")
    replays |= dict.fromkeys(status.drops_requested, "drop requested")
    for batch in status.progress.batches:
        if batch.replay_of:
            replays[batch.replay_of] = batch.txid
    return tuple(Quarantined(record, replays.get(record.txid)) for record in status.quarantine)
