"""Where a workload's input and tables lie: this machine's disk, or an S3 server that is far away.

The server, and the proxy that makes each request to it take 30 ms and counts it, run in a process
of their own: what they cost in Python must not meet the contender's own Python.

    python -m tests.benchmarks.store FOLDER     # answers "forget" and "told", a line of JSON each
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.benchmarks.data import DataSet
from tests.stores.proxy import Proxy
from tests.stores.s3 import S3Server, spark_conf, storage_options
from txn.machine.jars import S3A_PACKAGES

__all__ = ["LATENCY_SECS", "Disk", "FarStore", "Place"]

LATENCY_SECS = 0.030
BUCKET = "bench"
ROOT = Path(__file__).parents[2]


class Disk:
    """This machine's disk."""

    options: Mapping[str, str] = {}
    packages: tuple[str, ...] = ()
    conf: Mapping[str, str] = {}

    def __init__(self, data: DataSet | None) -> None:
        self._data = data

    def __enter__(self) -> Disk:  # noqa: PYI034 - typing.Self is Python 3.11
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def files(self, part: str, *, spark: bool = False) -> str:
        """A folder of the input: "rows" or "warm"."""
        assert self._data is not None
        return str(self._data.folder / part)

    def at(self, folder: Path, *, spark: bool = False) -> str:
        """What a contender writes into, in place of an empty folder of its own."""
        return str(folder)

    def forget(self) -> None:
        """Count anew."""

    def told(self, batches: int) -> dict[str, Any]:
        """Figures for the raw results."""
        return {}


class FarStore(Disk):
    """An S3 server, each request to which takes 30 ms.

    Args:
        data: its files lie on the server, too.
        latency: seconds that each request takes longer.
    """

    packages = S3A_PACKAGES

    def __init__(self, data: DataSet | None, latency: float = LATENCY_SECS) -> None:
        super().__init__(data)
        self._latency = latency
        self._folder = tempfile.TemporaryDirectory(prefix="far-store-")

    def __enter__(self) -> FarStore:  # noqa: PYI034
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._folder.name, str(self._latency)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        url, direct = self._answer()
        self.options = storage_options(url)
        conf = {**spark_conf(url, BUCKET), "fs.s3a.bucket.bench.performance.flags": "*"}
        self.conf = {f"spark.hadoop.{name}": value for name, value in conf.items()}
        self._direct = direct
        if self._data is not None:
            self._upload(self._data)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def files(self, part: str, *, spark: bool = False) -> str:
        return f"{'s3a' if spark else 's3'}://{BUCKET}/{part}"

    def at(self, folder: Path, *, spark: bool = False) -> str:
        return f"{'s3a' if spark else 's3'}://{BUCKET}/out/{folder.name.replace(' ', '-')}"

    def forget(self) -> None:
        self._ask("forget")

    def told(self, batches: int) -> dict[str, Any]:
        found = self._ask("told")
        each = {name: round(found[name] / max(1, batches), 1) for name in ("requests",)}
        return {"store": found, "requests_per_batch": each["requests"]}

    def _upload(self, data: DataSet) -> None:
        for part in ("rows", "warm"):
            for path in sorted((data.folder / part).iterdir()):
                self._ask(f"upload {part}/{path.name} {path}")

    def _ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


Place = Disk
"""A disk, or what is used as one is."""


def _serve(folder: Path, latency: float) -> None:
    with S3Server(folder) as server, Proxy(server.url, latency=latency) as proxy:
        (folder / "data" / BUCKET).mkdir()
        store = server.store(BUCKET)
        _say([proxy.url, server.url])
        for line in sys.stdin:
            question, *arguments = line.split()
            if question == "upload":
                store.put(arguments[0], Path(arguments[1]))
            if question == "told":
                _say(_figures(proxy))
            else:
                proxy.forget()
                _say("done")


def _figures(proxy: Proxy) -> dict[str, Any]:
    entries = [entry for entry in proxy.log if entry.operation != "HEAD BUCKET"]
    return {
        "requests": len(entries),
        "operations": dict(Counter(entry.operation for entry in entries).most_common()),
        "clients": dict(Counter(entry.client for entry in entries).most_common()),
        "bytes_received": sum(entry.received for entry in entries),
        "bytes_sent": sum(entry.sent for entry in entries),
    }


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), float(sys.argv[2]))
