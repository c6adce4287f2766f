"""Files of a user that hide our packages: `txn`, `spouts` and `committers` are likely names.

Python takes the first that it finds, and a program's own folder comes before installed packages.
Its message then, "No module named 'spouts.files'", looks like a broken installation.
`import txn`, `txn run` and `txn doctor` name the file that is in the way. A file that hides `txn`
itself is named by `spouts` and `committers`, when one of them is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["advice", "hiding", "warn_of_hiding"]

_PACKAGES = ("txn", "spouts", "committers")
_HOME = Path(__file__).resolve().parents[2]


def hiding(path: Sequence[str] | None = None) -> dict[str, Path]:
    """Package of ours -> the file that Python takes in its place.

    Args:
        path: the folders that are searched, the first one first; None: `sys.path`.
    """
    hiding_files = {}
    for name in _PACKAGES:
        spec = PathFinder.find_spec(name, path)
        # A folder without an __init__.py has no origin, and gives way to an installed package.
        if spec is None or spec.origin is None:
            continue
        file = Path(spec.origin)
        if file.resolve().parent != _HOME / name:
            hiding_files[name] = file.parent if file.name == "__init__.py" else file
    return hiding_files


def warn_of_hiding() -> None:
    """Warn of each file that Python takes in place of one of our packages.

    It is no error: a program may need no more than its own `spouts`.
    """
    for name, place in hiding().items():
        warnings.warn(f"{advice(name, place)}.", stacklevel=3)


def advice(name: str, place: Path) -> str:
    """Return the message for a file or folder that hides the package `name`, with the way out."""
    return (
        f"'{place}' hides the installed package '{name}' of txn-spark ('{_HOME / name}'). Rename "
        "it, or move it to a folder that Python does not search first"
    )
