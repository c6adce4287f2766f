"""The definition of a Delta table: id, columns, partitioning, properties, protocol.

It starts as delta-rs has loaded it. Each commit that is read afterwards brings it up to date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from txn.delta.commits import ACCEPTED, BROKEN, Commit
from txn.errors import RecoveryRefusedError

if TYPE_CHECKING:
    from txn.delta.delta_rs import DeltaTable

__all__ = ["TableDefinition", "has_type"]

_ABOUT = ("name", "description", "createdTime")
_TIMESTAMP_NTZ = "timestampNtz"
_NAMES_FEATURES = 7
"""The writer version whose tables name their features."""
_SINCE_WRITER = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
    "identityColumns": 6,
}
"""Feature -> the writer version from which tables have it without naming it.

Source: Delta's PROTOCOL.md, "Valid Feature Names in Table Features"."""


@dataclass(frozen=True)
class TableDefinition:
    """A table's `metaData` and `protocol`."""

    id: str
    columns: Mapping[str, Any]
    """The schema, in the JSON form of Delta and Spark."""
    partition_columns: Sequence[str]
    configuration: Mapping[str, str | None]
    """The properties."""
    min_reader: int
    min_writer: int
    features: frozenset[str]
    """The named reader and writer features."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else its `metaData` has: name, description, createdTime."""

    @classmethod
    def of(cls, table: DeltaTable) -> TableDefinition:
        """Read the definition of a table that delta-rs has loaded."""
        metadata, protocol = table.metadata(), table.protocol()
        return cls(
            id=str(metadata.id),
            columns=json.loads(table.schema().to_json()),
            partition_columns=list(metadata.partition_columns),
            configuration=dict(metadata.configuration),
            min_reader=protocol.min_reader_version,
            min_writer=protocol.min_writer_version,
            features=frozenset(
                [*(protocol.reader_features or ()), *(protocol.writer_features or ())]
            ),
            about=_about(
                name=metadata.name,
                description=metadata.description,
                createdTime=metadata.created_time,
            ),
        )

    def reshaped(
        self,
        columns: Mapping[str, Any],
        partition_columns: Sequence[str],
        configuration: Mapping[str, str | None],
    ) -> list[dict[str, Any]]:
        """Return the actions that give the same table another shape.

        A `metaData` action, and a `protocol` action if the columns need a feature that the table
        lacks: readers refuse a table that has such a column without it.
        """
        own = {
            "id": self.id,
            **self.about,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(columns),
            "partitionColumns": [*partition_columns],
            "configuration": dict(configuration),
        }
        return [*self._upgraded(columns), {"metaData": own}]

    def _upgraded(self, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the `protocol` action that these columns need, as in a table created with them."""
        if _TIMESTAMP_NTZ in self.features or not has_type(columns, "timestamp_ntz"):
            return []
        # A table that names its features must name all of them. Column mapping (version 5) is not
        # on: committers refuse such a table.
        implied = (name for name, version in _SINCE_WRITER.items() if version <= self.min_writer)
        named = self.features if self.min_writer == _NAMES_FEATURES else implied
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": _NAMES_FEATURES,
            "readerFeatures": [_TIMESTAMP_NTZ],
            "writerFeatures": sorted({*named, _TIMESTAMP_NTZ}),
        }
        return [{"protocol": protocol}]

    @property
    def fields(self) -> Sequence[Mapping[str, Any]]:
        """The columns: name, type, nullable, metadata."""
        fields: Sequence[Mapping[str, Any]] = self.columns["fields"]
        return fields

    def is_like(self, other: TableDefinition) -> bool:
        """True if both describe the same table of a topology, whatever else users note at it."""
        return self._description() == other._description()

    def _description(self) -> tuple[Any, ...]:
        columns = [(f["name"], f["type"], f["nullable"]) for f in self.fields]
        own = {k: v for k, v in self.configuration.items() if k.startswith("txn.")}
        own.pop(ACCEPTED, None)
        return self.id, columns, [*self.partition_columns], own

    def after(self, commit: Commit, table: str) -> TableDefinition:
        """Return the definition after a commit.

        Raises:
            RecoveryRefusedError: the commit's metadata or protocol is invalid.
        """
        try:
            return self._after(commit.metadata, commit.protocol)
        except BROKEN as error:
            raise RecoveryRefusedError(
                f"Version {commit.version} of table {table} cannot be read: its metadata or "
                "protocol is not in Delta's format. Restore that file in _delta_log from a "
                "backup, or restore the table to an earlier version.",
                number="TXN-315",
            ) from error

    def _after(
        self, metadata: Mapping[str, Any] | None, protocol: Mapping[str, Any] | None
    ) -> TableDefinition:
        definition = self
        if metadata is not None:
            columns = json.loads(metadata["schemaString"])
            for field in columns["fields"]:  # KeyError: a column is incomplete
                _ = field["name"], field["type"], field["nullable"], field["metadata"]
            definition = replace(
                definition,
                id=str(metadata["id"]),
                columns=columns,
                partition_columns=[*metadata["partitionColumns"]],
                configuration=dict(metadata["configuration"]),
                about=_about(**{name: metadata.get(name) for name in _ABOUT}),
            )
        if protocol is not None:
            features = [
                *(protocol.get("readerFeatures") or ()),
                *(protocol.get("writerFeatures") or ()),
            ]
            definition = replace(
                definition,
                min_reader=int(protocol["minReaderVersion"]),
                min_writer=int(protocol["minWriterVersion"]),
                features=frozenset(map(str, features)),
            )
        return definition


def has_type(kind: Any, name: str) -> bool:
    """Return whether a type in the JSON form of Delta and Spark is, or contains, a simple type."""
    if isinstance(kind, str):
        return kind == name
    if kind["type"] == "struct":
        return any(has_type(field["type"], name) for field in kind["fields"])
    parts = ("elementType", "keyType", "valueType")
    return any(has_type(kind[part], name) for part in parts if part in kind)


def _about(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
