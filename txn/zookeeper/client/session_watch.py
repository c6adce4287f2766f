"""The thread that claims the leadership again after a lost session, even without writes.

kazoo's own thread must not block, so the states that it reports go through a queue. It reports LOST
only after it has reconnected and a server has answered. Meanwhile another process may lead, so a
session whose timeout has passed without an answer counts as lost here.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from kazoo.protocol.states import KazooState

from txn.errors import ProgressUnavailableError, TxnError
from txn.logs import WAITING

__all__ = ["SessionWatch"]

log = logging.getLogger("txn.zookeeper")
waiting = logging.getLogger(WAITING)

_WARN_SECS = 2.0
"""ZooKeeper may be unavailable for this long before the user is warned."""
_JOIN_SECS = 5.0


class SessionWatch:
    """Calls back once per session that is lost, or may be, in a thread of its own.

    It calls back again if ZooKeeper was still unavailable and the leadership stayed unclear.

    Args:
        topology: its name, for the log.
        on_lost: called for each loss; its exceptions are logged.
        session_secs: the timeout of the session, as granted.
        stopped: set when lost sessions no longer matter.
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
        self._is_away_reported = False
        """The user was warned that ZooKeeper does not answer."""
        self._is_reported = False
        """`on_lost` was called since the last connection."""
        self._unsettled = False
        """`on_lost` failed because ZooKeeper was still unavailable."""

    def report(self, state: str) -> None:
        """Take a state of the connection from kazoo's thread. Never blocks."""
        self._states.put(state)

    def start(self) -> None:
        """Begin to watch. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="txn-zk-session", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its present call."""
        self._states.put(None)

    def join(self) -> None:
        """Wait at most five seconds for the thread's end; returns at once in the thread itself."""
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
            elif not self._is_reported or self._unsettled:
                log.info("[%s] ZooKeeper session lost", self._topology)
                self._lost()
            state = self._states.get()

    def _suspended(self) -> str | None:
        """Warn while ZooKeeper does not answer; return the next state."""
        session = self._session_secs()
        until_warning = min(_WARN_SECS, session)
        try:
            return self._states.get(timeout=until_warning)
        except queue.Empty:
            self._is_away_reported = True
            waiting.warning(
                "[%s] ZooKeeper does not answer: nothing is committed until it does.",
                self._topology,
            )
        try:
            return self._states.get(timeout=session - until_warning)
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
        if self._is_away_reported:
            waiting.warning("[%s] ZooKeeper answers again.", self._topology)
        if self._unsettled:
            self._lost()
        self._is_away_reported = self._is_reported = False

    def _lost(self) -> None:
        if self._stopped.is_set():
            return
        self._is_reported, self._unsettled = True, False
        try:
            self._on_lost()
        except TxnError as error:
            self._unsettled = isinstance(error, ProgressUnavailableError)
            if not self._stopped.is_set():
                log.warning("[%s] %s", self._topology, error)
        except Exception:
            # A bug in the observer; the watch must survive it.
            log.exception("[%s] on_lost failed", self._topology)
