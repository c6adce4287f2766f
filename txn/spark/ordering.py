"""Order rows by values of any type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["orderable"]


def orderable(field: st.StructField) -> Column:
    """A column to order rows by: the field, or its JSON where Spark orders no such values."""
    column = sf.col(quoted(field.name))
    return column if _is_orderable(field.dataType) else sf.to_json(sf.struct(column))


def _is_orderable(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _is_orderable(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_is_orderable(field.dataType) for field in kind)
    return not isinstance(kind, st.MapType) and kind.simpleString() != "variant"
