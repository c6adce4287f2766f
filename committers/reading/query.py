"""What readers see of a table, as one SQL query over its files, for DuckDB.

The query says in SQL what `LogLayout.shown` and `UpsertLayout.shown` say in Spark's expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from committers.publishing.files import BUCKET
from committers.reading.aggregate_sql import InSql, in_sql
from committers.reading.types import quoted, type_text
from committers.state.expiring import BOUND, NEWEST
from committers.state.layouts import LogLayout
from committers.state.removal import REMOVED
from committers.state.shape import StateShape
from txn.delta.commits import TXID
from txn.errors import TableRefusedError

__all__ = ["ShownSql", "rows_sql"]

_CUT, _GONE = "txn_cut", "txn_gone"
"""Columns of the query alone."""


def files_sql(columns: Mapping[str, Any], source: str) -> str:
    """The rows of files; a column that a file lacks is NULL there.

    Args:
        columns: column -> type, as in the JSON of the table's schema.
        source: what stands after FROM; empty: there are no files.
    """
    kinds = {name: type_text(kind, name) for name, kind in columns.items() if name != BUCKET}
    names = ", ".join(map(quoted, kinds))
    typed = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in kinds.items())
    nothing = f"SELECT {typed} WHERE false"
    if not source:
        return nothing
    return f"SELECT {names} FROM ({nothing} UNION ALL BY NAME SELECT * FROM {source})"


def rows_sql(
    columns: Mapping[str, Any],
    source: str,
    names: Sequence[str] | None,
    txid: int | None,
    where: str,
) -> str:
    """The rows of a table that grows by rows, as of a txid.

    Args:
        columns: as `files_sql`.
        source: as `files_sql`.
        names: the columns that it returns, in this order; None: all.
        txid: None: as of the newest one.
        where: the table, for errors.
    """
    chosen = list(columns) if names is None else list(names)
    require_names(chosen, list(columns), where)
    shown = ", ".join(map(quoted, chosen))
    # A row without a txid is older than any txid: another writer's, which was accepted.
    bound = "" if txid is None else f" WHERE {TXID} <= {int(txid)} OR {TXID} IS NULL"
    return f"WITH stored AS ({files_sql(columns, source)}) SELECT {shown} FROM stored{bound}"


def require_names(names: Sequence[str], known: Sequence[str], where: str) -> None:
    """Refuse columns that a table does not have, or that are named twice."""
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise TableRefusedError(
            f"Table {where} has no column '{unknown}'. It has {', '.join(known)}.",
            number="TXN-310",
        )
    if not names or len(set(names)) < len(names):
        raise TableRefusedError(
            f"columns={list(names)} of table {where} names none, or one twice. Name each once; it "
            f"has {', '.join(known)}.",
            number="TXN-310",
        )


class ShownSql:
    """The query for a state table.

    Args:
        shape: the table's description, with the watermark as of which it is shown.
        columns: column -> type, as in the JSON of the table's schema.
        where: the table, for errors.
    """

    def __init__(self, shape: StateShape, columns: Mapping[str, Any], where: str) -> None:
        self._shape, self._columns, self._where = shape, columns, where
        self._keys = [quoted(key) for key in shape.keys]

    def text(self, source: str, names: Sequence[str] | None = None) -> str:
        """The query.

        Args:
            source: what stands after FROM for the files; empty: there are none.
            names: the keys and values that it returns, in this order; None: all.

        Raises:
            TableRefusedError: a name is neither, or a value is one that only the program can
                compute.
        """
        shape = self._shape
        chosen = list(names) if names is not None else [*shape.keys, *shape.values]
        require_names(chosen, [*shape.keys, *shape.values], self._where)
        values = {name: self._in_sql(name) for name in chosen if name not in shape.keys}
        steps = [("stored", files_sql(self._columns, source))]
        if shape.keeps_removed:
            steps.append(("living", self._without_removed()))
        merges, ended = isinstance(shape, LogLayout), self._not_ended()
        if merges and shape.ends_by_event:
            steps.append(("counting", self._since_begun(steps[-1][0])))
        elif merges and ended:
            steps.append(("unended", f"SELECT * FROM {steps[-1][0]}{ended}"))
        if merges:
            steps.append(("merged", self._merged(values, steps[-1][0])))
        shown = ", ".join(self._shown(name, values.get(name), merges) for name in chosen)
        after = "" if merges and not shape.ends_by_event else ended
        last = f"SELECT {shown} FROM {steps[-1][0]}{after}"
        return f"WITH {', '.join(f'{name} AS ({query})' for name, query in steps)} {last}"

    def _in_sql(self, name: str) -> InSql:
        aggregate = self._shape.aggregates[name]
        found = in_sql(aggregate, self._columns[name])
        if found is None and self._shape.readers_merge:
            raise TableRefusedError(
                f"Value '{name}' of state table {self._where} is {aggregate!r}, which only its own "
                "program can compute. Read it with Spark, StateTable.read(spark), or leave it out: "
                "columns=[...].",
                number="TXN-311",
            )
        return found or InSql(self._columns[name], lambda x: x, lambda x: x)

    def _shown(self, name: str, value: InSql | None, merged: bool) -> str:
        column = quoted(name)
        if value is None:
            return column
        text = value.result_of_merged(column) if merged else value.result(column)
        return f"CAST({text} AS {type_text(value.shown, name)}) AS {column}"

    def _without_removed(self) -> str:
        removed = f"COALESCE({REMOVED}, false)"
        if not self._shape.readers_merge:
            return f"SELECT * FROM stored WHERE NOT {removed}"
        gone = f"MAX({TXID}) FILTER (WHERE {removed}) OVER ({self._of_key()}) AS {_GONE}"
        marked = f"SELECT *, {gone} FROM stored"
        # A row without a txid is older than any txid: another writer's, which was accepted.
        is_void = f"COALESCE(COALESCE({TXID}, 0) <= {_GONE}, false)"
        return f"SELECT * FROM ({marked}) WHERE NOT {removed} AND NOT {is_void}"

    def _since_begun(self, rows: str) -> str:
        before = f"{self._of_key()} ORDER BY {TXID} NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING"
        newest = f"MAX({NEWEST}) OVER ({before} AND 1 PRECEDING)"
        begins = f"SELECT *, {newest} <= {BOUND} AS {_CUT} FROM {rows}"
        cut = f"MAX({TXID}) FILTER (WHERE {_CUT}) OVER ({self._of_key()})"
        cuts = f"SELECT * REPLACE ({cut} AS {_CUT}) FROM ({begins})"
        return f"SELECT * FROM ({cuts}) WHERE {_CUT} IS NULL OR COALESCE({TXID}, 0) >= {_CUT}"

    def _merged(self, values: Mapping[str, InSql], rows: str) -> str:
        columns = [*self._keys]
        columns += [f"{v.merged(quoted(name))} AS {quoted(name)}" for name, v in values.items()]
        if self._shape.ends_by_event:
            columns.append(f"MAX({NEWEST}) AS {NEWEST}")
        # SQL returns one row for no rows at all; an empty table has none.
        by = (
            f"GROUP BY {', '.join(self._keys)}" if self._keys else f"HAVING MAX({TXID}) IS NOT NULL"
        )
        return f"SELECT {', '.join(columns)} FROM {rows} {by}"

    def _not_ended(self) -> str:
        expiry, watermark = self._shape.expiry, self._shape.watermark
        if expiry is None or watermark is None:
            return ""
        time = quoted(NEWEST)
        if expiry.by != "last event":
            name = expiry.column or next(k for k in self._shape.keys if self._is_window(k))
            time = f"{quoted(name)}.end" if self._is_window(name) else quoted(name)
        bound = f"make_timestamptz({expiry.bound(watermark)})"
        return f" WHERE {time} IS NULL OR {time} > {bound}"

    def _is_window(self, name: str) -> bool:
        return not isinstance(self._columns[name], str)

    def _of_key(self) -> str:
        return f"PARTITION BY {', '.join(self._keys)}" if self._keys else ""
