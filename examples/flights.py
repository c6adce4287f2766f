"""Three tables from the flights of New York, 2013: one CSV file a month, one batch a file.

    python -m examples.prepare_flights
    txn run examples/flights.py:topology --until caught_up

`make demo` runs it, kills it midway, resumes it, and compares every row (examples/demo.py).
"""

from __future__ import annotations

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology

SCHEMA = """year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double,
    arr_time int, sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string,
    origin string, dest string, air_time double, distance double, hour int, minute int,
    time_hour timestamp"""

topology = Topology("flights")
# A month is a txid; without files_per_batch, several would be while there are many to read.
files = FileSpout("data/flights/*.csv", format="csv", schema=SCHEMA, header=True, files_per_batch=1)
flights = topology.stream("flights", files)

# Opaque, the default: right even when a replay brings other rows.
delays = StateTable("warehouse/delays")
flights.group_by("carrier").persistent_aggregate(delays, flights=Count(), delay=Sum("dep_delay"))

# Transactional: relies on a spout whose replays are identical, and keeps no previous values.
routes = StateTable("warehouse/routes", semantics="transactional")
flights.group_by("origin", "dest").persistent_aggregate(routes, flights=Count())

# Rows as they are, with their txid.
cancelled = AppendTable("warehouse/cancelled")
flights.transform(lambda df: df.where("dep_time IS NULL")).partition_persist(cancelled)
