"""The location of a table: how users spell it, and one identity for all spellings.

A location is a local path, a `file:` URI, or a URI of another scheme. Nothing here asks a network:
two names that only their storage can tell to be one are found by the id of the table itself.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from txn.errors import TopologyError

__all__ = ["identity", "is_local", "is_on_s3", "local_path", "normal", "parent"]

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
    """The absolute path of a local location, links left as they are; None for any other.

    Raises:
        TopologyError: it names another machine's files, or a scheme without a second slash.
    """
    if _is_file_uri(location):
        found = _FILE.fullmatch(location)
        if found is None or (found[1] or "localhost").lower() != "localhost":
            raise TopologyError(
                f"'{location}' does not name a file of this machine. Write file:///folder/table, "
                "or the path alone.",
                number="TXN-121",
            )
        return str(Path(found[2]).absolute())
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
    """Return whether it is a path of this machine; raises as `local_path`."""
    return local_path(location) is not None


def normal(location: str) -> str:
    """As the libraries take it: an absolute path, or the URI with its scheme in lower case.

    Raises:
        TopologyError: as `local_path`.
    """
    path = local_path(location)
    if path is not None:
        return path
    scheme, colon, rest = location.partition(":")
    return (scheme.lower() + colon + rest).rstrip("/")


def is_on_s3(location: str) -> bool:
    """Whether a place is in S3, or in what speaks like it."""
    return identity(location).startswith("s3:")


def identity(location: str) -> str:
    """One name for all spellings of a place: relative or not, through links, `s3a:` for `s3:`."""
    try:
        path = local_path(location)
    except TopologyError:
        return location  # refused by whoever opens it
    if path is not None:
        try:
            return os.path.realpath(path)
        except (OSError, ValueError):  # no file can have this name
            return os.path.normpath(path)
    found = _URI.match(location)
    assert found is not None
    scheme, host = found[1].lower(), found[2].lower()
    host = host.removesuffix(_DEFAULT_PORTS.get(scheme, " "))
    scheme = _SAME.get(scheme, scheme)
    if scheme == "abfs":
        host = host.replace(".blob.", ".dfs.", 1)
    # Normalised twice: POSIX keeps two slashes at the beginning.
    folder = posixpath.normpath("/" + found[3].lstrip("/"))
    return f"{scheme}://{host}{folder.rstrip('/')}"


def parent(location: str) -> str:
    """The parent folder of a location."""
    path = local_path(location)
    if path is not None:
        return str(Path(path).parent)
    return normal(location).rpartition("/")[0] or location


def _is_file_uri(location: str) -> bool:
    # Not a folder whose name only begins like it ("file:x" is refused with the rest).
    return location[:5].lower() == "file:"
