"""A folder of this machine, through `os` alone."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

from txn.storage.store import Entry, FileStore

__all__ = ["LocalStore", "sync_folder", "temporary_file"]


_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Error numbers of a file system without hard links (FAT, many network and FUSE mounts)."""
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_RENAME_EXCL = 4


class LocalStore(FileStore):
    """Files below a local folder, which need not exist.

    Symbolic links are followed for reading and listing, and deleted as links.

    Args:
        root: an absolute path.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._below = f"{root.rstrip('/')}/"

    def _read(self, path: str, span: Callable[[int], tuple[int, int]]) -> bytes | None:
        try:
            file = os.open(self._place(path), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            start, end = span(os.fstat(file).st_size)
            data = os.pread(file, end - start, start)
            while more := os.pread(file, end - start - len(data), start + len(data)):
                data += more  # the system reads at most 2 GiB at once
        finally:
            os.close(file)
        return data

    def head(self, paths: Sequence[str]) -> list[Entry | None]:
        return [*map(self._file_entry, paths)]

    def walk(self, folder: str = "", after: str = "") -> Iterator[Entry]:
        """See `Store`; lists everything before it yields the first file."""
        entries = sorted(self._files(folder), key=lambda entry: os.fsencode(entry.path))
        start = os.fsencode(after)
        return iter([entry for entry in entries if not after or os.fsencode(entry.path) > start])

    def children(self, folder: str = "") -> tuple[list[str], list[Entry]]:
        folders, entries = self._scan(folder)
        return sorted(folders), sorted(entries, key=lambda entry: entry.path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """See `Store`. As durable as a commit of delta-rs on a disk: not synced."""
        place = self._place(path)
        with temporary_file(place, data, durable=False) as temporary:
            try:
                _name_if_free(temporary, place)
            except FileExistsError:
                return False
        return True

    def put(self, path: str, data: bytes) -> None:
        """See `Store`. The file outlasts a power cut."""
        place = self._place(path)
        with temporary_file(place, data, durable=True) as temporary:
            os.replace(temporary, place)
        folder = os.path.dirname(place)
        # The names of the file and of its folder have to last as well.
        sync_folder(folder)
        sync_folder(os.path.dirname(folder))

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._place(path))

    def delete_folder(self, folder: str) -> None:
        """See `Store`; deletes a link to a folder, not its target."""
        place = self._place(folder)
        try:
            if stat.S_ISDIR(os.lstat(place).st_mode):
                shutil.rmtree(place)
            else:
                os.unlink(place)
        except FileNotFoundError:
            # Gone, or another process is deleting it at the same time.
            if os.path.isdir(place):
                shutil.rmtree(place, ignore_errors=True)

    def _place(self, path: str) -> str:
        return self._below + path if path else self.root

    def _file_entry(self, path: str) -> Entry | None:
        try:
            status = os.stat(self._below + path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _entry(path, status) if stat.S_ISREG(status.st_mode) else None

    def _files(self, folder: str) -> list[Entry]:
        files: list[Entry] = []
        left = [folder]
        while left:
            folders, entries = self._scan(left.pop())
            files += entries
            left += folders
        return files

    def _scan(self, folder: str) -> tuple[list[str], list[Entry]]:
        before = f"{folder}/" if folder else ""
        folders: list[str] = []
        entries: list[Entry] = []
        try:
            with os.scandir(self._place(folder)) as listing:
                for one in listing:
                    with contextlib.suppress(FileNotFoundError):  # gone, or a link to nothing
                        if one.is_dir():
                            folders.append(before + one.name)
                        elif one.is_file():
                            entries.append(_entry(before + one.name, one.stat()))
        except FileNotFoundError:
            return [], []
        return folders, entries


def _entry(path: str, status: os.stat_result) -> Entry:
    return Entry(path, status.st_size, None, status.st_mtime_ns)


@contextlib.contextmanager
def temporary_file(place: str, data: bytes, *, durable: bool) -> Iterator[str]:
    """Write a hidden file beside `place`; it is deleted when the block ends."""
    folder, name = os.path.split(place)
    temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
    try:
        try:
            number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(number, "wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            if durable:
                os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _name_if_free(temporary: str, place: str) -> None:
    """Give a file its final name; FileExistsError if the name is taken."""
    try:
        os.link(temporary, place)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_if_absent(temporary, place)


def _rename_if_absent(temporary: str, place: str) -> None:
    """Rename by the system call that refuses an existing name, which Python does not offer.

    Raises:
        FileExistsError: the name is taken.
        OSError: this file system has neither hard links nor such a rename: no table can be
            written there safely.
    """
    library = ctypes.CDLL(None, use_errno=True)
    old, new = os.fsencode(temporary), os.fsencode(place)
    if sys.platform == "darwin":
        failed = library.renamex_np(old, new, _RENAME_EXCL)
    else:
        failed = library.renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE)
    if not failed:
        return
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        raise FileExistsError(number, os.strerror(number), place)
    raise OSError(
        errno.EPERM if number in (errno.EINVAL, *_NO_LINKS) else number,
        f"{os.strerror(number)}: this file system can neither link a file nor rename it on "
        "condition that the name is free, so two writers could overwrite each other's commit",
        place,
    )


def sync_folder(folder: str) -> None:
    """Flush a folder's entries to disk, if its file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # this mount cannot sync folders
            raise
    finally:
        os.close(handle)
