"""One session with ZooKeeper: kazoo's client, plus facts that it does not report.

- Its own retries go on for ever, with pauses of up to an hour: here they are at most half a second.
- State listeners run in kazoo's own thread, where a request would wait for itself: the listener
  here only passes the state on.
- At DEBUG it logs every request, credentials included: `_CalmLogger` drops everything below INFO.
- It would try for ever a server with an invalid certificate, or one that refuses ours: `Handshakes`
  counts such tries, and has the reason of the last failed one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import Callback, KazooState, KeeperState
from kazoo.retry import KazooRetry

from txn.zookeeper.client.handshakes import Handshakes

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no type before Python 3.11

__all__ = ["Session"]


class _CalmLogger(_Adapter):
    """Logs kazoo's warnings (each failed reconnect) as INFO, and drops DEBUG with its secrets."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= logging.INFO:
            super().log(logging.INFO, msg, *args, **kwargs)


class Session:
    """One kazoo client, used for one ZooKeeper session and then thrown away."""

    def __init__(
        self, hosts: str, options: dict[str, Any], on_state: Callable[[str], None]
    ) -> None:
        self.lost = False
        self.synced = False
        """Its server has caught up with the ensemble's leader since the session began."""
        self.refused = False
        """The server did not accept the credentials."""
        self._was_connected = False
        self._on_state = on_state
        self.client = KazooClient(
            hosts,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=0.5),
            command_retry=KazooRetry(max_tries=1),
            logger=_CalmLogger(logging.getLogger("txn.zookeeper")),
            **options,
        )
        self._handshakes = Handshakes(self.client)
        self.client.add_listener(self._listen)
        self.client.start_async()

    @property
    def reason(self) -> str:
        """The reason why the last try to connect failed; empty if none has failed."""
        return self._handshakes.reason

    @property
    def timeout_secs(self) -> float:
        """The session timeout that the server granted; 0 before."""
        return self._handshakes.granted_ms / 1000

    @property
    def untrusted(self) -> bool:
        """True if TLS failed with every server, and none was ever connected."""
        failed = self._handshakes.tls_failures >= len(self.client.hosts)
        return not self._was_connected and failed

    def _listen(self, state: str) -> None:
        # kazoo's own thread: no request may be made here.
        if self.client.client_state == KeeperState.AUTH_FAILED:
            # Stored, because kazoo leaves this state in a moment. Not lost: the server would refuse
            # a new session as well.
            self.refused = True
        elif state == KazooState.CONNECTED:
            self._was_connected = True
        elif state == KazooState.LOST and self._was_connected:
            self.lost = True
        self._on_state(state)

    def settle(self, seconds: float) -> bool:
        """Wait until kazoo has called the watches that are due; False if it needs longer."""
        done = threading.Event()
        self.client.handler.dispatch_callback(Callback("settle", done.set, ()))
        return done.wait(seconds)

    def stop(self) -> None:
        """End the session; its ephemeral nodes go at once if the server can be reached."""
        self.client.remove_listener(self._listen)
        try:
            self.client.stop()
        except KazooException:
            return  # it is stuck in a connect and ends when that does; nothing waits for it
        self.client.close()
