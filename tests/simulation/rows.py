"""The pure model of what Spark does to rows in a commit: the guard of each kind of table.

The committers decide in Python which files are read, replaced and dropped; Spark computes the rows
in between. These functions stand for that part: `UpsertLayout.revert` and `UpsertJoin.rows`
(upsert), `AppendingCommitter._rows_below` (append, log), `merged_by_key` (compaction of log
tables). The value of a key is the tuple of the records that went into it, in place of a sum, so
that what is in a table twice, or not at all, has a name. `test_model.py` holds them against the
real Spark code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "STREAM_SIZE",
    "Change",
    "Kept",
    "Partial",
    "State",
    "asked",
    "changes_between",
    "changes_in",
    "event_time_of",
    "is_late",
    "join",
    "matches",
    "merge",
    "next_generation",
    "partials",
    "revert",
    "rows_below",
]

STREAM_SIZE = 10_000
"""The records of a stream begin at a multiple of it."""

Records = tuple[int, ...]


def event_time_of(record: int) -> int:
    """The event time of a record: later ones are newer, more or less."""
    return record % STREAM_SIZE * 10 + (record * 2654435761 >> 7) % 90 - 60


def is_late(record: int, watermark: int | None) -> bool:
    """Whether a record is late, where this is the watermark."""
    return watermark is not None and event_time_of(record) <= watermark


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


def revert(rows: Iterable[State], first_txid: int) -> list[State]:
    """`UpsertLayout.revert`: rows as they were before `first_txid`."""
    kept = []
    for row in rows:
        if row.txid < first_txid:
            kept.append(row)
        elif row.prev_txid is not None:
            assert row.previous is not None
            kept.append(State(row.key, row.previous, row.prev_txid))
    return kept


def join(stored: Iterable[State], new: Iterable[Partial], *, keeps_previous: bool) -> list[State]:
    """`UpsertJoin.rows`: stored rows, with what is new to them."""
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


def next_generation(rows: Iterable[State | Partial]) -> list[State | Partial]:
    """`generation_rows`: one row per key, without previous values."""
    rows = list(rows)
    if rows and isinstance(rows[0], State):
        return [State(row.key, row.value, row.txid) for row in rows]
    return [*merge(rows)]  # type: ignore[arg-type]


def rows_below(rows: Iterable[Kept | Partial], txid: int) -> list[Kept | Partial]:
    """The rows of committed txids out of a file that has others, too."""
    return [row for row in rows if row.txid < txid]


# --- what a stream is made of ------------------------------------------------------------------


class Change(NamedTuple):
    """A row of a table's new values."""

    key: int
    value: Records
    previous: Records | None


def matches(
    left: Iterable[int], right: Iterable[int], keys: int, how: str
) -> list[tuple[int | None, int | None]]:
    """`Join.compute`: pairs of records with the same key."""
    others: dict[int, list[int]] = {}
    for record in right:
        others.setdefault(record % keys, []).append(record)
    pairs: list[tuple[int | None, int | None]] = []
    met: set[int] = set()
    for record in left:
        found = others.get(record % keys)
        if found:
            met.add(record % keys)
            pairs += [(record, other) for other in found]
        elif how != "inner":
            pairs.append((record, None))
    if how == "full":
        pairs += [
            (None, other) for key, found in others.items() if key not in met for other in found
        ]
    return pairs


def asked(
    rows: Iterable[int], state: Iterable[Partial | State], keys: int
) -> list[tuple[int, Records | None]]:
    """`StateQuery.compute`: every row with the value of its key, whatever order its files have."""
    values = {row.key: tuple(sorted(row.value)) for row in state}
    return [(record, values.get(record % keys)) for record in rows]


def changes_in(rows: Iterable[State], txid: int) -> list[Change]:
    """`from_previous_values`: what `txid` changed, out of the rows that it wrote."""
    return [Change(r.key, r.value, r.previous) for r in rows if r.txid == txid]


def changes_between(after: Iterable[State], before: Iterable[State], txid: int) -> list[Change]:
    """`from_replaced_rows`: the same out of the files before and after."""
    old = {row.key: row.value for row in before}
    return [Change(r.key, r.value, old.get(r.key)) for r in after if r.txid == txid]
