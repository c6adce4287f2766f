"""Names of columns in Spark's SQL."""

from __future__ import annotations

from typing import Any

import pytest

from txn.spark.names import quoted


@pytest.mark.parametrize("name", ["plain", "a.b", "with space", "a`b", "``", "1"])
def test_a_quoted_name_is_the_column_of_that_name(spark: Any, name: str) -> None:
    """Whatever a name has in it, dots and back-ticks included, is part of the name."""
    assert [(7,)] == [
        *map(tuple, spark.createDataFrame([(7, 8)], [name, "x"]).select(quoted(name)).collect())
    ]
