"""(p): what one more table costs: the commit turn of a topology that writes the same rows to many.

One txid at a time, so that no turn waits for another batch. Timed: from the moment when all that
was staged is acknowledged to COMMITTED in ZooKeeper; `stations_p50_ms` has each station.
"""

from __future__ import annotations

from collections.abc import Iterator

from committers.append_table import AppendTable
from spouts.rate import RateSpout
from tests.benchmarks.meter import Meter
from tests.benchmarks.ours import stations_ms, stations_p50_ms, together_ms
from tests.benchmarks.results import percentile
from tests.benchmarks.task import Answer, Task, answer, session
from txn import Topology, TopologyConfig

__all__ = ["run"]

TURN = ("turn", "prepared", "published", "committed")
ROWS, WARM = 1_000, 10


def run(task: Task) -> Iterator[Answer]:
    """`x` is the number of tables."""
    assert task.x is not None
    batches = WARM + task.size.table_batches
    spark = session("tables")
    topology = Topology("tables", TopologyConfig(max_spout_pending=1))
    rows = topology.stream("rows", RateSpout(ROWS, total=ROWS * batches))
    tables = [AppendTable(task.folder / f"table-{number}") for number in range(task.x)]
    for table in tables:
        rows.partition_persist(table)
    zookeeper = f"embedded:{task.folder}/zookeeper"
    with Meter() as meter:
        report = topology.run(spark, zookeeper=zookeeper, until="caught_up")
    counts = {table.read(spark).count() for table in tables}
    spark.stop()
    stations = stations_ms(list(report.batches)[WARM:])
    each = together_ms(stations, TURN)
    yield answer(
        percentile(each, 0.5) or 0.0,
        meter,
        correct=counts == {ROWS * batches},
        p95_ms=round(percentile(each, 0.95) or 0.0, 2),
        stations_p50_ms=stations_p50_ms(stations),
    )
