"""Who is on the stage of the recorded run: a service that can go away, and drivers to be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tests.children import LOOPBACK, free_ports
from tests.faults.driver import CONF

__all__ = ["ROOT", "Driver", "Sale", "Service"]

ROOT = Path(__file__).parents[2]
END_SECS = 120.0
PROGRAM = """
import os, sys
import txn.machine.liveness
from tests.faults.warm import adopt
from txn.cli.app import main
machine = os.environ["TEST_MACHINE"]
if machine:
    txn.machine.liveness.machine_id = lambda: machine
adopt()
sys.argv[0] = "txn"
main()
"""

Sale = tuple[str, str]
"""(shop, amount)."""


class Service:
    """Tells sales over HTTP. It can go away, and comes back on its port."""

    def __init__(self) -> None:
        self.sales: list[Sale] = []
        (self._port,) = free_ports(1)
        self._server: ThreadingHTTPServer | None = None
        self.url = f"http://{LOOPBACK}:{self._port}"

    def __enter__(self) -> Self:
        self.come()
        return self

    def __exit__(self, *error: object) -> None:
        self.go()

    def come(self) -> None:
        """Answer from now on."""
        sales = self.sales

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                what, *span = self.path.strip("/").split("/")
                found = len(sales) if what == "size" else sales[int(span[0]) : int(span[1])]
                body = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self._server = server = ThreadingHTTPServer((LOOPBACK, self._port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def go(self) -> float:
        """Refuse connections from now on; when that began."""
        at = time.time()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        return at


class Driver:
    """`txn run` in a process of its own.

    Args:
        folder: with the program, `sales.py`.
        machine: on which the driver believes to be; empty: on this one.
        port: of its metrics.
        environ: added to our own variables.
    """

    def __init__(
        self, folder: Path, machine: str, port: int, environ: Mapping[str, str], *options: str
    ) -> None:
        self.instance = f"{LOOPBACK}:{port}"
        self._said = folder / f"driver-{port}.out"
        settings = [word for key, value in CONF.items() for word in ("--conf", f"{key}={value}")]
        run = ("run", "sales.py:topology", "--master", "local[2]", "--metrics", self.instance)
        with self._said.open("xb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *run, *settings, *options],
                cwd=folder,
                env={**os.environ, **environ, "PYTHONPATH": str(ROOT), "TEST_MACHINE": machine},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.name = f"{socket.gethostname()}:{self._process.pid}"
        """As the page has it."""

    def kill(self) -> float:
        """SIGKILL it, with all that it has started; when that was."""
        at = time.time()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return at

    def stop(self) -> int:
        """SIGTERM it; its exit code."""
        self._process.terminate()
        return self._process.wait(END_SECS)

    def end(self) -> None:
        """Kill it, if it is still there."""
        if self._process.poll() is None:
            self.kill()
