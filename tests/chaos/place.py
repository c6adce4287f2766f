"""Where the tables and the files of a run lie, and how its processes reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["STORES", "Place", "local_place"]

STORES = ("local", "s3")


@dataclass(frozen=True)
class Place:
    """Folders or locations.

    Args:
        tables: of all tables.
        files: of the files to be read.
        options: `storage_options` of the drivers: with all that is in their way.
        direct: those of the harness and of the reader.
        put: writes a file to be read, by its name and content; whole or not at all.
    """

    tables: str
    files: str
    put: Callable[[str, str], None]
    options: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)


def local_place(tables: Path, files: Path) -> Place:
    """Folders of this machine."""
    files.mkdir()

    def put(name: str, content: str) -> None:
        hidden = files / f".{name}"
        hidden.write_text(content)
        hidden.rename(files / name)

    return Place(str(tables), str(files), put)
