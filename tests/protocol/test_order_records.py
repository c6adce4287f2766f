"""Orders as what is written for them."""

from __future__ import annotations

import pytest

from txn.attempts import TransactionAttempt
from txn.protocol.events import PersistCommitted, Publish
from txn.protocol.order_records import publication_of, quarantine_record
from txn.protocol.records import QuarantineRecord

ATTEMPT = TransactionAttempt(7, 2)


@pytest.mark.parametrize("error", [None, "boom"])
def test_only_an_emptied_txid_is_quarantined(error: str | None) -> None:
    """The record holds what the txid was to read, and why it did not."""
    order = PersistCommitted(ATTEMPT, {"s": 9}, {}, quarantined=error)
    record = QuarantineRecord(txid=7, attempt=2, spouts={"s": 5}, error="boom")
    assert quarantine_record(order, {"s": 5}) == (record if error else None)


def test_a_publication_names_every_txid_of_a_group() -> None:
    """First, last and what each of them has read; a single txid has no members."""
    order = Publish(ATTEMPT, {"s": 7}, {"s": 7}, ((TransactionAttempt(6, 1), {"s": 6}),))
    found = publication_of(order, "t", 3, {})
    assert (6, 7, 2, {"s": 7}) == (
        found.first_txid,
        found.last_txid,
        found.attempt_id,
        found.read,
    )
    members = [(m.txid, m.attempt_id, m.read) for m in found.members]
    assert [(6, 1, {"s": 6}), (7, 2, {"s": 7})] == members
    assert () == publication_of(Publish(ATTEMPT, {}, {}), "t", 3, {}).members
