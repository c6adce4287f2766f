"""(m): bytes that a running count writes for each byte of its result, log and compaction included.

Everything below the table's folder counts: data, log, checkpoints, what is staged; Hadoop's
checksum files and what a checkpoint of Structured Streaming or ZooKeeper keeps do not. One txid
(micro-batch) at a time, as where a job has caught up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.benchmarks.meter import Meter
from tests.benchmarks.ours import run_topology
from tests.benchmarks.peers import streaming
from tests.benchmarks.store import Disk
from tests.benchmarks.task import Answer, Task, answer, same_counts, session
from txn.embedded import EmbeddedZooKeeper

__all__ = ["run"]

LOOK_SECS = 0.05


class Written:
    """Looks again and again at what lies below a folder: a file that is gone counts as written.

    One that lives less than `LOOK_SECS` may be missed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.sizes: dict[str, int] = {}
        """path -> the most bytes that it had."""
        self.left: set[str] = set()
        """Paths that are there now."""

    def __enter__(self) -> Written:  # noqa: PYI034 - typing.Self is Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECS):
            self._look()

    def _look(self) -> None:
        self.left = set()
        for path, size in _files(self._folder):
            self.left.add(path)
            self.sizes[path] = max(size, self.sizes.get(path, 0))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Path and size of each file below a folder that may change meanwhile."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            if path.suffix not in (".crc", ".tmp"):
                with suppress(FileNotFoundError):
                    yield str(path), path.stat().st_size


def run(task: Task) -> Iterator[Answer]:
    """Option `layout`, "log" or "upsert"; or `mode`, as for `peers.streaming`."""
    out = task.folder / "run"
    layout = task.options.get("layout")
    spark = session("storage", None if layout else streaming.CONF)
    place = Disk(task.input)
    table = out if layout else out / "table"
    with Written(table) as written, Meter() as meter:
        if layout is None:
            streaming.run_query(spark, place, str(task.options["mode"]), "rows", out)
        else:
            with EmbeddedZooKeeper(task.folder / "zookeeper", protect=True) as server:
                config = {"max_spout_pending": 1}
                ran = run_topology(spark, place, "rows", server.hosts, layout, config, out)
    shown = ran.table.read(spark) if layout else spark.read.format("delta").load(str(table))
    correct = same_counts(spark, shown.select("word", "count"), task.input.expected)
    plain = task.folder / "plain"
    shown.select("word", "count").coalesce(1).write.format("delta").save(str(plain))
    result = sum(size for path, size in _files(plain) if path.endswith(".parquet"))
    total = sum(written.sizes.values())
    spark.stop()
    yield answer(
        total / result,
        meter,
        correct=correct,
        written_bytes=total,
        result_bytes=result,
        log_bytes=sum(size for path, size in written.sizes.items() if "/_delta_log/" in path),
        files=len(written.sizes),
        deleted=len(written.sizes) - len(written.left),
    )
