"""Files of the package as files on disk, also if the package itself is in an archive.

`spark-submit --py-files` takes a zip or a wheel, and Python imports from it without unpacking.
Java, a child process and a web server need files.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

__all__ = ["on_disk"]


@cache
def on_disk(package: str, name: str) -> Path:
    """Return the path of a file or folder that belongs to a package.

    From an archive it is copied into a folder of its own, which goes with the process.
    """
    source = files(package).joinpath(name)
    if isinstance(source, Path):
        return source
    folder = Path(tempfile.mkdtemp(prefix="txn-packaged-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _copy(source, folder / name)
    return folder / name


def _copy(source: Any, target: Path) -> None:
    if not source.is_dir():
        target.write_bytes(source.read_bytes())
        return
    target.mkdir()
    for inside in source.iterdir():
        _copy(inside, target / inside.name)
