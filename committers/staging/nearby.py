"""Copies of a remote table's files on this machine's disk.

Only if the executors are threads of this process. Files that are read once need not travel. And
copying a file takes one request, in parallel with others: Spark's reader sends five requests per
file, and its writer two, and both take the files of a task one after the other.

Sent files stay here: a table's file never changes, and the next turn need not fetch it to read it.
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
_COPIES, _KEPT = "copies", "kept"


class Nearby:
    """A folder that is deleted with this object, at the latest with this process.

    `storage` is for any thread; the methods over a table's files for one commit turn at a time.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="txn-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.storage = Storage(self._folder)
        self._local_files: dict[str, Path] = {}
        """Path in the table -> the local file that was sent there; the latest one last."""
        self._numbers = itertools.count()

    @contextmanager
    def copies(
        self, table: Storage, files: Sequence[tuple[str, int]]
    ) -> Iterator[Callable[[str], str]]:
        """Copy missing files of a table here, until the end of the context.

        Yields a function from a path to the URL for Spark: a large or missing file is read in the
        table.

        Args:
            files: (path, bytes) of each; a path has no value twice.
        """
        urls = self._local_urls(dict(files))
        chosen, left = [], MOST - sum(size for path, size in files if path in urls)
        for path, size in files:
            if path not in urls and size <= min(LARGEST, left):
                chosen.append(path)
                left -= size
        self._make_room(left, but=urls.keys())
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=_COPIES) as folder:
            copies = Storage(folder)
            copied = in_parallel(
                lambda one: _copy(table, copies, one[1], f"{one[0]}.parquet"), [*enumerate(chosen)]
            )
            urls |= {path: url for path, url in zip(chosen, copied, strict=True) if url is not None}
            yield lambda path: urls.get(path) or table.read_url(path)

    def _local_urls(self, files: Mapping[str, int]) -> dict[str, str]:
        """URLs of the table's files that are here and complete."""
        return {
            path: self.storage.read_url(f"{_KEPT}/{local.name}")
            for path, local in self._local_files.items()
            if path in files and _size(local) == files[path]
        }

    def _make_room(self, room: int, but: Collection[str] = ()) -> None:
        """Delete kept files, the oldest first, until the others fit into this many bytes."""
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
        in_parallel(lambda path: self._send(table, path), [*paths])
        folder = Path(self._folder, _KEPT)
        folder.mkdir(exist_ok=True)
        for path in paths:
            written = Path(self._folder, path)
            self._local_files[path] = written.rename(folder / f"{next(self._numbers)}.parquet")
        self._make_room(MOST)

    def _send(self, table: Storage, path: str) -> None:
        table.write(path, Path(self.storage.uri, path).read_bytes())


def is_worth_it(sizes: Collection[int]) -> bool:
    """Return whether files of these sizes are better written here and sent on when complete."""
    return sum(sizes) <= MOST and max(sizes, default=0) <= LARGEST


def _size(file: Path) -> int | None:
    """Bytes of a file; None if it is gone."""
    try:
        return file.stat().st_size
    except OSError:
        return None


def _copy(table: Storage, copies: Storage, path: str, name: str) -> str | None:
    """Copy a file and return the copy's URL; None if the file does not exist."""
    content = table.read(path)
    if content is None:
        return None
    # Not `Storage.write`, which waits for the disk.
    Path(copies.uri, name).write_bytes(content)
    return copies.read_url(name)
