"""Report requests to ZooKeeper and to storage to listeners.

`txn.zookeeper.client.connection` and `txn.storage.reporting` each have one place through which
requests pass; both use `report_request`. Without listeners, that costs a request one check of an
empty tuple.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

__all__ = ["Request", "Service", "listen", "report_request"]

T = TypeVar("T")

Service = Literal["zookeeper", "storage"]


@dataclass(frozen=True)
class Request:
    """A request that was answered or failed."""

    service: Service
    operation: str
    """For ZooKeeper "get", "get_children", "get_acls", "exists", "sync" or "multi"; for storage a
    method of `txn.storage.store.Store`."""
    seconds: float
    error: str | None
    """The name of the exception instead of an answer."""


_listeners: tuple[Callable[[Request], None], ...] = ()
_changing = threading.Lock()


def listen(listener: Callable[[Request], None]) -> Callable[[], None]:
    """Call `listener` after every request of this process, in the thread of the request.

    Args:
        listener: must be fast, and must not raise.

    Returns:
        A function that ends it; idempotent.
    """
    global _listeners  # noqa: PLW0603 - requests have no handle on the listeners
    with _changing:
        _listeners = (*_listeners, listener)

    def end() -> None:
        global _listeners  # noqa: PLW0603
        with _changing:
            _listeners = tuple(one for one in _listeners if one is not listener)

    return end


def report_request(
    service: Service,
    operation: str,
    send: Callable[[], T],
    answers: tuple[type[BaseException], ...] = (),
    sent_at: float | None = None,
) -> T:
    """Send a request, report it with the time it took, and return its answer.

    Args:
        answers: exceptions of `send` that are answers too, such as "no such node".
        sent_at: by `time.perf_counter`, if the request was sent before and `send` only waits for
            the answer.
    """
    if not (listeners := _listeners):
        return send()
    error: str | None = None
    began = time.perf_counter() if sent_at is None else sent_at
    try:
        return send()
    except BaseException as raised:
        error = None if isinstance(raised, answers) else type(raised).__name__
        raise
    finally:
        request = Request(service, operation, time.perf_counter() - began, error)
        for listener in listeners:
            listener(request)
