"""One table's folder, a local path or a URI: what is read, listed, written and deleted there.

Whoever opens a location does so here, with the `storage_options` of its committer or spout.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from txn.delta.locations import local_path, normal
from txn.delta.retrying import retried
from txn.errors import RecoveryRefusedError, TopologyError

__all__ = ["READ_LIMIT", "Storage"]

T = TypeVar("T")

READ_LIMIT = 512 * 1024 * 1024
"""Bytes of a file that is read as a whole, such as a commit: a commit that adds 500,000 files."""
_PIECE = 16 * 1024 * 1024
_LOOKS = 10
"""How often a listing is asked for while folders vanish under it."""

_LONGEST_PATH = 3000
"""Bytes: Linux takes 4,096, files of the table included."""
_GLOB_CHARACTERS = frozenset("\\*?[]{}")


class Storage:
    """Names and file operations below one folder. Paths are relative to it, with `/`.

    Reading, listing and deleting is tried again when storage fails for a moment; every one may
    raise StorageUnavailableError or StorageRefusedError (`txn.delta.retrying`).

    Args:
        location: a local path, or a URI that pyarrow knows (`s3://`, `gs://`, `abfs://`,
            `hdfs://`, `file:`); `s3a://` is read as `s3://` here and kept for Spark.
        options: `storage_options`, credentials and endpoints for delta-rs; pyarrow has its own.
        by_delta: the files of a URI are reached through delta-rs as well. It cannot write them.

    Raises:
        TopologyError: nobody can open it, or no table can lie there.
    """

    def __init__(
        self, location: str, options: Mapping[str, str] | None = None, *, by_delta: bool = False
    ) -> None:
        self.location = location
        self.options = dict(options or {})
        self.filesystem: fs.FileSystem
        if (path := local_path(location)) is not None:
            self.filesystem, root = fs.LocalFileSystem(), path
            _refuse_unwritable(root)
            _refuse_percent(root)
        else:
            self.filesystem, root = _opened(location, self.options if by_delta else None)
        self.root = root.rstrip("/")
        self.is_local = path is not None
        self._below = f"{self.root}/" if self.is_local or self.root else ""

    @property
    def uri(self) -> str:
        """The folder as delta-rs takes it: an absolute path or a URI."""
        return self.root if self.is_local else normal(self.location)

    def url(self, path: str = "") -> str:
        """A file or folder as Spark takes it, independent of Spark's default file system."""
        base = f"file:{self.root}" if self.is_local else normal(self.location)
        return f"{base}/{path}" if path else base

    def read_url(self, path: str) -> str:
        """As `url`, escaped: Spark's readers take glob patterns where its writers do not."""
        url = self.url(path)
        return "".join(f"\\{char}" if char in _GLOB_CHARACTERS else char for char in url)

    def absolute(self, path: str) -> str:
        """A file as `self.filesystem` takes it."""
        return f"{self._below}{path}" if path else self.root

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of each file, None if it does not exist; one call for all."""
        if not paths:
            return []
        places = [self.absolute(path) for path in paths]
        found = self._retried(lambda: self.filesystem.get_file_info(places), "look at files of")
        return [info.size if info.type == fs.FileType.File else None for info in found]

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None when it does not exist.

        Raises:
            RecoveryRefusedError: it is larger than anything that is read as a whole.
        """

        def reading() -> bytes:
            with self.filesystem.open_input_stream(self.absolute(path)) as stream:
                return _read_whole(stream, f"'{path}' of table {self.location}")

        try:
            return self._retried(reading, f"read '{path}' of")
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, and the folders above it."""
        self.filesystem.create_dir(self.absolute(path.rpartition("/")[0]), recursive=True)
        with self.filesystem.open_output_stream(self.absolute(path)) as stream:
            stream.write(data)

    def files(self, folder: str) -> list[tuple[str, int]]:
        """(path, bytes) of every visible file below a folder, by path; nothing hidden (`.`, `_`).

        Hidden names are the business of Hadoop's file systems: checksums and markers.
        """
        found = [
            (self._relative(info), int(info.size))
            for info in self._walk(folder, recursive=True)
            if info.type == fs.FileType.File and not info.base_name.startswith((".", "_"))
        ]
        return sorted(found)

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly below a folder; empty when it does not exist."""
        return sorted(
            info.base_name
            for info in self._walk(folder, recursive=False)
            if info.type == fs.FileType.Directory
        )

    def entries(self) -> list[str]:
        """Names of everything directly below the table's folder; empty when it does not exist."""
        return sorted(info.base_name for info in self._walk("", recursive=False))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that it holds; nothing happens when it does not exist."""
        if not folder:
            raise ValueError("the table's own folder is never deleted; name a folder below it")
        try:
            place = self.absolute(folder)
            self._retried(lambda: self.filesystem.delete_dir(place), f"delete '{folder}' of")
        except FileNotFoundError:
            return

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files; those that do not exist are passed over."""
        for path in paths:
            try:
                place = self.absolute(path)
                self._retried(partial(self.filesystem.delete_file, place), f"delete '{path}' of")
            except FileNotFoundError:
                continue

    def _walk(self, folder: str, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self.absolute(folder), recursive=recursive, allow_not_found=True)

        def listing() -> list[fs.FileInfo]:
            for _ in range(_LOOKS):
                # A folder that goes while it is listed: "not found" for Arrow, all the same.
                with contextlib.suppress(FileNotFoundError):
                    return list(self.filesystem.get_file_info(selector))
            return list(self.filesystem.get_file_info(selector))

        return self._retried(listing, "list")

    def _retried(self, operation: Callable[[], T], what: str) -> T:
        """As `retried`; every read, listing and deletion comes through here."""
        return retried(operation, f"{what} table {self.location}")

    def _relative(self, info: fs.FileInfo) -> str:
        path: str = info.path
        return path[len(self._below) :]


def _read_whole(stream: Any, what: str) -> bytes:
    """All that a stream has; raises RecoveryRefusedError where it is too large."""
    pieces: list[bytes] = []
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        if len(pieces) * _PIECE > READ_LIMIT:
            raise RecoveryRefusedError(
                f"{what} has more than {READ_LIMIT:,} bytes, which no commit has. Restore that "
                "file from a backup.",
                number="TXN-315",
            )
    return b"".join(pieces)


def _opened(location: str, options: dict[str, str] | None) -> tuple[fs.FileSystem, str]:
    """The file system of a URI, and the path of the folder in it.

    Args:
        options: for delta-rs, in whose file system the path is ""; None: it is pyarrow's own.
    """
    uri = normal(location)
    try:
        if options is not None:
            return fs.PyFileSystem(DeltaStorageHandler(uri, options)), ""
        filesystem, root = fs.FileSystem.from_uri(re.sub("^s3[an]:", "s3:", uri))
    except (OSError, ValueError) as error:
        raise TopologyError(
            f"Table folder {location!r} cannot be opened: {error}. Use a local path, or a URI "
            "such as s3://bucket/folder.",
            number="TXN-121",
        ) from error
    if not root.strip("/"):
        raise TopologyError(
            f"Table folder {location!r} names no folder. Add one after the scheme and the bucket.",
            number="TXN-121",
        )
    return filesystem, root


def _refuse_unwritable(root: str) -> None:
    """Why a location is invalid for a file system, or would be read as another place."""
    odd = next((c for c in root if not c.isprintable()), None)
    if odd is not None or len(os.fsencode(root)) > _LONGEST_PATH:
        why = f"the character {odd!r}" if odd is not None else f"{len(root)} characters"
        raise TopologyError(
            f"Table folder {root[:200]!r} has {why}, which a table's path cannot have. Choose "
            "another path.",
            number="TXN-121",
        )


def _refuse_percent(root: str) -> None:
    """delta-rs 1.6 decodes `%41` in a local path when it loads a table, and not when it writes."""
    if match := re.search("%[0-9A-Fa-f]{2}", root):
        raise TopologyError(
            f"Table folder {root} has '{match[0]}' in its path, which Delta's library takes for an "
            "encoded character. Choose a path without it.",
            number="TXN-121",
        )
