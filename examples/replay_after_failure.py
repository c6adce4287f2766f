"""A batch fails, and its replay is a different batch: still every number counts once.

    txn run examples/replay_after_failure.py:topology --until caught_up

The scenario is from Storm's document: batch 2 was 51 to 100 when it failed, and for the replay the
opaque source has only 40 of these numbers. The other ten come with batch 3.
"""

from __future__ import annotations

import os

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout
from txn import FailedException, Topology

BASE = os.environ.get("TXN_DEMO_DIR", ".txn/demo")


def numbers(first: int, last: int) -> list[tuple[int] | Exception]:
    return [(number,) for number in range(first, last + 1)]


script = {  # (txid, attempt id) -> rows
    (1, 0): numbers(1, 50),
    (2, 0): [*numbers(51, 100), FailedException("the source lost its connection")],
    (2, 1): numbers(51, 90),
    (3, 0): numbers(91, 130),
}

topology = Topology("replay-after-failure")
stream = topology.stream("numbers", MemoryOpaqueSpout(script, "number bigint"))
stream.persistent_aggregate(
    StateTable(f"{BASE}/tables/totals", semantics="opaque"), numbers=Count(), total=Sum("number")
)
stream.partition_persist(AppendTable(f"{BASE}/tables/numbers", semantics="opaque"))
