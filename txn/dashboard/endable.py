"""An HTTP server that reports when it answers, and ends when asked to."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

__all__ = ["EndableServer"]

_END_SECS = 3
"""Most seconds that the end waits for requests under way."""


class EndableServer(uvicorn.Server):
    """Serves an application until it is asked to end.

    Args:
        ready: called once it answers.
        is_over: called ten times a second; True ends the server.
    """

    def __init__(
        self, app: ASGIApp, ready: Callable[[], None], is_over: Callable[[], bool]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_END_SECS,
                lifespan="off",
                ws="none",
            )
        )
        self._ready = ready
        self._is_over = is_over

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report it."""
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Return True to end."""
        return self._is_over() or await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end the server, so that its caller goes on and cleans up."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self.handle_exit) for number in signals]
        try:
            yield
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)
