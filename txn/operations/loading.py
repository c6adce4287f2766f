"""Find the topology that a command line names: "FILE.py:NAME" or "package.module:NAME"."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from txn.config import TopologyConfig
from txn.config.home import loading_program, nearest_home
from txn.config.settings import completed, overridden
from txn.errors import TxnError, UserError
from txn.machine import hidden
from txn.text import first_line, last_users_frame
from txn.topology import Topology

__all__ = ["LoadError", "TargetError", "load_topology", "named_topology"]


class TargetError(UserError):
    """A mistake on the command line, such as a file that does not exist or has no such topology."""

    number = "TXN-117"


class LoadError(UserError):
    """The user's file raised an error of its own while it was loaded."""

    number = "TXN-118"


def named_topology(name: str) -> tuple[str, TopologyConfig, Topology | None]:
    """Find a topology by its own name, or by FILE.py:TOPOLOGY (no name has a colon).

    Refuses a file alone, as `load_topology` does, and lists its topologies.

    Returns:
        Its name, the config that holds ZooKeeper's credentials, and the topology if it was loaded.

    Raises:
        TxnError: as `load_topology`.
    """
    if ":" not in name and not _is_path(name):
        return name, completed(TopologyConfig(), os.environ, [nearest_home(), Path()]), None
    topology = load_topology(name)
    return topology.name, topology.settings, topology


def load_topology(target: str, settings: Sequence[str] = ()) -> Topology:
    """Import a module or run a file, and take the topology out of it.

    A file imports as with `python FILE`: its own folder comes first (links resolved), and the
    working directory is not searched. A module is looked for as with `python -m`: from the
    working directory.

    Args:
        target: "FILE.py:NAME" or "package.module:NAME"; NAME is a Topology, or a function without
            arguments that returns one.
        settings: "NAME=VALUE" for each setting to override
            (`txn.config.settings`).

    Raises:
        TargetError: no such file, module or name, not a topology, or not such a setting.
        LoadError: the file raised something; it is the cause.
        TxnError: an error of this project that the file itself raised, unchanged.
    """
    place, colon, name = target.rpartition(":")
    if not colon:
        place, name = target, ""
    # A link stays one, as it does in the `__file__` by which a program names its tables.
    folder = Path(os.path.abspath(place)).parent if _is_path(place) else None  # noqa: PTH100
    with loading_program(folder):
        value = _topology(place, name, target)
    try:
        value.settings = overridden(value.settings, settings)
    except UserError as error:
        raise TargetError(str(error), number=error.number) from error
    return value


def _topology(place: str, name: str, target: str) -> Topology:
    """Load a program and take the topology out of it."""
    module = _load(place, target)
    if not name:
        raise TargetError(
            f"'{target}' names no topology. Write {place}:NAME; {_topologies_of(module)}"
        )
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise TargetError(f"{place} has no '{name}'; {_topologies_of(module)}")
        value = getattr(value, part)
    if callable(value) and not isinstance(value, Topology | type):
        value = _guarded(value, f"{name}() of {place}")
    if not isinstance(value, Topology):
        raise TargetError(
            f"'{name}' of {place} is {type(value).__name__}, neither a Topology nor a function "
            f"without arguments that returns one; {_topologies_of(module)}"
        )
    return value


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _load(place: str, target: str) -> ModuleType:
    if _is_path(place):
        _leave_working_folder()
        _search_first(Path(place).resolve().parent)
        return _run_file(Path(place), target)
    _search_first(Path.cwd())
    # Looking for a.b imports a, which may raise what it likes.
    if not place or not _guarded(lambda: _is_there(place), place):
        raise TargetError(
            f"There is no module '{place}' to import for '{target}'. Write FILE.py:NAME, or the "
            "dotted name of a module that can be imported from this folder."
        )
    module: ModuleType = _guarded(lambda: importlib.import_module(place), place)
    return module


def _search_first(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _leave_working_folder() -> None:
    """Remove the entry that `python -m txn` puts first, unless `txn` itself comes from there."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != "txn.__main__" or sys.path[:1] != [str(Path.cwd())]:
        return
    if Path.cwd() != Path(__file__).resolve().parents[2]:
        del sys.path[0]


def _is_there(place: str) -> bool:
    try:
        return importlib.util.find_spec(place) is not None
    except (ImportError, ValueError):
        return False


class _AsItIs(SourceFileLoader):
    """Compiles a file anew, as Python does with a script.

    Python compares a compiled file with its source by second and size alone: it would miss a
    correction within the same second.
    """

    def path_stats(self, path: str) -> NoReturn:
        """Refuse: no compiled copy of this file is read or written."""
        raise OSError(path)


def _run_file(path: Path, target: str) -> ModuleType:
    if not path.is_file():
        raise TargetError(
            f"There is no file '{path}' (named by '{target}') in '{Path.cwd()}'. Check the path."
        )
    if path.suffix != ".py":
        raise TargetError(f"'{path}' is not a Python file: its name must end in .py.")
    # Its own name: `flights.py` must not shadow a package that is called flights.
    name = f"txn_topology_{path.stem}"
    loader = _AsItIs(name, str(path.absolute()))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _guarded(lambda: loader.exec_module(module), str(path))
    return module


def _guarded(call: Any, where: str) -> Any:
    try:
        return call()
    except TxnError:
        raise
    except Exception as error:
        raise LoadError(
            f"{where} failed while it was loaded: {first_line(error)}{_line(error)}. "
            f"{_hidden(error)}Correct it; --traceback shows where."
        ) from error


def _hidden(error: Exception) -> str:
    """Name the files that hide our packages if that may be the cause; else empty."""
    if not isinstance(error, ImportError | AttributeError):
        return ""
    return "".join(f"{hidden.advice(name, place)}. " for name, place in hidden.hiding().items())


def _line(error: BaseException) -> str:
    """Return the user's last file and line in brackets, unless the message has them."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or isinstance(error, SyntaxError):
        return ""
    # The first frame is in this module: it loads the file.
    last = last_users_frame(frame.filename for frame in frames[1:])
    frame = frames[-1 if last is None else last + 1]
    return f" ({Path(frame.filename).name}, line {frame.lineno})"


def _topologies_of(module: ModuleType) -> str:
    names = sorted(
        name
        for name, value in vars(module).items()
        if isinstance(value, Topology)
        or (isinstance(value, FunctionType) and _returns_topology(value))
    )
    return f"it has: {', '.join(names)}." if names else "it has no Topology at all."


def _returns_topology(function: FunctionType) -> bool:
    """Return True if its annotation names Topology; it is not called."""
    annotation = function.__annotations__.get("return")
    return annotation is Topology or (
        isinstance(annotation, str) and annotation.rpartition(".")[2] == "Topology"
    )
