"""The specification of a topology's table: columns, `txn.*` properties, Delta features.

Written when the table is created, compared at every opening and after every foreign change of its
metadata. What differs is changed between two txids (`committers.publishing.reshaping`), or refused
with all differences at once (`txn.changes`).
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from committers.publishing.files import BUCKET
from txn.changes import EXPIRY, STORED, Expiry, TableShape, former_name
from txn.delta.commits import FIRST_TXID, TXID
from txn.delta.topology_table import EXPIRING_FORMAT, SHOWN_FORMAT
from txn.errors import TableRefusedError
from txn.interfaces import Semantics
from txn.spark.own_session import DEFAULT, same_setting
from txn.storage.locations import normal

__all__ = ["EXPIRY", "FORMAT", "LOG_WITH_REMOVAL", "TableSpec"]

FORMAT = "1"
"""The format of a new table. Bump when columns, properties or the hash of the buckets change their
meaning."""

LOG_WITH_REMOVAL = "log-with-removal"
"""Kind of a log table whose keys may be removed. A kind of its own, because a reader that does not
know the marks of removal would count void rows."""

_REMOVE_WHERE = "txn.remove_where"
_SESSION = "txn.session."
_INTERNAL = "internal to txn"
"""The comment of a column that the topology needs, and readers do not."""


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
        expiry: when the keys of a state table end; None: never.
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
    expiry: Expiry | None = None
    settings: tuple[tuple[str, str], ...] = ()
    first_txid: int = 1
    """The first txid of a table that is created now."""
    columns_were: Mapping[str, str] = field(default_factory=dict)
    """Column -> its former name in the table."""
    comments: Mapping[str, str] = field(default_factory=dict)
    """Column -> its comment in a catalog; none for a table without a name there."""

    def former_name(self, column: str, stored: Container[str]) -> str:
        """Return the name in the table, which has the `stored` columns, of a column."""
        return former_name(column, stored, self.columns_were)

    @property
    def partition_by(self) -> list[str]:
        """Partition columns."""
        return [BUCKET] if self.buckets else []

    def properties(self) -> dict[str, str]:
        """The table's description, as Delta table properties."""
        removal = {} if self.remove_where is None else {_REMOVE_WHERE: self.remove_where}
        expiry = {} if self.expiry is None else {EXPIRY: self.expiry.as_text()}
        return {
            "txn.format": self._format,
            "txn.topology": self.topology,
            "txn.kind": self.kind,
            "txn.semantics": self.semantics.value,
            "txn.keys": json.dumps(self.keys),
            "txn.values": json.dumps(self.values),
            "txn.buckets": str(self.buckets),
            **removal,
            **expiry,
        }

    @property
    def _format(self) -> str:
        if any(name.startswith(STORED) for name, _ in self.columns):
            return SHOWN_FORMAT
        return FORMAT if self.expiry is None else EXPIRING_FORMAT

    def first_properties(self) -> dict[str, str]:
        """The table's first txid as a property, if others were committed before."""
        return {FIRST_TXID: str(self.first_txid)} if self.first_txid > 1 else {}

    def session_properties(self) -> dict[str, str]:
        """The settings of the session, as Delta table properties."""
        return {f"{_SESSION}{key}": value for key, value in self.settings}

    def schema_json(self) -> str:
        """The columns as a Delta (and Spark) schema, everything nullable."""
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": self._metadata(name)}
            for name, kind in self.columns
        ]
        return json.dumps({"type": "struct", "fields": fields})

    def _metadata(self, column: str) -> dict[str, str]:
        comment = self._note(column) or self.comments.get(column)
        return {} if comment is None else {"comment": comment}

    def _note(self, column: str) -> str | None:
        """The comment of a column that the topology needs, and readers do not."""
        if column in (*self.keys, *(value for value, *_ in self.values)):
            return None
        if column == TXID:
            return f"{_INTERNAL}: the newest transaction that wrote the row"
        if not self.values:
            return None
        if column.startswith(STORED):
            return f"{_INTERNAL}: what {column.removeprefix(STORED)} is computed from"
        if column.startswith("prev_"):
            return f"{_INTERNAL}: {column.removeprefix('prev_')} before that transaction"
        return _INTERNAL

    @property
    def description(self) -> str | None:
        """The comment of a new table; None without a name in a catalog."""
        return f"Kept by topology '{self.topology}'" if self.comments else None

    @property
    def shape(self) -> TableShape:
        """The description that changes are compared by."""
        return TableShape(
            kind=self.kind,
            semantics=self.semantics.value,
            keys=self.keys,
            values={name: text for name, text, *_ in self.values},
            buckets=self.buckets,
            remove_where=self.remove_where,
            expiry=self.expiry,
            columns=dict(self.columns),
            was=self.columns_were,
        )

    def require_settings(self, properties: Mapping[str, str | None], name: str) -> None:
        """Refuse a table that was made with other settings of the session.

        Args:
            properties: of the table `name`.

        Raises:
            TableRefusedError: naming the settings.
        """
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
