"""Copies of a remote table's files on this machine's disk.

Only if the executors are threads of this process: they see this disk. Scratch files, which are read
once, then never leave it. And copying a file takes one request, in parallel with others: Spark's
reader sends five requests per file, its writer two, and both take a task's files one by one.

Sent files stay here: a table's file never changes, so the next turn reads it without fetching it.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from txn.storage.asking import in_parallel
from txn.storage.storage import Storage

__all__ = ["LARGEST", "MOST", "Nearby", "is_worth_it"]

LARGEST = 16 * 1024 * 1024
"""The most bytes of a file to copy; copying a larger one takes longer than Spark's requests."""
MOST = 256 * 1024 * 1024
"""The most bytes to copy at a time, and to keep here."""
_KEPT = "kept"


class Nearby:
    """A folder that is deleted with this object, at the latest with this process.

    Any thread may use `storage`; the methods are for one commit turn at a time.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="txn-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.storage = Storage(self._folder)
        self._local_files: dict[str, Path] = {}
        """Path in the table -> the kept file that was sent there; the latest one last."""
        self._numbers = itertools.count()

    @contextmanager
    def copies(
        self, table: Storage, files: Sequence[tuple[str, int]]
    ) -> Iterator[Callable[[str], str]]:
        """Copy those of a table's files that are not kept here, until the end of the context.

        Yields a function from a path to the URL for Spark. A file that is too large to copy, or
        that does not exist, has the table's URL.

        Args:
            files: (path, bytes) of each file; each path once.
        """
        urls = self._local_urls(dict(files))
        chosen, left = [], MOST - sum(size for path, size in files if path in urls)
        for path, size in files:
            if path not in urls and size <= min(LARGEST, left):
                chosen.append(path)
                left -= size
        self._make_room(left, but=urls.keys())
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="copies") as folder:
            copies = Storage(folder)
            copied = in_parallel(lambda one: _copy(table, copies, *one), [*enumerate(chosen)])
            urls |= {path: url for path, url in zip(chosen, copied, strict=True) if url is not None}
            yield lambda path: urls.get(path) or table.read_url(path)

    def _local_urls(self, files: Mapping[str, int]) -> dict[str, str]:
        """Return the URLs of the table's files that are kept here and complete."""
        return {
            path: self.storage.read_url(f"{_KEPT}/{local.name}")
            for path, local in self._local_files.items()
            if path in files and _size(local) == files[path]
        }

    def _make_room(self, room: int, but: Collection[str] = ()) -> None:
        """Delete kept files except `but`, the oldest first, until `room` bytes hold the others."""
        others = [path for path in self._local_files if path not in but]
        for path in reversed(others):
            room -= _size(self._local_files[path]) or 0
            if room < 0:
                self._local_files.pop(path).unlink(missing_ok=True)

    def keep_only(self, paths: Collection[str]) -> None:
        """Delete the kept files of a table, except these."""
        for path in self._local_files.keys() - paths:
            self._local_files.pop(path).unlink(missing_ok=True)

    def send(self, table: Storage, paths: Collection[str]) -> None:
        """Copy files that were written here to the same paths of a table, one request each.

        Keeps them here under other names, as long as there is room.
        """
        written = {path: Path(self._folder, path) for path in paths}
        in_parallel(lambda path: table.write(path, written[path].read_bytes()), [*paths])
        folder = Path(self._folder, _KEPT)
        folder.mkdir(exist_ok=True)
        for path, file in written.items():
            self._local_files[path] = file.rename(folder / f"{next(self._numbers)}.parquet")
        self._make_room(MOST)


def is_worth_it(sizes: Collection[int]) -> bool:
    """Return whether to write files of these sizes here first, and send them when complete."""
    return sum(sizes) <= MOST and max(sizes, default=0) <= LARGEST


def _size(file: Path) -> int | None:
    """Return the bytes of a file; None if it is gone."""
    try:
        return file.stat().st_size
    except OSError:
        return None


def _copy(table: Storage, copies: Storage, number: int, path: str) -> str | None:
    """Copy a table's file and return the copy's URL; None if the file does not exist."""
    content = table.read(path)
    if content is None:
        return None
    name = f"{number}.parquet"
    # Not `Storage.write`, which waits for the disk.
    Path(copies.uri, name).write_bytes(content)
    return copies.read_url(name)
