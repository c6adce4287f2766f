"""List files: local ones folder by folder, remote ones by their store.

A name keeps the spelling of the pattern (relative stays relative), so a project that is moved
together with its data continues where it stopped.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from txn.storage.addresses import account_in
from txn.storage.hadoop import hadoop_settings
from txn.storage.local import LocalStore
from txn.storage.locations import local_path
from txn.storage.opening import open_store
from txn.storage.retrying import retried
from txn.storage.store import Entry, Store

__all__ = ["PACKED", "PAGE", "FileStat", "Listing", "stat_of"]

PACKED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")
"""Endings of files that Spark unpacks, in small letters only."""
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_WILD = re.compile(r"[*?\[]")
_SECOND = 1_000_000_000
_FEW = 900
"""Files that one request to S3 returns: a page of 1000, less room for markers of folders."""
PAGE = 50_000
"""Files of a listing that are in memory at once, with all their facts: 20 MB."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """The facts that distinguish a file from another one under the same name."""

    size: int
    """Bytes."""
    mtime_ns: int | None
    """Time of the last change, in nanoseconds since 1970; None: the storage has none."""
    version: str | None = None
    """ETag; None on disks and HDFS."""

    def is_still(self, planned: FileStat) -> bool:
        """Return True if this is the planned file: by ETag if both have one, else by time."""
        if self.size != planned.size:
            return False
        if self.version is not None and planned.version is not None:
            return self.version == planned.version
        return self.mtime_ns == planned.mtime_ns


class Listing:
    """The files that a pattern matches now.

    Its methods raise StorageUnavailableError or StorageRefusedError if the storage does not answer.

    Args:
        pattern: a path or URI with `*`, `?`, `[...]` and `**` (any number of folders).
        options: `storage_options` of a URI's storage.

    Raises:
        TopologyError: a scheme with one slash (except `file:/x`, which is a path), or an unknown
            scheme.
    """

    def __init__(self, pattern: str, options: Mapping[str, str] | None = None) -> None:
        scheme = _SCHEME.match(pattern)
        path = None if scheme else local_path(pattern)  # refuses a scheme with one slash
        if path and pattern[:5].lower() == "file:":
            pattern = path
        self.pattern = pattern if scheme else os.path.normpath(os.path.expanduser(pattern))
        self.remote = scheme is not None  # file:// too: it is read through its store
        # Relative names start at the folder in which the program started, even if it changes later.
        self._folder = os.getcwd()
        self.base = _fixed_part(self.pattern)
        """The pattern's part without wildcards: a folder with its slash, or ""."""
        self._matcher = _matcher(self.pattern[len(self.base) :])
        self._store: Store = LocalStore("/")
        self.hadoop: dict[str, str] = {}
        """Options for Spark's readers to reach the files."""
        if scheme:
            self._store, address = open_store(self.base, options)
            account = account_in(options or {})
            self.hadoop = hadoop_settings(address, options or {})
            self._spark = address.for_spark(account) if address else self.base.rstrip("/")

    @property
    def folder(self) -> str:
        """The folder above all its files: a URI, or an absolute path."""
        folder = self.base.rpartition("/")[0]
        return folder if self.remote else os.path.normpath(os.path.join(self._folder, folder))

    @property
    def kind(self) -> str:
        """The spelling of names: "relative", "absolute" or the URI's scheme."""
        if self.remote:
            return self.pattern.partition(":")[0]
        return "absolute" if os.path.isabs(self.pattern) else "relative"

    def names(self) -> list[str]:
        """Return the matching names in name order, without hidden and unfinished files."""
        if self.remote:
            return self._remote_names()
        names = retried(self._local_names, f"list {self.pattern}")
        return sorted(name for name in names if not self._is_skipped(name))

    def first_few(self, most: int) -> list[str]:
        """Return the first of `names` that are files and not empty.

        Remotely they come from the first page that has any.
        """
        if not self.remote:
            names = (name for name in self.names() if (at := self.stat(name)) and at.size)
            return list(islice(names, most))
        for page in self.pages(at_once=_FEW):
            if full := [self.base + e.path for e in page if self.fits(e) and e.size]:
                return full[:most]
        return []

    def fits(self, entry: Entry) -> bool:
        """Return True if `names` would have this file of `pages`."""
        return self.matches(self.base + entry.path)

    def pages(self, after: str = "", at_once: int = PAGE) -> Iterator[list[Entry]]:
        """Yield all files of a remote storage below `base`, in the order of their names.

        The paths are relative to `base`. Only one part of the listing is in memory; if the storage
        fails for a moment, the listing continues where it stopped.

        Args:
            after: only names that sort after this path.
            at_once: most files of a part.
        """
        listing: Iterator[Entry] | None = None
        cursor = after

        def page() -> list[Entry]:
            nonlocal listing
            if listing is None:
                listing = iter(self._store.walk(after=cursor))
            try:
                return [*islice(listing, at_once)]
            except BaseException:
                listing = None  # a retry begins a new one after the cursor
                raise

        while entries := retried(page, f"list {self.pattern}"):
            cursor = entries[-1].path
            yield entries

    def stat(self, name: str) -> FileStat | None:
        """Return `stats` of one file."""
        return self.stats([name])[0]

    def stats(self, names: Sequence[str]) -> list[FileStat | None]:
        """Return size, time and version of files, remotely in parallel; None: no such file."""
        if not names:
            return []
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return retried(lambda: self._stats(names), f"look at {names[0]}{more}")

    def _stats(self, names: Sequence[str]) -> list[FileStat | None]:
        entries = self._store.head([*map(self._path, names)])
        return [None if entry is None else stat_of(entry) for entry in entries]

    def beginning(self, name: str, length: int) -> bytes | None:
        """Read the first bytes of a file; None: it does not exist."""
        return retried(lambda: self._store.beginning(self._path(name), length), f"read {name}")

    def opened(self, name: str) -> IO[bytes]:
        """Open a file for reading; a remote one is in memory."""
        if not self.remote:
            return open(self.local(name), "rb")
        content = retried(lambda: self._store.get(self._path(name)), f"read {name}")
        return io.BytesIO(content or b"")

    def tail(self, name: str, length: int) -> bytes | None:
        """Read the last bytes of a file; None: it does not exist."""
        return retried(lambda: self._store.tail(self._path(name), length), f"read {name}")

    def _path(self, name: str) -> str:
        """Return the path within the store."""
        return name[len(self.base) :] if self.remote else self.local(name).lstrip("/")

    def spark_ancestor(self, folder: str) -> str | None:
        """Return `folder` as Spark spells it, if it is `self.folder` or above; else None.

        Args:
            folder: in the spelling of the pattern, or absolute.
        """
        if not self.remote:
            if folder[:5].lower() == "file:":
                folder = local_path(folder) or folder
            folder = os.path.normpath(os.path.join(self._folder, os.path.expanduser(folder)))
        inner, outer = f"{self.folder.rstrip('/')}/", f"{folder.rstrip('/')}/"
        if not inner.startswith(outer):
            return None
        if not self.remote:
            return "file:" + folder
        return self._spark.removesuffix(inner[len(outer) :].rstrip("/")).rstrip("/")

    def times(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Yield the last change of each of these local files; skips those that cannot be read."""
        for name in names:
            with contextlib.suppress(OSError):
                yield name, os.stat(os.path.join(self._folder, name)).st_mtime_ns

    def is_below_base(self, name: str) -> bool:
        """Return True if the name lies below `base`, whatever the wildcards match."""
        below = name[len(self.base) :]
        return name.startswith(self.base) and "\0" not in name and ".." not in below.split("/")

    def matches(self, name: str) -> bool:
        """Return True if `names` would have a file of this name."""
        below = name[len(self.base) :]
        fits = name.startswith(self.base) and self._matcher.fullmatch(below) is not None
        return fits and not self._is_skipped(name)

    def new_name(self, stem: str) -> str | None:
        """Make a name that the pattern matches from `stem`; None: it matches no such name.

        `stem` takes the place of a `*` in the last part that has one, "txn-rows" that of a `*` in
        any other part; `**` stands for no folder.
        """
        parts = [part for part in self.pattern[len(self.base) :].split("/") if part != "**"]
        starred = [number for number, part in enumerate(parts) if "*" in part]
        for number in starred:
            before, _, after = parts[number].partition("*")
            made = stem if number == starred[-1] else "txn-rows"
            parts[number] = before + made + after.replace("*", "")
        name = self.base + "/".join(parts)
        return name if starred and self.matches(name) else None

    def local(self, name: str) -> str:
        """Return the absolute path of a local file."""
        return os.path.join(self._folder, name)

    def is_folder(self) -> bool:
        """Return True if the pattern has no wildcard and names a folder."""
        if _WILD.search(self.pattern):
            return False
        if self.remote:
            return any(self._store.children(self.pattern[len(self.base) :]))
        return os.path.isdir(os.path.join(self._folder, self.pattern))

    def missing_folder(self) -> str | None:
        """Return the folder before the first wildcard if it is local and missing."""
        exists = self.remote or os.path.isdir(self.local(self.base))
        return None if exists else self.base

    def literal_folder(self) -> str | None:
        """Return the pattern's folder if it has a bracket, and exists as it is written."""
        folder = self.pattern.rpartition("/")[0]
        is_there = not self.remote and "[" in folder and Path(self.local(folder)).is_dir()
        return folder if is_there else None

    def uri(self, name: str) -> str:
        """Return the name for Spark's readers: absolute, with a scheme, not percent-encoded."""
        if self.remote:
            return f"{self._spark}/{name[len(self.base) :]}"
        return "file:" + os.path.join(self._folder, name)

    def _local_names(self) -> list[str]:
        """List as Python's glob does, but raise for a folder that cannot be listed.

        Goes down one part of the pattern per level; from the first `**` on, into every folder.
        """
        parts = self.pattern[len(self.base) :].split("/")
        deep = parts.index("**") if "**" in parts else len(parts)
        matchers = [_matcher(part) for part in parts[:deep]]
        paths: list[str] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            depth = folder.count("/")
            part = parts[depth] if depth < deep else "**"
            is_last = part != "**" and depth + 1 == len(parts)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if not _WILD.search(part) and not is_last:
                    folders.append(f"{folder}{part}/")
                elif not _WILD.search(part):
                    os.lstat(self.local(self.base + folder + part))
                    paths.append(folder + part)
                else:
                    names, below = self._scan(folder, is_last, linked=part != "**")
                    paths += names
                    folders += [
                        f"{folder}{name}/"
                        for name in below
                        if part == "**" or matchers[depth].fullmatch(name)
                    ]
        return [self.base + name for name in paths]

    def _scan(self, folder: str, is_last: bool, *, linked: bool) -> tuple[list[str], list[str]]:
        """Return a folder's matching names, and the folders to go down into.

        Args:
            is_last: the last part of the pattern is reached: go down no further.
            linked: enter symbolic links to folders. Below `**` they may lead back up, or to files
                that are listed under another name.
        """
        names: list[str] = []
        folders: list[str] = []
        with os.scandir(self.local(self.base + folder)) as entries:
            for one in entries:
                if _is_hidden(one.name):
                    continue
                fits = self._matcher.fullmatch(folder + one.name)
                if fits and not _is_loop(one) and not self._is_second_name(one):
                    names.append(folder + one.name)
                if not is_last and not _is_loop(one) and one.is_dir(follow_symlinks=linked):
                    folders.append(one.name)
        return names, folders

    def _is_second_name(self, entry: os.DirEntry[str]) -> bool:
        """Return True if it is a link to a file that is listed itself."""
        if not entry.is_symlink():
            return False
        base = os.path.realpath(self.local(self.base))
        return self.matches(self.base + os.path.relpath(os.path.realpath(entry.path), base))

    def _remote_names(self) -> list[str]:
        entries = (entry for page in self.pages() for entry in page)
        return [self.base + entry.path for entry in entries if self.fits(entry)]

    def _is_skipped(self, name: str) -> bool:
        """Return True if Spark itself would skip the name, or if it ends in `.tmp`."""
        below = name[len(self.base) :]
        return name.endswith((".tmp", "._COPYING_")) or any(map(_is_hidden, below.split("/")))


def stat_of(entry: Entry) -> FileStat:
    """Return the stat of an entry, the same from a listing and from a request for the file.

    With an ETag, a request returns the time in whole seconds only.
    """
    time = entry.modified_ns
    if entry.version is not None:
        time = time // _SECOND * _SECOND
    return FileStat(entry.size, time, entry.version)


def _fixed_part(pattern: str) -> str:
    """Return the folder before the first wildcard, with its slash; "" for the working folder."""
    wild = _WILD.search(pattern)
    fixed = pattern[: wild.start()] if wild else pattern
    return fixed[: fixed.rfind("/") + 1]


def _is_loop(entry: os.DirEntry[str]) -> bool:
    """Return True if it is a link that leads to itself: it will never name a file."""
    if entry.is_symlink():
        try:
            entry.stat()
        except OSError as error:
            return error.errno == errno.ELOOP
    return False


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def _matcher(pattern: str) -> re.Pattern[str]:
    """Convert a glob to a regular expression: `**` is any folders; at the end, also all files."""
    *folders, last = posixpath.normpath(pattern).split("/")
    above = ["(?:[^/]+/)*" if part == "**" else f"{_expression(part)}/" for part in folders]
    return re.compile("".join(above) + ("(?:[^/]+/)*[^/]+" if last == "**" else _expression(last)))


def _expression(part: str) -> str:
    """Convert a part of a path, with the syntax of `fnmatch`: `[^a]` is one of two characters."""
    out = []
    while part:
        length = 1
        if part[0] == "*":
            out.append("[^/]*")
            length = len(part) - len(part.lstrip("*"))
        elif part[0] == "?":
            out.append("[^/]")
        elif part[0] == "[" and (end := part.find("]", 3 if part[1:2] == "!" else 2)) > 0:
            length = end + 1
            without = part[1] == "!"
            characters = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", part[1 + without : end])
            out.append(f"(?!/)[{'^' * without}{characters}]")
        else:
            out.append(re.escape(part[0]))
        part = part[length:]
    return "".join(out)
