"""A pytest fixture for the contract kit: import it in the conftest.py of your tests.

from txn.testing.fixtures import spark
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small Spark session with Delta for the whole test run."""
    from txn.session import delta_session

    session = delta_session(
        "txn-contract",
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        },
    )
    yield session
    session.stop()
