"""One topology's table feeds another topology: every row once, whatever crashes when.

    txn run examples/delta_to_delta.py:orders --until caught_up
    txn run examples/delta_to_delta.py:turnover --until caught_up

Both may run at the same time. `turnover` reads an order when `orders` has committed its batch.
"""

from __future__ import annotations

import os

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryTransactionalSpout
from txn import Topology

BASE = os.environ.get("TXN_DEMO_DIR", ".txn/demo")
TABLE = f"{BASE}/tables/orders"
ORDERS = [[("tea", 3), ("cup", 5)], [("tea", 4)], [("pot", 20), ("tea", 3)]]

orders = Topology("orders")
orders.stream(
    "shop", MemoryTransactionalSpout(ORDERS, "item string, euro bigint")
).partition_persist(AppendTable(TABLE))

turnover = Topology("turnover")
turnover.stream("orders", DeltaSpout(TABLE)).group_by("item").persistent_aggregate(
    StateTable(f"{BASE}/tables/turnover", semantics="transactional"), sold=Count(), euro=Sum("euro")
)
