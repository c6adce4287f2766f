"""One topology's table feeds another topology: every row once, whatever crashes when.

    $ python examples/delta_to_delta.py
    +----+----+----+
    |item|sold|euro|
    +----+----+----+
    | cup|   1|   5|
    | pot|   1|  20|
    | tea|   3|  10|
    +----+----+----+

Both may run at the same time, each in a process of its own (`txn run FILE.py:orders`). `turnover`
reads an order when `orders` has committed its batch.
"""

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.session import delta_session

ORDERS = [[("tea", 3), ("cup", 5)], [("tea", 4)], [("pot", 20), ("tea", 3)]]

orders = Topology("orders")
shop = MemoryTransactionalSpout(ORDERS, "item string, euro bigint")
orders.stream("shop", shop).partition_persist(AppendTable("warehouse/orders"))

turnover = Topology("turnover")
items = StateTable("warehouse/turnover")
turnover.stream("orders", DeltaSpout("warehouse/orders")).group_by("item").persistent_aggregate(
    items, sold=Count(), euro=Sum("euro")
)

if __name__ == "__main__":
    spark = delta_session("turnover")
    orders.run(spark, until="caught_up")
    turnover.run(spark, until="caught_up")
    items.read(spark).orderBy("item").show()
