"""A shop's program changes while it runs: no order is lost or counted twice.

    $ python examples/changing_shop.py
    +--------+-----+-------+
    |customer|spent|largest|
    +--------+-----+-------+
    |    anna|   20|     15|
    |    bert|    4|      4|
    |    carl|    3|      3|
    +--------+-----+-------+

On the second day a total with its history and a column are new, the stream has another name, the
totals have twice the buckets, and there is a new table with its history. Both are filled while the
first day's program runs. `txn plan` tells all of it before it happens.
"""

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.session import delta_session

DAYS = [[("anna", "tea", 5), ("bert", "tea", 4), ("carl", "jam", 3)], [("anna", "jam", 15)]]
COLUMNS = "customer string, product string, amount int"
TOTALS, PRODUCTS = "warehouse/totals", "warehouse/products"


def first() -> Topology:
    topology = Topology("changing-shop")
    orders = topology.stream("orders", MemoryTransactionalSpout(DAYS[:1], COLUMNS))
    orders.partition_persist(AppendTable("warehouse/orders"))
    totals = StateTable(TOTALS, buckets=2)
    orders.group_by("customer").persistent_aggregate(totals, spent=Sum("amount"))
    return topology


def second() -> Topology:
    changes = TopologyConfig(backfilled_tables=(TOTALS, PRODUCTS))
    topology = Topology("changing-shop", changes)
    spout = MemoryTransactionalSpout(DAYS, COLUMNS)
    orders = topology.stream("sales", spout, was="orders")
    taxed = orders.transform(lambda rows: rows.selectExpr("*", "amount * 0.2D AS tax"))
    taxed.partition_persist(AppendTable("warehouse/orders"))
    orders.group_by("customer").persistent_aggregate(
        StateTable(TOTALS, buckets=4), spent=Sum("amount"), largest=Max("amount")
    )
    orders.group_by("product").persistent_aggregate(StateTable(PRODUCTS), sold=Count())
    return topology


if __name__ == "__main__":
    spark = delta_session("changing-shop")
    first().run(spark, until="caught_up")
    running = first().start(spark)
    second().backfill(spark, [TOTALS, PRODUCTS])
    running.stop()
    second().run(spark, until="caught_up")
    StateTable(TOTALS).read(spark).orderBy("customer").show()
