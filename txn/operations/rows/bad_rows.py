"""Read the rows that rules have set aside from their table. Nothing is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txn.dataflow.expectations import BAD_ROW_COLUMNS
from txn.delta.commits import TXID
from txn.protocol.records import RowReplayRecord
from txn.storage.retrying import retried

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from txn.interfaces.publication import Member
    from txn.operations.table_logs import PublicationLog

__all__ = ["BadRow", "BadRows", "RuleRows", "bad_rows_among", "has_bad_rows", "replayed_up_to"]


@dataclass(frozen=True)
class RuleRows:
    """The rows that one rule of a stream has set aside, counted."""

    stream: str
    rule: str
    rows: int
    first_txid: int
    last_txid: int
    replayed_up_to: int | None = None
    """The last txid whose rows were replayed; None: none were, or it is unknown."""
    still_open: int | None = None
    """The rows that no replay covers; None: unknown."""


@dataclass(frozen=True)
class BadRow:
    """One row that was set aside; see docs/bad-rows.md for the columns."""

    txid: int
    stream: str
    rule: str
    position: str | None
    row: str
    reason: str


class BadRows:
    """The current rows of one table of bad rows.

    Args:
        committed: the newest committed txid. Later rows may still be taken back and are not
            shown. None: unknown; all rows are shown.
    """

    def __init__(self, table: str, data: Dataset, committed: int | None) -> None:
        self.table = table
        self._data = data
        self._committed = committed

    def logged(self, topology: str, txids: Iterable[int], log: PublicationLog) -> dict[int, Member]:
        """Return txid -> its entry in the log, for the txids that the log still has."""
        asked = {*txids}
        members: dict[int, Member] = {}
        for entry in log.publications():
            # The newest publication of a txid counts: it took back what was there before.
            if entry.publication.topology != topology or not asked - members.keys():
                continue
            for member in entry.publication.txids:
                if member.txid in asked:
                    members.setdefault(member.txid, member)
        return members

    def by_rule(self, replays: Iterable[RowReplayRecord] | None = None) -> list[RuleRows]:
        """Count the rows that each rule has set aside, by stream and rule.

        Args:
            replays: the topology's replays; None: unknown.
        """
        stored = self._read(["stream", "rule", TXID])
        keys = ["stream", "rule", TXID]
        counted = stored.group_by(keys).aggregate([([], "count_all")]).to_pylist()
        by_rule: dict[tuple[str, str], dict[int, int]] = {}
        for one in counted:
            by_rule.setdefault((one["stream"], one["rule"]), {})[one[TXID]] = one["count_all"]
        after = None if replays is None else replayed_up_to(replays)
        return [
            RuleRows(
                *key,
                sum(rows.values()),
                min(rows),
                max(rows),
                None if after is None else after.get(key),
                None if after is None else _after(rows, after.get(key, 0)),
            )
            for key, rows in sorted(by_rule.items())
        ]

    def newest(
        self,
        limit: int | None,
        *,
        stream: str | Collection[str] | None = None,
        rule: str | None = None,
        txid: int | None = None,
        up_to: int | None = None,
    ) -> list[BadRow]:
        """Return the rows of the newest txids.

        Args:
            limit: the most rows to return; None: all.
            stream: only rows of this stream, or of these; `rule` and `txid` filter the same way.
            up_to: only of txids up to this one.
        """
        import pyarrow.compute as pc

        streams = [stream] if isinstance(stream, str) else stream
        conditions = {
            "stream": streams,
            "rule": None if rule is None else [rule],
            TXID: None if txid is None else [txid],
        }
        only = {name: values for name, values in conditions.items() if values is not None}
        keys = [(TXID, "descending"), *((name, "ascending") for name in BAD_ROW_COLUMNS)]
        columns = [TXID, *BAD_ROW_COLUMNS]
        if limit is None:
            rows = self._read(columns, only, 0, up_to).sort_by(keys)
        else:
            # First the txids alone: the rows of older ones are not read at all.
            txids = self._read([TXID], only, 0, up_to)
            best = pc.select_k_unstable(txids, limit, keys[:1])
            lowest = pc.min(txids[TXID].take(best)).as_py() or 0
            rows = self._first(columns, self._condition(only, lowest, up_to), limit, keys)
        return [BadRow(**row) for row in _readable(rows).to_pylist()]

    def _first(self, columns: list[str], condition: Any, limit: int, keys: list[Any]) -> Any:
        """Return the first rows in an order; one txid's bad rows may not fit in memory."""
        import pyarrow as pa
        import pyarrow.compute as pc

        def read() -> Any:
            batches = self._data.scanner(
                columns, condition, batch_size=4096, batch_readahead=1, fragment_readahead=1
            )
            first = batches.projected_schema.empty_table()
            for batch in batches.to_batches():
                both = pa.concat_tables([first, pa.table(batch)])
                first = both.take(pc.select_k_unstable(both, limit, keys))
            return first

        return retried(read, f"read the rows of table {self.table}")

    def _read(
        self,
        columns: list[str],
        only: Mapping[str, Collection[Any]] | None = None,
        lowest: int = 0,
        highest: int | None = None,
    ) -> Any:
        condition = self._condition(only or {}, lowest, highest)
        what = f"read the rows of table {self.table}"
        return retried(lambda: self._data.to_table(columns=columns, filter=condition), what)

    def _condition(
        self, only: Mapping[str, Collection[Any]], lowest: int, highest: int | None
    ) -> Any:
        from pyarrow import dataset

        condition = dataset.field(TXID) >= lowest
        for limit in (self._committed, highest):
            if limit is not None:
                condition &= dataset.field(TXID) <= limit
        for name, values in only.items():
            condition &= dataset.field(name).isin([*values])
        return condition


def bad_rows_among(
    tables: Iterable[str],
    options: Mapping[str, Mapping[str, str]] | None = None,
    committed: int | None = None,
) -> BadRows | None:
    """Find the table of bad rows among a topology's tables by its columns; None: none is."""
    from txn.operations.table_logs import opened_table

    for table in tables:
        opened = opened_table(table, (options or {}).get(table))
        if has_bad_rows(field.name for field in opened.schema().fields):
            return BadRows(table, opened.to_pyarrow_dataset(), committed)
    return None


def has_bad_rows(columns: Iterable[str]) -> bool:
    """Return True if a table with these columns holds bad rows."""
    return {*columns} == {TXID, *BAD_ROW_COLUMNS}


def replayed_up_to(replays: Iterable[RowReplayRecord]) -> dict[tuple[str, str], int]:
    """Return (stream, rule) -> the last txid whose rows were replayed."""
    last: dict[tuple[str, str], int] = {}
    for replay in replays:
        for stream in filter(None, (replay.stream, replay.was)):
            for rule, txid in replay.rules.items():
                last[stream, rule] = max(txid, last.get((stream, rule), 0))
    return last


def _readable(rows: Any) -> Any:
    """Return the rows with every text as UTF-8: a writer may have stored other bytes."""
    import pyarrow as pa

    for number, field in enumerate(rows.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            stored = rows.column(number).cast(pa.large_binary()).to_pylist()
            texts = [None if text is None else text.decode(errors="replace") for text in stored]
            rows = rows.set_column(number, field.name, pa.array(texts, pa.large_string()))
    return rows


def _after(rows: Mapping[int, int], last: int) -> int:
    return sum(count for txid, count in rows.items() if txid > last)
