"""The home of a topology: the folder whose `.txn` has its progress, logs and notes.

Progress lies where the tables lie. A program that names its tables by absolute paths or URIs has
them wherever it is started, so its home is the folder of the file that is started. Relative paths
begin at the working directory, and so does the home of a program that has such tables or sources.

Progress that is there already is never begun a second time: if the home has none of the topology,
and its tables are there, the working directory and the folders above both are searched.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from txn.text import is_installed, is_the_users

__all__ = [
    "TXN_FOLDER",
    "find_home",
    "has_progress",
    "holds_topology",
    "homes_here",
    "loading_program",
    "nearest_home",
    "other_homes",
    "program_folder",
]

TXN_FOLDER = Path(".txn")
"""The folder in a home."""
_loading: ContextVar[tuple[Path | None] | None] = ContextVar("loading", default=None)
_PROGRESS = TXN_FOLDER / "zookeeper" / "data"


@contextlib.contextmanager
def loading_program(folder: Path | None) -> Iterator[None]:
    """Let the body load a program of this folder, as a command does; None: a module by its name."""
    token = _loading.set((folder,))
    try:
        yield
    finally:
        _loading.reset(token)


def program_folder() -> Path | None:
    """Return the folder of the program that is loaded, or of the script that this process runs.

    None: it runs no user's script, but a prompt, a notebook, a command, or a test runner.
    """
    loading = _loading.get()
    if loading is not None:
        return loading[0]
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(os.path.abspath(file))  # noqa: PTH100 - a link stays one, as in `__file__`
    return path.parent if is_the_users(str(path)) and not is_installed(str(path)) else None


def nearest_home() -> Path:
    """Return the working directory, or the nearest one above it that has `.txn`.

    The working directory, as a relative path, if none has.
    """
    here = Path()
    above = here.absolute().parents
    if (here / TXN_FOLDER).is_dir():
        return here
    return next((folder for folder in above if (folder / TXN_FOLDER).is_dir()), here)


def homes_here() -> list[Path]:
    """Return the working directory and the folders in it that have an embedded server's data."""
    here = Path.cwd()
    with contextlib.suppress(OSError):
        return [one for one in (here, *sorted(here.iterdir())) if has_progress(one)]
    return []


def find_home(topology: str, own: Path) -> Path:
    """Return `own`, or the home that holds the topology's progress if `own` does not."""
    if holds_topology(own, topology):
        return own
    return next(iter(other_homes(topology, own)), own)


def other_homes(topology: str, own: Path) -> list[Path]:
    """Return the homes besides `own` that hold a topology's progress.

    Those of the working directory, and of the folders above it and above `own`.
    """
    own, here = own.absolute(), Path.cwd()
    places = dict.fromkeys((here, *own.parents, *here.parents))
    return [one for one in places if one != own and holds_topology(one, topology)]


def holds_topology(home: Path, topology: str) -> bool:
    """Return whether the data of a home's embedded server names a topology.

    Reads the server's files, so that no server is started to find out.
    """
    node = f"/txn/{topology}/".encode()
    with contextlib.suppress(OSError):
        files = (home / _PROGRESS / "version-2").iterdir()
        return any(_contains(file, node) for file in files)
    return False


def _contains(file: Path, text: bytes) -> bool:
    try:
        with file.open("rb") as opened, _mapped(opened.fileno()) as content:
            return content.find(text) >= 0
    except (OSError, ValueError):  # it is empty, or was deleted since
        return False


def _mapped(number: int) -> mmap.mmap:
    return mmap.mmap(number, 0, access=mmap.ACCESS_READ)


def has_progress(home: Path) -> bool:
    """Return whether an embedded server's data lies in the home."""
    return (home / _PROGRESS).is_dir()
