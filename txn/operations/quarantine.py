"""List the txids that were committed empty, and what is requested for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from txn.protocol.backend import TopologyStatus
from txn.protocol.records import QuarantineRecord

__all__ = ["Quarantined", "quarantined_in"]

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


def quarantined_in(status: TopologyStatus) -> tuple[Quarantined, ...]:
    """Return the quarantined txids in a status, ascending."""
    replays: dict[int, int | Wish] = dict.fromkeys(status.replays_requested, "requested")
    replays |= dict.fromkeys(status.drops_requested, "drop requested")
    for batch in status.progress.batches:
        if batch.replay_of:
            replays[batch.replay_of] = batch.txid
    return tuple(Quarantined(record, replays.get(record.txid)) for record in status.quarantine)
