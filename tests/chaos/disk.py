"""The disk of the tables: a small file system of its own, which can be filled to the brim."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Disk", "unmount"]

TRIES = 5


class Disk:
    """A tmpfs, where this machine lets us mount one; an ordinary folder elsewhere.

    Args:
        folder: where it is mounted.
        size: as mount's option, such as "3g".
    """

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        self._size = size
        self.why_not = ""
        """Why it cannot be filled; empty when it can."""

    def __enter__(self) -> Disk:  # noqa: PYI034 - typing.Self is Python 3.11
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "chaos", str(self.folder)]
        try:
            said = subprocess.run(options, capture_output=True, text=True)
            self.why_not = "" if said.returncode == 0 else " ".join(said.stderr.split())
        except OSError as error:
            self.why_not = str(error)
        return self

    def __exit__(self, *error: object) -> None:
        if not self.why_not:
            unmount(self.folder)

    @property
    def ballast(self) -> Path:
        """The file that fills it."""
        return self.folder / "ballast"

    @contextlib.contextmanager
    def full(self, left: int) -> Iterator[None]:
        """All but `left` bytes are taken for the time of the block."""
        with self.ballast.open("wb") as file:
            for _ in range(TRIES):  # others write meanwhile
                free = os.fstatvfs(file.fileno())
                with contextlib.suppress(OSError):
                    size = max(1, free.f_bavail * free.f_frsize - left)
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
        try:
            yield
        finally:
            self.ballast.unlink()


def unmount(folder: Path) -> None:
    """Unmount, also while somebody still has a file open there; nothing when it is not mounted."""
    if folder.is_dir() and folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
