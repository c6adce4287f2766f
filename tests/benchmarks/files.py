"""An append table of many active files: the start of a run, its commit turns, the driver's memory.

    python -m tests.benchmarks.files 1000 10000 100000

Each number is a process: a topology commits a few txids, the other files come into the table's log
with a commit that its owner accepts (their rows are nowhere: nobody reads them here), and the
topology goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from committers.append_table import AppendTable
from spouts.rate import RateSpout
from tests.benchmarks.ours import stations_ms, together_ms
from tests.benchmarks.results import percentile
from tests.benchmarks.tables import TURN
from tests.benchmarks.task import session
from txn import Topology, TopologyConfig
from txn.machine.heap import settled
from txn.observers import BatchCommitted, RunEvent

__all__ = ["main"]

ROWS, BEFORE, AFTER = 100, 5, 105


class FirstCommit:
    """An observer that notes when the first txid of a run is committed."""

    def __init__(self) -> None:
        self.at = 0.0

    def observe(self, event: RunEvent) -> None:
        """Note the time, once."""
        if isinstance(event, BatchCommitted) and not self.at:
            self.at = time.monotonic()


def main(arguments: list[str]) -> int:
    """A line of JSON for each number of files."""
    if arguments[0] != "--one":
        for count in arguments:
            subprocess.run([sys.executable, "-m", __spec__.name, "--one", count], check=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="txn-files-") as folder:
        print(json.dumps(_measured(Path(folder), int(arguments[1]))), flush=True)
    return 0


def _measured(folder: Path, files: int) -> dict[str, Any]:
    table = str(folder / "rows")
    spark = session("files")
    zookeeper = f"embedded:{folder / 'zookeeper'}"
    _topology(table, BEFORE).run(spark, zookeeper=zookeeper, until="caught_up")
    _add_files(Path(table), files - BEFORE)
    before = _resident()
    first = FirstCommit()
    with settled():
        began = time.monotonic()
        topology = _topology(table, AFTER)
        report = topology.run(spark, zookeeper=zookeeper, until="caught_up", observers=[first])
    turns = together_ms(stations_ms(list(report.batches)[5:]), TURN)
    began_look = time.monotonic()
    count = DeltaTable(table).get_add_actions().num_rows
    looked = time.monotonic() - began_look
    spark.stop()
    return {
        "files": count,
        "until_first_commit_secs": round(first.at - began, 2),
        "commit_turn_ms_p50": round(percentile(turns, 0.5) or 0.0, 1),
        "commit_turn_ms_max": round(max(turns), 1),
        "python_more_mb": round((_resident() - before) / 1e6, 1),
        "delta_rs_loads_secs": round(looked, 2),
    }


def _topology(table: str, batches: int) -> Topology:
    topology = Topology("files", TopologyConfig(max_spout_pending=1))
    rows = topology.stream("rows", RateSpout(ROWS, total=ROWS * batches))
    rows.partition_persist(AppendTable(table))
    return topology


def _add_files(table: Path, count: int) -> None:
    """Add files to a table's log, and let the topology that owns it accept them."""
    delta = DeltaTable(str(table))
    add = {"partitionValues": {}, "size": 900, "modificationTime": 1, "dataChange": True}
    stats = json.dumps({"numRecords": ROWS})
    lines = [
        json.dumps({"add": {"path": f"data/other/{n:08}.parquet", "stats": stats, **add}})
        for n in range(count)
    ]
    version = delta.version() + 1
    log = table / "_delta_log" / f"{version:020}.json"
    log.write_text("\n".join([json.dumps({"commitInfo": {"operation": "WRITE"}}), *lines]), "utf-8")
    delta = DeltaTable(str(table))
    delta.alter.set_table_properties(
        {"txn.accepted_version": str(version)}, raise_if_not_exists=False
    )


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
