"""The identity of one try at one batch."""

from __future__ import annotations

import copy

import pytest

from txn.attempts import FIRST_TXID, TransactionAttempt


def test_attempt_reads_as_txid_and_attempt_id() -> None:
    """An attempt prints as "txid:attempt_id", the form used in logs, paths and messages."""
    assert str(TransactionAttempt(7, 2)) == "7:2"


def test_first_attempt_counts_from_zero() -> None:
    """Txids count from 1 and the attempts of a txid from 0."""
    assert TransactionAttempt(FIRST_TXID) == TransactionAttempt(1, 0)


def test_next_attempt_keeps_the_txid() -> None:
    """The next attempt has the same txid and an attempt id one higher."""
    assert TransactionAttempt(7, 2).next() == TransactionAttempt(7, 3)


def test_attempts_are_ordered_by_txid_then_attempt() -> None:
    """Attempts sort by txid first, then by attempt id."""
    later = [TransactionAttempt(2, 0), TransactionAttempt(1, 10), TransactionAttempt(1, 9)]
    assert sorted(later) == list(reversed(later))


@pytest.mark.parametrize(("txid", "attempt_id"), [(0, 0), (-1, 0), (1, -1)])
def test_numbers_below_the_first_are_refused(txid: int, attempt_id: int) -> None:
    """A txid below 1 or an attempt id below 0 is refused when the attempt is made."""
    with pytest.raises(ValueError, match="txid counts from 1 and attempt_id from 0"):
        TransactionAttempt(txid, attempt_id)


def test_equal_attempts_are_one_key() -> None:
    """Attempts are values: a copy equals its original and finds it in a dictionary."""
    attempt = TransactionAttempt(7, 2)
    assert {attempt: "same"}[copy.deepcopy(attempt)] == "same"
