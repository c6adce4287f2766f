"""A release's kept state: the nodes of ZooKeeper, the tables, the input and an export.

tests/releases/<release>/
    znodes.json         path below the chroot -> text, or {"base64": ...}
    *.json.gz           `txn export` of each topology
    tables/, in/        folders of Delta tables, and of the files that are read
    rows.json           table -> the rows that it must have at the end
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

__all__ = ["FOLDER", "MOMENT_NS", "RELEASES", "Kept", "nodes_below", "stamp", "write_nodes"]

FOLDER = Path(__file__).parent
RELEASES = sorted(path.name for path in FOLDER.iterdir() if (path / "znodes.json").exists())
MOMENT_NS = 1_767_225_600_000_000_000
"""The time of change of every file of input: a checkout does not keep times."""
_LINKS = ("leader", "standbys")
"""Nodes that are gone with the sessions of their processes."""


class Kept:
    """The kept state of one release."""

    def __init__(self, release: str, folder: Path = FOLDER) -> None:
        self.folder = folder / release

    @property
    def nodes(self) -> dict[str, bytes]:
        """Path below the chroot -> content."""
        raw: dict[str, Any] = json.loads((self.folder / "znodes.json").read_text("ascii"))
        return {
            path: b64decode(data["base64"]) if isinstance(data, dict) else data.encode()
            for path, data in raw.items()
        }

    @property
    def rows(self) -> dict[str, list[list[Any]]]:
        """Table -> its rows at the end."""
        rows: dict[str, list[list[Any]]] = json.loads((self.folder / "rows.json").read_text())
        return rows

    def unpack(self, folder: Path) -> None:
        """Put tables, input and the export into an empty folder."""
        for name in ("tables", "in"):
            # `copyfile`: the times are those of this copy, so nothing has passed its retention.
            shutil.copytree(self.folder / name, folder / name, copy_function=shutil.copyfile)
        stamp(folder / "in")
        for packed in self.folder.glob("*.json.gz"):
            (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))

    def pack(
        self, folder: Path, nodes: Mapping[str, bytes], rows: Mapping[str, list[list[Any]]]
    ) -> None:
        """Replace the kept state by what is in a folder and in ZooKeeper."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("tables", "in"):
            shutil.copytree(folder / name, self.folder / name)
        for export in folder.glob("*.json"):
            packed = gzip.compress(export.read_bytes(), mtime=0)
            (self.folder / f"{export.name}.gz").write_bytes(packed)
        texts = {path: _text(data) for path, data in sorted(nodes.items())}
        (self.folder / "znodes.json").write_text(json.dumps(texts, indent=1) + "\n", "ascii")
        lines = ",\n".join(f'"{name}": {json.dumps(table)}' for name, table in rows.items())
        (self.folder / "rows.json").write_text(f"{{\n{lines}\n}}\n", "ascii")


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def stamp(folder: Path) -> None:
    """Give every file of a folder the same time of change."""
    for path in folder.iterdir():
        os.utime(path, ns=(MOMENT_NS, MOMENT_NS))


def nodes_below(client: KazooClient, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield every lasting node at and below a path, parents first."""
    yield path, client.get(path)[0]
    for name in sorted(client.get_children(path)):
        if name not in _LINKS:
            yield from nodes_below(client, f"{path}/{name}")


def write_nodes(client: KazooClient, nodes: Mapping[str, bytes]) -> None:
    """Create nodes in an empty chroot."""
    for path, data in nodes.items():
        client.create(path, data, makepath=True)
