"""The description of a topology's table, as its log and a program give it."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txn.changes.expiry import Expiry

__all__ = ["EXPIRY", "FORMER", "SINCE", "STORED", "TableShape", "former_name"]

EXPIRY = "txn.expiry"
"""Table property: when the keys of a state end."""
FORMER = "txn.former"
"""Table property: names of dropped columns, which old files still have."""
SINCE = "txn.since"
"""Table property: columns that were added later -> the first txid whose rows have them."""
STORED = "txn_stored_"
"""Before the name of a value: the column with its stored form, where that is another one than
readers see."""


@dataclass(frozen=True)
class TableShape:
    """A table of a topology.

    Args:
        kind: "append", "upsert", "log", or "log-with-removal".
        semantics: value of a `Semantics`.
        keys: key columns of a state table.
        values: value column -> identity of its aggregate, such as "Sum(delay)".
        buckets: number of hash buckets; 0 without buckets.
        remove_where: condition on which a state table drops a key, None without one.
        expiry: when keys end; None: never.
        columns: column -> type as Delta's JSON, bookkeeping included; None: unknown.
        former: names of dropped columns, which files of the table may still have.
        since: columns that were added later -> the first txid whose rows have them.
        was: column -> its name in the table until now (`columns_were`), of a program only.
        is_empty: True if the table has no rows.
    """

    kind: str
    semantics: str
    keys: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    buckets: int = 0
    remove_where: str | None = None
    expiry: Expiry | None = None
    columns: Mapping[str, Any] | None = None
    former: frozenset[str] = frozenset()
    since: Mapping[str, int] = field(default_factory=dict)
    was: Mapping[str, str] = field(default_factory=dict)
    is_empty: bool = False

    @property
    def is_state(self) -> bool:
        """True for a table of running aggregates."""
        return self.kind != "append"

    @classmethod
    def of_properties(
        cls,
        properties: Mapping[str, str | None],
        fields: Sequence[Mapping[str, Any]] | None = None,
        *,
        is_empty: bool = False,
    ) -> TableShape:
        """Read the description in a table's properties.

        Args:
            fields: the table's columns, in the JSON form of Delta.

        Raises:
            ValueError, TypeError: the properties are not a topology's.
        """
        expiry = properties.get(EXPIRY)
        values = json.loads(properties.get("txn.values") or "[]")
        return cls(
            kind=properties.get("txn.kind") or "",
            semantics=properties.get("txn.semantics") or "",
            keys=tuple(map(str, json.loads(properties.get("txn.keys") or "[]"))),
            values={str(name): str(text) for name, text, *_ in values},
            buckets=int(properties.get("txn.buckets") or 0),
            remove_where=properties.get("txn.remove_where"),
            expiry=None if expiry is None else Expiry.of_text(expiry),
            columns=None if fields is None else {f["name"]: f["type"] for f in fields},
            former=frozenset(map(str, json.loads(properties.get(FORMER) or "[]"))),
            since={str(n): int(t) for n, t in json.loads(properties.get(SINCE) or "{}").items()},
            is_empty=is_empty,
        )


def former_name(column: str, stored: Container[str], were: Mapping[str, str]) -> str:
    """Return the name that a column of the program has in a table.

    Args:
        stored: the table's columns.
        were: column -> its name until now (`columns_were`).
    """
    prefix = STORED if column.startswith(STORED) else ""
    bare = column.removeprefix(prefix)
    old = prefix + were.get(bare, bare)
    return old if column not in stored and old in stored else column
