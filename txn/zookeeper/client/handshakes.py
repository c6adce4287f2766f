"""kazoo's connection, which also says what its tries to connect came to.

kazoo tells its user none of this: why a try failed and the timeout that the server granted stand in
its log only, and how long it waits for an answer to a connect is nobody's to set. So its own class
is put in the place of `KazooClient._connection` with three of its methods wrapped, none of them
public. tests/zookeeper/test_handshakes.py fails when another release of kazoo renames one.
"""

from __future__ import annotations

import ssl
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect

__all__ = ["Handshakes"]

_TRIES = 3
"""How many connects without an answer fit into the session's timeout."""


class Handshakes(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """The connection of a client that has not been started yet."""

    def __init__(self, client: KazooClient) -> None:
        plain = client._connection
        super().__init__(client, plain.retry_sleeper, plain.logger, plain.sasl_options)
        client._connection = self
        self.reason = ""
        """Why the last try to connect failed; empty: none has."""
        self.tls_failures = 0
        """Tries in a row that failed in TLS."""
        self.granted_ms = 0
        """Session timeout as the server granted it; 0 before."""

    def _expand_client_hosts(self) -> Any:
        addresses = super()._expand_client_hosts()
        if not addresses:
            names = ", ".join(str(host) for host, _ in self.client.hosts)
            self.reason = f"no address is known for {names}"
        return addresses

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        try:
            return super()._connect(host, hostip, port)
        except (ConnectionDropped, KazooTimeoutError) as error:
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            self.reason = str(getattr(cause, "strerror", None) or cause)
            is_tls = isinstance(cause, ssl.SSLError)
            self.tls_failures = self.tls_failures + 1 if is_tls else 0
            raise

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        # kazoo waits a session timeout, divided by the number of servers. A server that just starts
        # may accept a connection and forget it: to wait so long would cost the session, and with it
        # the leadership.
        at_most = self.client._session_timeout / 1000 / _TRIES
        answer = super()._invoke(min(timeout, at_most), request, xid)
        if isinstance(request, Connect):
            self.granted_ms = answer[0].time_out
        return answer
