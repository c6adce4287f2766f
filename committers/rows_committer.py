"""A committer of whole rows, as a stream has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from committers.appending import AppendingCommitter
from committers.publishing.spec import TableSpec
from committers.publishing.storable import storable_columns
from txn.delta.commits import TXID
from txn.errors import TopologyError
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["RowsCommitter"]


class RowsCommitter(AppendingCommitter):
    """Adds the rows of each batch with their txid, in whatever columns they have."""

    layout = "append"
    """The table's layout, for `txn plan`."""

    def required_columns(self) -> Sequence[str]:
        """No columns: the table stores whatever columns a batch has."""
        return ()

    def partials(self, batch: DataFrame, count_as: str | None = None) -> DataFrame:
        """The rows themselves."""
        return batch if count_as is None else batch.withColumn(count_as, sf.lit(1))

    def complete(self, batch: DataFrame) -> DataFrame | None:
        """Add the table's missing columns to the rows, as NULLs; None if there is no table yet.

        A column whose name differs only in case counts as present, unless the session is
        case-sensitive: it keeps its name, and staging the rows refuses it.
        """
        columns = self._log.columns()
        if columns is None:
            return None
        exact = str(batch.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
        own = {name if exact else name.lower(): name for name in batch.columns}
        if len(own) < len(batch.columns):
            return batch  # two columns of one name, which no table takes
        whole = []
        for field in st.StructType.fromJson(columns):
            own_name = own.pop(field.name if exact else field.name.lower(), None)
            if own_name is not None:
                whole.append(sf.col(quoted(own_name)))
            elif field.name != TXID:
                whole.append(sf.lit(None).cast(field.dataType).alias(field.name))
        # In the table's order, then the columns that the table lacks and will refuse.
        return batch.select(*whole, *(sf.col(quoted(name)) for name in own.values()))

    def _spec(self, schema: StructType) -> TableSpec:
        for name in schema.fieldNames():
            if name.lower() == TXID:
                raise TopologyError(
                    f"Table {self.name} keeps the transaction id in a column '{TXID}', but the "
                    f"rows bring a column '{name}' of their own. Rename it.",
                    number="TXN-113",
                )
        self._staged_schema = schema
        columns = storable_columns(self._table_schema(), self.name)
        return TableSpec(self._opened.topology, "append", self.semantics, columns)
