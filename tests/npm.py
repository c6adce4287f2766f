"""Programs of npm, installed once into the cache of the user."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from txn.machine.jars import cache_folder

__all__ = ["installed"]


def installed(name: str, version: str) -> Path:
    """The folder of a package, installed with what it needs if it is not there yet."""
    folder = cache_folder() / f"{name}-{version}"
    package = folder / "node_modules" / name
    if not package.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".installing-", dir=folder.parent))
        try:
            quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")
            command = ["npm", "install", "--prefix", str(scratch), *quiet, f"{name}@{version}"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            with suppress(OSError):  # another process may have been faster
                scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return package
