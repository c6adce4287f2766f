"""Durable ends of a stream: Delta tables that publish staged files in txid order."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path as _Path

_spec = find_spec("txn")  # without importing it: it may be the program itself
_found = _Path(_spec.origin) if _spec is not None and _spec.origin else None
if _found is not None and _found.parent != _Path(__file__).parents[1] / "txn":
    raise ImportError(
        f"'{_found.parent if _found.name == '__init__.py' else _found}' hides the installed "
        "package 'txn' of txn-spark. Rename it, or move it to a folder that Python does not "
        "search first."
    )
