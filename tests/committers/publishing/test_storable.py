"""The names and types that an ordinary Delta table can hold."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, MapType, StringType, StructType, TimestampNTZType

from committers.publishing.storable import storable_columns
from txn.errors import TopologyError


def test_fields_of_a_struct_must_differ_in_more_than_case() -> None:
    """Spark can make them if it tells cases apart; delta-rs refuses the table."""
    fields = StructType().add("a", LongType()).add("A", LongType())
    with pytest.raises(TopologyError, match="Column 's' of table t would get the fields 'a' and"):
        storable_columns(StructType().add("s", fields), "t")


NTZ = TimestampNTZType()
NESTED = StructType().add("x", NTZ)


@pytest.mark.parametrize("kind", [MapType(NTZ, LongType()), MapType(StringType(), NESTED)], ids=str)
def test_a_map_of_times_without_zone_is_refused(kind: MapType) -> None:
    """delta-rs makes no table with it, because it does not look for the feature in maps."""
    with pytest.raises(TopologyError, match="Column 'm' of table t has the type map with"):
        storable_columns(StructType().add("m", kind), "t")
