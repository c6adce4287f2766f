"""PySpark's notes on the line that made an expression: on for user code, off for txn's own.

The error of a job names the line of the expression that failed. For that PySpark makes some ten
calls into Java for each function and operator of an expression, where making it takes one to three.
It has one switch for the whole process, and reads it once
(`spark.python.sql.dataFrameDebugging.enabled`). This module turns it off, thread by thread, while
txn makes its own expressions, and leaves the user's setting everywhere else.
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
    """Do not note the expressions that this thread makes inside the block."""
    _change_pyspark()
    with _set(True):
        yield


@contextmanager
def noted() -> Iterator[None]:
    """Note the expressions that this thread makes inside, unless the user has switched it off."""
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
    """Make PySpark's switch depend on the thread, too; once per process."""
    from pyspark.errors import utils

    is_enabled = getattr(utils, "is_debugging_enabled", None)
    # A PySpark without this function notes everything, which is only slower.
    if is_enabled is not None:
        utils.is_debugging_enabled = lambda: not _thread.unnoted and is_enabled()
