"""Spark's catalog: where a table of a name lies, and a name for a table that is there."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from txn.errors import TopologyError
from txn.spark.causes import cause_line, is_of_spark
from txn.spark.differences import condition_of
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

__all__ = ["SparkCatalog"]

_ABSENT = (
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
    "CATALOG_NOT_FOUND",
    # Of Spark's own catalog, which takes an unknown first part for a schema.
    "REQUIRES_SINGLE_PART_NAMESPACE",
)
_DETAILS = "# Detailed Table Information"


class SparkCatalog:
    """The catalogs of a session. Names have three plain parts: `catalog.schema.table`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def registered(self, name: str) -> str | None:
        """Return the folder of a Delta table that the catalog has; None if it has none.

        Raises:
            TopologyError: it is a view or of another format, its folder has no table any more, or
                the catalog does not answer.
        """
        try:
            rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {_sql(name)}").collect()
        except Exception as error:
            if is_of_spark(error) and condition_of(error) in _ABSENT:
                return None
            raise _refused(name, error) from error
        names = [row[0] for row in rows]
        # Columns of the table come first, and may have any name.
        details = _texts(rows[names.index(_DETAILS) :]) if _DETAILS in names else {}
        if details.get("Provider", "").lower() != "delta" or not details.get("Location"):
            kind = details.get("Provider") or details.get("Type", "other").lower()
            raise TopologyError(
                f"'{name}' is in Spark's catalog, and is no Delta table ({kind}). Choose another "
                "name.",
                number="TXN-127",
            )
        return details["Location"]

    def folder(self, name: str) -> str:
        """Return the folder of a table, or for a new one that in its schema's folder.

        Raises:
            TopologyError: as `registered`; or the schema does not exist, or has no folder.
        """
        found = self.registered(name)
        if found is not None:
            return found
        schema, _, table = name.rpartition(".")
        described = self._asked(name, f"DESCRIBE SCHEMA EXTENDED {_sql(schema)}")
        folder = _texts(described).get("Location")
        if not folder:
            raise TopologyError(
                f"'{name}' is not in Spark's catalog yet, and {schema} has no folder for new "
                f"tables. Make the table there first (CREATE TABLE {name} ... USING delta LOCATION "
                "...), or name a folder.",
                number="TXN-127",
            )
        exact = str(self._spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
        return posixpath.join(folder, table if exact else table.lower())

    def register(self, name: str, url: str) -> None:
        """Give the Delta table in a folder a name. Does nothing if the name is taken.

        Raises:
            TopologyError: the catalog refuses it, or does not answer.
        """
        # Without columns and properties: the catalog takes those of the table's log.
        place = url.replace("\\", "\\\\").replace("'", "\\'")
        self._asked(name, f"CREATE TABLE IF NOT EXISTS {_sql(name)} USING delta LOCATION '{place}'")

    def neighbours(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield (name, folder) of each Delta table in the same schema. One question for each.

        Raises:
            TopologyError: the catalog does not answer.
        """
        schema = name.rpartition(".")[0]
        for row in self._asked(name, f"SHOW TABLES IN {_sql(schema)}"):
            other = f"{schema}.{row['tableName']}"
            try:
                folder = None if row["isTemporary"] else self.registered(other)
            except TopologyError:
                continue  # a view, or a table that another topology would refuse
            if folder is not None:
                yield other, folder

    def _asked(self, name: str, statement: str) -> list[Row]:
        try:
            return self._spark.sql(statement).collect()
        except Exception as error:
            raise _refused(name, error) from error


def _sql(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))


def _texts(rows: list[Row]) -> dict[str, str]:
    """The first two columns of what DESCRIBE shows."""
    return {row[0]: row[1] for row in rows}


def _refused(name: str, error: Exception) -> Exception:
    """The refusal of a name for an error of the catalog; an error of others itself."""
    if not is_of_spark(error):
        return error
    return TopologyError(
        f"Spark's catalog cannot say where table '{name}' is: {cause_line(error)}. A name has the "
        "parts catalog.schema.table, and the schema must exist. If you mean a folder of that name, "
        f"write ./{name}.",
        number="TXN-127",
    )
