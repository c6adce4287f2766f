"""Many topologies on one ensemble of ZooKeeper: writes a second, latencies, memory of the servers.

    python -m tests.benchmarks.ensemble [--topologies 1000] [--secs 600] [--interval 10]

Each topology does what the engine does to ZooKeeper and nothing else: it leads with a session of
its own, and writes START and COMMITTED of one txid after the other, each with the positions of a
few partitions. Three servers and the processes with the topologies share this machine. An interval
of 0: every txid as soon as the last one is committed, which shows what the ensemble can do.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.results import percentile
from tests.children import ENSEMBLE_PORTS, port_below
from txn import TopologyConfig
from txn.doctor.zookeeper import _ask_mntr
from txn.embedded.ensemble import TrialEnsemble
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.zookeeper import ZooKeeperProgress

__all__ = ["main", "server_figures"]

THREADS = 48
"""In each process with topologies: the most writes that it has under way at once."""
MNTR = (
    "zk_znode_count",
    "zk_approximate_data_size",
    "zk_watch_count",
    "zk_num_alive_connections",
    "zk_max_latency",
)


class Topologies:
    """Some topologies in one process, each at its own pace.

    Args:
        names: of the topologies.
        interval: seconds from one START to the next.
        partitions: whose positions each record has.
    """

    def __init__(self, hosts: str, names: Sequence[str], interval: float, partitions: int) -> None:
        config = TopologyConfig(zookeeper_acl="creator")
        self._stores = [ZooKeeperProgress(hosts, name, config) for name in names]
        self._interval = interval
        self._partitions = partitions
        self._due: list[tuple[float, int, int]] = []
        self._lock = threading.Lock()
        self.starts: list[float] = []
        self.commits: list[float] = []
        self.behind: list[float] = []
        """Milliseconds by which a START came later than it was due."""
        self.errors: list[Exception] = []

    def lead(self) -> list[float]:
        """Take every leadership; milliseconds of each, nodes of a new topology included."""
        took = []
        for store in self._stores:
            began = time.perf_counter()
            store.lead()
            store.load()
            took.append((time.perf_counter() - began) * 1000)
        return took

    def run(self, secs: float) -> None:
        """Write for so long."""
        began = time.monotonic()
        spread = self._interval or 1.0
        self._due = [
            (began + random.uniform(0, spread), number, 1) for number in range(len(self._stores))
        ]
        heapq.heapify(self._due)
        threads = [
            threading.Thread(target=self._work, args=(began + secs,)) for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def close(self) -> None:
        """Give the leaderships back."""
        for store in self._stores:
            store.close()

    def _work(self, end: float) -> None:
        while (now := time.monotonic()) < end and not self.errors:
            with self._lock:
                item = heapq.heappop(self._due) if self._due and self._due[0][0] <= now else None
            if item is None:
                time.sleep(0.002)
                continue
            due, number, txid = item
            try:
                self._transact(self._stores[number], txid)
            except Exception as error:  # noqa: BLE001 - whatever it is, the figures are worthless
                self.errors.append(error)
                return
            self.behind.append((now - due) * 1000)
            with self._lock:
                heapq.heappush(self._due, (max(due + self._interval, now), number, txid + 1))

    def _transact(self, store: ZooKeeperProgress, txid: int) -> None:
        positions = {
            f"clicks-{n}": {"start": txid * 1000, "end": txid * 1000 + 999}
            for n in range(self._partitions)
        }
        spouts = {"clicks": positions}
        began = time.perf_counter()
        store.persist_start(BatchRecord(txid=txid, attempt=0, epoch=store.epoch, spouts=spouts))
        between = time.perf_counter()
        tables = {"lake/clicks": txid, "lake/totals": txid}
        store.persist_committed(
            CommittedRecord(txid=txid, epoch=store.epoch, spouts=spouts, tables=tables)
        )
        self.starts.append((between - began) * 1000)
        self.commits.append((time.perf_counter() - between) * 1000)


def main(arguments: Sequence[str]) -> int:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topologies", type=int, default=1000)
    parser.add_argument("--secs", type=float, default=600.0)
    parser.add_argument("--interval", type=float, default=10.0, help="between two STARTs of one")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--processes", type=int, default=4, help="with topologies")
    parser.add_argument("--part", type=int, help="for such a process")
    parser.add_argument("--hosts", help="for such a process")
    chosen = parser.parse_args(arguments)
    if chosen.part is not None:
        _part(chosen)
        return 0
    with tempfile.TemporaryDirectory(prefix="txn-ensemble-") as folder:
        ensemble = TrialEnsemble(Path(folder), port_below(*ENSEMBLE_PORTS))
        try:
            ensemble.start()
            print(json.dumps(_measured(chosen, ensemble), indent=1))
        finally:
            ensemble.stop()
    return 0


def server_figures(server: str, pid: int) -> dict[str, int]:
    """A server's own figures (`mntr`), and its resident memory in bytes."""
    values = _ask_mntr(server, TopologyConfig())
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {name: int(float(values[name])) for name in MNTR} | {"resident_bytes": pages * 4096}


def _measured(chosen: argparse.Namespace, ensemble: TrialEnsemble) -> dict[str, Any]:
    command = [sys.executable, "-m", __spec__.name]
    shared = [
        f"--{name}={getattr(chosen, name)}"
        for name in ("topologies", "secs", "interval", "partitions", "processes")
    ]
    environ = {"TXN_ZOOKEEPER_AUTH_FILE": str(ensemble.credential_file)}
    parts = [
        subprocess.Popen(
            [*command, *shared, f"--part={part}", f"--hosts={ensemble.hosts}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        for part in range(chosen.processes)
    ]
    lead = [value for part in parts for value in _line(part)["lead_ms"]]
    for part in parts:
        assert part.stdin is not None
        part.stdin.write("go\n")
        part.stdin.flush()
    time.sleep(chosen.secs * 0.9)
    servers = [
        server_figures(host, server.pid)
        for host, server in zip(ensemble.hosts.split(","), ensemble.servers, strict=True)
    ]
    answers = [_line(part) for part in parts]
    for part in parts:
        part.communicate()
    together = {name: [v for one in answers for v in one[name]] for name in answers[0]}
    txids = len(together["commit_ms"])
    return {
        "topologies": chosen.topologies,
        "interval_secs": chosen.interval,
        "txids": txids,
        "writes_a_second": round(2 * txids / chosen.secs, 1),
        **{
            f"{name}_{label}": round(percentile(values, share) or 0.0, 1)
            for name, values in {**together, "lead_ms": lead}.items()
            for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "servers": servers,
    }


def _part(chosen: argparse.Namespace) -> None:
    """One process: lead, wait for the word, write, report."""
    names = [f"topology-{n:05d}" for n in range(chosen.part, chosen.topologies, chosen.processes)]
    topologies = Topologies(chosen.hosts, names, chosen.interval, chosen.partitions)
    print(json.dumps({"lead_ms": topologies.lead()}), flush=True)
    sys.stdin.readline()
    topologies.run(chosen.secs)
    figures = {
        "start_ms": topologies.starts,
        "commit_ms": topologies.commits,
        "behind_ms": topologies.behind,
    }
    print(json.dumps(figures), flush=True)
    topologies.close()


def _line(part: subprocess.Popen[str]) -> dict[str, list[float]]:
    assert part.stdout is not None
    answer: dict[str, list[float]] = json.loads(part.stdout.readline())
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
