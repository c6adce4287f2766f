"""Page views in windows of ten minutes of event time; a late view updates the window it belongs to.

    $ python examples/windows.py
    +------------------------------------------+-----+-----+----+
    |window                                    |views|users|last|
    +------------------------------------------+-----+-----+----+
    |{2026-07-01 09:00:00, 2026-07-01 09:10:00}|3    |2    |/b  |
    |{2026-07-01 09:10:00, 2026-07-01 09:20:00}|2    |1    |/a  |
    |{2026-07-01 09:20:00, 2026-07-01 09:30:00}|1    |1    |/   |
    +------------------------------------------+-----+-----+----+

A window is a key like any other: there is no watermark, nothing is dropped, and every view counts
exactly once, whatever is replayed. Trident's windows are neither by event time nor exactly once.
"""

from pyspark.sql import functions as sf

from committers.aggregates import Count, CountDistinct, Last
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.session import delta_session

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
windows = StateTable("warehouse/page_views_by_window")
views.group_by("window").persistent_aggregate(
    windows, views=Count(), users=CountDistinct("user"), last=Last("page", order_by="time")
)

if __name__ == "__main__":
    spark = delta_session("windows")
    topology.run(spark, until="caught_up")
    windows.read(spark).orderBy("window").show(truncate=False)
