"""Files of a table, wherever it lies, read without the product's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, PyFileSystem

__all__ = ["commits", "files_of"]


def files_of(table: Path | str, options: Mapping[str, str] | None = None) -> PyFileSystem:
    """A table's folder as a file system.

    Args:
        options: how a location is reached; none for a local folder.
    """
    return PyFileSystem(DeltaStorageHandler(str(table), dict(options or {})))


def commits(
    table: Path | str, options: Mapping[str, str] | None = None
) -> Iterator[tuple[int, bytes]]:
    """(version, content) of every commit file of a table, by version."""
    files = files_of(table, options)
    found = files.get_file_info(FileSelector("_delta_log"))
    for info in sorted(found, key=lambda info: str(info.base_name)):
        if re.fullmatch(r"\d{20}\.json", info.base_name):
            with files.open_input_file(info.path) as file:
                yield int(info.base_name[:20]), file.read()
