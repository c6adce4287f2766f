"""What readers see of a table, as one SQL query.

The query says in SQL what `LogLayout.shown` and `UpsertLayout.shown` say in Spark's expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from committers.aggregates import CountDistinct
from committers.publishing.files import BUCKET
from committers.reading.aggregate_sql import InSql, in_sql
from committers.reading.dialect import DUCKDB, Dialect
from committers.reading.types import has_instant
from committers.state.expiring import BOUND, NEWEST
from committers.state.layouts import LogLayout
from committers.state.removal import REMOVED
from committers.state.shape import StateShape
from txn.delta.commits import TXID
from txn.errors import TableRefusedError

__all__ = ["ShownSql", "rows_sql"]

_BEGINS, _CUT, _GONE = "txn_begins", "txn_cut", "txn_gone"
"""Columns of the query alone."""


def files_sql(columns: Mapping[str, Any], source: str, dialect: Dialect) -> str:
    """The rows of a table; a column that a file of DuckDB's lacks is NULL there.

    Args:
        columns: column -> type, as in the JSON of the table's schema.
        source: what stands after FROM; empty: there are no files.
    """
    names = {name: dialect.quoted(name) for name in columns if name != BUCKET}
    shown = ", ".join(names.values())
    if dialect.version:
        return f"SELECT {shown} FROM {source}"
    typed = (f"CAST(NULL AS {dialect.typed(columns[n], n)}) AS {q}" for n, q in names.items())
    nothing = f"SELECT {', '.join(typed)} WHERE false"
    if not source:
        return nothing
    return f"SELECT {shown} FROM ({nothing} UNION ALL BY NAME SELECT * FROM {source})"


def rows_sql(
    columns: Mapping[str, Any],
    source: str,
    names: Sequence[str] | None,
    txid: int | None,
    where: str,
    dialect: Dialect = DUCKDB,
) -> str:
    """The rows of a table that grows by rows, as of a txid.

    Args:
        columns: column -> type, as in the JSON of the table's schema.
        source: what stands after FROM; empty: there are no files.
        names: the columns that it returns, in this order; None: all.
        txid: None: as of the newest one.
        where: the table, for errors.
        dialect: of the engine that runs the query.
    """
    chosen = list(columns) if names is None else list(names)
    require_names(chosen, list(columns), where)
    shown = ", ".join(map(dialect.quoted, chosen))
    stored, rows = dialect.quoted("txn stored"), files_sql(columns, source, dialect)
    # A row without a txid is older than any txid: another writer's, which was accepted.
    bound = "" if txid is None else f" WHERE {TXID} <= {int(txid)} OR {TXID} IS NULL"
    return f"WITH {stored} AS ({rows}) SELECT {shown} FROM {stored}{bound}"


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
        dialect: of the engine that runs the query.
    """

    def __init__(
        self,
        shape: StateShape,
        columns: Mapping[str, Any],
        where: str,
        dialect: Dialect = DUCKDB,
    ) -> None:
        self._shape, self._columns, self._where = shape, columns, where
        self._dialect, self._quoted = dialect, dialect.quoted
        self._keys = [dialect.quoted(key) for key in shape.keys]

    def text(self, source: str, names: Sequence[str] | None = None) -> str:
        """The query.

        Args:
            source: what stands after FROM for the files; empty: there are none.
            names: the keys and values that it returns, in this order; None: all.

        Raises:
            TableRefusedError: a name is neither, or a value is one that only the program can
                compute, or the engine cannot.
        """
        shape = self._shape
        chosen = list(names) if names is not None else [*shape.keys, *shape.values]
        require_names(chosen, [*shape.keys, *shape.values], self._where)
        values = {name: self._in_sql(name) for name in chosen if name not in shape.keys}
        self._require_exact(values)
        steps = [(self._step("stored"), files_sql(self._columns, source, self._dialect))]
        if shape.keeps_removed:
            steps.append((self._step("living"), self._without_removed(steps[-1][0])))
        merges, ended = isinstance(shape, LogLayout), self._not_ended()
        if merges and shape.ends_by_event:
            steps.append((self._step("counting"), self._since_begun(steps[-1][0])))
        elif merges and ended:
            steps.append((self._step("unended"), f"SELECT * FROM {steps[-1][0]}{ended}"))
        if merges:
            steps.append((self._step("merged"), self._merged(values, steps[-1][0])))
        shown = ", ".join(self._shown(name, values.get(name), merges) for name in chosen)
        after = "" if merges and not shape.ends_by_event else ended
        last = f"SELECT {shown} FROM {steps[-1][0]}{after}"
        return f"WITH {', '.join(f'{name} AS ({query})' for name, query in steps)} {last}"

    def _step(self, name: str) -> str:
        """A name that no column has: `name.value` would be the column of the step."""
        return self._quoted(f"txn {name}")

    def _require_exact(self, values: Mapping[str, InSql]) -> None:
        """Refuse rows that the engine would merge by rounded instants."""
        shape, columns = self._shape, self._columns
        if self._dialect.instants_are_exact or not shape.readers_merge:
            return
        keys = [name for name in shape.keys if has_instant(columns[name])]
        # The greatest of rounded instants is the greatest one, rounded.
        others = [n for n in values if columns[n] != "timestamp" and has_instant(columns[n])]
        if not keys and not others and not shape.ends_by_event:
            return
        engine, what = self._dialect.words.engine, ", ".join([*keys, *others]) or "the last events"
        leave_out = "" if keys or shape.ends_by_event else ", leave these columns out"
        raise TableRefusedError(
            f"{engine} cannot merge the rows of state table {self._where}, because it rounds "
            f"instants to milliseconds: those of {what}. Ask for the query of another "
            f"dialect{leave_out}, or write the table with layout='upsert'.",
            number="TXN-311",
        )

    def _in_sql(self, name: str) -> InSql:
        if name in self._shape.apart_in(self._columns):
            return InSql(self._columns[name], lambda x: x, lambda x: x)
        aggregate = self._shape.aggregates[name]
        if isinstance(aggregate, CountDistinct) and not self._dialect.distinct:
            raise TableRefusedError(
                f"{self._dialect.words.engine} cannot compute value '{name}' of state table "
                f"{self._where}: it has no function for what {aggregate!r} stores. Ask for the "
                "query of another dialect, or leave the column out.",
                number="TXN-311",
            )
        found = in_sql(aggregate, self._columns[name], self._dialect)
        if found is None and self._shape.readers_merge:
            raise TableRefusedError(
                f"Value '{name}' of state table {self._where} is {aggregate!r}, which only its own "
                "program can compute. Read it with Spark, StateTable.read(spark), or leave it out: "
                "columns=[...].",
                number="TXN-311",
            )
        return found or InSql(self._columns[name], lambda x: x, lambda x: x)

    def _shown(self, name: str, value: InSql | None, merged: bool) -> str:
        column = self._quoted(name)
        if value is None:
            return column
        text = value.result_of_merged(column) if merged else value.result(column)
        return f"CAST({text} AS {self._dialect.typed(value.shown, name)}) AS {column}"

    def _without_removed(self, rows: str) -> str:
        removed = f"COALESCE({REMOVED}, false)"
        if not self._shape.readers_merge:
            return f"SELECT * FROM {rows} WHERE NOT {removed}"
        gone = f"{self._last_txid(removed)} AS {_GONE}"
        marked = f"SELECT *, {gone} FROM {rows}"
        # A row without a txid is older than any txid: another writer's, which was accepted.
        is_void = f"COALESCE(COALESCE({TXID}, 0) <= {_GONE}, false)"
        return f"SELECT * FROM ({marked}) WHERE NOT {removed} AND NOT {is_void}"

    def _since_begun(self, rows: str) -> str:
        before = f"{self._of_key()} ORDER BY {TXID} NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING"
        newest = f"MAX({NEWEST}) OVER ({before} AND 1 PRECEDING)"
        begins = f"SELECT *, {newest} <= {BOUND} AS {_BEGINS} FROM {rows}"
        cuts = f"SELECT *, {self._last_txid(_BEGINS)} AS {_CUT} FROM ({begins})"
        return f"SELECT * FROM ({cuts}) WHERE {_CUT} IS NULL OR COALESCE({TXID}, 0) >= {_CUT}"

    def _last_txid(self, condition: str) -> str:
        """The last txid of a key's rows that meet a condition.

        Only DuckDB has FILTER for a function that goes with OVER.
        """
        return f"MAX(CASE WHEN {condition} THEN {TXID} END) OVER ({self._of_key()})"

    def _merged(self, values: Mapping[str, InSql], rows: str) -> str:
        columns = [*self._keys]
        columns += [
            f"{v.merged(self._quoted(name))} AS {self._quoted(name)}" for name, v in values.items()
        ]
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
        time = self._quoted(NEWEST)
        if expiry.by != "last event":
            name = expiry.column or next(k for k in self._shape.keys if self._is_window(k))
            time = self._quoted(name)
            time = self._dialect.field(time, "end") if self._is_window(name) else time
        bound = self._dialect.instant.format(x=expiry.bound(watermark))
        return f" WHERE {time} IS NULL OR {time} > {bound}"

    def _is_window(self, name: str) -> bool:
        kind = self._columns[name]
        if isinstance(kind, str) or kind["type"] != "struct":
            return False
        fields = [(field["name"], field["type"]) for field in kind["fields"]]
        return fields == [("start", "timestamp"), ("end", "timestamp")]

    def _of_key(self) -> str:
        return f"PARTITION BY {', '.join(self._keys)}" if self._keys else ""
