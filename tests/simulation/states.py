"""What the states hold, and which of their keys have ended, told from records and watermarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation import rows as model
from tests.simulation.plan import TableKind, owner_of
from tests.simulation.rows import STREAM_SIZE, event_time_of, is_late, time_of_key

if TYPE_CHECKING:
    from tests.simulation.books import Books
    from tests.simulation.delta import Table
    from tests.simulation.world import World

__all__ = ["States"]

Records = tuple[int, ...]
Held = dict[int, tuple[Records, int]]
"""Key -> the records since it has begun, and its time. Also keys that have ended."""


class States:
    """The part of the books that knows what a reader of a state must see as of each txid."""

    def __init__(self, world: World, books: Books) -> None:
        self._world = world
        self._books = books
        self._held: dict[tuple[str, int], Held] = {}
        """(state, committed txid) -> what it holds."""

    # --- from the records --------------------------------------------------------------------

    def drops(self, txid: int, record: int) -> bool:
        """Whether a late record goes no further."""
        timed = self._world.plan.timed
        is_dropped = timed is not None and timed.late == "drop"
        return is_dropped and is_late(record, self._books.watermarks.get(txid))

    def value(self, name: str, key: int, txid: int) -> Records | None:
        """The value of a key as of a committed txid."""
        return self._shown(self._kind(name), self._after_committed(name, txid), txid).get(key)

    def final(self, name: str, txid: int) -> list[Any]:
        """The keys whose time a txid's watermark passes, with their values as of the one before."""
        values = self._shown(self._kind(name), self._after_committed(name, txid - 1), txid - 1)
        before, now = (self._books.watermarks.get(one) for one in (txid - 1, txid))
        return [
            (key, value)
            for key, value in values.items()
            if now is not None and time_of_key(key) <= now
            if before is None or before < time_of_key(key)
        ]

    def changes(self, name: str, txid: int, records: Records) -> list[Any]:
        """The keys that a txid touches or ends: their values after it and before."""
        kind, before = self._kind(name), self._after_committed(name, txid - 1)
        after = self._after(kind, before, txid, records)
        old, new = self._shown(kind, before, txid - 1), self._shown(kind, after, txid)
        return [
            (key, new.get(key), old.get(key))
            for key in {*old, *new}
            if key not in new or after[key] != before.get(key)
        ]

    def _kind(self, name: str) -> TableKind:
        return self._world.plan.tables[name]

    def _after_committed(self, name: str, txid: int) -> Held:
        if txid < 1:
            return {}
        if (name, txid) not in self._held:
            before, records = self._after_committed(name, txid - 1), self._books.by_txid[txid]
            self._held[name, txid] = self._after(self._kind(name), before, txid, records)
        return self._held[name, txid]

    def _after(self, kind: TableKind, held: Held, txid: int, records: Records) -> Held:
        """What a state holds after one more txid."""
        own: dict[int, Records] = {}
        for record in records:
            if record // STREAM_SIZE in kind.streams and not self.drops(txid, record):
                key = record % self._world.plan.keys
                own[key] = (*own.get(key, ()), record)
        held = dict(held)
        for key, added in own.items():
            before, last = held.get(key, ((), -(10**9)))
            time = max(map(event_time_of, added))
            if kind.ends is not None and kind.ends.by == "key":
                time = time_of_key(key)
            elif self._has_ended(kind, last, txid):
                before = ()
            else:
                time = max(time, last)
            held[key] = (*before, *added), time
        return held

    def _has_ended(self, kind: TableKind, time: int, txid: int) -> bool:
        now, ends = self._books.watermarks.get(txid), kind.ends
        return ends is not None and now is not None and time + ends.after <= now

    def _shown(self, kind: TableKind, held: Held, txid: int) -> dict[int, Records]:
        return {
            key: tuple(sorted(records))
            for key, (records, time) in held.items()
            if not self._has_ended(kind, time, txid)
        }

    # --- in the files ------------------------------------------------------------------------

    def wrong(self, table: Table, txids: dict[int, Records], last: int, rows: list[Any]) -> str:
        """What is wrong with what a reader of a table's newest version sees.

        As of its newest txid, and as of the committed one, if the version can show that.

        Args:
            txids: the records of the txids that it holds.
            last: the newest of them.
            rows: those in its files.
        """
        kind, committed = self._world.plan.kind(table.name), self._books.committed
        held: Held = {}
        for txid in sorted(txids):
            held = self._after(kind, held, txid, txids[txid])
        why = self._differs(kind, last, rows, held)
        # A transactional upsert table has no previous values: its former files are read.
        is_kept = kind.kind == "log" or kind.semantics == "opaque"
        if not why and is_kept and last > committed and committed in txids:
            revert: Any = model.revert if kind.kind == "upsert" else model.rows_below
            held = self._after_committed(owner_of(table.name), committed)
            why = self._differs(kind, committed, revert(rows, committed + 1), held)
        return why

    def _differs(self, kind: TableKind, txid: int, rows: list[Any], held: Held) -> str:
        if kind.kind == "log":
            by_key = kind.ends is not None and kind.ends.by == "key"
            rows = model.merge(rows if by_key else model.since_begun(rows))
        found = {r.key: tuple(sorted(r.value)) for r in rows if not self._is_over(kind, r, txid)}
        expected = self._shown(kind, held, txid)
        if found == expected:
            return ""
        return f"shows {found} as of txid {txid}, and ought to show {expected}"

    def _is_over(self, kind: TableKind, row: Any, txid: int) -> bool:
        """Whether the key of a stored row has ended as of a txid."""
        by_key = kind.ends is not None and kind.ends.by == "key"
        return self._has_ended(kind, time_of_key(row.key) if by_key else row.newest, txid)

    def left(
        self, table: Table, publication: dict[str, Any] | None, mark: dict[str, Any] | None
    ) -> str:
        """What had ended and is in the files that were just written, though it ought to be gone."""
        kind, commit = self._world.plan.kind(table.name), table.parsed[-1]
        if kind.ends is None or table.cleaned or not commit.adds:
            return ""
        txid = 0
        if publication is not None and kind.kind == "upsert":
            txid = publication["first_txid"] - 1
        elif mark is not None and commit.compaction:
            txid = mark["txids"][1]
        added = {add.path for add in commit.adds}
        if kind.kind == "log" and kind.ends.by == "last event":
            earlier = [r.txid for p in table.active if p not in added for r in table.blobs[p].rows]
            if min(earlier, default=txid) < (mark["txids"][0] if mark and txid else 0):
                return ""  # these decide whether what was written begins a key anew
        gone = [table.blobs[path].rows for path in commit.removes if path in table.blobs]
        if any(self._is_over(kind, row, txid) for own in gone for row in own if row.txid <= txid):
            self._world.counts["rows of ended keys left"] += 1
        written = [row for path in added for row in table.blobs[path].rows if row.txid <= txid]
        over = [row for row in written if self._is_over(kind, row, txid)]
        return f"was written with {over}, which had ended by txid {txid}" if over else ""
