"""The pure model of what Spark does to rows in a commit: the guard of each kind of table.

The committers decide in Python which files are read, replaced and dropped; Spark computes the rows
in between. These functions stand for that part: `StateLayout.revert` and `StateJoin.rows` (upsert),
`AppendingCommitter._rows_below` (append, log), `folded` (compaction of log tables). The value of a
key is the tuple of the records that went into it, in place of a sum, so that what is in a table
twice, or not at all, has a name. `test_model.py` holds them against the real Spark code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Kept", "Partial", "State", "fold", "join", "merge", "partials", "revert", "rows_below"]

Records = tuple[int, ...]


class Kept(NamedTuple):
    """A row of an append table."""

    record: int
    txid: int


class Partial(NamedTuple):
    """A partial aggregate: staged for an upsert table, or a row of a log table."""

    key: int
    value: Records
    txid: int


class State(NamedTuple):
    """A row of an upsert table; of a transactional one `previous` and `prev_txid` are None."""

    key: int
    value: Records
    txid: int
    previous: Records | None = None
    prev_txid: int | None = None


def partials(keyed: Iterable[tuple[int, int]], txid: int) -> list[Partial]:
    """One row per key of a batch of (key, record)."""
    groups: dict[int, list[int]] = {}
    for key, record in keyed:
        groups.setdefault(key, []).append(record)
    return [Partial(key, tuple(records), txid) for key, records in groups.items()]


def merge(rows: Iterable[Partial]) -> list[Partial]:
    """Partials of several txids put together by key, with the newest txid."""
    merged: dict[int, Partial] = {}
    for row in rows:
        known = merged.get(row.key)
        merged[row.key] = (
            row
            if known is None
            else Partial(row.key, known.value + row.value, max(known.txid, row.txid))
        )
    return list(merged.values())


fold = merge
"""Compaction of a log table does the same to its rows."""


def revert(rows: Iterable[State], first_txid: int) -> list[State]:
    """`StateLayout.revert`: rows as they were before `first_txid`."""
    kept = []
    for row in rows:
        if row.txid < first_txid:
            kept.append(row)
        elif row.prev_txid is not None:
            assert row.previous is not None
            kept.append(State(row.key, row.previous, row.prev_txid))
    return kept


def join(stored: Iterable[State], new: Iterable[Partial], *, keeps_previous: bool) -> list[State]:
    """`StateJoin.rows`: stored rows, with what is new to them."""
    fresh = {row.key: row for row in new}
    rows = []
    for row in stored:
        update = fresh.pop(row.key, None)
        if update is None:
            rows.append(row)
        elif keeps_previous:
            value = row.value + update.value
            rows.append(State(row.key, value, update.txid, row.value, row.txid))
        else:
            rows.append(State(row.key, row.value + update.value, update.txid))
    rows += [State(row.key, row.value, row.txid) for row in fresh.values()]
    return rows


def rows_below(rows: Iterable[Kept | Partial], txid: int) -> list[Kept | Partial]:
    """The rows of committed txids out of a file that has others, too."""
    return [row for row in rows if row.txid < txid]
