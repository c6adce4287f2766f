"""The names and types that an ordinary Delta table can hold."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructType

from committers.publishing.storable import storable_columns
from txn.errors import TopologyError


def test_fields_of_a_struct_must_differ_in_more_than_case() -> None:
    """Spark can make them if it tells cases apart; delta-rs refuses the table."""
    fields = StructType().add("a", LongType()).add("A", LongType())
    with pytest.raises(TopologyError, match="Column 's' of table t would get the fields 'a' and"):
        storable_columns(StructType().add("s", fields), "t")
