"""A table that the program knows by its name in Spark's catalog.

Its folder is found before anything is opened, and it is registered once its log is there. So a
start that dies in between leaves a table without a name, and the next one registers it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from committers.open_table import OpenTable
from txn.delta.loading import is_there
from txn.errors import TableRefusedError
from txn.interfaces import NOTICES, CommitterContext
from txn.spark.catalog import SparkCatalog
from txn.storage.catalog_names import located
from txn.storage.locations import identity
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["NamedTable", "storage_of"]

notices = logging.getLogger(NOTICES)


def storage_of(
    spark: SparkSession | None, location: str, options: Mapping[str, str] | None
) -> Storage:
    """Return the storage of a location; with Spark also that of a name in its catalog."""
    if spark is not None:
        location = located(location, SparkCatalog(spark))
    return Storage(location, options)


class NamedTable(OpenTable):
    """A table that may have a name in Spark's catalog in place of a path."""

    _table_name: str | None = None
    """The name in the catalog, once its folder is known; None: the program has a path."""

    def find_table(self, spark: SparkSession) -> None:
        """Find the folder of a name (`FindsTable`)."""
        name = self.name
        location = located(name, SparkCatalog(spark))
        if location != name:
            self._place(location)
            self._table_name = name

    def _place(self, path: str) -> None:
        self._table_name = None  # a next generation has none
        super()._place(path)

    def open(
        self, spark: SparkSession, context: CommitterContext, schema: StructType | None
    ) -> None:
        """Do as `OpenTable.open`; register a table that has a name in the catalog."""
        name = self._table_name
        if name is None or schema is None:
            super().open(spark, context, schema)
            return
        self._comments = self._column_comments(schema)
        is_new = not is_there(self._storage)
        super().open(spark, context, schema)
        self._register(SparkCatalog(spark), name, is_new=is_new)

    def _column_comments(self, schema: StructType) -> Mapping[str, str]:
        """Column -> its comment: of the stream's columns their own, as its schema has them."""
        own = {f.name: f.metadata["comment"] for f in schema if f.metadata.get("comment")}
        return {**own, **self.shape().values}

    def _register(self, catalog: SparkCatalog, name: str, *, is_new: bool) -> None:
        """Give the table its name in the catalog, unless it has one.

        Raises:
            TableRefusedError: another table has the name.
        """
        if catalog.registered(name) is None:
            others = () if is_new else catalog.neighbours(name)
            renamed = next((other for other, place in others if self._is_at(place)), None)
            if renamed is not None:
                notices.warning(
                    "[%s] table '%s' is called '%s' in the catalog now. The topology goes on with "
                    "it; write the new name in the program",
                    self._opened.topology,
                    name,
                    renamed,
                )
                return
            catalog.register(name, self._storage.url())
        place = catalog.registered(name)
        if place is None or not self._is_at(place):
            raise TableRefusedError(
                f"Spark's catalog has another table as '{name}' meanwhile, in {place}, and the "
                f"topology's is in {self.name}. Nothing was published. Name the folder in the "
                "program, or give that table another name.",
                number="TXN-317",
            )

    def _is_at(self, place: str) -> bool:
        return identity(place) == identity(self._storage.url())
