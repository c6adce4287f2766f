"""One count over everything: the first program of Storm's transactional topologies.

    $ python examples/global_count.py
    +-----+
    |words|
    +-----+
    |   19|
    +-----+

Storm's `TransactionalGlobalCount` has two bolts: one counts its part of a batch, the other, a
committer, adds the partial counts to the one global count, in the order of txids. Here a
persistent aggregate without keys does both: Spark counts several batches at once, and each commit
turn adds one number.
"""

from committers.aggregates import Count
from committers.state_table import StateTable
from spouts.memory import MemoryPartitionedSpout
from txn import Topology
from txn.session import delta_session

WORDS = {
    "0": "cat dog chicken cat dog apple",
    "1": "cat dog apple banana",
    "2": "cat cat cat cat cat dog dog dog dog",
}

topology = Topology("global-count")
rows = {partition: [(word,) for word in words.split()] for partition, words in WORDS.items()}
spout = MemoryPartitionedSpout(rows, "word string", take_per_partition=3)
total = StateTable("warehouse/global_count")
topology.stream("words", spout).persistent_aggregate(total, words=Count())

if __name__ == "__main__":
    spark = delta_session("global-count")
    topology.run(spark, until="caught_up")
    total.read(spark).show()
