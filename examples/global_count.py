"""One count over everything: the first program of Storm's transactional topologies.

    txn run examples/global_count.py:topology --until caught_up

Storm's `TransactionalGlobalCount` has two bolts: one counts its part of a batch, the other, a
committer, adds the partial counts to the one global count, in the order of txids. Here a
persistent aggregate without keys does both: Spark counts several batches at once, and each commit
turn adds one number. The table lies below TXN_DEMO_DIR, or .txn/demo.
"""

from __future__ import annotations

import os

from committers.aggregates import Count
from committers.state_table import StateTable
from spouts.memory import MemoryPartitionedSpout
from txn import Topology

BASE = os.environ.get("TXN_DEMO_DIR", ".txn/demo")
WORDS = {
    "0": "cat dog chicken cat dog apple",
    "1": "cat dog apple banana",
    "2": "cat cat cat cat cat dog dog dog dog",
}

topology = Topology("global-count")
spout = MemoryPartitionedSpout(
    {name: [(word,) for word in words.split()] for name, words in WORDS.items()},
    "word string",
    take_per_partition=3,
)
topology.stream("words", spout).persistent_aggregate(
    StateTable(f"{BASE}/tables/global_count", semantics="transactional"), words=Count()
)
