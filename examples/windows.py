"""Page views in windows of ten minutes of event time; a late view updates the window it belongs to.

    txn run examples/windows.py:topology --until caught_up

A window is a key like any other: there is no watermark, nothing is dropped, and every view counts
exactly once, whatever is replayed. Trident's windows are neither by event time nor exactly once.
"""

from __future__ import annotations

import os

from pyspark.sql import functions as sf

from committers.aggregates import Count, CountDistinct, Last
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology

BASE = os.environ.get("TXN_DEMO_DIR", ".txn/demo")
VIEWS = [
    [("2026-07-01 09:01", "ann", "/"), ("2026-07-01 09:04", "bob", "/")],
    [("2026-07-01 09:12", "ann", "/a"), ("2026-07-01 09:11", "ann", "/")],
    [("2026-07-01 09:09", "ann", "/b"), ("2026-07-01 09:21", "cyd", "/")],  # the first is late
]

topology = Topology("windows")
spout = MemoryTransactionalSpout(VIEWS, "time string, user string, page string")
views = topology.stream("views", spout).transform(
    lambda df: df.withColumn("window", sf.window(df.time.cast("timestamp"), "10 minutes"))
)
views.group_by("window").persistent_aggregate(
    StateTable(f"{BASE}/tables/page_views"),
    views=Count(),
    users=CountDistinct("user"),
    last=Last("page", order_by="time"),
)
