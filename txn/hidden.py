"""Files of a user that hide our packages: `txn`, `spouts` and `committers` are likely names.

Python takes the first that it finds, and a program's own folder comes before installed packages.
What it then says, "No module named 'spouts.files'", sends its reader to look for a broken
installation. `explain_missing_modules` lets it name the folder that is in the way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["PACKAGES", "advice", "explain_missing_modules", "hiding"]

PACKAGES = ("txn", "spouts", "committers")
_HOME = Path(__file__).resolve().parent.parent


def hiding(path: Sequence[str] | None = None) -> dict[str, Path]:
    """Package of ours -> the file that Python takes in its place.

    Args:
        path: the folders that are searched, the first one first; None: `sys.path`.
    """
    found = {}
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, path)
        # A folder without an __init__.py has no origin, and gives way to an installed package.
        if spec is None or spec.origin is None:
            continue
        file = Path(spec.origin)
        if file.resolve().parent != _HOME / name:
            found[name] = file.parent if file.name == "__init__.py" else file
    return found


def advice(name: str, place: Path) -> str:
    """What is wrong with a file or folder that hides the package `name`, and what to do."""
    return (
        f"'{place}' hides the installed package '{name}' of txn-spark ('{_HOME / name}'). Rename "
        "it, or move it to a folder that Python does not search first"
    )


def explain_missing_modules() -> None:
    """From now on, the import of a module of ours that cannot be found names what hides it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder:
    """Asked last, when no other finder has found a module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None: there is no such module, and nothing is to be said of it."""
        del target
        package, *rest = name.split(".")
        folders = [Path(folder) for folder in path or ()]
        if package not in PACKAGES or len(rest) != 1 or not folders:
            return None
        ours = _HOME / package
        if any(folder.resolve() == ours for folder in folders):
            return None
        if not ((ours / f"{rest[0]}.py").is_file() or (ours / rest[0]).is_dir()):
            return None  # a module of the user's own package
        raise ModuleNotFoundError(
            f"No module named '{name}': {advice(package, folders[0])}", name=package
        )
