"""A long run of small transactions: what must not grow with their number, and the pace.

    python -m tests.benchmarks.endurance [--transactions 20000] [--tables append,log,upsert]

One run of one topology, beside what an operator schedules: OPTIMIZE of the append table, which has
a file a batch, and VACUUM of all tables, every two minutes; the tables keep their logs and what
was removed for two minutes. A line of JSON for each tenth of the run, then ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.rate import RateSpout
from tests.benchmarks.memory import java_memory, java_process, memory_kb
from txn import Topology, TopologyConfig
from txn.embedded import running_server, zookeeper_service
from txn.engine.running import RunningTopology
from txn.session import delta_session

KINDS = ("append", "log", "upsert")
ROWS = 100
KEYS = 50
LOOK_SECS = 0.05
RETENTION_SECS = 120.0
TENTHS = 10


@dataclasses.dataclass(frozen=True)
class Look:
    """What there is once so many txids are committed."""

    txid: int
    seconds: float
    """Since the first commit that counts."""
    python_rss_mb: float
    java_heap_mb: float
    """Objects that live; garbage is collected first."""
    open_files: int
    """Of the driver: Python and Java."""
    threads: int
    """Of Python."""
    znodes: int
    log_files: int
    """In the tables' `_delta_log` folders, all tables."""
    active_files: int
    """Which the newest versions refer to, all tables."""
    files: int
    """Parquet files in storage, all tables: active, removed or staged."""
    scratch: int
    """Files of ours that no reader sees (`_txn`)."""


def topology(folder: Path, kinds: list[str], transactions: int) -> Topology:
    """A hundred rows a batch, and fifty keys, into each kind of table."""
    made = Topology("endurance", TopologyConfig())
    rows = made.stream("rows", RateSpout(ROWS, total=ROWS * transactions, partitions=1))
    keyed = rows.transform(lambda df: df.selectExpr(f"value % {KEYS} AS k", "value"))
    for kind in kinds:
        path = str(folder / kind)
        if kind == "append":
            rows.partition_persist(AppendTable(path))
        else:
            state = StateTable(path, layout="log" if kind == "log" else "upsert")
            keyed.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("value"))
    return made


def retain(table: Path, seconds: float) -> None:
    """Let a table keep its log, and what left it, for so long."""
    interval = f"interval {int(seconds)} seconds"
    names = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
    DeltaTable(str(table)).alter.set_table_properties(dict.fromkeys(names, interval))


@dataclasses.dataclass
class Upkeep:
    """What an operator schedules beside a run, and how it went."""

    rounds: int = 0
    lost: list[str] = dataclasses.field(default_factory=list)
    """What lost against commits of the run; the next round tried again."""

    def once(self, tables: list[Path]) -> None:
        """OPTIMIZE of the append table, VACUUM of all."""
        for table in tables:
            try:
                if table.name == "append":
                    DeltaTable(str(table)).optimize.compact()
                DeltaTable(str(table)).vacuum(dry_run=False, full=True)
            except (DeltaError, OSError) as error:
                self.lost.append(f"{table.name}: {error}")
        self.rounds += 1


@contextlib.contextmanager
def operator(tables: list[Path], every: float) -> Iterator[Upkeep]:
    """Somebody who looks after the tables every so many seconds."""
    upkeep, ended = Upkeep(), threading.Event()

    def run() -> None:
        while not ended.wait(every):
            upkeep.once(tables)

    thread = threading.Thread(target=run, name="operator", daemon=True)
    thread.start()
    try:
        yield upkeep
    finally:
        ended.set()
        thread.join()


def look(running: RunningTopology, began: float, folder: Path, java: int) -> Look:
    """See `Look`."""
    txid, seconds = running.status().committed_txid, time.monotonic() - began
    gc.collect()
    heap, _ = java_memory(java)
    tables = [folder / kind for kind in KINDS if (folder / kind).is_dir()]
    return Look(
        txid,
        round(seconds, 1),
        round(memory_kb(os.getpid()) / 1024, 1),
        heap,
        sum(_entries(Path(f"/proc/{process}/fd")) for process in (os.getpid(), java)),
        threading.active_count(),
        znodes(folder / "zookeeper"),
        sum(_entries(table / "_delta_log") for table in tables),
        sum(len(DeltaTable(str(table)).file_uris()) for table in tables),
        sum(1 for table in tables for _ in table.rglob("*.parquet")) - _checkpoints(tables),
        sum(1 for table in tables for path in _below(table / "_txn") if path.is_file()),
    )


def znodes(folder: Path) -> int:
    """Nodes in an embedded ZooKeeper, its own included."""
    server = running_server(folder)
    assert server is not None
    host, port = server.split("/")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"srvr")
        text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    found = re.search(r"Node count: (\d+)", text)
    assert found is not None, text
    return int(found[1])


def _entries(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _below(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from folder.rglob("*")


def _checkpoints(tables: list[Path]) -> int:
    return sum(1 for table in tables for _ in (table / "_delta_log").glob("*.parquet"))


def measure(
    folder: Path, transactions: int, kinds: list[str], retention: float = RETENTION_SECS
) -> tuple[list[Look], Upkeep]:
    """A look after each tenth of the run.

    Raises:
        AssertionError: a table does not hold what was sent.
    """
    spark = delta_session("endurance", "local[2]", {"spark.driver.memory": "1g"})
    tables = [folder / kind for kind in kinds]
    # The server outlives the runs, or the last look could not count its nodes.
    with zookeeper_service(f"embedded:{folder}/zookeeper") as zookeeper:
        # The tables come to be, and the JVM is warm, before anything counts.
        warm = max(2, transactions // 100)
        topology(folder, kinds, transactions).run(spark, zookeeper=zookeeper, until=warm)
        for table in tables:
            retain(table, retention)
        looks: list[Look] = []
        java = java_process()
        with operator(tables, retention) as upkeep:
            running = topology(folder, kinds, transactions).start(
                spark, zookeeper=zookeeper, until="caught_up"
            )
            began = time.monotonic()
            for number in range(1, TENTHS + 1):
                due = warm + (transactions - warm) * number // TENTHS
                while running.is_active and running.status().committed_txid < due:
                    time.sleep(LOOK_SECS)
                looks.append(look(running, began, folder, java))
                print(json.dumps(dataclasses.asdict(looks[-1])), flush=True)
            running.await_termination()
    _check(spark, folder, kinds, transactions)
    spark.stop()
    return looks, upkeep


def _check(spark: object, folder: Path, kinds: list[str], transactions: int) -> None:
    """Every value from 0 up was counted once, in each table."""
    values = ROWS * transactions
    for kind in kinds:
        table = AppendTable(folder / kind) if kind == "append" else StateTable(folder / kind)
        rows = table.read(spark)  # type: ignore[arg-type]
        told = ("count(*)", "sum(value)") if kind == "append" else ("sum(n)", "sum(total)")
        found = tuple(rows.selectExpr(*told).first() or ())
        assert found == (values, values * (values - 1) // 2), (kind, found, values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=20_000)
    parser.add_argument("--tables", default=",".join(KINDS))
    parser.add_argument("--retention", type=float, default=RETENTION_SECS, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        looks, upkeep = measure(
            Path(folder), options.transactions, options.tables.split(","), options.retention
        )
    first, last = looks[0], looks[-1]
    for field in dataclasses.fields(Look)[2:]:
        before, after = getattr(first, field.name), getattr(last, field.name)
        print(f"{field.name}: {before} -> {after} ({after / max(before, 1):.2f})")
    slow = (last.seconds - looks[-2].seconds) / first.seconds
    print(f"seconds of the last tenth against the first: {slow:.2f}")
    print(
        f"{upkeep.rounds} rounds of OPTIMIZE and VACUUM; lost: {len(upkeep.lost)} {upkeep.lost[:3]}"
    )


if __name__ == "__main__":
    main()
