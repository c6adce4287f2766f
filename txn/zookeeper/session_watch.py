"""The thread that takes the leadership again after a lost session, also while nothing is written.

kazoo's own thread must not block, so the states that it reports go through a queue. It reports LOST
when a server says so, after it has reconnected. Until then another process may lead for as long as
the link is cut, so a session whose timeout has passed without an answer counts as lost here.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from kazoo.protocol.states import KazooState

from txn.errors import ProgressUnavailableError, TxnError
from txn.zookeeper.connection import WAITING

__all__ = ["SessionWatch"]

log = logging.getLogger("txn.zookeeper")
waiting = logging.getLogger(WAITING)

_TELL_SECS = 2.0
"""How long ZooKeeper may be away before somebody is told."""
_JOIN_SECS = 5.0


class SessionWatch:
    """Calls back once per session that is lost, or may be, in a thread of its own.

    It calls back again if the leadership could not be settled because ZooKeeper was still away.

    Args:
        topology: its name, for the log.
        on_lost: called with each loss; what it raises is logged.
        session_secs: the timeout of the session, as granted.
        stopped: set when a lost session is no longer of interest.
    """

    def __init__(
        self,
        topology: str,
        on_lost: Callable[[], None],
        session_secs: Callable[[], float],
        stopped: threading.Event,
    ) -> None:
        self._topology = topology
        self._on_lost = on_lost
        self._session_secs = session_secs
        self._stopped = stopped
        self._states: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._away = False
        """Somebody was told that ZooKeeper is away."""
        self._told = False
        """`on_lost` was called since the last connection."""
        self._unsettled = False
        """ZooKeeper was away for too long for `on_lost` to settle it."""

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
        state = self._states.get()
        while state is not None:
            if state == KazooState.SUSPENDED:
                state = self._suspended()
                continue
            if state == KazooState.CONNECTED:
                self._connected()
            elif not self._told or self._unsettled:
                log.info("[%s] ZooKeeper session lost", self._topology)
                self._lost()
            state = self._states.get()

    def _suspended(self) -> str | None:
        """Say how long ZooKeeper is away; returns the next state."""
        session = self._session_secs()
        at_first = min(_TELL_SECS, session)
        try:
            return self._states.get(timeout=at_first)
        except queue.Empty:
            self._away = True
            waiting.warning(
                "[%s] ZooKeeper does not answer: nothing is committed until it does.",
                self._topology,
            )
        try:
            return self._states.get(timeout=session - at_first)
        except queue.Empty:
            waiting.warning(
                "[%s] ZooKeeper has not answered for %g s, so the session may be lost and another "
                "process may lead. This one commits nothing until it is certain that none does.",
                self._topology,
                session,
            )
            self._lost()
        return self._states.get()

    def _connected(self) -> None:
        if self._away:
            waiting.warning("[%s] ZooKeeper answers again.", self._topology)
        if self._unsettled:
            self._lost()
        self._away = self._told = False

    def _lost(self) -> None:
        if self._stopped.is_set():
            return
        self._told, self._unsettled = True, False
        try:
            self._on_lost()
        except TxnError as error:
            self._unsettled = isinstance(error, ProgressUnavailableError)
            if not self._stopped.is_set():
                log.warning("[%s] %s", self._topology, error)
        except Exception:
            # The observer's own fault; the watch must outlive it.
            log.exception("[%s] on_lost failed", self._topology)
