"""Files of a table in an object store, on this machine's disk.

Only where the executors are threads of this process. What is read once need not travel. And a file
that is copied takes one request, side by side with others: Spark's reader asks five times a file,
and its writer twice, and both take the files of a task one after the other.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from txn.storage.storage import Storage

__all__ = ["LARGEST", "MOST", "Nearby", "is_worth_it"]

LARGEST = 16 * 1024 * 1024
"""Bytes of a file that is copied; a larger one takes longer on its way than asking for it."""
MOST = 256 * 1024 * 1024
"""Bytes that are copied at a time."""
_THREADS = 16
_COPIES = "copies"


class Nearby:
    """A folder that goes with this object, at the latest with this process. Thread-safe."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="txn-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.storage = Storage(self._folder)

    @contextmanager
    def copies(
        self, table: Storage, files: Sequence[tuple[str, int]]
    ) -> Iterator[Callable[[str], str]]:
        """Copy files of a table here, until the end of the context.

        Gives where Spark is to read each file: one that is large, or gone, in the table.

        Args:
            files: (path, bytes) of each; a path has no value twice.
        """
        chosen, left = [], MOST
        for path, size in files:
            if size <= min(LARGEST, left):
                chosen.append(path)
                left -= size
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=_COPIES) as folder:
            copies = Storage(folder)
            copy = partial(_copy, table, copies)
            with ThreadPoolExecutor(_THREADS) as pool:
                found = pool.map(copy, chosen, (f"{n}.parquet" for n in range(len(chosen))))
            urls = {path: url for path, url in zip(chosen, found, strict=True) if url is not None}
            yield lambda path: urls.get(path) or table.read_url(path)

    def send(self, table: Storage, paths: Collection[str]) -> None:
        """Copy files that were written here to the same paths of a table, one request each.

        Raises:
            StorageUnavailableError, StorageRefusedError: some of them are not there.
        """
        with ThreadPoolExecutor(_THREADS) as pool:
            for sent in [pool.submit(self._send, table, path) for path in paths]:
                sent.result()

    def _send(self, table: Storage, path: str) -> None:
        table.write(path, Path(self.storage.root, path).read_bytes())


def is_worth_it(sizes: Collection[int]) -> bool:
    """Return whether files of so many bytes are better written here, and sent on when whole."""
    return sum(sizes) <= MOST and max(sizes, default=0) <= LARGEST


def _copy(table: Storage, copies: Storage, path: str, name: str) -> str | None:
    """Where the copy can be read; None: there is no such file."""
    content = table.read(path)
    if content is None:
        return None
    # Not `Storage.write`, which waits until the disk has it.
    Path(copies.root, name).write_bytes(content)
    return copies.read_url(name)
