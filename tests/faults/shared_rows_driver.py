"""A driver whose two tables read one stream, and whose executors come to grief in txid 2.

    python -m tests.faults.shared_rows_driver '{"folder": ..., "at": "within", ...}'

The stream's rows get a mark in two tasks of a Python function. What happens is the `at` of `Spec`:

- within: the executor of a task that has ended is killed, while the other task is still at work;
- between: an executor is killed when the second table is about to be staged.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committers.append_table import AppendTable
from tests.faults.driver import LogSpout, main
from tests.faults.harness import Spec, wait_for
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.engine.base.killpoints import observe
from txn.interfaces import SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS = 6
BATCH = 2
"""The txid with a fault: its first attempt has several records, so both tasks have rows."""


class Killer:
    """Kills one executor, once."""

    def __init__(self, spec: Spec) -> None:
        self._folder, self._when = Path(spec.folder), spec.at
        self._attempts = (self._folder / "attempts.log").open("a", buffering=1)
        self._begun = 0

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        if point != "mid-processing" or attempt.txid != BATCH:
            return
        self._begun += 1
        self._attempts.write(f"{attempt}\n")
        wait_for(lambda: len(_known_to_spark()) == 3, what="two executors and the driver")
        if self._when == "within" and self._begun == 1:
            threading.Thread(target=self._kill_one_that_is_through).start()
        if self._when == "between" and self._begun == 2:
            _kill(_executors()[:1])

    def _kill_one_that_is_through(self) -> None:
        held = self._folder / "held"
        wait_for(lambda: held.exists() and _one_of_two_is_done(), what="a task that has ended")
        _kill([pid for pid in _executors() if pid != int(held.read_text())])
        (self._folder / "open").touch()


def _kill(victims: list[int]) -> None:
    """Kill executors, and wait until Spark knows."""
    before = _known_to_spark()
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    wait_for(lambda: bool(victims and before - _known_to_spark()), what="the loss of an executor")


def _executors() -> list[int]:
    """Process ids of this driver's executors: they are of its process group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.getpgid(int(process.name)) == os.getpgid(0)
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if ours and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(process.name))
    return sorted(found)


def _known_to_spark() -> set[str]:
    known = _context()._jsc.sc().getExecutorMemoryStatus().keySet()
    return set(known.mkString(" ").split())


def _context() -> Any:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _one_of_two_is_done() -> bool:
    tracker = _context().statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(s and (s.numTasks, s.numCompletedTasks) == (2, 1) for s in stages)


def marked(rows: DataFrame) -> DataFrame:
    """The rows with a mark that no second computation would give them."""
    from pyspark.sql import functions as sf

    mark = sf.java_method(sf.lit("java.util.UUID"), sf.lit("randomUUID"))
    return rows.withColumn("mark", mark)


def build(spec: Spec) -> Topology:
    """Two tables of one stream with marks."""
    folder, at = Path(spec.folder), spec.at

    def mark(key: str) -> str:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        if task.partitionId() == 1 and at == "within" and not (folder / "open").exists():
            # The worker's parent is Python's daemon, whose parent is the executor.
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()
            (folder / "writing").write_text(stat.rpartition(")")[2].split()[1])
            (folder / "writing").rename(folder / "held")
            while not (folder / "open").exists():
                time.sleep(0.01)
        return uuid.uuid4().hex

    def transform(rows: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        from pyspark.sql import functions as sf

        if attempt.txid != BATCH:
            return rows.withColumn("mark", sf.lit("none"))
        function = sf.udf(mark, "string").asNondeterministic()
        return rows.repartition(2).withColumn("mark", function("k"))

    topology = Topology("shared", TopologyConfig(**spec.config))
    records = [(f"k{number}", number) for number in range(RECORDS)]
    spout = LogSpout(records, SpoutKind(spec.kind))
    stream = topology.stream("records", spout).transform(transform)
    for name in ("one", "two"):
        stream.partition_persist(AppendTable(f"{spec.folder}/{name}", semantics=spec.kind))
    return topology


if __name__ == "__main__":
    given = Spec.model_validate_json(sys.argv[1])
    observe(Killer(given))
    sys.exit(main(given, build(given)))
