"""Orders that a shop sends twice: each counts once, also if it comes again in a later batch.

    $ python examples/duplicates.py
    +-------+------+-----+
    |   shop|orders|total|
    +-------+------+-----+
    | Lisbon|     2|   50|
    |Utrecht|     2|   12|
    +-------+------+-----+

A till that got no answer sends its order again, minutes later. An order is known for an hour of
event time: until the watermark is an hour after it. Dropped rows are counted: `txn history`.
"""

from committers.aggregates import Count, Sum
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.session import delta_session

ORDERS = [
    [("o-1", "Lisbon", 20, "2026-07-01 09:01"), ("o-2", "Utrecht", 5, "2026-07-01 09:02")],
    [("o-1", "Lisbon", 20, "2026-07-01 09:01"), ("o-3", "Lisbon", 30, "2026-07-01 09:12")],
    [("o-4", "Utrecht", 7, "2026-07-01 09:14"), ("o-4", "Utrecht", 7, "2026-07-01 09:14")],
    [("o-2", "Utrecht", 5, "2026-07-01 09:02")],
]

topology = Topology("duplicates")
spout = MemoryTransactionalSpout(ORDERS, "id string, shop string, amount int, time string")
orders = topology.stream("orders", spout).transform(
    lambda df: df.withColumn("at", df.time.cast("timestamp_ltz"))
)
once = orders.watermark("at", "10 minutes").drop_duplicates("id", within="1 hour")
by_shop = StateTable("warehouse/orders_by_shop")
once.group_by("shop").persistent_aggregate(by_shop, orders=Count(), total=Sum("amount"))

if __name__ == "__main__":
    spark = delta_session("duplicates")
    topology.run(spark, until="caught_up")
    by_shop.read(spark).orderBy("shop").show()
