"""The page over a long history: python -m tests.benchmarks.dashboard [--txids N] [--tables N].

One table has a version for each txid, the others group 32 txids a version. The server is a process
of its own, whose memory and CPU time are read from /proc; requests are timed from outside, first
while the logs are being indexed, then with everything indexed. On a machine with other work on it
the columns `cpu` tell what a request costs: the others are longer by what it waits for a CPU.
`--files N` lets each txid read N files, for metadata that is large.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from tests.benchmarks.memory import memory_kb
from tests.dashboard.made_logs import BEGAN_MS, append_version, made_table, publication
from tests.dashboard.sample import Told
from tests.dashboard.serving import served
from txn.dashboard.watching.feed import Look
from txn.dashboard.watching.topologies import Watch
from txn.machine.heap import settled
from txn.operations.status import status_of
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import CommittedRecord, Progress

GROUP = 32
ROUNDS = 15


def made(folder: Path, txids: int, count: int, files: int) -> dict[str, int]:
    """The tables, and the version that each has come to."""
    versions = {}
    more = [{"path": f"data/part-{number:06d}.csv"} for number in range(files - 1)]
    for number, group in enumerate((1, GROUP)[:count]):
        table = made_table(folder / f"table-{number:02d}", {"x": "long", "txid": "long"})
        for version, last in enumerate(range(group, txids + 1, group), 1):
            paths = [{"path": f"data/2013-{last:06d}.csv"}, *more]
            said = publication(last, group=group, read={"flights": {"files": paths}})
            append_version(table, version, said, at_ms=BEGAN_MS + last * 1000)
            versions[str(table)] = version
    for number in range(2, count):  # the others are like the second one
        table = shutil.copytree(
            folder / "table-01", folder / f"table-{number:02d}", copy_function=os.link
        )
        versions[str(table)] = versions[str(folder / "table-01")]
    return versions


def serve(folder: Path, txids: int, versions: dict[str, int]) -> None:
    """The child: the page, until its stdin is closed."""
    progress = Progress(committed=CommittedRecord(txid=txids, epoch=1, tables=versions))
    look = Look(time.time(), {"t": status_of(TopologyStatus("t", progress, 1, None, None, ()))})
    with Watch([], "zk1:2181", where=folder, feed=Told) as watch:
        Told.last.say(look)
        with served(watch) as url, settled():  # as `txn dashboard` does
            print(url, flush=True)
            sys.stdin.read()


@contextmanager
def server(folder: Path, txids: int, versions: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The address of a child that serves the page, and its process id."""
    (folder / "versions.json").write_text(json.dumps(versions), "utf-8")
    command = [sys.executable, "-m", __spec__.name, "--serve", str(folder), "--txids", str(txids)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip(), child.pid
    finally:
        child.stdin.close()
        child.wait(30)


def asked(url: str) -> tuple[float, float, float, int]:
    """(CPU milliseconds and milliseconds of the server, milliseconds in all, bytes)."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answer:
        body = answer.read()
    took = (time.perf_counter() - began) * 1000
    said = answer.headers.get("server-timing", "")
    whole, cpu = (float(each) for each in re.findall(r"dur=([\d.]+)", said))
    return cpu, whole, took, len(body)


def answer(url: str) -> dict[str, Any]:
    """The answer to a question."""
    with urllib.request.urlopen(url, timeout=60) as found:
        told: dict[str, Any] = json.load(found)
        return told


def cpu_secs(pid: int) -> float:
    """CPU time that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def requests(url: str, txids: int, table: str) -> dict[str, str]:
    """Name -> address of each question that the page asks."""
    name = quote(table)
    return {
        "overview": f"{url}api/overview",
        "topology, 1 h": f"{url}api/topology?name=t&minutes=60",
        "topology, all": f"{url}api/topology?name=t&minutes=0",
        "transactions": f"{url}api/transactions",
        "transactions, deep": f"{url}api/transactions?before={txids // 2}",
        "search, a file": f"{url}api/transactions?q={txids - 20:06d}.csv",
        "search, nothing": f"{url}api/transactions?q=nothing",
        "one txid": f"{url}api/transaction?txid={txids}",
        "tables": f"{url}api/tables",
        "versions": f"{url}api/versions?table={name}",
        "trouble": f"{url}api/trouble",
    }


def table_of(title: str, url: str, txids: int, table: str) -> None:
    """Print the times of each request."""
    print(f"\n{title}")
    heads = ("cpu p50", "cpu max", "server p50", "server max", "in all max")
    print(f"{'request':20} {' '.join(f'{head:>11}' for head in heads)} {'bytes':>9}")
    for name, address in requests(url, txids, table).items():
        found = [asked(address) for _ in range(ROUNDS)]
        cpus, servers, alls, sizes = zip(*found, strict=True)
        times = (median(cpus), max(cpus), median(servers), max(servers), max(alls))
        print(f"{name:20} {' '.join(f'{each:8.1f} ms' for each in times)} {sizes[-1]:9,}")


def main() -> None:
    """Make the logs, serve them, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--txids", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--files", type=int, default=1, help="that each txid reads")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        folder = Path(options.serve)
        versions = json.loads((folder / "versions.json").read_text("utf-8"))
        serve(folder, options.txids, versions)
        os._exit(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder, began = Path(scratch), time.monotonic()
        versions = made(folder, options.txids, options.tables, options.files)
        files = sum(versions.values())
        took = time.monotonic() - began
        print(f"{files:,} versions of {options.tables} tables made in {took:.0f} s")
        table = next(iter(versions))
        began = time.monotonic()
        with server(folder, options.txids, versions) as (url, pid):
            print(f"served after {time.monotonic() - began:.2f} s, {cpu_secs(pid):.2f} s of CPU")
            before, worked = time.monotonic(), cpu_secs(pid)
            while answer(f"{url}api/transactions")["span"] is None:
                time.sleep(0.02)
            took, worked = time.monotonic() - before, cpu_secs(pid) - worked
            print(f"first page of transactions {took:.2f} s later, {worked:.2f} s of CPU")
            table_of("while the logs are being indexed", url, options.txids, table)
            while answer(f"{url}api/tables")["reads_old"]:
                time.sleep(0.5)
            took = time.monotonic() - began
            print(f"\neverything is indexed after {took:.0f} s, {cpu_secs(pid):.0f} s of CPU")
            table_of("with everything indexed", url, options.txids, table)
            now, most = (memory_kb(pid, what) / 1000 for what in ("VmRSS", "VmHWM"))
            print(f"\nmemory {now:.0f} MB, at most {most:.0f} MB")


if __name__ == "__main__":
    main()
