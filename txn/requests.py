"""Requests to ZooKeeper and to storage, told to those who want to know of them.

`txn.zookeeper.connection` and `txn.storage.opening` have one place each where requests pass; both
hand them to `asked`. While nobody listens, that costs a request one look at an empty tuple.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

__all__ = ["Request", "Service", "asked", "listen"]

T = TypeVar("T")

Service = Literal["zookeeper", "storage"]


@dataclass(frozen=True)
class Request:
    """A request that was answered, or failed."""

    service: Service
    operation: str
    """Of ZooKeeper "get", "get_children", "get_acls", "exists", "sync" or "multi"; of storage a
    method of `txn.storage.store.Store`."""
    seconds: float
    error: str | None
    """The name of what was raised instead of an answer."""


_listeners: tuple[Callable[[Request], None], ...] = ()
_changing = threading.Lock()


def listen(listener: Callable[[Request], None]) -> Callable[[], None]:
    """Call `listener` after every request of this process, on the thread that made it.

    Args:
        listener: must be fast, and must not raise.

    Returns:
        What ends it; may be called again.
    """
    global _listeners  # noqa: PLW0603 - who asks has no handle on who listens
    with _changing:
        _listeners = (*_listeners, listener)

    def end() -> None:
        global _listeners  # noqa: PLW0603
        with _changing:
            _listeners = tuple(one for one in _listeners if one is not listener)

    return end


def asked(
    service: Service,
    operation: str,
    ask: Callable[[], T],
    answers: tuple[type[BaseException], ...] = (),
    sent: float | None = None,
) -> T:
    """The answer of a request, whose time is told.

    Args:
        answers: what `ask` raises although it was answered, such as "there is no such node".
        sent: when it was sent, by `time.perf_counter`, if `ask` only waits for its answer.
    """
    if not (listeners := _listeners):
        return ask()
    error: str | None = None
    began = time.perf_counter() if sent is None else sent
    try:
        return ask()
    except BaseException as raised:
        error = None if isinstance(raised, answers) else type(raised).__name__
        raise
    finally:
        request = Request(service, operation, time.perf_counter() - began, error)
        for listener in listeners:
            listener(request)
