"""The names and types that an ordinary Delta table can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txn.delta.definition import has_type
from txn.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["storable_columns"]

_SIMPLE_TYPES = frozenset(
    [
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
# Names that Parquet and Delta without column mapping cannot hold (Delta: PROTOCOL.md, and Spark's
# DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES).
_BAD_NAME_CHARACTERS = frozenset(" ,;{}()\n\t=`")


def storable_columns(schema: StructType, table: str) -> tuple[tuple[str, Any], ...]:
    """(name, type as JSON) of every column: nullable throughout, without Spark's metadata.

    Raises:
        TopologyError: an ordinary Delta table cannot hold a name or type, or two names differ
            only in upper and lower case.
    """
    for name in schema.fieldNames():
        if not name or _BAD_NAME_CHARACTERS & set(name):
            raise TopologyError(
                f"Column '{name}' cannot be stored in table {table}: Delta allows none of "
                f"' ,;{{}}()=`', tabs and line breaks in a name. Rename it with .alias() or AS.",
                number="TXN-113",
            )
    _require_distinct(schema.fieldNames(), f"Table {table} would get the columns")
    return tuple(
        (field["name"], _storable(field["type"], field, table))
        for field in schema.jsonValue()["fields"]
    )


def _require_distinct(names: Sequence[str], would_get: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            raise TopologyError(
                f"{would_get} '{seen[name.lower()]}' and '{name}': names must differ in more than "
                "upper and lower case. Rename one of them.",
                number="TXN-113",
            )
        seen[name.lower()] = name


def _storable(kind: Any, field: Mapping[str, Any], table: str) -> Any:
    if isinstance(kind, str):
        if kind not in _SIMPLE_TYPES and not kind.startswith("decimal("):
            raise _unstorable(kind, field, table)
        if any("collation" in key.lower() for key in field.get("metadata", {})):
            raise _unstorable(f"{kind} with a collation", field, table)
        return kind
    if kind["type"] == "array":
        element = _storable(kind["elementType"], field, table)
        return {"type": "array", "elementType": element, "containsNull": True}
    if kind["type"] == "map":
        if has_type(kind, "timestamp_ntz"):  # delta-rs creates such a table without the feature
            raise _unstorable("map with timestamp_ntz", field, table)
        return {
            "type": "map",
            "keyType": _storable(kind["keyType"], field, table),
            "valueType": _storable(kind["valueType"], field, table),
            "valueContainsNull": True,
        }
    if kind["type"] == "struct":
        would_get = f"Column '{field['name']}' of table {table} would get the fields"
        _require_distinct([inner["name"] for inner in kind["fields"]], would_get)
        fields = [
            {**inner, "type": _storable(inner["type"], inner, table)} for inner in kind["fields"]
        ]
        cleaned = [{**inner, "nullable": True, "metadata": {}} for inner in fields]
        return {"type": "struct", "fields": cleaned}
    raise _unstorable(str(kind["type"]), field, table)


def _unstorable(kind: str, field: Mapping[str, Any], table: str) -> TopologyError:
    return TopologyError(
        f"Column '{field['name']}' of table {table} has the type {kind}, which an ordinary Delta "
        "table cannot hold. Cast it to another type before it reaches the table.",
        number="TXN-113",
    )
