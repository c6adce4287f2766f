"""A connection to ZooKeeper that outlives sessions, with a deadline on everything.

What kazoo leaves to its caller, and how it is settled here:

- Its calls wait without a limit while the server is away: every wait here ends at a deadline.
- Its own retries go on for ever, with pauses of up to an hour: `_RECONNECT` pauses at most half a
  second, and no command is retried by kazoo. Whoever writes must know that the outcome of a first
  try is unknown, so a write is tried once and `OutcomeUnknownError` says the rest.
- After a session has expired the client quietly opens another one. Here a client is one session:
  once LOST it is thrown away, and `generation` tells that a new one took its place, so that
  leadership is claimed again before anything else is written.
- State listeners run in kazoo's own thread, where a request would wait for itself: the listener
  here does nothing but pass the word on.
- At DEBUG it logs every request, credentials included: `_CalmLogger` lets nothing below INFO by.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from txn.config import TopologyConfig
from txn.errors import ProgressUnavailableError, SetupError, UserError

__all__ = [
    "Check",
    "Connection",
    "Create",
    "Delete",
    "Node",
    "Operation",
    "OutcomeUnknownError",
    "Put",
    "RefusedError",
    "client_options",
    "split_chroot",
]

_POLL_SECS = 0.01

# An unknown outcome: the request may or may not have been carried out.
_UNKNOWN = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    KazooTimeoutError,
)


@dataclass(frozen=True)
class Check:
    """Part of a multi: the node has this version."""

    path: str
    version: int


@dataclass(frozen=True)
class Create:
    """Part of a multi: the node did not exist, and now does."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True)
class Put:
    """Part of a multi: the node had this version, and now has these contents."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True)
class Delete:
    """Part of a multi: the node had this version, and is gone."""

    path: str
    version: int


Operation = Check | Create | Put | Delete


@dataclass(frozen=True)
class Node:
    """A node as read."""

    data: bytes
    version: int
    owner: int
    """Session id of an ephemeral node's owner; 0 for a lasting node."""


class OutcomeUnknownError(Exception):
    """The connection broke between a write and its answer: it may have been carried out."""


class RefusedError(Exception):
    """A multi was not carried out: `operation` did not find what it was conditional on."""

    def __init__(self, operation: Operation, cause: BaseException) -> None:
        super().__init__(f"{operation.path}: {type(cause).__name__}")
        self.operation = operation
        self.cause = cause


class _CalmLogger(logging.LoggerAdapter[logging.Logger]):
    """kazoo's warnings (each failed reconnect) become INFO; DEBUG, with its secrets, nothing."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= logging.INFO:
            super().log(logging.INFO, msg, *args, **kwargs)


def split_chroot(hosts: str) -> tuple[str, str]:
    """("host:2181,host2:2181", "/chroot"); the chroot is "" when there is none.

    The chroot is prefixed to paths here and not by kazoo, which warns when it does not exist yet.
    """
    servers, slash, chroot = hosts.partition("/")
    return servers, (slash + chroot).rstrip("/")


def client_options(config: TopologyConfig) -> dict[str, Any]:
    """The settings of a topology as arguments of `KazooClient`.

    Raises:
        UserError: `zookeeper_acl="creator"` without credentials (nobody would own the nodes), or a
            TLS file that is not there.
    """
    options: dict[str, Any] = {"timeout": config.zookeeper_timeout_secs}
    if config.zookeeper_auth:
        options["auth_data"] = [(s, c.get_secret_value()) for s, c in config.zookeeper_auth]
    if config.zookeeper_acl == "creator":
        if not config.zookeeper_auth:
            raise UserError(
                'zookeeper_acl="creator" gives every node to whoever created it, but there is no '
                'zookeeper_auth. Set it, for example (("digest", "user:password"),).'
            )
        options["default_acl"] = CREATOR_ALL_ACL
    if config.zookeeper_tls:
        for name in ("zookeeper_ca", "zookeeper_certfile", "zookeeper_keyfile"):
            path = getattr(config, name)
            # kazoo would try for ever to connect with a file that is not there.
            if path is not None and not Path(path).is_file():
                raise UserError(f"{name} is '{path}', and there is no such file. Correct it.")
        options.update(
            use_ssl=True,
            ca=config.zookeeper_ca,
            certfile=config.zookeeper_certfile,
            keyfile=config.zookeeper_keyfile,
        )
    return options


class _Session:
    """One kazoo client, used for one ZooKeeper session and then thrown away."""

    def __init__(
        self, hosts: str, options: dict[str, Any], on_state: Callable[[str], None]
    ) -> None:
        self.lost = False
        self.refused = False
        """The server did not accept the credentials."""
        self._was_connected = False
        self._on_state = on_state
        self.client = KazooClient(
            hosts,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=0.5),
            command_retry=KazooRetry(max_tries=1),
            logger=_CalmLogger(logging.getLogger("txn.zookeeper"), {}),
            **options,
        )
        self.client.add_listener(self._listen)
        self.client.start_async()

    def _listen(self, state: str) -> None:
        # kazoo's own thread: no request may be made here.
        if self.client.client_state == KeeperState.AUTH_FAILED:
            # Kept here, since kazoo passes through this state in a moment; and not called lost,
            # since a new session would be refused as well.
            self.refused = True
        elif state == KazooState.CONNECTED:
            self._was_connected = True
        elif state == KazooState.LOST and self._was_connected:
            self.lost = True
        self._on_state(state)

    def stop(self) -> None:
        """End the session; its ephemeral nodes go at once if the server can be reached."""
        self.client.remove_listener(self._listen)
        try:
            self.client.stop()
        except KazooException:
            return  # it is stuck in a connect and ends when that does; nothing waits for it
        self.client.close()


class Connection:
    """Requests to ZooKeeper, over as many sessions as it takes.

    Thread-safe. Deadlines are values of `clock`.

    Args:
        hosts: "host:2181,host:2181/chroot".
        on_state: called by kazoo's thread with "CONNECTED", "SUSPENDED" or "LOST"; must not block.
    """

    def __init__(
        self,
        hosts: str,
        config: TopologyConfig,
        *,
        on_state: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers, self.chroot = split_chroot(hosts)
        self.generation = 0
        """Counts sessions; 0 before the first one."""
        self._options = client_options(config)
        self._patience = config.zookeeper_timeout_secs
        self._on_state = on_state
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the current session is healthy as far as is known; no request is made."""
        session = self._session
        return session is not None and not session.lost and bool(session.client.connected)

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 when there is none."""
        session = self._session
        identity = session.client.client_id if session else None
        return int(identity[0]) if identity and identity[0] else 0

    def wait(self, deadline: float) -> KazooClient:
        """A client with a live connection; opens a new session if the last one expired.

        Raises:
            ProgressUnavailableError: no server answered before `deadline`.
            SetupError: the server refused the credentials.
        """
        while True:
            session = self._current()
            if session.refused:
                raise self._refused()
            if session.client.connected and not session.lost:
                return session.client
            if self._clock() >= deadline:
                raise self._unavailable()
            self._sleep(_POLL_SECS)

    def get(
        self, path: str, deadline: float, watch: Callable[[Any], None] | None = None
    ) -> Node | None:
        """The node, or None. Tried again until `deadline`: reading twice harms nothing."""
        try:
            data, stat = self._read("get_async", path, deadline, watch)
        except NoNodeError:
            return None
        return Node(bytes(data), int(stat.version), int(stat.ephemeralOwner))

    def children(self, path: str, deadline: float) -> list[str] | None:
        """Names of the children, sorted, or None when the node does not exist."""
        try:
            return sorted(self._read("get_children_async", path, deadline))
        except NoNodeError:
            return None

    def sync(self, path: str, deadline: float) -> None:
        """Let the server that we read from catch up with its leader."""
        self._read("sync_async", path, deadline)

    def ensure_path(self, path: str, deadline: float) -> None:
        """Create a lasting, empty node and its parents, those that are missing."""
        done = ""
        for component in path.strip("/").split("/"):
            done = f"{done}/{component}"
            while self.get(done, deadline) is None:
                # Somebody made it first, or we did and lost the answer: the next look says.
                with contextlib.suppress(OutcomeUnknownError, RefusedError):
                    self.multi([Create(done)], deadline)

    def multi(
        self, operations: Sequence[Operation], deadline: float, generation: int | None = None
    ) -> list[Any]:
        """Carry out all operations or none. One try.

        Args:
            operations: each with the condition on which all of them depend.
            deadline: value of `clock` up to which to wait for a connection and the answer.
            generation: send it in this session only; in a later one it would bypass the claim
                that has to come first there.

        Returns:
            One result per operation, as kazoo gives it (for a `Put`, the node's new ZnodeStat).

        Raises:
            OutcomeUnknownError: it may have been carried out.
            RefusedError: it was not; carries the operation whose condition did not hold.
            ProgressUnavailableError: there was no answer before `deadline`, and no telling.
            SetupError: these credentials may not do that.
        """
        client = self.wait(deadline)
        if generation not in (None, self.generation):
            raise OutcomeUnknownError("a new session has begun; nothing was sent")
        request = client.transaction()
        for operation in operations:
            _add(request, operation)
        try:
            results: list[Any] = request.commit_async().get(timeout=self._limit(deadline))
        except _UNKNOWN as error:
            if self._clock() >= deadline:
                raise self._unavailable() from error
            raise OutcomeUnknownError(str(error)) from error
        except AuthFailedError as error:
            raise self._refused() from error
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, NoAuthError):
                raise self._forbidden(operation.path)
            if isinstance(result, Exception) and not isinstance(
                result, (RolledBackError, RuntimeInconsistency)
            ):
                raise RefusedError(operation, result)
        return results

    def close(self) -> None:
        """End the session. Idempotent; afterwards every request is refused."""
        with self._lock:
            session, self._session, self._closed = self._session, None, True
        if session is not None:
            session.stop()

    # --- inside ------------------------------------------------------------------------------

    def _current(self) -> _Session:
        with self._lock:
            if self._closed:
                raise ProgressUnavailableError(
                    f"The connection to ZooKeeper at {self.servers} was closed by this program; "
                    "nothing can be read or written through it any more."
                )
            if self._session is None or self._session.lost:
                self._discard(self._session)
                self._session = _Session(self.servers, self._options, self._on_state)
                self.generation += 1
            return self._session

    def _discard(self, session: _Session | None) -> None:
        if session is not None:
            # In its own thread: stopping waits for a connect in progress, a session timeout long.
            threading.Thread(target=session.stop, name="txn-zk-discard", daemon=True).start()

    def _read(self, method: str, path: str, deadline: float, *args: Any) -> Any:
        while True:
            client = self.wait(deadline)
            try:
                return getattr(client, method)(path, *args).get(timeout=self._limit(deadline))
            except _UNKNOWN:
                if self._clock() >= deadline:
                    raise self._unavailable() from None
            except AuthFailedError as error:
                raise self._refused() from error
            except NoAuthError as error:
                raise self._forbidden(path) from error

    def _limit(self, deadline: float) -> float:
        # A request may be stuck in the client's queue while it reconnects; it is then given up
        # after a session timeout, and the outcome is unknown: it may still be sent.
        return max(0.05, min(self._patience, deadline - self._clock()))

    def _unavailable(self) -> ProgressUnavailableError:
        return ProgressUnavailableError(
            f"ZooKeeper at {self.servers} did not answer within the deadline. Check that it runs "
            "and can be reached from here (it also refuses a client when its data is older than "
            "what the client has seen: wiped, or an old backup), then run the topology again: "
            "nothing is lost. zookeeper_deadline_secs says how long to try."
        )

    def _refused(self) -> SetupError:
        return SetupError(
            f"ZooKeeper at {self.servers} refused the credentials. Correct zookeeper_auth "
            "(scheme and credential) in the TopologyConfig."
        )

    def _forbidden(self, path: str) -> SetupError:
        return SetupError(
            f"ZooKeeper at {self.servers} does not let these credentials use node '{path}'. Set "
            "zookeeper_auth to those of the topology's owner, or change the node's ACL."
        )


def _add(request: Any, operation: Operation) -> None:
    match operation:
        case Check(path, version):
            request.check(path, version)
        case Create(path, data, ephemeral):
            request.create(path, data, ephemeral=ephemeral)
        case Put(path, data, version):
            request.set_data(path, data, version)
        case Delete(path, version):
            request.delete(path, version)
