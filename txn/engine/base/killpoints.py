"""The named points in the life of a batch, where tests kill the process.

`reached` costs a tuple lookup without an observer. Tests and `txn.testing` install an observer;
the product never does.
"""

from __future__ import annotations

from collections.abc import Callable

from txn.attempts import TransactionAttempt

__all__ = ["MAINTENANCE_POINTS", "POINTS", "SHAPE_POINTS", "observe", "reached"]

POINTS = (
    "after-plan",  # the spouts answered; nothing is durable
    "after-start",  # START is durable; nothing is read
    "mid-processing",  # a staging job is at work
    "after-staging",  # every table's files are staged; the ledger is not closed
    "before-publish",  # the commit turn has prepared every table
    "between-publications",  # the first table holds the txid; any of the others may
    "publishing-beside",  # a further table is about to; any of the others may hold the txid
    "after-publish",  # every table holds the txid; ZooKeeper does not know
    "before-committed",  # the commit ledger is closed
    "after-committed",  # COMMITTED is durable; the spouts do not know
    "during-clean-up",  # the spouts know; scratch files remain
)

MAINTENANCE_POINTS = (
    "before-maintenance",  # a table is about to be asked for maintenance
    "maintenance-staged",  # it has staged some, and no version refers to it
    "after-maintenance",  # a version does
)
"""Points in the life of a table; the attempt is the newest that was durable everywhere."""

SHAPE_POINTS = (
    "shape-staged",  # a table has its files in another shape, and no version refers to them
    "shape-changed",  # a version has given it another shape; further tables may wait for theirs
    "backfilled",  # a table has got the txids up to this one, which it lacked
)
"""Points of a start with a changed program; the attempt names the next txid."""

Observer = Callable[[str, TransactionAttempt], None]

_observers: list[Observer] = []


def observe(observer: Observer) -> Callable[[], None]:
    """Call `observer(point, attempt)` at every point from now on; returns how to stop that."""
    _observers.append(observer)
    return lambda: _observers.remove(observer)


def reached(point: str, attempt: TransactionAttempt) -> None:
    """Report that `attempt` has come to `point`."""
    for observer in tuple(_observers):
        observer(point, attempt)
