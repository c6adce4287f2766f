"""`sf` and `st`: pyspark's functions and types, loaded when one of them is used first.

So a program that only describes a topology does not load pyspark; tests/spark/test_lazy.py
fails if one does. Type checkers see the modules themselves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

__all__ = ["sf", "st"]


class _Module:
    """A module that is imported when one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if not TYPE_CHECKING:
    sf, st = _Module("pyspark.sql.functions"), _Module("pyspark.sql.types")
