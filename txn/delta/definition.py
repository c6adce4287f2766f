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

__all__ = ["TableDefinition"]

_ABOUT = ("name", "description", "createdTime")


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
    ) -> dict[str, Any]:
        """Return the `metaData` action that gives the same table another shape."""
        own = {
            "id": self.id,
            **self.about,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(columns),
            "partitionColumns": [*partition_columns],
            "configuration": dict(configuration),
        }
        return {"metaData": own}

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


def _about(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
