"""The description in a state table for readers without its topology.

Keys, values and the identities of the aggregates are table properties. If an aggregate shows
another value than it stores (`Aggregate.result`), a reader needs the aggregate itself: built-in
ones are found by their identity, a user's own must be passed in. No text from a table is ever
evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from committers.aggregates import by_identity, identity
from committers.aggregates.base import kept_in
from committers.publishing.spec import LOG_WITH_REMOVAL
from committers.state.keys import joined_by_key, with_keys_of
from committers.state.merging import merged_by_key
from committers.state.partials import overrides
from committers.state.removal import REMOVED, marks_of, without_removed
from txn.errors import TableRefusedError
from txn.interfaces import Aggregate, Semantics
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StateShape", "described"]

_RESULT, _OWN_RESULT = "result", "own result"


def described(aggregate: Aggregate, *, always: bool = False) -> tuple[str, ...]:
    """An aggregate's entry in `txn.values`: its identity, and the kind of its `result`, if any.

    Args:
        always: readers need the aggregate itself, with or without a `result`.
    """
    name = identity(aggregate)
    if not always and not overrides(aggregate, "result"):
        return (name,)
    builtin = by_identity(name)
    return (name, _RESULT if type(builtin) is type(aggregate) else _OWN_RESULT)


@dataclass(frozen=True)
class StateShape:
    """Columns of one state table.

    Args:
        values: value column -> aggregate whose `result` readers see; None: the stored value.
        buckets: number of hash buckets; 0 without buckets.
        keeps_removed: True if it has tombstones of removed keys.
        layout: "upsert", or "log": then every value has its aggregate.
    """

    keys: tuple[str, ...]
    values: Mapping[str, Aggregate | None]
    buckets: int
    keeps_removed: bool
    layout: str = "upsert"

    @classmethod
    def of(
        cls,
        properties: Mapping[str, str | None],
        table: str,
        aggregates: Mapping[str, Aggregate] | None = None,
    ) -> StateShape:
        """The shape that a table's properties describe.

        Args:
            aggregates: the aggregates whose own `result` is needed; others are optional.

        Raises:
            TableRefusedError: it is not a state table, or an aggregate is missing or differs.
        """
        kind = properties.get("txn.kind")
        if kind not in ("upsert", "log", LOG_WITH_REMOVAL):
            raise TableRefusedError(
                f"Table {table} is not a state table (its property txn.kind is "
                f"{properties.get('txn.kind')}). Read it with spark.read.format('delta').",
                number="TXN-311",
            )
        extra = dict(aggregates or {})
        keys, described_values, buckets = _described(properties, table)
        values = {
            name: _aggregate(table, name, about, extra.pop(name, None))
            for name, *about in described_values
        }
        if extra:
            raise TableRefusedError(
                f"State table {table} has no value '{next(iter(extra))}', which aggregates= names. "
                f"Its values are {', '.join(values)}.",
                number="TXN-311",
            )
        removes = properties.get("txn.remove_where") is not None
        return cls(
            keys,
            kept_in(table, values),
            buckets,
            kind == LOG_WITH_REMOVAL
            or (removes and properties.get("txn.semantics") == Semantics.OPAQUE.value),
            "upsert" if kind == "upsert" else "log",
        )

    def shown(self, rows: DataFrame) -> DataFrame:
        """Keys and values of the table's rows, as readers see them, without removed keys."""
        from pyspark.sql import functions as sf

        if self.layout == "log":
            return self._merged(rows)
        if self.keeps_removed:
            rows = rows.where(~sf.coalesce(sf.col(REMOVED), sf.lit(False)))
        columns = [sf.col(quoted(key)) for key in self.keys]
        for name, aggregate in self.values.items():
            stored = sf.col(quoted(name))
            columns.append(stored if aggregate is None else aggregate.result(stored).alias(name))
        return rows.select(*columns)

    @property
    def splits(self) -> bool:
        """True if `shown_in_two` applies: partials by key, of which none can be void."""
        return self.layout == "log" and bool(self.keys) and not self.keeps_removed

    def shown_once(self, rows: DataFrame) -> DataFrame:
        """Like `shown`, for rows of a log table without removed keys, with each key once."""
        return self._results(rows)

    def shown_in_two(self, once: DataFrame, rest: DataFrame, *, has_null: bool) -> DataFrame:
        """Like `shown`, for the rows of both: merges only keys in `rest`.

        Args:
            once: rows of a log table without removed keys; each key once.
            rest: its other rows, few enough to send them to every task.
            has_null: True if a key of `rest` may be NULL; without, reading takes a third less time.
        """
        from pyspark.sql import functions as sf

        keys = sf.broadcast(rest)
        alone = joined_by_key(once, keys, self.keys, "left_anti", has_null=has_null)
        touched = with_keys_of(once, keys, self.keys, has_null=has_null)
        return self._results(alone).unionByName(self._merged(rest.unionByName(touched)))

    def _merged(self, rows: DataFrame) -> DataFrame:
        if self.keeps_removed:
            rows = without_removed(rows, self.keys, marks_of(rows, self.keys))
        return self._results(merged_by_key(rows, self.keys, self._aggregates))

    def _results(self, merged: DataFrame) -> DataFrame:
        """Keys and values from partials with each key once."""
        from pyspark.sql import functions as sf

        columns = [sf.col(quoted(key)) for key in self.keys]
        for name, aggregate in self._aggregates.items():
            stored = aggregate.initial(sf.col(quoted(name)))
            columns.append(aggregate.result(stored).alias(name))
        return merged.select(*columns)

    @property
    def _aggregates(self) -> dict[str, Aggregate]:
        return {name: value for name, value in self.values.items() if value is not None}


def _described(
    properties: Mapping[str, str | None], table: str
) -> tuple[tuple[str, ...], list[list[str]], int]:
    """(keys, entries of the values, buckets) from the table's properties.

    Raises:
        TableRefusedError: this program did not write these properties.
    """
    try:
        keys = json.loads(properties.get("txn.keys") or "[]")
        values = json.loads(properties.get("txn.values") or "[]")
        buckets = int(properties.get("txn.buckets") or 1)
        texts = [*keys, *(text for value in values for text in value)]
        if not isinstance(keys, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("no lists of names")
        if any(not isinstance(v, list) or len(v) < 2 for v in values) or not 0 <= buckets < 10**6:
            raise ValueError("no description")
    except (ValueError, TypeError, RecursionError) as error:
        raise TableRefusedError(
            f"State table {table} does not describe itself as a topology does: its properties "
            "txn.keys, txn.values or txn.buckets were changed. Restore them.",
            number="TXN-311",
        ) from error
    return tuple(keys), values, buckets


def _aggregate(
    table: str, name: str, about: list[str], passed: Aggregate | None
) -> Aggregate | None:
    """The aggregate of one value, if its `result` is needed."""
    text, result = about[0], about[1] if len(about) > 1 else None
    if passed is not None:
        if identity(passed) != text:
            raise TableRefusedError(
                f"Value '{name}' of state table {table} is {text}, but aggregates= has "
                f"{identity(passed)}. Pass the aggregate that the table was made with.",
                number="TXN-311",
            )
        return passed
    if result is None:
        return None
    builtin = by_identity(text) if result == _RESULT else None
    if builtin is None:
        raise TableRefusedError(
            f"Value '{name}' of state table {table} is {text}, whose result this program cannot "
            f"compute. Pass the aggregate: read(spark, aggregates={{'{name}': ...}}).",
            number="TXN-311",
        )
    return builtin
