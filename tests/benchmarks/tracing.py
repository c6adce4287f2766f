"""What traces and lineage cost a run: tiny batches with and without them, in pairs.

python -m tests.benchmarks.tracing [--batches 300] [--pairs 6] [--lineage]

Traces go over OTLP to a receiver in another process that only counts; lineage goes to a file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.observers import run
from txn.lineage import Lineage
from txn.observers import Observer
from txn.session import delta_session
from txn.tracing import Traces

RECEIVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measured(make: Callable[[], Observer], batches: int, pairs: int) -> dict[str, object]:
    spark = delta_session("traced", master="local[2]")
    run(spark, batches, [])  # warm
    ratios, seconds = [], {"without": [], "with": []}
    for pair in range(pairs):
        both: list[tuple[str, list[Observer]]] = [("without", []), ("with", [make()])]
        for name, observers in both if pair % 2 else reversed(both):
            seconds[name].append(run(spark, batches, observers))
        ratios.append(seconds["with"][-1] / seconds["without"][-1])
    spark.stop()
    return {
        "ms_per_batch": {
            name: round(statistics.median(found) / batches * 1000, 2)
            for name, found in seconds.items()
        },
        "ratios": [round(ratio, 4) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--lineage", action="store_true", help="lineage in place of traces")
    options = parser.parse_args()
    logging.getLogger("txn").setLevel(logging.WARNING)
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE) as receiver,
    ):
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{port}"
        transport = {"type": "file", "log_file_path": str(Path(folder) / "lineage"), "append": True}
        os.environ["OPENLINEAGE__TRANSPORT"] = json.dumps(transport)
        make = Lineage if options.lineage else Traces
        print(json.dumps(measured(make, options.batches, options.pairs), indent=1))
        receiver.kill()


if __name__ == "__main__":
    main()
