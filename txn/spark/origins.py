"""PySpark's notes on the line that made an expression: taken for the user's, not for ours.

The error of a job names the line of the expression that failed. For that PySpark asks Java some ten
questions with each function and operator of an expression that is made, where making it takes one
to three. It has one switch, for the whole process, and reads it once
(`spark.python.sql.dataFrameDebugging.enabled`). Here it is off while our own code makes
expressions, thread by thread, and as the user has it in everything else.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["noted", "unnoted"]


class _Thread(threading.local):
    unnoted = False


_thread = _Thread()


@contextmanager
def unnoted() -> Iterator[None]:
    """Expressions that this thread makes inside are not noted."""
    _change_pyspark()
    with _set(True):
        yield


@contextmanager
def noted() -> Iterator[None]:
    """Expressions that this thread makes inside are noted, unless the user has switched it off."""
    with _set(False):
        yield


@contextmanager
def _set(value: bool) -> Iterator[None]:
    before, _thread.unnoted = _thread.unnoted, value
    try:
        yield
    finally:
        _thread.unnoted = before


@functools.cache
def _change_pyspark() -> None:
    """Let the question whether expressions are noted depend on the thread, too; once."""
    from pyspark.errors import utils

    whether = getattr(utils, "is_debugging_enabled", None)
    # A PySpark that asks in another way notes everything, which is only slower.
    if whether is not None:
        utils.is_debugging_enabled = lambda: not _thread.unnoted and whether()
