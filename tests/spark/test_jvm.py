"""What reaches into the JVM."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from pyspark.sql import functions as sf
from committers.aggregates import CountDistinct
from txn.session import delta_session
spark = delta_session("quiet", master="local[1]")
found = spark.range(100).agg(sf.hll_sketch_estimate(CountDistinct("id").partial()).alias("n"))
print("found", found.first()["n"])
spark._jvm.java.lang.System.err.println("still heard")
spark.stop()
"""


def test_a_count_of_distinct_values_warns_of_nothing() -> None:
    """Java's line about memory off its heap is not shown, and what comes later is."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True
    )
    assert "found 100" in done.stdout
    assert "off-heap" not in done.stderr
    assert "still heard" in done.stderr
