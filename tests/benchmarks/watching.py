"""All that looks at a run: metrics that are scraped, traces that are sent, a page that is read.

    python -m tests.benchmarks.watching TOPOLOGY PORT METRICS_PORT    # what reads the two

What belongs to the run (the exporters, their threads) is in its process; the page, the receiver of
traces and whoever reads are processes of their own on the same machine, as with `txn run
--dashboard`. The reader does what a browser does in which the page of one topology is open.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.benchmarks.tracing import RECEIVER
from tests.children import free_ports, listens, wait_until
from txn.metrics import PrometheusMetrics
from txn.observers import Observer
from txn.tracing import Traces

__all__ = ["watching"]

START_SECS = 30.0
EVERY_SECS = 1.0
SCRAPE_SECS = 5.0
"""Prometheus asks every minute by itself, its examples every 15 s."""
SLOW_SECS = 3.0
"""Until a run is known to the page, and what a machine that is busy makes of a second."""
READS, ANSWERED = "reads", "200"


@contextmanager
def watching(zookeeper: str, topology: str) -> Iterator[list[Observer]]:
    """Look at a run, while the body lasts; its observers.

    Args:
        zookeeper: as for `txn dashboard`.
        topology: its name.
    """
    scraped, shown = free_ports(2)
    # Its own only, as with `txn run --dashboard`: those of all runs before would cost more.
    serve = ("-m", "txn", "dashboard", topology, "--zookeeper", zookeeper, "--port", str(shown))
    read = ("-m", __name__, topology, str(shown), str(scraped))
    with ExitStack() as stack:
        receiver = stack.enter_context(_child("-c", RECEIVER))
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{_line(receiver)}"
        stack.enter_context(_child(*serve))
        wait_until(lambda: listens(shown), "the page", START_SECS)
        reader = stack.enter_context(_child(*read))
        assert _line(reader) == READS
        began = time.monotonic()
        yield [PrometheusMetrics(f"127.0.0.1:{scraped}"), Traces()]
        lasted = time.monotonic() - began
        reader.kill()
        assert reader.stdout is not None
        answers = reader.stdout.read().split().count(ANSWERED.encode())
        told = f"{answers} answers in {lasted:.0f} s"
        assert answers > lasted / EVERY_SECS - SLOW_SECS, told


def main(topology: str, page: str, metrics: str) -> None:
    """Listen to the page as a browser does that shows one topology, and ask what it asks then."""
    print(READS, flush=True)
    asking = http.client.HTTPConnection("127.0.0.1", int(page), timeout=10)
    scraped_at = 0.0
    for line in urllib.request.urlopen(f"http://127.0.0.1:{page}/api/events", timeout=30):
        if not line.startswith(b"data:"):
            continue
        try:
            asking.request("GET", f"/api/topology?name={topology}&minutes=60")
            answer = asking.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            asking.close()  # the server ends a connection that is idle; the next one is another
            continue
        if answer.status == 200:
            print(ANSWERED, flush=True)
        if time.monotonic() - scraped_at >= SCRAPE_SECS:
            scraped_at = time.monotonic()
            with suppress(OSError):  # the run has not begun, or is over
                urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10).read()


@contextmanager
def _child(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def _line(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
