"""Change the shape of a table between two txids: its new schema and properties.

The files stay, or the next generation's take their place: both in one version of the log
(`DeltaLog.reshape`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from committers.publishing.append import stats_columns
from committers.publishing.files import Generation
from committers.publishing.spec import TableSpec
from txn.changes.shape import EXPIRY, FORMER, SINCE
from txn.delta.definition import TableDefinition
from txn.delta.folders import GENERATION
from txn.delta.topology_table import CHANGED_FORMAT, stored_shape

__all__ = ["reshaped"]

_OWN = ("txn.remove_where", EXPIRY, FORMER, SINCE)
"""Properties that a table has only if it needs them."""


def reshaped(
    table: TableDefinition, spec: TableSpec, name: str, begins: int, generation: Generation | None
) -> list[dict[str, Any]]:
    """Return the actions that give a table the shape of `spec`, apart from those of its files.

    Args:
        name: the table's path, for errors.
        begins: the first txid whose rows have the new columns; 1: all rows have them.
        generation: replaces every file of the table; None: they stay.
    """
    stored = stored_shape(table, name, is_empty=False)
    before = stored.values if stored.is_state else (stored.columns or {})
    after = spec.shape.values if stored.is_state else dict(spec.columns)
    former = {column: spec.former_name(column, before) for column in after}
    # Also the bookkeeping of other semantics.
    dropped = {*(stored.columns or ())} - {name for name, _ in spec.columns}
    left = stored.former | dropped if generation is None and begins > 1 else frozenset()
    since = {former_to_new(former).get(n, n): t for n, t in stored.since.items() if n in before}
    since = {column: first for column, first in since.items() if column in after and begins > 1}
    if begins > 1:
        since |= {column: begins for column, old in former.items() if old not in before}
    kept = {key: value for key, value in table.configuration.items() if key not in _OWN}
    if generation is not None and generation.is_filled:
        kept[GENERATION] = str(int(kept.get(GENERATION) or 0) + 1)
    optional = {FORMER: sorted(left), SINCE: since}
    configuration = {
        **kept,
        **spec.properties(),
        "txn.format": max(CHANGED_FORMAT, spec.properties()["txn.format"]),
        "delta.dataSkippingStatsColumns": stats_columns(spec),
        **{key: json.dumps(value) for key, value in optional.items() if value},
    }
    return table.reshaped(_with_comments(spec, table), spec.partition_by, configuration)


def former_to_new(former: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping the other way round."""
    return {old: new for new, old in former.items()}


def _with_comments(spec: TableSpec, table: TableDefinition) -> dict[str, Any]:
    """Return the new schema, with what users noted at the columns that stay."""
    notes = {field["name"]: field["metadata"] for field in table.fields}
    schema: dict[str, Any] = json.loads(spec.schema_json())
    for field in schema["fields"]:
        old = spec.former_name(field["name"], notes)
        field["metadata"] = notes.get(old, field["metadata"])
    return schema
