"""One table's folder, a local path or a URI: reads, lists, writes and deletes its files.

Every location is opened here, with the `storage_options` of its committer or spout.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from txn.errors import RecoveryRefusedError, TopologyError
from txn.storage.addresses import Address, account_in
from txn.storage.asking import threads
from txn.storage.catalog_names import is_table_name, unlocated
from txn.storage.hadoop import hadoop_settings
from txn.storage.locations import normal
from txn.storage.opening import open_store
from txn.storage.retrying import retried
from txn.storage.store import Store, TooLargeError

if TYPE_CHECKING:
    from pyarrow import parquet

__all__ = ["READ_LIMIT", "Storage"]

T = TypeVar("T")

READ_LIMIT = 512 * 1024 * 1024
"""Bytes of the largest file that is read whole: a commit that adds 500,000 files."""
_FOOTER, _LOCAL_FOOTER = 64 * 1024, 8 * 1024
"""Bytes read at the end of a Parquet file for its footer; few footers are longer than the first.
Over a network, a second request costs more than bytes; on a disk, bytes cost more."""
_FOOTER_END = 8
"""Bytes behind the footer: its length, and the format's magic number."""

_LONGEST_PATH = 3000
"""Bytes: Linux takes 4,096, files of the table included."""
_GLOB_CHARACTERS = frozenset("\\*?[]{}")


class Storage:
    """Names and file operations below one folder. Paths are relative to it, with `/`.

    Retries what may be repeated when storage fails for a moment: reading, listing, deleting,
    replacing a file. Each of them may raise StorageUnavailableError or StorageRefusedError
    (`txn.storage.retrying`).

    Args:
        location: a local path, or a URI that `txn.storage.opening` knows. With a name of Spark's
            catalog, everything but `location`, `options` and `is_local` raises TopologyError.
        options: `storage_options`, credentials and endpoints.

    Raises:
        TopologyError: it cannot be opened, or a table cannot be stored there.
    """

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location = location
        self.options = dict(options or {})
        named = is_table_name(location)
        self._opened = None if named else open_store(location, self.options)
        self.is_local = self._opened is None or self._address is None
        if not named:
            self._refuse_unusable()

    def _refuse_unusable(self) -> None:
        _refuse_unwritable(self.uri)
        _refuse_encoded(self.uri, remote=self._address is not None)
        if self._address is not None and not self._address.folder:
            raise TopologyError(
                f"Table folder {self.location!r} names no folder. Add one after the scheme and the "
                "bucket.",
                number="TXN-121",
            )

    @property
    def store(self) -> Store:
        """Its files."""
        return self._found[0]

    @property
    def _address(self) -> Address | None:
        return self._found[1]

    @property
    def _found(self) -> tuple[Store, Address | None]:
        if self._opened is None:
            raise unlocated(self.location)
        return self._opened

    @property
    def uri(self) -> str:
        """The folder in the form delta-rs takes: an absolute path or a URI."""
        return normal(self.location) if self._address is None else self._address.for_delta

    def url(self, path: str = "") -> str:
        """A file or folder in the form Spark takes, independent of its default file system."""
        if self._address is None:
            base = f"file:{self.uri}"
        else:
            base = self._address.for_spark(account_in(self.options))
        return f"{base}/{path}" if path else base

    @property
    def hadoop(self) -> dict[str, str]:
        """Options with which Spark's readers and writers reach the folder; none for a local one."""
        return hadoop_settings(self._address, self.options)

    def read_url(self, path: str) -> str:
        """Like `url`, escaped: Spark's readers take glob patterns where its writers do not."""
        url = self.url(path)
        return "".join(f"\\{char}" if char in _GLOB_CHARACTERS else char for char in url)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the bytes of each file, None if it does not exist; one call for all."""
        entries = self._retried(lambda: self.store.head(paths), "look at files of")
        return [None if entry is None else entry.size for entry in entries]

    def first_missing(self, paths: Sequence[str]) -> str | None:
        """Return the first of these files that does not exist; None if all exist."""
        sizes = self.sizes(paths)
        return next((path for path, size in zip(paths, sizes, strict=True) if size is None), None)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None when it does not exist.

        Raises:
            RecoveryRefusedError: it is larger than any file that is read whole.
        """
        try:
            return self._retried(lambda: self.store.get(path, READ_LIMIT), f"read '{path}' of")
        except TooLargeError as error:
            raise RecoveryRefusedError(
                f"'{path}' of table {self.location} has more than {READ_LIMIT:,} bytes, which no "
                "commit has. Restore that file from a backup.",
                number="TXN-315",
            ) from error

    def read_many(
        self, paths: Sequence[str], sizes_of: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[int | None]]:
        """Read `paths`, and the sizes of other files, as `read` and `sizes` do.

        Sends all requests at once: on an object store they cost one round trip.
        """
        if self.is_local or len(paths) + len(sizes_of) < 2:
            return [*map(self.read, paths)], self.sizes(sizes_of)
        with threads(len(paths) + len(sizes_of), "txn-read") as pool:
            contents = [pool.submit(self.read, path) for path in paths]
            sizes = [pool.submit(self.sizes, [path]) for path in sizes_of]
            return [one.result() for one in contents], [one.result()[0] for one in sizes]

    def footer(self, path: str, size: int) -> parquet.FileMetaData | None:
        """Read the footer of a Parquet file; None when it does not exist.

        One request, and a second one if the footer is longer than most.

        Args:
            size: of the file, in bytes.

        Raises:
            pyarrow.ArrowInvalid: it is not a Parquet file.
        """
        from pyarrow import BufferReader, parquet

        tail = self._tail(path, _LOCAL_FOOTER if self.is_local else _FOOTER, size)
        if tail is None:
            return None
        length = int.from_bytes(tail[-_FOOTER_END:-4], "little") + _FOOTER_END
        if len(tail) < length <= size:
            tail = self._tail(path, length, size)
            if tail is None:
                return None
        return parquet.read_metadata(BufferReader(tail))

    def _tail(self, path: str, length: int, size: int) -> bytes | None:
        ask = partial(self.store.tail, path, min(length, size), size)
        return self._retried(ask, f"read the footer of '{path}' of")

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, or replace it; a reader sees all of it or none."""
        self._retried(lambda: self.store.put(path, data), f"write '{path}' of")

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Store.put_if_absent`: unless True, read the file and compare. Never retried."""
        return self.store.put_if_absent(path, data)

    def files(self, folder: str) -> list[tuple[str, int]]:
        """(path, bytes) of every visible file below a folder, by path; not hidden ones (`.`, `_`).

        Hadoop's file systems use hidden names for checksums and markers.
        """
        entries = self._retried(lambda: [*self.store.walk(folder)], "list")
        return sorted(
            (entry.path, entry.size)
            for entry in entries
            if not entry.path.rpartition("/")[2].startswith((".", "_"))
        )

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly below a folder; empty when it does not exist."""
        folders, _ = self._retried(lambda: self.store.children(folder), "list")
        return sorted(map(_name, folders))

    def entries(self) -> list[str]:
        """Names of everything directly below the table's folder; empty when it does not exist."""
        folders, entries = self._retried(self.store.children, "list")
        return sorted(map(_name, [*folders, *(entry.path for entry in entries)]))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and everything in it; nothing happens when it does not exist."""
        if not folder:
            raise ValueError("the table's own folder is never deleted; name a folder below it")
        self._retried(lambda: self.store.delete_folder(folder), f"delete '{folder}' of")

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files; ignore those that do not exist."""
        names = [*paths]
        if names:
            what = f"delete '{names[0]}'" + (" and others" if len(names) > 1 else "")
            self._retried(lambda: self.store.delete(names), f"{what} of")

    def _retried(self, operation: Callable[[], T], what: str) -> T:
        """Call `retried`; everything but `put_if_absent` goes through here."""
        return retried(operation, f"{what} table {self.location}")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _refuse_unwritable(root: str) -> None:
    """Refuse a path that is too long, or has characters that do not print."""
    unprintable = next((c for c in root if not c.isprintable()), None)
    length = len(os.fsencode(root)) if unprintable is None else 0
    if unprintable is not None or length > _LONGEST_PATH:
        why = f"{length} bytes" if unprintable is None else f"the character {unprintable!r}"
        raise TopologyError(
            f"Table folder {root[:200]!r} has {why}, which a table's path cannot have. Choose "
            "another path.",
            number="TXN-121",
        )


def _refuse_encoded(root: str, *, remote: bool) -> None:
    """Refuse a path that delta-rs 1.6 reads as another place.

    It decodes `%41` when it loads a table, and not when it writes; a URI ends at `?` or `#`; and
    when it loads, it takes a backslash in a local path for a slash.
    """
    if match := re.search("%[0-9A-Fa-f]{2}|[?#]" if remote else r"%[0-9A-Fa-f]{2}|\\", root):
        meanings = {"%": "an encoded character", "\\": "a slash"}
        raise TopologyError(
            f"Table folder {root} has '{match[0]}' in its path, which Delta's library takes for "
            f"{meanings.get(match[0][0], 'the end of a location')}. Choose a path without it.",
            number="TXN-121",
        )
