"""The thread that takes the leadership again after a lost session, also while nothing is written.

kazoo's own thread must not block, so the states that it reports go through a queue.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from kazoo.protocol.states import KazooState

from txn.errors import TxnError

__all__ = ["SessionWatch"]

log = logging.getLogger("txn.zookeeper")

_JOIN_SECS = 5.0


class SessionWatch:
    """Calls back once per lost session, in a thread of its own.

    Args:
        topology: its name, for the log.
        on_lost: called with each loss; what it raises is logged.
        stopped: set when a lost session is no longer of interest.
    """

    def __init__(
        self, topology: str, on_lost: Callable[[], None], stopped: threading.Event
    ) -> None:
        self._topology = topology
        self._on_lost = on_lost
        self._stopped = stopped
        self._states: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def report(self, state: str) -> None:
        """Take a state of the connection from kazoo's thread. Never blocks."""
        self._states.put(state)

    def start(self) -> None:
        """Begin to watch; again: nothing happens."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="txn-zk-session", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let the thread end after what it does now."""
        self._states.put(None)

    def join(self) -> None:
        """Wait for the thread's end, five seconds at most; not if it is the caller."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=_JOIN_SECS)

    def _run(self) -> None:
        while (state := self._states.get()) is not None:
            if state != KazooState.LOST or self._stopped.is_set():
                continue
            log.info("[%s] ZooKeeper session lost", self._topology)
            try:
                self._on_lost()
            except TxnError as error:
                if not self._stopped.is_set():
                    log.warning("[%s] %s", self._topology, error)
            except Exception:
                # The observer's own fault; the watch must outlive it.
                log.exception("[%s] on_lost failed", self._topology)
