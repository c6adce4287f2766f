"""The home of a topology: the folder whose `.txn` has its progress, logs and notes.

Progress lies where the tables lie. A program that names its tables by absolute paths or URIs has
them wherever it is started, so its home is the folder of its file. Relative paths begin at the
working directory, and so does the home of a program that has such tables.
"""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

__all__ = [
    "TXN_FOLDER",
    "has_progress",
    "homes_here",
    "loading_program",
    "nearest_home",
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
    path = Path(file).resolve()
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
    own = Path(__file__).resolve().parents[1]
    if any(path.is_relative_to(folder.resolve()) for folder in (*installed, own)):
        return None
    return path.parent


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


def has_progress(home: Path) -> bool:
    """Return whether an embedded server's data lies in the home."""
    return (home / _PROGRESS).is_dir()
