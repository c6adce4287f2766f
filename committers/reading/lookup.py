"""One key at a time, for a service that holds no Spark: each answer in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from committers.reading.key_values import as_given, is_of_type
from committers.reading.types import quoted, type_text
from txn.errors import TableRefusedError

if TYPE_CHECKING:
    import duckdb

__all__ = ["KeyLookup", "KeysAndQuery"]

KeysAndQuery = tuple[Mapping[str, Any], str, int]
"""Key column -> type (JSON of a schema), the query for all keys and values, the version."""


class KeyLookup:
    """Returns the values of single keys, as of the version that it has read last. Thread-safe.

    Args:
        connection: DuckDB's.
        load: reads the newest version.
        where: the table, for errors.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        load: Callable[[], KeysAndQuery],
        where: str,
    ) -> None:
        self._connection, self._load, self._where = connection, load, where
        self.refresh()

    def get(self, *key: Any) -> dict[str, Any] | None:
        """The values of a key; None if the table lacks it.

        Args:
            key: a value of the column's type for each key column, in the table's order: a dict or
                tuple for a struct, an instant with its zone for a timestamp.

        Raises:
            TableRefusedError: other values, which DuckDB would round or cut.
        """
        keys, query = self._newest  # another thread may refresh
        kinds = {name: type_text(kind, name) for name, kind in keys.items()}
        if len(key) != len(keys) or not all(map(is_of_type, key, keys.values())):
            columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
            raise TableRefusedError(
                f"{key!r} is not a key of state table {self._where}, whose keys are {columns}. "
                "Give a value of its type for each, in this order; an instant with its time zone.",
                number="TXN-310",
            )
        key = tuple(map(as_given, key, keys.values()))
        pairs = zip(key, kinds.items(), strict=True)
        conditions = [
            f"{quoted(name)} IS NULL" if value is None else f"{quoted(name)} = CAST(? AS {kind})"
            for value, (name, kind) in pairs
        ]
        condition = " AND ".join(conditions)
        given: Sequence[Any] = [value for value in key if value is not None]
        found = self._connection.cursor().execute(
            f"SELECT * EXCLUDE ({', '.join(map(quoted, keys))}) FROM ({query}) WHERE {condition}"
            if keys
            else query,
            given,
        )
        names = [column[0] for column in found.description]
        row = found.fetchone()
        return None if row is None else dict(zip(names, row, strict=True))

    def refresh(self) -> None:
        """Go on to the newest version: reads what is new in the log.

        Raises:
            TableRefusedError: the table is gone, or cannot be read without Spark any more.
        """
        keys, query, self.version = self._load()
        self._newest = keys, query
