"""The contract of a store: files below one folder, on a disk, in an object store or on HDFS.

Paths are relative to the folder, with `/`, and spelled as the file is named (not percent-encoded).
An error is raised as the client raises it; `txn.storage.retrying` says which ones are momentary,
and repeats what may be repeated. A store itself repeats nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["Entry", "Store", "TooLargeError"]


class TooLargeError(Exception):
    """A file has more bytes than the caller takes into memory."""


class Entry(NamedTuple):
    """One file, as a listing or a look at it shows it."""

    path: str
    size: int
    """Bytes."""
    version: str | None
    """Its ETag, which changes whenever the content does, and is the same in a listing and in a
    look; not a digest of the content. None where storage has none: on disks and HDFS."""
    modified_ns: int
    """Nanoseconds since 1970, as exact as the storage is: S3 answers a look (HEAD) in whole seconds
    and a listing in milliseconds."""


class Store(ABC):
    """Files below one folder. Thread-safe. Nothing is asked before the first call.

    Every method may be called again after an error, with one exception: `put_if_absent`.
    """

    @abstractmethod
    def get(self, path: str, limit: int | None = None) -> bytes | None:
        """The bytes of a file; None if it does not exist.

        Args:
            limit: most bytes that are read.

        Raises:
            TooLargeError: it has more; nothing was read.
        """

    @abstractmethod
    def beginning(self, path: str, length: int) -> bytes | None:
        """The first `length` bytes of a file, or all of a shorter one; None if it does not exist.

        One request.
        """

    @abstractmethod
    def tail(self, path: str, length: int, size: int | None = None) -> bytes | None:
        """The last `length` bytes of a file, or all of a shorter one; None if it does not exist.

        One request. Only Azure knows no suffixes: there it is one request if `size` is given.

        Args:
            size: of the file, if the caller knows it.
        """

    @abstractmethod
    def head(self, paths: Sequence[str]) -> list[Entry | None]:
        """Look at many files at once; None for one that does not exist.

        An object store answers the same for a bucket that does not exist.
        """

    @abstractmethod
    def walk(self, folder: str = "", after: str = "") -> Iterator[Entry]:
        """Every file below a folder and its subfolders, hidden ones too; none if it does not exist.

        In the order of the UTF-8 bytes of their paths. Of a listing that is as long as a million
        objects, only a page is in memory.

        Args:
            after: only files with a greater path, itself relative to the store. S3 and GCS begin
                there; elsewhere everything is listed, and what comes before is dropped.
        """

    @abstractmethod
    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        """(paths of the folders, files) directly below a folder, each by path."""

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a file that does not exist; False if something has that name already.

        Atomic: of several writers, whatever process they are in, at most one gets True, and a
        reader sees all of the file or none.

        **False does not say who has written it**, and an error does not say that nobody has: a
        request whose answer was lost may have been carried out, may be repeated by something on
        the way, and may still be carried out later. So unless it is True, the caller reads the file
        and looks whether the content is its own: content that is to be told apart has a token
        that no other call has used.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it; a reader sees the old file or all of the new one."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that do not exist are passed over."""

    def delete_folder(self, folder: str) -> None:
        """Delete all files below a folder; nothing happens if it does not exist."""
        self.delete(entry.path for entry in self.walk(folder))
