"""How long the tests may take: `make test`, or `make test-thorough`, which leaves nothing short."""

from __future__ import annotations

import os

__all__ = ["SPARK", "THOROUGH"]

THOROUGH = "TXN_TEST_THOROUGH" in os.environ
"""Every matrix in full, every driver with a JVM of its own, Spark as users have it."""

SPARK = (
    {}
    if THOROUGH
    else {
        # Java compiles a query once more, and better, when it has run for long. These run once.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Nor is it worth while to generate Java for them, and to compile that.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Logs of a few versions: Delta puts each together in one task.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
)
"""Settings of the session that tests share. Programs that tests start as users do, and half of
`tests.differential`, compile their queries."""
