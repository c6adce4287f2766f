"""Which files there are: local ones by Python's glob, remote ones by Arrow's file systems.

A name is kept as the pattern spells it (relative stays relative), so that a project that is moved
together with its data goes on where it was.
"""

from __future__ import annotations

import contextlib
import glob
import os
import posixpath
import re
import stat
from dataclasses import dataclass
from urllib.parse import quote

from pyarrow import fs

from txn.delta.locations import local_path
from txn.delta.retrying import retried

__all__ = ["FileStat", "Listing"]

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
_WILD = re.compile(r"[*?\[]")
# Arrow knows one name for what Hadoop has three connectors for.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}


@dataclass(frozen=True)
class FileStat:
    """What is compared to tell that a file is still the one that was planned."""

    size: int
    """Bytes."""
    mtime_ns: int | None
    """Time of the last change, in nanoseconds since 1970; None where the storage has none."""


class Listing:
    """The files that a pattern matches, now.

    Args:
        pattern: a path or URI with `*`, `?`, `[...]` and `**` (any number of folders).

    Raises:
        TopologyError: a scheme with one slash, which is neither (`file:/x` is the path).
    """

    def __init__(self, pattern: str) -> None:
        """See the class."""
        scheme = _SCHEME.match(pattern)
        if not scheme and (path := local_path(pattern)) and pattern[:5].lower() == "file:":
            pattern = path
        self.pattern = pattern if scheme else os.path.normpath(os.path.expanduser(pattern))
        self.remote = scheme is not None
        # Relative names mean the folder in which the program was started, whatever it does later.
        self._folder = os.getcwd()
        self._base = _fixed_part(self.pattern)

    @property
    def kind(self) -> str:
        """How names are spelled: "relative", "absolute" or the URI's scheme."""
        if self.remote:
            return self.pattern.partition(":")[0]
        return "absolute" if os.path.isabs(self.pattern) else "relative"

    def names(self) -> list[str]:
        """The names that match, hidden and unfinished ones left out, in name order.

        Raises:
            StorageUnavailableError, StorageRefusedError: the storage cannot be listed.
        """
        names = self._remote_names if self.remote else self._local_names
        found = retried(names, f"list {self.pattern}")
        return sorted(name for name in found if not self._unfinished(name))

    def stat(self, name: str) -> FileStat | None:
        """Size and time of one file; None if there is no such file.

        Raises:
            StorageUnavailableError, StorageRefusedError: the storage cannot be asked.
        """
        return retried(lambda: self._stat(name), f"look at {name}")

    def _stat(self, name: str) -> FileStat | None:
        if self.remote:
            system, path = self._system(name)
            info = system.get_file_info(path)
            if info.type != fs.FileType.File:
                return None
            return FileStat(info.size, info.mtime_ns)
        try:
            found = os.stat(os.path.join(self._folder, name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def may_name(self, name: str) -> bool:
        """Whether a name lies where the pattern looks: below its part without wildcards."""
        below = name[len(self._base) :]
        return name.startswith(self._base) and "\0" not in name and ".." not in below.split("/")

    def is_folder(self) -> bool:
        """Whether the pattern has no wildcard and is the name of a folder."""
        if _WILD.search(self.pattern):
            return False
        if self.remote:
            system, path = self._system(self.pattern)
            return bool(system.get_file_info(path).type == fs.FileType.Directory)
        return os.path.isdir(os.path.join(self._folder, self.pattern))

    def uri(self, name: str) -> str:
        """The name as Spark's readers take it: absolute, with a scheme, not percent-encoded."""
        return name if self.remote else "file:" + os.path.join(self._folder, name)

    def _local_names(self) -> list[str]:
        # glob finds nothing where the folder cannot be read; that is not the same as nothing there.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.scandir(os.path.join(self._folder, self._base)).close()
        found = glob.glob(self.pattern, root_dir=self._folder, recursive=True)
        return [os.path.normpath(name) for name in found]

    def _remote_names(self) -> list[str]:
        system, base = self._system(self._base)
        selector = fs.FileSelector(base, allow_not_found=True, recursive=True)
        wanted = _matcher(self.pattern[len(self._base) :])
        names = []
        for info in system.get_file_info(selector):
            rest = info.path[len(base.rstrip("/")) :]
            if info.type == fs.FileType.File and wanted.fullmatch(rest.lstrip("/")):
                names.append(self._base.rstrip("/") + "/" + rest.lstrip("/"))
        return names

    def _system(self, name: str) -> tuple[fs.FileSystem, str]:
        scheme, _, rest = name.partition("://")
        address = f"{_ARROW_SCHEMES.get(scheme, scheme)}://{quote(rest, safe='/:@')}"
        system, path = fs.FileSystem.from_uri(address)
        return system, str(path)

    def _unfinished(self, name: str) -> bool:
        """Spark's own rule for names that it would pass over, and `.tmp`."""
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
    """A glob as a regular expression: `*` stays within a folder, `**/` is any number of them."""
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
