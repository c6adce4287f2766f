"""What a `FileSpout` asks of an S3 server whose prefix has very many objects.

    python -m tests.benchmarks.listing [--objects 1000000] [--folders 1000] [--secs 60]

The server is versitygw on loopback. The objects lie in folders with names in ascending order and
are put there as files, past the server, which lists them like any others. The spout takes all of
them, 1,000 a batch; then new objects come. Time and requests are those of one plan that looks;
memory is the most that the Python process has had so far, less what it had before the first look.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql.types import StringType, StructField, StructType

from spouts.files import FileBatch, FileSpout
from tests.stores.proxy import Proxy
from tests.stores.s3 import storage_options
from tests.stores.versity import VersityServer
from txn.attempts import TransactionAttempt
from txn.interfaces import Keeper

__all__ = ["Shelf", "fill"]

LINKS = 10_000
"""Names of one file on disk: a million files of their own would take 4 GB."""
BATCH = 1_000
PAUSE_SECS = 0.1
"""How often a run asks a spout that has nothing to read."""
LINE = "| {:44} | {:>9} | {:>9} | {:>13} |\n"


class Shelf(Keeper):
    """Keeps segments in memory."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def keep(self, content: bytes) -> str | None:
        name = hashlib.blake2b(content, digest_size=16).hexdigest()
        self._contents[name] = content
        return name

    def kept(self, name: str) -> bytes:
        return self._contents[name]


class Watch:
    """Time, requests and memory of one step after the other."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._memory = most_resident()
        self.begin()

    def begin(self) -> None:
        self._proxy.log.clear()
        self._began = time.perf_counter()

    def requests(self) -> str:
        found = Counter(entry.operation for entry in self._proxy.log)
        return " + ".join(f"{count:,} {name}" for name, count in found.items()) or "none"

    def say(self, what: str) -> None:
        secs = time.perf_counter() - self._began
        more = f"{(most_resident() - self._memory) / 1e6:,.0f} MB"
        sys.stdout.write(LINE.format(what, f"{secs:.2f} s", self.requests(), more))
        sys.stdout.flush()
        self.begin()


def most_resident() -> int:
    """Bytes of this process in memory, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fill(bucket: Path, folders: int, each: int) -> None:
    """Make `in/00000/00000.txt` and so on."""
    for number in range(folders):
        folder = bucket / "in" / f"{number:05}"
        folder.mkdir(parents=True)
        for place in range(each):
            path = folder / f"{place:05}.txt"
            if (number * each + place) % LINKS == 0:
                source = path
                source.write_text("row\n")
            else:
                os.link(source, path)


def run(objects: int, folders: int, secs: float) -> None:
    with tempfile.TemporaryDirectory() as folder, VersityServer(Path(folder)) as server:
        bucket = server.bucket("lake")
        there = server.folder / "data" / bucket
        fill(there, folders, objects // folders)
        with Proxy(server.url) as proxy:
            spout = FileSpout(
                f"s3://{bucket}/in/*/*.txt",
                format="text",
                schema=StructType([StructField("value", StringType())]),  # text needs a session
                files_per_batch=BATCH,
                storage_options=storage_options(proxy.url),
            )
            spout.keep_with(Shelf())
            no_spark: Any = None
            spout.open(no_spark, None)
            _measure(spout, there / "in", Watch(proxy), secs)


def _measure(spout: FileSpout, folder: Path, watch: Watch, secs: float) -> None:
    sys.stdout.write(LINE.format("step", "time", "requests", "memory so far"))
    sys.stdout.write("|---|---|---|---|\n")
    watch.begin()
    batch = spout.initialize_transaction(TransactionAttempt(1), None)
    watch.say("the first look, at everything")
    txid, taken = 1, 0
    while batch is not None:
        newest, taken, txid = batch, taken + len(batch.files), txid + 1
        batch = spout.initialize_transaction(TransactionAttempt(txid), newest)
    watch.say(f"plans for the other {taken - BATCH:,} files")
    last = max(path.name for path in folder.iterdir())
    late = folder / last / "late.txt"
    late.write_text("row\n")
    newest = _wait(spout, newest, watch, "a look at the end that finds a file")
    (folder / "00000" / "late.txt").write_text("row\n")
    newest = _wait(spout, newest, watch, "a look at everything that finds a file")
    ends = time.monotonic() + secs
    watch.begin()
    while time.monotonic() < ends:
        spout.initialize_transaction(TransactionAttempt(txid + 2), newest)
        time.sleep(PAUSE_SECS)
    watch.say("nothing to read, and asked ten times a second")


def _wait(spout: FileSpout, newest: FileBatch, watch: Watch, what: str) -> FileBatch:
    """Plan until there is a batch; the plan that finds it is what counts."""
    while True:
        watch.begin()
        batch = spout.initialize_transaction(TransactionAttempt(2), newest)
        if batch is not None:
            watch.say(what)
            return batch
        time.sleep(PAUSE_SECS)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--folders", type=int, default=1_000)
    parser.add_argument("--secs", type=float, default=60.0, help="how long the last step takes")
    given = parser.parse_args(arguments)
    run(given.objects, given.folders, given.secs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
