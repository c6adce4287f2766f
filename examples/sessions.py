"""Visits of a web shop: a visit ends when its user has not clicked for half an hour.

    $ python examples/sessions.py
    +----+-----+-----+------+-----+
    |user| from|   to|clicks|spent|
    +----+-----+-----+------+-----+
    | ann|09:00|09:50|     4|   25|
    | bob|09:05|09:05|     1|    0|
    | cat|09:58|09:58|     1|    3|
    | ann|11:00|11:10|     2|    7|
    +----+-----+-----+------+-----+

The clicks of a visit come in several batches, one of them late. The visit comes out once, when no
click can belong to it any more. The visits that still go on are not in the table.
"""

from pyspark.sql import functions as sf

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.session import delta_session

CLICKS = [
    [("ann", "09:00", 0), ("bob", "09:05", 0)],
    [("ann", "09:50", 20), ("ann", "09:20", 0)],
    [("ann", "09:45", 5), ("cat", "09:58", 3)],
    [("ann", "11:00", 0), ("ann", "11:10", 7)],
    [("cat", "12:30", 1)],
    [("cat", "12:40", 2)],
]

topology = Topology("sessions", TopologyConfig(max_spout_pending=1))
spout = MemoryTransactionalSpout(CLICKS, "user string, time string, spent int")
clicks = topology.stream("clicks", spout).transform(
    lambda df: df.withColumn("at", sf.expr("CAST('2026-07-01 ' || time AS timestamp_ltz)"))
)
visits = clicks.watermark("at", "10 minutes", late="drop").session_windows("user", "30 minutes")
table = AppendTable("warehouse/visits")
visits.group_by("user", "session_window").aggregate(
    clicks=Count(), spent=Sum("spent"), last=Max("at")
).partition_persist(table)

if __name__ == "__main__":
    spark = delta_session("sessions")
    topology.run(spark, until="caught_up")
    table.read(spark).orderBy("session_window.start").select(
        "user",
        sf.date_format("session_window.start", "HH:mm").alias("from"),
        sf.date_format("last", "HH:mm").alias("to"),
        "clicks",
        "spent",
    ).show()
