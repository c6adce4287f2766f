"""The identity of one attempt at one micro-batch.

Source: `org.apache.storm.trident.topology.TransactionAttempt`: the txid is the same over all
replays of a batch, and the attempt id distinguishes its emissions.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIRST_TXID", "LONGEST_GROUP", "TransactionAttempt"]

FIRST_TXID = 1
"""The first txid of a topology; every batch adds one (Storm: `INIT_TXID = 1`)."""
LONGEST_GROUP = 64
"""Most txids that one staging job or one table version may hold. VACUUM and the sweep at a start
spare the files of so many txids, which a partly replayed group may still publish."""


@dataclass(frozen=True, order=True)
class TransactionAttempt:
    """One attempt of one transaction, ordered by txid, then by attempt.

    Args:
        txid: number of the transaction, from 1, contiguous and strictly increasing.
        attempt_id: number of the attempt of that txid, from 0; never goes back, even at a restart.
            A question that finds nothing to read, or no source, is not an attempt.

    Raises:
        ValueError: `txid` is below 1 or `attempt_id` below 0.
    """

    txid: int
    attempt_id: int = 0

    def __post_init__(self) -> None:
        if self.txid < FIRST_TXID or self.attempt_id < 0:
            raise ValueError(f"txid counts from 1 and attempt_id from 0, not {self}")

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt_id}"

    def next(self) -> TransactionAttempt:
        """Return the next attempt of the same txid."""
        return TransactionAttempt(self.txid, self.attempt_id + 1)
