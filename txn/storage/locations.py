"""The location of a table, as users spell it, and one identity for all spellings.

A location is a local path, a `file:` URI, or a URI of another scheme. Nothing here asks a network:
where only the storage knows that two names are one table, the table's own id shows it.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from txn.errors import TopologyError

__all__ = ["identity", "is_local", "is_on_s3", "is_relative", "local_path", "normal", "parent"]

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(.*)", re.DOTALL)
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_FILE = re.compile(r"file:(?://([^/]*))?(/.*)", re.DOTALL | re.IGNORECASE)
# Connectors of one storage: Hadoop has several for S3, with and without TLS for Azure.
_SAME = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    **dict.fromkeys(("abfss", "az", "azure", "wasb", "wasbs"), "abfs"),
}
_DEFAULT_PORTS = {"hdfs": ":8020"}


def local_path(location: str) -> str | None:
    """The absolute path of a local location, links not resolved; None for any other location.

    Raises:
        TopologyError: it names another machine's files, or a scheme without a second slash.
    """
    if _is_file_uri(location):
        match = _FILE.fullmatch(location)
        if match is None or (match[1] or "localhost").lower() != "localhost":
            raise TopologyError(
                f"'{location}' does not name a file of this machine. Write file:///folder/table, "
                "or the path alone.",
                number="TXN-121",
            )
        return str(Path(match[2]).absolute())
    if _URI.match(location):
        return None
    if one := _ONE_SLASH.match(location):
        raise TopologyError(
            f"'{location}' has one slash after '{one[1]}:', so it is neither a path nor a URI: it "
            f"would become a folder '{one[0]}' below the working directory. Write "
            f"{one[1]}://..., with the bucket or host, a path under which the storage is mounted, "
            f"or ./{location} if you mean that folder.",
            number="TXN-121",
        )
    return str(Path(location).absolute())


def is_local(location: str) -> bool:
    """Return whether a location is a path of this machine; raises like `local_path`."""
    return local_path(location) is not None


def is_relative(location: str) -> bool:
    """Return whether a location depends on the working directory."""
    return not (Path(location).is_absolute() or _is_file_uri(location) or _URI.match(location))


def normal(location: str) -> str:
    """The form that libraries take: an absolute path, or the URI with its scheme in lower case."""
    path = local_path(location)
    if path is not None:
        return path
    scheme, colon, rest = location.partition(":")
    return (scheme.lower() + colon + rest).rstrip("/")


def is_on_s3(location: str) -> bool:
    """Return whether a location is in S3 or a store with S3's interface."""
    return identity(location).startswith("s3:")


def identity(location: str) -> str:
    """One name for all spellings of a place: relative or not, through links, `s3a:` for `s3:`."""
    try:
        path = local_path(location)
    except TopologyError:
        return location  # opening it raises the error
    if path is not None:
        try:
            return os.path.realpath(path)
        except (OSError, ValueError):  # no file can have this name
            return os.path.normpath(path)
    match = _URI.match(location)
    assert match is not None
    scheme, host = match[1].lower(), match[2].lower()
    host = host.removesuffix(_DEFAULT_PORTS.get(scheme, " "))
    scheme = _SAME.get(scheme, scheme)
    if scheme == "abfs":
        host = host.replace(".blob.", ".dfs.", 1)
    # Normalised twice: POSIX keeps two slashes at the beginning.
    folder = posixpath.normpath("/" + match[3].lstrip("/"))
    return f"{scheme}://{host}{folder.rstrip('/')}"


def parent(location: str) -> str:
    """The parent folder of a location."""
    path = local_path(location)
    if path is not None:
        return str(Path(path).parent)
    return normal(location).rpartition("/")[0] or location


def _is_file_uri(location: str) -> bool:
    # A folder named "file:x" counts as a URI too; `local_path` refuses it.
    return location[:5].lower() == "file:"
