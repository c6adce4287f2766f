"""The txids that were committed empty: which ones there are, and asking for their replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from txn.config import TopologyConfig
from txn.protocol.records import QuarantineRecord
from txn.zookeeper.replay_requests import request_replays
from txn.zookeeper.status import TopologyStatus, read_status

__all__ = ["Quarantined", "list_quarantined", "quarantined_in", "request_replays"]


@dataclass(frozen=True)
class Quarantined:
    """One txid that was committed empty."""

    record: QuarantineRecord
    replay: int | Literal["requested"] | None
    """The open txid that replays it, or "requested"; None: nobody has asked for it."""

    def to_json(self) -> dict[str, Any]:
        """All fields of the record, and `replay`."""
        return {**self.record.model_dump(mode="json", exclude={"version"}), "replay": self.replay}


def list_quarantined(hosts: str, topology: str, config: TopologyConfig) -> tuple[Quarantined, ...]:
    """The quarantined txids of a topology, ascending. Changes nothing.

    Raises:
        TxnError: as `txn.zookeeper.status.read_status`.
    """
    return quarantined_in(read_status(hosts, topology, config))


def quarantined_in(status: TopologyStatus) -> tuple[Quarantined, ...]:
    """The quarantined txids that a look at ZooKeeper has found, ascending."""
    replays: dict[int, int | Literal["requested"]] = {}
    for txid in status.replays_requested:
        replays[txid] = "requested"
    for batch in status.progress.batches:
        if batch.replay_of:
            replays[batch.replay_of] = batch.txid
    return tuple(Quarantined(record, replays.get(record.txid)) for record in status.quarantine)
