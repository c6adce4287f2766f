"""A driver whose two tables read one stream, and whose executors die between the two."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from committers.append_table import AppendTable
from tests.faults.driver import LogSpout, main
from tests.faults.harness import Spec, wait_for
from txn import Topology, TopologyConfig
from txn.engine.killpoints import observe
from txn.interfaces import SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from txn.attempts import TransactionAttempt

RECORDS = 24


def executors() -> list[int]:
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
    return found


class Killer:
    """Kills every executor when an attempt of txid 2 is about to stage its second table."""

    def __init__(self, folder: str) -> None:
        self._seen = 0
        self._log = Path(folder) / "killed.log"

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        if point != "mid-processing" or attempt.txid != 2:
            return
        self._seen += 1
        if self._seen != 2:
            return
        victims = executors()
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not set(victims) & set(executors()), what="the executors' end")
        self._log.write_text(f"{len(victims)} {attempt}")


def marked(rows: DataFrame) -> DataFrame:
    """The rows with a mark that no second computation would give them."""
    from pyspark.sql import functions as sf

    mark = sf.java_method(sf.lit("java.util.UUID"), sf.lit("randomUUID"))
    return rows.withColumn("mark", mark)


def build(spec: Spec) -> Topology:
    """Two tables of one stream with marks."""
    topology = Topology("shared", TopologyConfig(**spec.config))
    records = [(f"k{number}", number) for number in range(RECORDS)]
    stream = topology.stream("records", LogSpout(records, SpoutKind(spec.kind))).transform(marked)
    for name in ("one", "two"):
        stream.partition_persist(AppendTable(f"{spec.folder}/{name}", semantics=spec.kind))
    return topology


if __name__ == "__main__":
    given = Spec.model_validate_json(sys.argv[1])
    observe(Killer(given.folder))
    sys.exit(main(given, build(given)))
