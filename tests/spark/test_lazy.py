"""Pyspark's functions and types under two short names, loaded at their first use."""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql import functions, types

from txn.spark.lazy import sf, st

DESCRIBES = """
import sys
from committers.aggregates import Count, CountDistinct, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology
from txn.spark.lazy import sf

topology = Topology("t")
stream = topology.stream("s", FileSpout("*.csv", format="csv", schema="k string, v int"))
stream.partition_persist(AppendTable("rows"))
ruled = stream.expect("positive", "v > 0", on_violation="drop")
grouped = ruled.transform(lambda rows: rows.where(sf.col("v") > 1)).group_by("k")
grouped.persistent_aggregate(StateTable("state"), n=Count(), d=CountDistinct("v"), v=Sum("v"))
print("pyspark" in sys.modules)
sf.col
print("pyspark" in sys.modules)
"""


def test_a_program_that_describes_a_topology_loads_no_pyspark() -> None:
    """Tables, aggregates, rules and transforms need no pyspark yet; a function loads it."""
    ran = subprocess.run([sys.executable, "-c", DESCRIBES], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("False\nTrue\n", "")


def test_the_names_are_pysparks_own() -> None:
    """`sf` and `st` have pyspark's functions and classes themselves, so `isinstance` works."""
    assert sf.sum is functions.sum
    assert st.StructType is types.StructType
