"""Make a new project: a topology with sample data and a test, from the files beside this module."""

from __future__ import annotations

import contextlib
import keyword
import os
import re
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from txn.errors import SetupError
from txn.operations.loading import TargetError

__all__ = ["make_project"]

_FILES = {
    "{name}.py": "program.py",
    "tests/test_{name}.py": "test.py",
    "data/monday.csv": "monday.csv",
    "data/tuesday.csv": "tuesday.csv",
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
}
"""File of the project -> its template, without `.txt`. "PROJECT" in it is the project's name."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
_TAKEN = ("txn", "spouts", "committers", "tests", "data", "warehouse")
_IMPORTED = sys.stdlib_module_names | {
    *("click", "delta", "deltalake", "kazoo", "numpy", "packaging", "pandas", "py4j", "pyarrow"),
    *("pydantic", "pyspark", "pytest", "rich", "tomli"),
}
"""Modules that Python, Spark and txn import: `python NAME.py` would find the project's."""


def make_project(name: str, folder: Path) -> Path:
    """Make a project, whole or not at all; returns its folder.

    Args:
        name: the name of the project, its module and its topology.
        folder: the folder in which to make the project's folder.

    Raises:
        TargetError: the name cannot name a module, or hides a package.
        SetupError: the name is taken in the folder, or the folder cannot be written to.
    """
    if name in _IMPORTED and not keyword.iskeyword(name):
        raise TargetError(
            f"{name!r} cannot name a project: its module {name}.py would be imported in place of "
            f"the module {name!r} that Python or a package has. Choose another name, for "
            f"example {name}_totals.",
            number="TXN-104",
        )
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in _TAKEN:
        raise TargetError(
            f"{name!r} cannot name a project: it becomes a Python module. Use small letters, "
            f"digits and '_', a letter first, and none of {', '.join(_TAKEN)}.",
            number="TXN-104",
        )
    project = folder / name
    if project.exists() or project.is_symlink():
        raise SetupError(
            f"'{project}' is there already, and nothing was changed. Choose another name, or "
            "another folder.",
            number="TXN-206",
        )
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    except OSError as error:
        raise _refused(project, error) from error
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, made, ignore_errors=True)
        try:
            _fill(made, name)
            made.chmod(0o755)
            made.rename(project)  # replaces nothing but an empty folder
        except OSError as error:
            raise _refused(project, error) from error
        undo.pop_all()
    return project


def _fill(folder: Path, name: str) -> None:
    for path, template in _FILES.items():
        file = folder / path.format(name=name)
        file.parent.mkdir(exist_ok=True)
        text = files(__package__).joinpath(f"{template}.txt").read_text("utf-8")
        file.write_text(text.replace("PROJECT", name), "utf-8")


def _refused(project: Path, error: OSError) -> SetupError:
    why = os.strerror(error.errno) if error.errno else str(error)
    return SetupError(
        f"'{project}' cannot be made: {why}. Nothing was changed. Go to a folder that you may "
        "write to, and try again.",
        number="TXN-206",
    )
