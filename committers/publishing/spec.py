"""The specification of a topology's table: columns, `txn.*` properties, Delta features.

Written once when the table is created, compared at every opening and after every foreign change of
its metadata. The error names the first difference; nothing is adapted silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from committers.kept_files import KEPT
from committers.publishing.files import BUCKET
from txn.delta.commits import FIRST_TXID
from txn.delta.definition import TableDefinition
from txn.delta.features import refused_features
from txn.delta.folders import SCRATCH
from txn.errors import TableRefusedError
from txn.interfaces import Semantics
from txn.spark.own_session import DEFAULT, same_setting
from txn.storage.locations import normal

__all__ = [
    "FORMAT",
    "LOG_WITH_REMOVAL",
    "TableSpec",
    "refuse_features",
    "refuse_foreign",
    "refuse_foreign_folder",
    "refuse_newer",
]

FORMAT = "1"
"""Bump when columns, properties or the hash of the buckets change their meaning."""

LOG_WITH_REMOVAL = "log-with-removal"
"""Kind of a log table whose keys may be removed. A kind of its own, because a reader that does not
know the marks of removal would count void rows."""

_REMOVE_WHERE = "txn.remove_where"
_SESSION = "txn.session."


@dataclass(frozen=True)
class TableSpec:
    """The shape that a committer needs.

    Args:
        kind: "append", "upsert", "log", or `LOG_WITH_REMOVAL`.
        columns: (name, Delta type as JSON) of every column, in order, partition column included.
        keys: key columns of a state table.
        values: for each value column: its name, the identity of its aggregate, such as
            "Sum(delay)", and for an aggregate with its own `result` "result", or "own result"
            when the class is the user's.
        buckets: number of hash buckets of a state table, 0 for others.
        remove_where: condition on which a state table drops a key, None without one.
        settings: (setting, value) of the session, for settings that change the result for a row.
    """

    topology: str
    kind: str
    semantics: Semantics
    columns: tuple[tuple[str, Any], ...]
    keys: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()
    buckets: int = 0
    remove_where: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    first_txid: int = 1
    """The first txid of a table that is created now."""

    @property
    def partition_by(self) -> list[str]:
        """Partition columns."""
        return [BUCKET] if self.buckets else []

    def properties(self) -> dict[str, str]:
        """The table's description, as Delta table properties."""
        removal = {} if self.remove_where is None else {_REMOVE_WHERE: self.remove_where}
        return {
            "txn.format": FORMAT,
            "txn.topology": self.topology,
            "txn.kind": self.kind,
            "txn.semantics": self.semantics.value,
            "txn.keys": json.dumps(self.keys),
            "txn.values": json.dumps(self.values),
            "txn.buckets": str(self.buckets),
            **removal,
        }

    def first_properties(self) -> dict[str, str]:
        """The table's first txid as a property, if others were committed before."""
        return {FIRST_TXID: str(self.first_txid)} if self.first_txid > 1 else {}

    def session_properties(self) -> dict[str, str]:
        """The settings of the session, as Delta table properties."""
        return {f"{_SESSION}{key}": value for key, value in self.settings}

    def schema_json(self) -> str:
        """The columns as a Delta (and Spark) schema, everything nullable."""
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in self.columns
        ]
        return json.dumps({"type": "struct", "fields": fields})

    def require(self, table: TableDefinition, name: str) -> None:
        """Refuse a table that differs from this specification.

        Raises:
            TableRefusedError: naming the first difference and the way out.
        """
        refuse_foreign(table, name, self.topology)
        refuse_newer(table.configuration, name)
        self._require_properties(table.configuration, name)
        self._require_settings(table.configuration, name)
        self._require_columns(table.fields, name)
        if [*table.partition_columns] != self.partition_by:
            raise TableRefusedError(
                f"Table {name} is partitioned by {table.partition_columns}, not by "
                f"{self.partition_by}. {_REMEDY}",
                number="TXN-304",
            )
        refuse_features(table, name, self.kind, self.semantics)

    def _require_properties(self, properties: Mapping[str, str | None], name: str) -> None:
        # A table without removal lacks this property, and one with removal has columns for it.
        expected: dict[str, str | None] = {_REMOVE_WHERE: None, **self.properties()}
        for key, value in expected.items():
            stored = properties.get(key)
            if stored != value:
                raise TableRefusedError(
                    f"Table {name} was made with {key} = {stored}, but this topology has "
                    f"{value}. {_REMEDY}",
                    number="TXN-304",
                )

    def _require_settings(self, properties: Mapping[str, str | None], name: str) -> None:
        stored = {k: v or DEFAULT for k, v in properties.items() if k.startswith(_SESSION)}
        if not stored or not self.settings:
            return  # somebody has unset them: there is nothing to compare with
        own = self.session_properties()
        pairs = ((key, stored.get(key, DEFAULT), own.get(key, DEFAULT)) for key in {*stored, *own})
        differ = sorted(pair for pair in pairs if not same_setting(*pair[1:]))
        if not differ:
            return
        was = [f"{key.removeprefix(_SESSION)} = {then}" for key, then, _ in differ]
        values = [value for _, _, value in differ]
        changed = ", ".join(f"'{key}' = '{value}'" for key, _, value in differ)
        raise TableRefusedError(
            f"Table {name} was made in a session with {' and '.join(was)}, but this session has "
            f"{' and '.join(values)}. Transforms and sources would compute other values for "
            f"later rows than for the stored ones. Run the topology with {' and '.join(was)}; "
            f"or, to switch to {' and '.join(values)} from now on: ALTER TABLE "
            f"delta.`{normal(name)}` SET TBLPROPERTIES ({changed}).",
            number="TXN-305",
        )

    def _require_columns(self, fields: Sequence[Mapping[str, Any]], name: str) -> None:
        stored = {field["name"]: field["type"] for field in fields}
        for column, kind in self.columns:
            if column not in stored:
                raise TableRefusedError(
                    f"Table {name} has no column '{column}'. {_REMEDY}", number="TXN-304"
                )
            if stored[column] != kind:
                raise TableRefusedError(
                    f"Column '{column}' of table {name} has the type {_text(stored[column])}, "
                    f"but this topology produces {_text(kind)}. {_REMEDY}",
                    number="TXN-304",
                )
        surplus = sorted(set(stored) - {column for column, _ in self.columns})
        if surplus:
            raise TableRefusedError(
                f"Table {name} has a column '{surplus[0]}' that this topology does not produce. "
                f"{_REMEDY}",
                number="TXN-304",
            )


_REMEDY = (
    "Restore the definition that the table was made with, or give this committer a path of its own."
)


def refuse_foreign(table: TableDefinition, name: str, topology: str) -> None:
    """Refuse a Delta table that no topology, or another one, has created."""
    owner = table.configuration.get("txn.topology")
    if owner is None:
        raise TableRefusedError(
            f"Table {name} is a Delta table that no topology has made: it has no property "
            "txn.topology, so its rows cannot be distinguished from a topology's. Give "
            "this committer a path of its own.",
            number="TXN-301",
        )
    if owner != topology:
        raise TableRefusedError(
            f"Table {name} belongs to topology '{owner}', not to '{topology}'. A table has one "
            "writer: give this committer a path of its own, or run the topology under its old "
            "name.",
            number="TXN-302",
        )


def refuse_newer(properties: Mapping[str, str | None], name: str) -> None:
    """Refuse a table whose format a newer release has changed."""
    stored = properties.get("txn.format") or ""
    if stored.isdecimal() and int(stored) > int(FORMAT):
        raise TableRefusedError(
            f"Table {name} has format version {stored}, and this program knows {FORMAT}. Run the "
            "version of txn that wrote it, or newer.",
            number="TXN-802",
        )


def refuse_foreign_folder(entries: Iterable[str], name: str) -> None:
    """Refuse a folder that is not a Delta table and holds files of something else.

    Args:
        entries: names of everything directly below it.
    """
    # Scratch and the spouts' files are txn's; a crash while creating may leave an empty log.
    foreign = [entry for entry in entries if entry not in ("_delta_log", SCRATCH, KEPT)]
    if foreign:
        raise TableRefusedError(
            f"Folder {name} is not a Delta table and holds other files ('{foreign[0]}'). Give "
            "the committer an empty or new folder.",
            number="TXN-301",
        )


def refuse_features(table: TableDefinition, name: str, kind: str, semantics: Semantics) -> None:
    """Refuse Delta features that the publisher, which writes the log itself, cannot honour.

    Raises:
        TableRefusedError: naming the feature.
    """
    refused = refused_features(table, kind=kind, opaque=semantics is Semantics.OPAQUE)
    if refused:
        raise TableRefusedError(
            f"Table {name} uses the Delta feature {refused[0]}, which this publisher cannot "
            "honour. Drop the feature (ALTER TABLE ... DROP FEATURE, or unset the property), or "
            "give this committer a path of its own.",
            number="TXN-303",
        )


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
