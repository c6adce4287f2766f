"""Memory of the driver over many small batches: it must not grow with their number.

    python -m tests.benchmarks.memory [--batches 2000] [--every 200] [--table append|log|upsert]

One run of one topology. Whenever `every` more batches are committed, both halves of the driver are
told to collect their garbage and are measured: Python (resident memory) and Java (the objects
that live after a full collection, and loaded classes; by `jcmd`, which a JDK has).
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.rate import RateSpout
from txn import Topology, TopologyConfig
from txn.session import delta_session

ROWS = 100
LOOK_SECS = 0.02


@dataclasses.dataclass(frozen=True)
class Sample:
    """What the driver holds once so many batches are committed; megabytes, garbage collected."""

    batch: int
    seconds: float
    """Since the start of the run."""
    python_rss_mb: float
    java_heap_mb: float
    """Objects that live."""
    java_metaspace_mb: float
    java_rss_mb: float
    table_files: int
    """Files in the table: what a committer must know of them grows with the table."""


def measure(
    spark: SparkSession, folder: Path, *, batches: int = 2000, every: int = 200, table: str
) -> list[Sample]:
    """Run `batches` batches of a hundred rows, and measure at every `every`-th.

    Args:
        folder: an empty one, for tables and ZooKeeper.
        table: "append", "log" or "upsert".

    Raises:
        RuntimeError: no `jcmd` on the path, or no Java below this process.
    """
    java = java_process()
    topology = Topology("memory", TopologyConfig(max_spout_pending=8))
    rows = topology.stream("rows", RateSpout(ROWS, total=ROWS * batches, partitions=1))
    path = folder / "table"
    if table == "append":
        rows.partition_persist(AppendTable(str(path)))
    else:
        keyed = rows.transform(lambda df: df.selectExpr("value % 50 AS k", "value"))
        state = StateTable(str(path), layout="log" if table == "log" else "upsert")
        keyed.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("value"))
    samples: list[Sample] = []
    began = time.monotonic()
    running = topology.start(spark, zookeeper=f"embedded:{folder}/zookeeper", until="caught_up")
    try:
        while running.is_active:
            committed = running.report.batches_committed
            if committed >= (len(samples) + 1) * every:
                samples.append(_sample(committed, time.monotonic() - began, java, path))
            time.sleep(LOOK_SECS)
    finally:
        report = running.await_termination() if not running.is_active else running.stop()
    if report.batches_committed // every > len(samples):
        seconds = time.monotonic() - began
        samples.append(_sample(report.batches_committed, seconds, java, path))
    return samples


def growth(samples: list[Sample], what: str, first: int = 0) -> float:
    """The last of these samples against sample number `first`: 1.0 is flat."""
    before = float(getattr(samples[first], what))
    return float(getattr(samples[-1], what)) / before


def java_process() -> int:
    """The process of Spark's JVM: the Java among this process's descendants.

    Raises:
        RuntimeError: there is none, or it is not the only one.
    """
    spark = [p for p in _descendants(os.getpid()) if b"SparkSubmit" in _command_line(p)]
    found = [p for p in spark if _command_line(p).split(b"\0")[0].endswith(b"java")]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} Spark JVMs below process {os.getpid()}: {found}.")
    return found[0]


def java_memory(java: int) -> tuple[float, float]:
    """(heap that lives, metaspace) of a JVM in megabytes; its garbage is collected first."""
    # Collects and counts at one stop of all threads: what GC.heap_info says later has the garbage
    # of the batches since.
    heap = re.search(r"^Total\s+\d+\s+(\d+)", jcmd(java, "GC.class_histogram"), re.MULTILINE)
    meta = re.search(r"Metaspace\s+used (\d+)K", jcmd(java, "GC.heap_info"))
    assert heap is not None
    assert meta is not None
    return round(int(heap[1]) / 1024**2, 1), round(int(meta[1]) / 1024, 1)


def _sample(batch: int, seconds: float, java: int, table: Path) -> Sample:
    # Python first: what Python lets go of, Java can collect.
    gc.collect()
    heap, metaspace = java_memory(java)
    return Sample(
        batch,
        round(seconds, 1),
        round(memory_kb(os.getpid()) / 1024, 1),
        heap,
        metaspace,
        round(memory_kb(java) / 1024, 1),
        sum(1 for _ in table.rglob("*.parquet")),
    )


def jcmd(java: int, *command: str) -> str:
    try:
        done = subprocess.run(
            ["jcmd", str(java), *command], capture_output=True, text=True, timeout=60, check=True
        )
    except FileNotFoundError as error:
        raise RuntimeError("There is no jcmd on the path; it comes with a JDK.") from error
    return done.stdout


def memory_kb(process: int, what: str = "VmRSS") -> int:
    """A process's memory: VmRSS now, VmHWM at most."""
    status = Path(f"/proc/{process}/status").read_text("utf-8")
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


def _descendants(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text("utf-8").split():
            yield int(child)
            yield from _descendants(int(child))


def _command_line(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--table", choices=("append", "log", "upsert"), default="append")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    conf = dict(setting.split("=", 1) for setting in options.conf)
    spark = delta_session("memory", "local[2]", {"spark.driver.memory": "1g", **conf})
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(
            spark,
            Path(folder),
            batches=options.batches,
            every=options.every,
            table=options.table,
        )
    for sample in samples:
        print(json.dumps(dataclasses.asdict(sample)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
