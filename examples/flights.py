"""Three tables from the flights of New York, 2013: one CSV file a month, one batch a file.

    python -m examples.prepare_flights
    txn run examples/flights.py:topology --until caught_up

Everything lies below TXN_DEMO_DIR, or .txn/demo.
"""

from __future__ import annotations

import os

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology

BASE = os.environ.get("TXN_DEMO_DIR", ".txn/demo")
SCHEMA = """year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double,
    arr_time int, sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string,
    origin string, dest string, air_time double, distance double, hour int, minute int,
    time_hour timestamp"""

topology = Topology("flights")
flights = topology.stream(
    "flights", FileSpout(f"{BASE}/flights/*.csv", format="csv", schema=SCHEMA, header=True)
)

# Opaque: right even when a replay brings other rows.
delays = flights.group_by("carrier").persistent_aggregate(
    StateTable(f"{BASE}/tables/delays", semantics="opaque"), flights=Count(), delay=Sum("dep_delay")
)
# Transactional: relies on a spout whose replays are identical, and keeps no previous values.
routes = flights.group_by("origin", "dest").persistent_aggregate(
    StateTable(f"{BASE}/tables/routes", semantics="transactional"), flights=Count()
)
# Rows as they are, with their txid.
flights.transform(lambda df: df.where("dep_time IS NULL")).partition_persist(
    AppendTable(f"{BASE}/tables/cancelled")
)
