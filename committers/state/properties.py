"""The description in a state table for readers without its topology.

Keys, values and the identities of the aggregates are table properties. If an aggregate shows
another value than it stores (`Aggregate.result`), a reader needs the aggregate itself: built-in
ones are found by their identity, a user's own must be passed in. No text from a table is ever
evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from committers.aggregates import by_identity, identity
from committers.aggregates.base import named_for
from committers.publishing.spec import EXPIRY, LOG_WITH_REMOVAL
from committers.state.layouts import LogLayout, UpsertLayout
from committers.state.partials import overrides
from committers.state.shape import StateShape
from txn.delta.topology_table import refuse_newer
from txn.errors import TableRefusedError
from txn.interfaces import Aggregate, Expiry, Semantics

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["described_values", "shape_of"]

_LAYOUTS: dict[str, type[StateShape]] = {
    "upsert": UpsertLayout,
    "log": LogLayout,
    LOG_WITH_REMOVAL: LogLayout,
}
_RESULT, _OWN_RESULT = "result", "own result"


class _AsStored(Aggregate):
    """An aggregate that only the table's program knows: readers see the stored value."""

    def partial(self) -> Column:
        raise TypeError("a reader adds no rows")

    def combine(self, stored: Column, partial: Column) -> Column:
        raise TypeError("a reader adds no rows")

    def zero(self) -> Column:
        raise TypeError("a reader adds no rows")


def described_values(shape: StateShape) -> tuple[tuple[str, ...], ...]:
    """`txn.values`: each value, its aggregate's identity, and the kind of its `result`, if any."""
    entries = []
    for name, aggregate in shape.aggregates.items():
        text = identity(aggregate)
        entry: tuple[str, ...] = (name, text)
        computed = overrides(aggregate, "result") and name not in shape.apart
        if shape.readers_merge or computed:
            is_builtin = type(by_identity(text)) is type(aggregate)
            entry = (name, text, _RESULT if is_builtin else _OWN_RESULT)
        entries.append(entry)
    return tuple(entries)


def shape_of(
    properties: Mapping[str, str | None],
    table: str,
    aggregates: Mapping[str, Aggregate] | None = None,
) -> StateShape:
    """The shape that a table's properties describe.

    Args:
        aggregates: the aggregates whose own `result` is needed; others are optional.

    Raises:
        TableRefusedError: it is not a state table, a newer release made it, or an aggregate is
            missing or differs.
    """
    refuse_newer(properties, table)
    kind = properties.get("txn.kind") or ""
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise TableRefusedError(
            f"Table {table} is not a state table (its property txn.kind is "
            f"{properties.get('txn.kind')}). Read it with spark.read.format('delta').",
            number="TXN-311",
        )
    passed = dict(aggregates or {})
    keys, described, buckets, expiry = _parse(properties, table)
    values = {
        name: _aggregate(table, name, about, passed.pop(name, None), layout.readers_merge)
        for name, *about in described
    }
    if passed:
        raise TableRefusedError(
            f"State table {table} has no value '{next(iter(passed))}', which aggregates= names. "
            f"Its values are {', '.join(values)}.",
            number="TXN-311",
        )
    remove_where = properties.get("txn.remove_where")
    if layout is LogLayout:
        # The kind decides whether there are marks.
        remove_where = (remove_where or "") if kind == LOG_WITH_REMOVAL else None
    keeps_previous = (
        layout is UpsertLayout and properties.get("txn.semantics") == Semantics.OPAQUE.value
    )
    named = named_for(table, values)
    return layout(keys, named, remove_where, buckets, keeps_previous, expiry)


def _parse(
    properties: Mapping[str, str | None], table: str
) -> tuple[tuple[str, ...], list[list[str]], int, Expiry | None]:
    """(keys, entries of the values, buckets, when keys end) from the table's properties."""
    try:
        keys = json.loads(properties.get("txn.keys") or "[]")
        values = json.loads(properties.get("txn.values") or "[]")
        buckets = int(properties.get("txn.buckets") or 1)
        text = properties.get(EXPIRY)
        expiry = None if text is None else Expiry.of_text(text)
        texts = [*keys, *(text for value in values for text in value)]
        if not isinstance(keys, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("no lists of names")
        if any(not isinstance(v, list) or len(v) < 2 for v in values) or not 0 <= buckets < 10**6:
            raise ValueError("no description")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TableRefusedError(
            f"State table {table} does not describe itself as a topology does: its properties "
            "txn.keys, txn.values, txn.buckets or txn.expiry were changed. Restore them.",
            number="TXN-311",
        ) from error
    return tuple(keys), values, buckets, expiry


def _aggregate(
    table: str, name: str, about: list[str], passed: Aggregate | None, is_needed: bool
) -> Aggregate:
    """The aggregate of one value: the one passed, or the built-in one.

    Args:
        is_needed: readers need the aggregate even if it has no `result`.
    """
    text, result = about[0], about[1] if len(about) > 1 else None
    if passed is not None:
        if identity(passed) != text:
            raise TableRefusedError(
                f"Value '{name}' of state table {table} is {text}, but aggregates= has "
                f"{identity(passed)}. Pass the aggregate that the table was made with.",
                number="TXN-311",
            )
        return passed
    if result is None and not is_needed:
        return _AsStored()
    builtin = by_identity(text) if result == _RESULT else None
    if builtin is None:
        raise TableRefusedError(
            f"Value '{name}' of state table {table} is {text}, whose result this program cannot "
            f"compute. Pass the aggregate: read(spark, aggregates={{'{name}': ...}}).",
            number="TXN-311",
        )
    return builtin
