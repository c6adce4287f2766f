"""Requests to stores over a network: several at a time, and for files that may not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import TypeVar

from txn.storage.retrying import names_no_bucket

__all__ = ["if_there", "in_parallel", "threads"]

K = TypeVar("K")
T = TypeVar("T")

_THREADS = 16
"""Requests at a time for one call."""


def if_there(ask: Callable[[], T]) -> T | None:
    """Make a request; None if the file does not exist."""
    try:
        return ask()
    except FileNotFoundError as error:
        if names_no_bucket(error):
            raise
        return None


def in_parallel(ask: Callable[[K], T], about: Sequence[K]) -> list[T]:
    """Make one request per argument, several at a time; results in the arguments' order."""
    if len(about) < 2:
        return [ask(one) for one in about]
    with threads(len(about), "txn-store") as pool:
        return [*pool.map(ask, about)]


def threads(most: int, name: str) -> ThreadPoolExecutor:
    """Threads for one call, 16 at most; their log lines carry the same ids as this thread's."""
    return ThreadPoolExecutor(
        min(_THREADS, most), name, initializer=_enter, initargs=(copy_context(),)
    )


def _enter(context: Context) -> None:
    """Copy the context variables of another thread."""
    for variable, value in context.items():
        variable.set(value)
