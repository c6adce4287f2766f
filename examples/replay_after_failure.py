"""A batch fails, and its replay is a different batch: still every number counts once.

    $ python examples/replay_after_failure.py
    +-------+-----+
    |numbers|total|
    +-------+-----+
    |    130| 8515|
    +-------+-----+

    +----+-----+
    |txid|count|
    +----+-----+
    |   1|   50|
    |   2|   40|
    |   3|   40|
    +----+-----+

The scenario is from Storm's document: batch 2 was 51 to 100 when it failed, and for the replay the
opaque source has only 40 of these numbers. The other ten come with batch 3.
"""

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout
from txn import FailedException, Topology
from txn.session import delta_session


def numbers(first: int, last: int) -> list[tuple[int] | Exception]:
    return [(number,) for number in range(first, last + 1)]


SCRIPT = {  # (txid, attempt id) -> rows
    (1, 0): numbers(1, 50),
    (2, 0): [*numbers(51, 100), FailedException("the source lost its connection")],
    (2, 1): numbers(51, 90),
    (3, 0): numbers(91, 130),
}

topology = Topology("replay-after-failure")
stream = topology.stream("numbers", MemoryOpaqueSpout(SCRIPT, "number bigint"))
totals, rows = StateTable("warehouse/totals"), AppendTable("warehouse/numbers")
stream.persistent_aggregate(totals, numbers=Count(), total=Sum("number"))
stream.partition_persist(rows)

if __name__ == "__main__":
    spark = delta_session("replay-after-failure")
    topology.run(spark, until="caught_up")
    totals.read(spark).show()
    rows.read(spark).groupBy("txid").count().orderBy("txid").show()
