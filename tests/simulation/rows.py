"""The pure model of what Spark does to rows in a commit: the guard of each kind of table.

The committers decide in Python which files are read, replaced and dropped; Spark computes the rows
in between. These functions stand for that part: `UpsertLayout.revert` and `UpsertJoin.rows`
(upsert), `AppendingCommitter._rows_below` (append, log), `merged_by_key` (compaction of log
tables), and what `committers.state.expiring` does to partials. The value of a key is the tuple of
the records that went into it, in place of a sum, so that what is in a table twice, or not at all,
has a name. `test_model.py` holds them against the real Spark code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = [
    "STREAM_SIZE",
    "Change",
    "Kept",
    "Partial",
    "State",
    "Touched",
    "asked",
    "change",
    "changes_between",
    "event_time_of",
    "in_order",
    "is_late",
    "join",
    "matches",
    "merge",
    "merged_where_certain",
    "next_generation",
    "partials",
    "revert",
    "rows_below",
    "since_begun",
    "time_of_key",
    "touched",
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


def time_of_key(key: int) -> int:
    """The time of a key whose end follows from the key itself."""
    return key * 25


class Kept(NamedTuple):
    """A row of an append table."""

    record: int
    txid: int


class Partial(NamedTuple):
    """A partial aggregate: staged for an upsert table, or a row of a log table."""

    key: int
    value: Records
    txid: int
    newest: int | None = None
    """`NEWEST`, if keys end by their last event."""
    bound: int | None = None
    """`BOUND`."""


class State(NamedTuple):
    """A row of an upsert table; of a transactional one all that is previous is None."""

    key: int
    value: Records
    txid: int
    previous: Records | None = None
    prev_txid: int | None = None
    newest: int | None = None
    prev_newest: int | None = None


def partials(
    keyed: Iterable[tuple[int, int]], txid: int, bound: int | None = None, *, timed: bool = False
) -> list[Partial]:
    """One row per key of a batch of (key, record).

    Args:
        bound: the time at or before which keys have ended.
        timed: whether keys end by their last event.
    """
    groups: dict[int, list[int]] = {}
    for key, record in keyed:
        groups.setdefault(key, []).append(record)
    return [
        Partial(key, (*own,), txid, max(map(event_time_of, own)) if timed else None, bound)
        for key, own in groups.items()
    ]


def merge(rows: Iterable[Partial]) -> list[Partial]:
    """Partials of several txids put together by key, with the newest txid."""
    merged: dict[int, Partial] = {}
    for row in rows:
        known = merged.get(row.key)
        merged[row.key] = row if known is None else _together(known, row)
    return list(merged.values())


def _together(one: Partial, other: Partial) -> Partial:
    bounds = [row.bound for row in (one, other) if row.bound is not None]
    return Partial(
        one.key,
        one.value + other.value,
        max(one.txid, other.txid),
        _newer(one.newest, other.newest),
        min(bounds, default=None),
    )


def _newer(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)


def since_begun(rows: Iterable[Partial]) -> list[Partial]:
    """`since_begun`: without the partials of a key before the one that began it anew."""
    rows = [*rows]
    cuts: dict[int, int] = {}
    for row, before in _with_newest_before(rows):
        if before is not None and row.bound is not None and before <= row.bound:
            cuts[row.key] = row.txid
    return [row for row in rows if row.txid >= cuts.get(row.key, 0)]


def merged_where_certain(rows: Iterable[Partial]) -> list[Partial]:
    """`merged_where_certain`: partials of which one may begin the key anew stay apart."""
    merged: dict[int, list[Partial]] = {}
    for row, before in _with_newest_before(rows):
        own = merged.setdefault(row.key, [])
        if row.bound is None or (before is not None and before > row.bound):
            own[-1:] = [_together(own[-1], row) if own else row]
        else:
            own.append(row)
    return [row for own in merged.values() for row in own]


def _with_newest_before(rows: Iterable[Partial]) -> Iterator[tuple[Partial, int | None]]:
    """Each partial in the order of the txids, with the newest event of its key before it."""
    newest: dict[int, int | None] = {}
    for row in sorted(rows, key=lambda row: row.txid):
        yield row, newest.get(row.key)
        newest[row.key] = _newer(newest.get(row.key), row.newest)


def revert(rows: Iterable[State], first_txid: int) -> list[State]:
    """`UpsertLayout.revert`: rows as they were before `first_txid`."""
    kept = []
    for row in rows:
        if row.txid < first_txid:
            kept.append(row)
        elif row.prev_txid is not None:
            assert row.previous is not None
            kept.append(State(row.key, row.previous, row.prev_txid, newest=row.prev_newest))
    return kept


def join(stored: Iterable[State], new: Iterable[Partial], *, keeps_previous: bool) -> list[State]:
    """`UpsertJoin.rows`: stored rows, with what is new to them."""
    fresh = {row.key: row for row in new}
    rows = []
    for row in stored:
        update = fresh.pop(row.key, None)
        if update is None:
            rows.append(row)
            continue
        begins = None not in (row.newest, update.bound) and row.newest <= update.bound  # type: ignore[operator]
        value = update.value if begins else row.value + update.value
        newest = update.newest if begins else _newer(row.newest, update.newest)
        was = (row.value, row.txid, newest, row.newest) if keeps_previous else (None, None, newest)
        rows.append(State(row.key, value, update.txid, *was))
    rows += [State(row.key, row.value, row.txid, newest=row.newest) for row in fresh.values()]
    return rows


def next_generation(rows: Iterable[State | Partial]) -> list[State | Partial]:
    """`generation_rows`: one row per key, without previous values."""
    rows = list(rows)
    if rows and isinstance(rows[0], State):
        return [State(row.key, row.value, row.txid, newest=row.newest) for row in rows]
    return [*merge(rows)]  # type: ignore[arg-type]


def rows_below(rows: Iterable[Kept | Partial], txid: int) -> list[Kept | Partial]:
    """The rows of committed txids out of a file that has others, too."""
    return [row for row in rows if row.txid < txid]


# --- what a stream is made of ------------------------------------------------------------------


class Change(NamedTuple):
    """A row of a table's new values; of a key that ends without a value."""

    key: int
    value: Records | None
    previous: Records | None


def in_order(value: Records) -> Records:
    """A value as a sum would be: the same in whatever order its records came."""
    return tuple(sorted(value))


def change(key: int, value: Records | None, previous: Records | None) -> Change:
    """A row of new values."""
    return Change(key, value and in_order(value), previous and in_order(previous))


class Touched(NamedTuple):
    """A key that a txid touches in a log table: its merged partials after it and before."""

    key: int
    value: Records
    newest: int | None
    before: Records | None


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
    values = {row.key: in_order(row.value) for row in state}
    return [(record, values.get(record % keys)) for record in rows]


def touched(
    staged: Iterable[Partial], before: Iterable[Partial], continues: Iterable[Partial]
) -> list[Touched]:
    """`touched`: each staged partial with the one row that its key had before.

    Args:
        continues: the rows of `before` whose keys go on.
    """
    old, lasting = ({row.key: row for row in rows} for rows in (before, continues))
    found = []
    for row in staged:
        whole = _together(lasting[row.key], row) if row.key in lasting else row
        last = old[row.key].value if row.key in old else None
        found.append(Touched(row.key, whole.value, whole.newest, last))
    return found


def changes_between(after: Iterable[State], before: Iterable[State], txid: int) -> list[Change]:
    """What `txid` changed, out of the rows after and before it."""
    old = {row.key: row.value for row in before}
    return [change(r.key, r.value, old.get(r.key)) for r in after if r.txid == txid]
