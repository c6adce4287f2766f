"""Files of a table in an object store, on this machine's disk.

Only where the executors are threads of this process. What is read once need not travel. And a file
that is copied takes one request, side by side with others: Spark's reader asks five times a file,
and its writer twice, and both take the files of a task one after the other.

What was sent from here stays here: a table's file never changes, and the next turn that reads it
need not fetch it.
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
"""Bytes of a file that is copied; a larger one takes longer on its way than asking for it."""
MOST = 256 * 1024 * 1024
"""Bytes that are copied at a time, and bytes that stay here."""
_COPIES, _KEPT = "copies", "kept"


class Nearby:
    """A folder that goes with this object, at the latest with this process.

    `storage` is for any thread; the files of a table are for one commit turn at a time.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="txn-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.storage = Storage(self._folder)
        self._kept: dict[str, Path] = {}
        """Path in the table -> the file here that was sent there; the latest one last."""
        self._numbers = itertools.count()

    @contextmanager
    def copies(
        self, table: Storage, files: Sequence[tuple[str, int]]
    ) -> Iterator[Callable[[str], str]]:
        """Copy files of a table here that are not here yet, until the end of the context.

        Gives where Spark is to read each file: one that is large, or gone, in the table.

        Args:
            files: (path, bytes) of each; a path has no value twice.
        """
        urls = self._urls_of_kept(dict(files))
        chosen, left = [], MOST - sum(size for path, size in files if path in urls)
        for path, size in files:
            if path not in urls and size <= min(LARGEST, left):
                chosen.append(path)
                left -= size
        self._make_room(left, but=urls.keys())
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=_COPIES) as folder:
            copies = Storage(folder)
            found = in_parallel(
                lambda one: _copy(table, copies, one[1], f"{one[0]}.parquet"), [*enumerate(chosen)]
            )
            urls |= {path: url for path, url in zip(chosen, found, strict=True) if url is not None}
            yield lambda path: urls.get(path) or table.read_url(path)

    def _urls_of_kept(self, files: Mapping[str, int]) -> dict[str, str]:
        """Where those of a table's files can be read that are here, whole."""
        return {
            path: self.storage.read_url(f"{_KEPT}/{kept.name}")
            for path, kept in self._kept.items()
            if path in files and _size(kept) == files[path]
        }

    def _make_room(self, room: int, but: Collection[str] = ()) -> None:
        """Delete kept files, the oldest first, until the others have so many bytes at most."""
        others = [path for path in self._kept if path not in but]
        for path in reversed(others):
            room -= _size(self._kept[path]) or 0
            if room < 0:
                self._kept.pop(path).unlink(missing_ok=True)

    def keep_only(self, paths: Collection[str]) -> None:
        """Delete what is kept of a table's files, but for these."""
        for path in self._kept.keys() - paths:
            self._kept.pop(path).unlink(missing_ok=True)

    def send(self, table: Storage, paths: Collection[str]) -> None:
        """Copy files that were written here to the same paths of a table, one request each.

        They stay here as well, elsewhere, as long as there is room.

        Raises:
            StorageUnavailableError, StorageRefusedError: some of them are not there.
        """
        in_parallel(lambda path: self._send(table, path), [*paths])
        folder = Path(self._folder, _KEPT)
        folder.mkdir(exist_ok=True)
        for path in paths:
            written = Path(self._folder, path)
            self._kept[path] = written.rename(folder / f"{next(self._numbers)}.parquet")
        self._make_room(MOST)

    def _send(self, table: Storage, path: str) -> None:
        table.write(path, Path(self.storage.root, path).read_bytes())


def is_worth_it(sizes: Collection[int]) -> bool:
    """Return whether files of so many bytes are better written here, and sent on when whole."""
    return sum(sizes) <= MOST and max(sizes, default=0) <= LARGEST


def _size(file: Path) -> int | None:
    """Bytes of a file; None: it is gone."""
    try:
        return file.stat().st_size
    except OSError:
        return None


def _copy(table: Storage, copies: Storage, path: str, name: str) -> str | None:
    """Where the copy can be read; None: there is no such file."""
    content = table.read(path)
    if content is None:
        return None
    # Not `Storage.write`, which waits until the disk has it.
    Path(copies.root, name).write_bytes(content)
    return copies.read_url(name)
