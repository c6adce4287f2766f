"""A connection to ZooKeeper that outlives sessions, with a deadline on everything.

Settles what kazoo leaves to its caller (together with `txn.zookeeper.client.session`):

- Its calls wait without a limit while the server is away: every wait here ends at a deadline.
- kazoo retries no command here. A writer must know that the outcome of its first try is unknown, so
  a write is tried once, and `OutcomeUnknownError` reports the rest.
- After a session has expired the client quietly opens another one. Here a client is one session:
  once LOST it is thrown away, and `generation` shows that a new one replaced it, so the leadership
  is claimed again before anything else is written. Its server may lag behind the last one: it
  catches up (`sync`) before the first read.
- By default it creates nodes that everybody may change. Here nodes belong to the owner of the
  credentials; without credentials, and without a setting that allows it, the log warns
  (`txn.zookeeper.client.access`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, Id

from txn.config import TopologyConfig
from txn.errors import ProgressUnavailableError, SetupError
from txn.logs import WAITING
from txn.requests import report_request
from txn.zookeeper.client.access import Access, find_access
from txn.zookeeper.client.session import Session

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
    "Watch",
    "split_chroot",
]

log = logging.getLogger("txn.zookeeper")

T = TypeVar("T")

Watch = Callable[[Any], None]
"""Called once, by kazoo's thread, when a node has changed or the connection was lost."""

_AT_ONCE = 100
"""Most requests in flight together. kazoo wakes its thread by a byte in a socket for each; after
some 280 unread bytes, the sender waits without a limit."""
_POLL_SECS = 0.01
_CHECK_SECS = 0.2
_WARN_SECS = 2.0
"""A first connection may take this long before the user is warned."""

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
    """A multi was not carried out: the condition of `operation` did not hold."""

    def __init__(self, operation: Operation, cause: BaseException) -> None:
        super().__init__(f"{operation.path}: {type(cause).__name__}")
        self.operation = operation
        self.cause = cause


def split_chroot(hosts: str) -> tuple[str, str]:
    """Return ("host:2181,host2:2181", "/chroot"); the chroot may be "".

    The chroot is prefixed to paths here and not by kazoo, which warns when it does not exist yet.
    """
    servers, slash, chroot = hosts.partition("/")
    return servers, (slash + chroot).rstrip("/")


class Connection:
    """Requests to ZooKeeper, over as many sessions as necessary.

    Thread-safe. Deadlines are values of `clock`. Until a server has answered for the first time,
    nothing waits longer than `zookeeper_connect_secs`.

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
        self._access = find_access(config, self.servers)
        self._options = _client_options(config, self._access)
        self._session_secs = config.zookeeper_timeout_secs
        self._first = _FirstWait(config.zookeeper_connect_secs, clock)
        self._on_state = on_state
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._closed = False
        self._warned = False

    @property
    def connected(self) -> bool:
        """True if the current session is healthy, as far as known without a request."""
        session = self._session
        return session is not None and not session.lost and bool(session.client.connected)

    @property
    def session_timeout_secs(self) -> float:
        """The timeout that the server granted the current session; 0 without a session."""
        session = self._session
        return session.timeout_secs if session else 0.0

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 without a session."""
        session = self._session
        identity = session.client.client_id if session else None
        return int(identity[0]) if identity and identity[0] else 0

    def wait(self, deadline: float) -> KazooClient:
        """Return a client with a live connection; opens a new session if the last one expired.

        Warns the user if the first wait takes more than two seconds.

        Raises:
            ProgressUnavailableError: no server answered before `deadline`.
            SetupError: the server refused the credentials, or TLS failed.
        """
        while True:
            session = self._current()
            if session.refused:
                raise self._refused()
            if session.untrusted:
                raise self._untrusted(session.reason)
            if session.client.connected and not session.lost:
                self._first.over = True
                return session.client
            if self._clock() >= self._first.limit(deadline):
                raise self._unavailable()
            if self._first.is_warning_due():
                self._warn_of_wait(deadline, session)
            self._sleep(_POLL_SECS)

    def get(self, path: str, deadline: float, watch: Watch | None = None) -> Node | None:
        """Return the node, or None. Retried until `deadline`: reads are harmless."""
        try:
            return _node(*self._read("get_async", path, deadline, watch))
        except NoNodeError:
            return None

    def get_each(self, paths: Sequence[str], deadline: float) -> list[Node | None]:
        """As `get`, for several nodes in this order: a hundred in one round trip."""
        return self._get_each([(path, None) for path in paths], deadline)

    def children(self, path: str, deadline: float, watch: Watch | None = None) -> list[str] | None:
        """Return the sorted names of the children, or None if the node does not exist."""
        try:
            return sorted(self._read("get_children_async", path, deadline, watch))
        except NoNodeError:
            return None

    def acl(self, path: str, deadline: float) -> list[tuple[str, str, int]] | None:
        """Return the node's ACL as (scheme, id, permissions); None if it does not exist.

        Permissions as ZooKeeper's bits: 1 read, 2 write, 4 create, 8 delete, 16 administer.
        """
        try:
            acls, _ = self._read("get_acls_async", path, deadline)
        except NoNodeError:
            return None
        return [(str(acl.id.scheme), str(acl.id.id), int(acl.perms)) for acl in acls]

    def sync(self, path: str, deadline: float) -> None:
        """Make the server that we read from catch up with its leader."""
        self._read("sync_async", path, deadline)

    def ensure_path(self, path: str, deadline: float) -> None:
        """Create a lasting, empty node and its parents, unless they exist."""
        done = ""
        for component in path.strip("/").split("/"):
            done = f"{done}/{component}"
            while self.get(done, deadline) is None:
                # Another process made it, or we did and lost the answer: the next read shows it.
                with contextlib.suppress(OutcomeUnknownError, RefusedError):
                    self.multi([Create(done)], deadline)

    def multi(
        self, operations: Sequence[Operation], deadline: float, generation: int | None = None
    ) -> list[Any]:
        """Carry out all operations or none. One try.

        Args:
            operations: each with its condition; all depend on all conditions.
            deadline: value of `clock` until which to wait for a connection and the answer.
            generation: send it in this session only; in a later one the claim must come first.

        Returns:
            One result per operation, from kazoo (for a `Put`, the node's new ZnodeStat).

        Raises:
            OutcomeUnknownError: it may have been carried out.
            RefusedError: it was not; has the operation whose condition did not hold.
            ProgressUnavailableError: no answer before `deadline`; the outcome is unknown.
            SetupError: these credentials do not allow it.
        """
        if not (self._access.acl_chosen or self._warned) and any(
            isinstance(o, Create) for o in operations
        ):
            self._warn_ownerless()
        client = self.wait(deadline)
        if generation not in (None, self.generation):
            raise OutcomeUnknownError("a new session has begun; nothing was sent")
        request = client.transaction()
        for operation in operations:
            _add(request, operation)
        try:
            results: list[Any] = report_request(
                "zookeeper", "multi", lambda: self._answer(request.commit_async(), deadline)
            )
        except _UNKNOWN as error:
            if self._clock() >= deadline:
                raise self._unavailable() from error
            raise OutcomeUnknownError(str(error)) from error
        except AuthFailedError as error:
            raise self._refused() from error
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, NoAuthError):
                raise self._forbidden(operation.path)
            if isinstance(result, InvalidACLError):
                raise self._unknown_owner(operation.path)
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

    def _current(self) -> Session:
        with self._lock:
            if self._closed:
                raise ProgressUnavailableError(
                    f"The connection to ZooKeeper at {self.servers} was closed by this program; "
                    "nothing can be read or written through it any more."
                )
            if self._session is None or self._session.lost:
                if self._session is not None:
                    # In its own thread: `stop` waits for a connect, up to a session timeout.
                    stop = self._session.stop
                    threading.Thread(target=stop, name="txn-zk-discard", daemon=True).start()
                self._session = Session(self.servers, self._options, self._on_state)
                self.generation += 1
            return self._session

    def _get_each(
        self, requests: Sequence[tuple[str, Watch | None]], deadline: float
    ) -> list[Node | None]:
        nodes: list[Node | None] = []
        for start in range(0, len(requests), _AT_ONCE):
            chunk = requests[start : start + _AT_ONCE]
            nodes += self._reading(chunk[0][0], deadline, partial(self._ask_chunk, chunk, deadline))
        return nodes

    def _read(self, method: str, path: str, deadline: float, *args: Any) -> Any:
        def read(client: KazooClient) -> Any:
            return report_request(
                "zookeeper",
                method.removesuffix("_async"),
                partial(self._ask, client, method, path, deadline, args),
                (NoNodeError,),
            )

        return self._reading(path, deadline, read)

    def _reading(self, path: str, deadline: float, read: Callable[[KazooClient], T]) -> T:
        while True:
            client = self.wait(deadline)
            try:
                self._catch_up(client, path, deadline)
                return read(client)
            except _UNKNOWN:
                if self._clock() >= deadline:
                    raise self._unavailable() from None
            except AuthFailedError as error:
                raise self._refused() from error
            except NoAuthError as error:
                raise self._forbidden(path) from error

    def _ask_chunk(
        self, requests: Sequence[tuple[str, Watch | None]], deadline: float, client: KazooClient
    ) -> list[Node | None]:
        nodes: list[Node | None] = []
        sent = time.perf_counter()
        for path, request in [(path, client.get_async(path, watch)) for path, watch in requests]:
            answer = partial(self._answer, request, deadline)
            try:
                nodes.append(
                    _node(*report_request("zookeeper", "get", answer, (NoNodeError,), sent))
                )
            except NoNodeError:
                nodes.append(None)
            except NoAuthError as error:
                raise self._forbidden(path) from error
        return nodes

    def _catch_up(self, client: KazooClient, path: str, deadline: float) -> None:
        # The server of a new session may lag behind the reads and writes of our earlier session: a
        # leader would take its own takeover for another's.
        session = self._session
        if session is not None and session.client is client and not session.synced:
            report_request(
                "zookeeper", "sync", partial(self._ask, client, "sync_async", path, deadline)
            )
            session.synced = True

    def _ask(
        self, client: KazooClient, method: str, path: str, deadline: float, args: Sequence[Any] = ()
    ) -> Any:
        return self._answer(getattr(client, method)(path, *args), deadline)

    def _answer(self, request: Any, deadline: float) -> Any:
        """Wait for the server's answer; checks repeatedly that it can still come."""
        end = self._clock() + self._limit(deadline)
        while True:
            try:
                return request.get(timeout=min(_CHECK_SECS, max(0.05, end - self._clock())))
            except KazooTimeoutError:
                # After a refusal, kazoo leaves new requests in its queue.
                if self._session is not None and self._session.refused:
                    raise self._refused() from None
                if self._clock() >= end:
                    raise

    def _limit(self, deadline: float) -> float:
        # A request may be stuck in the client's queue while it reconnects. After a session timeout
        # it is given up with an unknown outcome: it may still be sent.
        return max(0.05, min(self._session_secs, deadline - self._clock()))

    def _warn_of_wait(self, deadline: float, session: Session) -> None:
        left = self._first.limit(deadline) - self._clock()
        logging.getLogger(WAITING).warning(
            "Waiting for ZooKeeper at %s, which does not answer%s: %.0f s more.",
            self.servers,
            _last_try(session),
            left,
        )

    def _unavailable(self) -> ProgressUnavailableError:
        last = _last_try(self._session)
        if self._access.sasl is not None:
            last += ", as a server without SASL does when a client logs in with it"
        if not self._first.over:
            return ProgressUnavailableError(
                f"ZooKeeper at {self.servers} did not answer within {self._first.seconds():.0f} s"
                f"{last}. Start it, or correct its address (--zookeeper, or zookeeper= in the "
                "program), then run this again: nothing was changed. zookeeper_connect_secs sets "
                "how long to try."
            )
        return ProgressUnavailableError(
            f"ZooKeeper at {self.servers} did not answer within the deadline{last}. Check that "
            "it runs and can be reached from here (it also refuses a client when its data is "
            "older than what the client has seen: wiped, or an old backup), then run the "
            "topology again: nothing is lost. zookeeper_deadline_secs sets how long to try."
        )

    def _refused(self) -> SetupError:
        return SetupError(
            f"ZooKeeper at {self.servers} refused the credentials. Correct zookeeper_auth "
            "(scheme and credential) in the TopologyConfig, or TXN_ZOOKEEPER_AUTH_FILE.",
            number="TXN-602",
        )

    def _untrusted(self, reason: str) -> SetupError:
        return SetupError(
            f"No TLS connection to ZooKeeper at {self.servers}: {reason.rstrip('.')}. Check "
            "zookeeper_ca (who signed the server's certificate), the host name in the connect "
            "string (the certificate must name it, unless zookeeper_check_hostname is off), "
            "zookeeper_certfile if the server wants one, and that the port is the secure one.",
            number="TXN-603",
        )

    def _warn_ownerless(self) -> None:
        self._warned = True
        log.warning(
            "Everybody who reaches ZooKeeper %s can change and delete this topology's state: "
            "there are no credentials. Name the owner in zookeeper_auth of the TopologyConfig or "
            "in the environment variable TXN_ZOOKEEPER_AUTH_FILE; to allow everybody, set "
            'zookeeper_acl="open" or TXN_ZOOKEEPER_ACL=open (docs/security.md).',
            self.servers,
        )

    def _unknown_owner(self, path: str) -> SetupError:
        return SetupError(
            f"ZooKeeper at {self.servers} refused to give node '{path}' to its creator: it "
            "cannot identify this client, or does not know a scheme in zookeeper_readers. A "
            "client certificate counts only where the server checks it (ssl.clientAuth=need); "
            "else set zookeeper_auth.",
            number="TXN-602",
        )

    def _forbidden(self, path: str) -> SetupError:
        return SetupError(
            f"ZooKeeper at {self.servers} does not let these credentials use node '{path}'. Set "
            "zookeeper_auth (or TXN_ZOOKEEPER_AUTH_FILE) to those of the topology's owner, or "
            "change the node's ACL.",
            number="TXN-602",
        )


class _FirstWait:
    """The wait for a server's first answer: its length, and the warning about it."""

    def __init__(self, timeout_secs: float, clock: Callable[[], float]) -> None:
        self.over = False
        """A server has answered."""
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._began: float | None = None
        self._reported = False

    def seconds(self) -> float:
        """Return the length of the wait so far."""
        if self._began is None:
            self._began = self._clock()
        return self._clock() - self._began

    def limit(self, deadline: float) -> float:
        """The deadline, or an earlier one while no server has answered."""
        if self.over:
            return deadline
        return min(deadline, self._clock() + self._timeout_secs - self.seconds())

    def is_warning_due(self) -> bool:
        """True once, when the wait has lasted long enough for a warning."""
        if self.over or self._reported or self.seconds() < _WARN_SECS:
            return False
        self._reported = True
        return True


def _node(data: bytes, stat: Any) -> Node:
    return Node(bytes(data), int(stat.version), int(stat.ephemeralOwner))


def _last_try(session: Session | None) -> str:
    reason = session.reason if session is not None else ""
    return f" (the last try: {reason.rstrip('.')})" if reason else ""


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


def _client_options(config: TopologyConfig, access: Access) -> dict[str, Any]:
    """Return the arguments of `KazooClient`."""
    options = {"timeout": config.zookeeper_timeout_secs, **access.options()}
    options["default_acl"] = [ACL(perms, Id(scheme, i)) for perms, scheme, i in access.acl]
    return options
