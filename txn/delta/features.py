"""The features of a Delta table that a publisher writing the log itself cannot honour.

Committers refuse such a table, and `txn doctor` reports that they will, from the same list.
Source: Delta's PROTOCOL.md, "Table Features" and "Valid Feature Names in Table Features".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txn.delta.definition import TableDefinition

__all__ = ["refused_features"]

_NEWEST_READER, _NEWEST_WRITER = 3, 7
"""The newest protocol versions whose requirements are known: they name their features."""

# Features that require nothing of a writer unless a property or a column uses them; the checks
# below look for those uses. Any other feature is refused, a future one too.
_HARMLESS = frozenset(
    [
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
    ]
)
_SWITCHES = {
    "delta.enableDeletionVectors": "deletion vectors",
    "delta.enableRowTracking": "row tracking",
    "delta.enableInCommitTimestamps": "in-commit timestamps",
    "delta.feature.catalogManaged": "catalog-managed commits",
    "delta.feature.catalogOwned-preview": "catalog-managed commits",
}
_COLUMN_MARKS = {
    "delta.generationExpression": "generated columns",
    "delta.identity.start": "identity columns",
    "delta.invariants": "column invariants",
    "CURRENT_DEFAULT": "column defaults",
}


def refused_features(table: TableDefinition, *, kind: str | None, opaque: bool) -> list[str]:
    """Describe the features of a table that a committer refuses; empty if none.

    Args:
        kind: "append", "upsert" or "log"; None: not a topology's table.
        opaque: replays may take back published rows.
    """
    return [
        *_newer_protocol(table),
        *(f"'{name}'" for name in sorted(table.features - _HARMLESS)),
        *_enabled_features(table.configuration, kind, opaque=opaque),
        *_column_features(table.fields),
    ]


def _newer_protocol(table: TableDefinition) -> Iterable[str]:
    if table.min_reader > _NEWEST_READER:
        yield f"reader version {table.min_reader}"
    if table.min_writer > _NEWEST_WRITER:
        yield f"writer version {table.min_writer}"


def _enabled_features(
    properties: Mapping[str, str | None], kind: str | None, *, opaque: bool
) -> Iterable[str]:
    def on(key: str) -> bool:
        return (properties.get(key) or "false").lower() in ("true", "supported", "enabled")

    for key, feature in _SWITCHES.items():
        if on(key):
            yield f"{feature} ({key})"
    if (properties.get("delta.columnMapping.mode") or "none") != "none":
        yield "column mapping (delta.columnMapping.mode)"
    if properties.get("delta.setTransactionRetentionDuration"):
        yield "expiry of application transactions (delta.setTransactionRetentionDuration)"
    constraints = sorted(key for key in properties if key.startswith("delta.constraints."))
    if constraints:
        yield f"check constraints ({constraints[0]})"
    if on("delta.appendOnly") and (kind == "upsert" or opaque):
        yield "append-only (delta.appendOnly)"
    if on("delta.enableChangeDataFeed") and kind == "upsert":
        yield "change data feed (delta.enableChangeDataFeed)"


def _column_features(fields: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for field in fields:
        if not field["nullable"]:
            yield f"NOT NULL (column '{field['name']}')"
        for mark, feature in _COLUMN_MARKS.items():
            if mark in field["metadata"]:
                yield f"{feature} (column '{field['name']}')"
