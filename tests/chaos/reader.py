"""A reader beside the run: a process of its own that reads the tables again and again.

    python -m tests.chaos.reader '{"folder": ..., "tables": {...}, "zookeeper": ..., "out": ...}'

It asks ZooKeeper which txid is committed, opens a table at its newest version, reads its Parquet
files (each once: a file never changes), and writes down what it saw:

- an append table: `txids`, {txid: [records, sum of numbers, sum of squares]} of those that are not
  as in the read before; null: gone. Below a join, a query or new values also the sum of what each
  row has met, and of its products with the numbers.
- a state table: `n`, `total`, `keys`, `digest` over the rows, a log table's partials put together.

It ends when its standard input does. Neither Spark nor the product's code is used.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from pyarrow import parquet
from pyarrow.fs import FileSystem, LocalFileSystem
from pydantic import BaseModel, Field

from tests.chaos.history import History
from tests.chaos.records import digest_of
from tests.logs import files_of

__all__ = ["AppendReader", "ReaderSpec", "UpsertReader"]

PAUSE_SECS = 0.25
ANSWER_SECS = 1.0


class ReaderSpec(BaseModel):
    """What the reader is to do."""

    folder: str
    storage_options: dict[str, str] = Field(default_factory=dict)
    """How a folder on a store is reached."""
    tables: dict[str, dict[str, str]]
    zookeeper: str
    committed: str
    """Path of the node that says which txid is committed."""
    out: str


class _FileReader:
    """The files of a table's newest version, each read once."""

    def __init__(self, path: str, options: Mapping[str, str], columns: list[str]) -> None:
        self._path = path
        self._options = dict(options)
        self._files: FileSystem = files_of(path, options) if options else LocalFileSystem()
        self._columns = columns
        self._table: deltalake.DeltaTable | None = None
        self.version = -1

    def newest(self) -> tuple[set[str], Callable[[str], pa.Table]] | None:
        """The files of the newest version, and how to read one; None: there is no table yet."""
        if self._table is None:
            # The log first: delta-rs raises when the folder of a failed first batch goes meanwhile.
            if not self._options and not (Path(self._path) / "_delta_log").is_dir():
                return None
            if not deltalake.DeltaTable.is_deltatable(self._path, self._options):
                return None
            self._table = deltalake.DeltaTable(self._path, storage_options=self._options)
        else:
            self._table.update_incremental()
        self.version = self._table.version()
        return set(self._table.file_uris()), self._read

    def _read(self, uri: str) -> pa.Table:
        # The file alone: its folders are named like partitions, and their values are not wanted.
        path = uri.removeprefix(f"{self._path}/") if self._options else uri.removeprefix("file://")
        with self._files.open_input_file(path) as file:
            read = parquet.ParquetFile(file).read(columns=self._columns)
        # Files differ in which columns they call nullable; their values do not.
        return pa.table({name: read[name] for name in self._columns})


class AppendReader:
    """Reads an append table."""

    def __init__(self, path: str, options: Mapping[str, str], *, derived: bool = False) -> None:
        columns = ["id", "x", "txid"] if derived else ["id", "txid"]
        self._files = _FileReader(path, options, columns)
        self._by_file: dict[str, dict[int, tuple[int, ...]]] = {}
        self._told: dict[int, list[int]] = {}

    def read(self) -> dict[str, Any] | None:
        """What has changed since the last read; None: there is no table yet."""
        newest = self._files.newest()
        if newest is None:
            return None
        uris, read = newest
        self._by_file = {uri: self._by_file.get(uri) or _sums(read(uri)) for uri in uris}
        now: dict[int, list[int]] = {}
        for sums in self._by_file.values():
            for txid, some in sums.items():
                so_far = now.get(txid) or [0] * len(some)
                now[txid] = [one + more for one, more in zip(so_far, some, strict=True)]
        changed: dict[str, list[int] | None] = {
            str(txid): sums for txid, sums in now.items() if self._told.get(txid) != sums
        }
        changed |= {str(txid): None for txid in self._told if txid not in now}
        self._told = now
        return {"version": self._files.version, "txids": changed}


def _sums(table: pa.Table) -> dict[int, tuple[int, ...]]:
    table = table.append_column("square", pc.multiply(table["id"], table["id"]))
    names = ["id", "square"]
    if "x" in table.column_names:
        table = table.append_column("product", pc.multiply(table["id"], table["x"]))
        names += ["x", "product"]
    sums = [("id", "count"), *((name, "sum") for name in names)]
    columns = table.group_by("txid").aggregate(sums).to_pydict()
    found = [columns["id_count"], *(columns[f"{name}_sum"] for name in names)]
    return dict(zip(columns["txid"], zip(*found, strict=True), strict=True))


class UpsertReader:
    """Reads a state table, in either layout: an upsert table has one row per key already."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._files = _FileReader(path, options, ["k", "n", "total", "top"])
        self._by_file: dict[str, pa.Table] = {}

    def read(self) -> dict[str, Any] | None:
        """What it holds now; None: there is no table yet."""
        newest = self._files.newest()
        if newest is None:
            return None
        uris, read = newest
        self._by_file = {uri: self._by_file.get(uri) or read(uri) for uri in uris}
        rows = self.rows()
        return {
            "version": self._files.version,
            "n": sum(row[1] for row in rows),
            "total": sum(row[2] for row in rows),
            "keys": len(rows),
            "digest": sum(digest_of(row[0], row[1:]) for row in rows) % 2**64,
        }

    def rows(self) -> list[tuple[Any, ...]]:
        """(key, n, total, top), one per key, of the version that was read last."""
        if not self._by_file:
            return []
        together = pa.concat_tables(list(self._by_file.values())).group_by("k")
        columns = together.aggregate([("n", "sum"), ("total", "sum"), ("top", "max")]).to_pydict()
        return list(
            zip(
                columns["k"],
                columns["n_sum"],
                columns["total_sum"],
                columns["top_max"],
                strict=True,
            )
        )


class Committed:
    """Which txid ZooKeeper calls committed; None while it does not answer."""

    def __init__(self, hosts: str, path: str) -> None:
        self._path = path
        self._client = KazooClient(
            hosts, timeout=4.0, connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=0.5)
        )
        self._client.start_async()

    def now(self) -> int | None:
        """Ask; never waits for long."""
        if not self._client.connected:
            return None
        try:
            data, _ = self._client.get_async(self._path).get(timeout=ANSWER_SECS)
        except (KazooException, KazooTimeoutError):
            return None
        return int(json.loads(data)["txid"]) if data else None

    def close(self) -> None:
        """End the session."""
        with contextlib.suppress(KazooException):
            self._client.stop()


def main(spec: ReaderSpec) -> None:
    """Read until standard input ends."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # servers go away all the time
    history = History(Path(spec.out))
    committed = Committed(spec.zookeeper, spec.committed)
    readers = {
        name: UpsertReader(path, spec.storage_options)
        if table["shape"] == "state"
        else AppendReader(path, spec.storage_options, derived=table["shape"] != "append")
        for name, table in spec.tables.items()
        for path in [f"{spec.folder}/{name}"]
    }
    last = False
    while not last:
        last = ended.is_set()  # once more after the end: the last version is read, too
        for name, reader in readers.items():
            txid = committed.now()
            began = time.time()
            try:
                seen = reader.read()
            except (OSError, DeltaError):
                if last or not spec.storage_options:
                    raise
                continue  # the store is away
            if seen is not None:
                took = round(time.time() - began, 3)
                history.add("read", table=name, committed=txid, took=took, **seen)
        if not last:
            ended.wait(PAUSE_SECS)
    committed.close()
    history.close()


if __name__ == "__main__":
    main(ReaderSpec.model_validate_json(sys.argv[1]))
