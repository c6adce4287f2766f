"""The contract of a store: files below one folder, on a disk, in an object store or on HDFS.

Paths are relative to the folder, with `/`, and spelled as the file is named (not percent-encoded).
A store raises the client's errors unchanged and never retries; `txn.storage.retrying` decides which
errors are momentary, and retries what may be repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Entry", "FileStore", "Store", "TooLargeError"]


class TooLargeError(Exception):
    """A file has more bytes than the caller takes into memory."""


class Entry(NamedTuple):
    """One file, as a listing or a HEAD shows it."""

    path: str
    size: int
    """Bytes."""
    version: str | None
    """Its ETag: changes with the content, the same in a listing and a HEAD, not a digest of the
    content. None where storage has no ETags: on disks and HDFS."""
    modified_ns: int
    """Nanoseconds since 1970, as exact as the storage is: S3 answers a HEAD in whole seconds and a
    listing in milliseconds."""


class Store(ABC):
    """Files below one folder. Thread-safe. Sends nothing before the first call.

    Every method may be called again after an error, except `put_if_absent`.
    """

    @abstractmethod
    def get(self, path: str, limit: int | None = None) -> bytes | None:
        """The bytes of a file; None if it does not exist.

        Args:
            limit: the most bytes to read.

        Raises:
            TooLargeError: the file has more; nothing was read.
        """

    @abstractmethod
    def beginning(self, path: str, length: int) -> bytes | None:
        """The first `length` bytes of a file, or all of a shorter one; None if it does not exist.

        One request.
        """

    @abstractmethod
    def tail(self, path: str, length: int, size: int | None = None) -> bytes | None:
        """The last `length` bytes of a file, or all of a shorter one; None if it does not exist.

        One request; on Azure, which has no suffix ranges, only if `size` is given.

        Args:
            size: of the file, if the caller knows it.
        """

    @abstractmethod
    def head(self, paths: Sequence[str]) -> list[Entry | None]:
        """Look up many files at once; None for one that does not exist.

        An object store answers the same for a bucket that does not exist.
        """

    @abstractmethod
    def walk(self, folder: str = "", after: str = "") -> Iterator[Entry]:
        """Every file below a folder and its subfolders, hidden ones too; none if it does not exist.

        In the order of the UTF-8 bytes of their paths. An object store keeps only one page of the
        listing in memory.

        Args:
            after: only files with a greater path, itself relative to the store. S3 and GCS begin
                there; other stores list everything and drop the paths before.
        """

    @abstractmethod
    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        """(paths of the folders, files) directly below a folder, each by path."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file that does not exist; False if something has that name already.

        Atomic: of several writers, whatever process they are in, at most one gets True, and a
        reader sees all of the file or none.

        **False does not tell who has written it**, and an error does not mean that it was not
        written: a request whose answer was lost may have been carried out, may be repeated by a
        proxy, and may still be carried out later. So unless it returns True, the caller reads the
        file and checks whether the content is its own, by a token that no other call has used.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it; a reader sees the old file or all of the new one."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; ignore those that do not exist."""

    def delete_folder(self, folder: str) -> None:
        """Delete all files below a folder; nothing happens if it does not exist."""
        self.delete(entry.path for entry in self.walk(folder))


class FileStore(Store):
    """A store whose files are opened, and then have a size: a disk, or HDFS."""

    def get(self, path: str, limit: int | None = None) -> bytes | None:
        def whole(size: int) -> tuple[int, int]:
            if limit is not None and size > limit:
                raise TooLargeError(f"'{path}' has {size:,} bytes")
            return 0, size

        return self._read(path, whole)

    def beginning(self, path: str, length: int) -> bytes | None:
        return self._read(path, lambda size: (0, min(length, size)))

    def tail(self, path: str, length: int, size: int | None = None) -> bytes | None:
        return self._read(path, lambda size: (max(0, size - length), size))

    @abstractmethod
    def _read(self, path: str, span: Callable[[int], tuple[int, int]]) -> bytes | None:
        """The bytes of a file between two places, which depend on its size; None if it is gone."""
