"""List files: local ones by Python's glob, remote ones by their store.

A name keeps the spelling of the pattern (relative stays relative), so a project that is moved
together with its data goes on where it was.
"""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from txn.storage.addresses import account_in
from txn.storage.hadoop import hadoop_settings
from txn.storage.locations import local_path
from txn.storage.opening import open_store
from txn.storage.retrying import retried
from txn.storage.store import Entry, Store

__all__ = ["FileStat", "Listing"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_WILD = re.compile(r"[*?\[]")
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class FileStat:
    """Size and time of a file; if they are equal, it is still the planned file."""

    size: int
    """Bytes."""
    mtime_ns: int | None
    """Time of the last change, in nanoseconds since 1970; None where the storage has none."""


class Listing:
    """The files that a pattern matches, now.

    Args:
        pattern: a path or URI with `*`, `?`, `[...]` and `**` (any number of folders).
        options: `storage_options` of a URI's storage.

    Raises:
        TopologyError: a scheme with one slash (but `file:/x`, which is a path), or one that nobody
            can open.
    """

    def __init__(self, pattern: str, options: Mapping[str, str] | None = None) -> None:
        """See the class."""
        scheme = _SCHEME.match(pattern)
        if not scheme and (path := local_path(pattern)) and pattern[:5].lower() == "file:":
            pattern = path
        self.pattern = pattern if scheme else os.path.normpath(os.path.expanduser(pattern))
        self.remote = scheme is not None
        # Relative names start at the folder in which the program started, even if it changes later.
        self._folder = os.getcwd()
        self._base = _fixed_part(self.pattern)
        self._store: Store | None = None
        self.hadoop: dict[str, str] = {}
        """Options with which Spark's readers reach the files."""
        if scheme:
            self._store, address = open_store(self._base, options)
            account = account_in(options or {})
            self.hadoop = hadoop_settings(address, options or {})
            self._spark = address.for_spark(account) if address else self._base.rstrip("/")
        self._entries: dict[str, Entry] = {}
        """Of the last listing of a remote storage, until `times` is called."""

    @property
    def kind(self) -> str:
        """How names are spelled: "relative", "absolute" or the URI's scheme."""
        if self.remote:
            return self.pattern.partition(":")[0]
        return "absolute" if os.path.isabs(self.pattern) else "relative"

    def names(self) -> list[str]:
        """The matching names in name order, without hidden and unfinished files.

        Raises:
            StorageUnavailableError, StorageRefusedError: the storage cannot be listed.
        """
        names = self._remote_names if self.remote else self._local_names
        found = retried(names, f"list {self.pattern}")
        return sorted(name for name in found if not self._unfinished(name))

    def stat(self, name: str) -> FileStat | None:
        """Size and time of one file; None if it does not exist.

        Raises:
            StorageUnavailableError, StorageRefusedError: the storage does not answer.
        """
        return retried(lambda: self._stat(name), f"look at {name}")

    def _stat(self, name: str) -> FileStat | None:
        if self._store is not None:
            (entry,) = self._store.head([name[len(self._base) :]])
            return None if entry is None else FileStat(entry.size, entry.modified_ns)
        try:
            found = os.stat(os.path.join(self._folder, name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def times(self, names: Sequence[str]) -> list[tuple[str, int | None]]:
        """When each of these files was changed last; without those that cannot be looked at.

        Nanoseconds since 1970, None where the storage has no times. A remote one is not asked: the
        times are those of the last `names`, for one call, and in whole seconds, since a listing may
        be more exact than what `stat` says of the file.
        """
        if not self.remote:
            return list(self._local_times(names))
        entries, self._entries = self._entries, {}
        times = {name: entries[name].modified_ns for name in names if name in entries}
        return [(name, time // _SECOND * _SECOND) for name, time in times.items()]

    def _local_times(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        for name in names:
            with contextlib.suppress(OSError):
                yield name, os.stat(os.path.join(self._folder, name)).st_mtime_ns

    def may_name(self, name: str) -> bool:
        """Return whether a name lies below the pattern's part without wildcards."""
        below = name[len(self._base) :]
        return name.startswith(self._base) and "\0" not in name and ".." not in below.split("/")

    def matches(self, name: str) -> bool:
        """Return whether a file of this name would be among `names`."""
        below = name[len(self._base) :]
        fits = name.startswith(self._base) and _matcher(self.pattern[len(self._base) :])
        return bool(fits and fits.fullmatch(below)) and not self._unfinished(name)

    def new_name(self, stem: str) -> str | None:
        """A name that the pattern matches, made from `stem`; None: it matches no such name.

        `stem` takes the place of a `*` in the last part that has one, "txn-rows" that of a `*` in
        any other part; `**` stands for no folder.
        """
        parts = [part for part in self.pattern[len(self._base) :].split("/") if part != "**"]
        starred = [number for number, part in enumerate(parts) if "*" in part]
        for number in starred:
            before, _, after = parts[number].partition("*")
            made = stem if number == starred[-1] else "txn-rows"
            parts[number] = before + made + after.replace("*", "")
        name = self._base + "/".join(parts)
        return name if starred and self.matches(name) else None

    def local(self, name: str) -> str:
        """The absolute path of a local file."""
        return os.path.join(self._folder, name)

    @property
    def base(self) -> str:
        """The pattern's part without wildcards: a folder with its slash, or ""."""
        return self._base

    def is_folder(self) -> bool:
        """Return whether the pattern has no wildcard and names a folder."""
        if _WILD.search(self.pattern):
            return False
        if self._store is not None:
            return any(self._store.children(self.pattern[len(self._base) :]))
        return os.path.isdir(os.path.join(self._folder, self.pattern))

    def uri(self, name: str) -> str:
        """The name for Spark's readers: absolute, with a scheme, not percent-encoded."""
        if self.remote:
            return f"{self._spark}/{name[len(self._base) :]}"
        return "file:" + os.path.join(self._folder, name)

    def _local_names(self) -> list[str]:
        # glob finds nothing if the folder cannot be read; scandir raises the error.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.scandir(os.path.join(self._folder, self._base)).close()
        found = glob.glob(self.pattern, root_dir=self._folder, recursive=True)
        return [os.path.normpath(name) for name in found]

    def _remote_names(self) -> list[str]:
        assert self._store is not None
        wanted = _matcher(self.pattern[len(self._base) :])
        self._entries = {
            self._base + entry.path: entry
            for entry in self._store.walk()
            if wanted.fullmatch(entry.path)
        }
        return list(self._entries)

    def _unfinished(self, name: str) -> bool:
        """Return whether Spark itself would skip the name; also `.tmp`."""
        below = name[len(self._base) :]
        return name.endswith((".tmp", "._COPYING_")) or any(
            part.startswith(".") or (part.startswith("_") and "=" not in part)
            for part in below.split("/")
        )


def _fixed_part(pattern: str) -> str:
    """The folder before the first wildcard, with its slash; "" for the working folder."""
    wild = _WILD.search(pattern)
    fixed = pattern[: wild.start()] if wild else pattern
    return fixed[: fixed.rfind("/") + 1]


def _matcher(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: `*` stays within a folder, `**/` is any number of folders."""
    out, rest = [], posixpath.normpath(pattern)
    while rest:
        if rest.startswith("**/"):
            out.append("(?:[^/]+/)*")
            rest = rest[3:]
        elif rest[0] == "*":
            out.append("[^/]*")
            rest = rest.lstrip("*")
        elif rest[0] == "?":
            out.append("[^/]")
            rest = rest[1:]
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inside = rest[1:end].replace("\\", "\\\\")
            out.append("[" + ("^" + inside[1:] if inside[0] == "!" else inside) + "]")
            rest = rest[end + 1 :]
        else:
            out.append(re.escape(rest[0]))
            rest = rest[1:]
    return re.compile("".join(out))
