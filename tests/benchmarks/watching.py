"""All that looks at a run: metrics that are scraped, traces that are sent, a page that is read.

    python -m tests.benchmarks.watching URL ...    # reads them once a second, and says what it got

What belongs to the run (the exporters, their threads) is in its process; the page, the receiver of
traces and whoever reads are processes of their own on the same machine, as with `txn run
--dashboard`. The reader asks what the page of one topology asks in a browser, as often.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.benchmarks.tracing import RECEIVER
from tests.children import free_ports
from txn.metrics import PrometheusMetrics
from txn.observers import Observer
from txn.tracing import Traces

__all__ = ["watching"]

START_SECS = 30.0
EVERY_SECS = 1.0
SLOW_SECS = 3.0
"""Until a run is known to the page, and what a machine that is busy makes of a second."""
READS, ANSWERED = "reads", b"200\n"


@contextmanager
def watching(zookeeper: str, topology: str) -> Iterator[list[Observer]]:
    """Look at a run, while the body lasts; its observers.

    Args:
        zookeeper: as for `txn dashboard`.
        topology: its name.
    """
    scraped, shown = free_ports(2)
    page = f"http://127.0.0.1:{shown}/api"
    questions = [
        f"{page}/{what}?name={topology}" for what in ("topology", "series", "transactions")
    ]
    # Its own only, as with `txn run --dashboard`: those of all runs before would cost more.
    serve = ("-m", "txn", "dashboard", topology, "--zookeeper", zookeeper, "--port", str(shown))
    read = ("-m", __name__, *questions, f"http://127.0.0.1:{scraped}/metrics")
    with ExitStack() as stack:
        receiver = stack.enter_context(_child("-c", RECEIVER))
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{_line(receiver)}"
        stack.enter_context(_child(*serve))
        _get(f"{page}/overview", START_SECS)
        reader = stack.enter_context(_child(*read))
        assert _line(reader) == READS
        began = time.monotonic()
        yield [PrometheusMetrics(f"127.0.0.1:{scraped}"), Traces()]
        lasted = time.monotonic() - began
        reader.kill()
        assert reader.stdout is not None
        answers = reader.stdout.read().count(ANSWERED)
        told = f"{answers} answers in {lasted:.0f} s"
        assert answers > len(questions) * (lasted / EVERY_SECS - SLOW_SECS), told


def main(urls: list[str]) -> None:
    print(READS, flush=True)
    while True:
        for url in urls:
            try:
                _get(url, 0)
            except OSError:  # nobody has heard of the topology yet, or it is over
                continue
            sys.stdout.buffer.write(ANSWERED)
        sys.stdout.flush()
        time.sleep(EVERY_SECS)


def _get(url: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                answer.read()
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


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
    main(sys.argv[1:])
