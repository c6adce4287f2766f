"""Poll ZooKeeper for the status of some topologies, on a thread of its own.

An embedded server ends with its run. Without a server the last answer stays. The feed starts one on
the folder for a moment at the beginning and after each run, as `txn status` does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from txn.backends import connect
from txn.config import TopologyConfig
from txn.config.location import resolve
from txn.embedded.service import is_served, running_server, zookeeper_service
from txn.errors import TxnError
from txn.operations.status import Status, status_of
from txn.protocol.backend import ProgressBackend, TopologyStatus
from txn.text import first_line

__all__ = ["Look", "StatusFeed"]

log = logging.getLogger("txn.watching")

_UNKNOWN = "TXN-607"
"""Number of the error for a topology that ZooKeeper does not know."""
_EVERY_SECS = 1.0
_UNLED_SECS = 5.0
"""Interval for a topology without a leader: there may be many, and only people change them."""
_CONNECT_SECS = 5.0
_AFTER_A_RUN_SECS = 5.0
"""Pause after a run: one that starts again at once finds its server's folder free."""


@dataclass(frozen=True)
class Look:
    """The answer of one poll of ZooKeeper."""

    at: float
    """Seconds since 1970."""
    statuses: Mapping[str, Status] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    """topology -> why it cannot be read."""
    error: str | None = None
    """Why ZooKeeper itself could not be asked; the statuses are those of the poll before."""
    hosts: str | None = None
    """Connect string of a server that keeps running; None: no such server now."""
    absent: frozenset[str] = frozenset()
    """Topologies whose error is that ZooKeeper does not know them."""


class StatusFeed:
    """Polls ZooKeeper about once a second.

    Args:
        spec: as for `Topology.run`.
        topologies: topology -> its settings; empty: every topology that ZooKeeper knows.
        tell: called with each answer, by the feed's thread.
        starts_server: True if an embedded server may be started for a moment.
    """

    def __init__(
        self,
        spec: str,
        topologies: Mapping[str, TopologyConfig],
        tell: Callable[[Look], None],
        *,
        starts_server: bool = True,
    ) -> None:
        self._spec = spec
        self._folder = resolve(spec).folder
        self._topologies = {
            name: _with_connect_timeout(config) for name, config in topologies.items()
        }
        self._default = _with_connect_timeout(TopologyConfig())
        self._tell = tell
        self._starts_server = starts_server
        self._statuses: dict[str, TopologyStatus] = {}
        self._again: dict[str, float] = {}
        """topology -> time of the next read, whatever its state."""
        self._errors: dict[str, str] = {}
        self._absent: frozenset[str] = frozenset()
        self._error: str | None = None
        self._backends: dict[int, ProgressBackend] = {}
        self._hosts: str | None = None
        self._due: float | None = 0.0 if starts_server else None
        """Time at which a server may be started for a moment; None: never."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txn-watch-zookeeper", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a poll that is under way."""
        self._closed.set()
        self._thread.join(2 * _CONNECT_SECS)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._poll()
            except (TxnError, OSError) as failure:
                self._error = _message(failure)
                self._forget_backends()
            except Exception as failure:
                log.exception("ZooKeeper could not be looked at")
                self._error = first_line(failure)
                self._forget_backends()
            try:
                if not self._closed.is_set():
                    self._tell(self._answer())
            except Exception:
                log.exception("what ZooKeeper says could not be taken in")
            self._closed.wait(_EVERY_SECS)
        self._forget_backends()

    def _answer(self) -> Look:
        # Each answer checks anew which of the processes still run.
        # A server that is too busy to answer still counts as running.
        served = self._hosts is not None or is_served(self._spec)
        statuses = {name: status_of(one, served=served) for name, one in self._statuses.items()}
        at, errors = time.time(), dict(self._errors)
        return Look(at, statuses, errors, self._error, self._hosts, self._absent)

    def _poll(self) -> None:
        if self._folder is None:
            self._ask(resolve(self._spec).hosts)
            return
        hosts = running_server(self._folder, self._hosts)
        if hosts is not None:
            self._ask(hosts)
            if self._starts_server:
                self._due = time.monotonic() + _AFTER_A_RUN_SECS
            return
        self._forget_backends()
        if self._due is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + _AFTER_A_RUN_SECS  # in case it fails
            with zookeeper_service(self._spec, share=True, must_exist=True) as own:
                self._ask(own)
            self._due = None
            self._forget_backends()

    def _ask(self, hosts: str) -> None:
        if hosts != self._hosts:
            self._forget_backends()
            self._hosts = hosts
        topologies = self._topologies or dict.fromkeys(
            self._backend(self._default).topologies(), self._default
        )
        statuses, errors, absent = {}, {}, set()
        for name, config in topologies.items():
            try:
                statuses[name] = self._status(name, config)
            except TxnError as error:
                errors[name] = _message(error)
                if error.number == _UNKNOWN:
                    absent.add(name)
                if name in self._statuses:
                    statuses[name] = self._statuses[name]
        self._statuses, self._errors, self._error = statuses, errors, None
        self._absent = frozenset(absent)

    def _status(self, name: str, config: TopologyConfig) -> TopologyStatus:
        backend, last, now = self._backend(config), self._statuses.get(name), time.monotonic()
        rests = last is not None and last.leader is None and now < self._again.get(name, 0.0)
        if last is not None and rests and not backend.is_led(name):
            return last
        self._again[name] = now + _UNLED_SECS
        return backend.status(name)

    def _backend(self, config: TopologyConfig) -> ProgressBackend:
        """Return the connection for all topologies with the same settings."""
        assert self._hosts is not None
        if id(config) not in self._backends:
            self._backends[id(config)] = connect(self._hosts, config, remembers=True)
        return self._backends[id(config)]

    def _forget_backends(self) -> None:
        self._hosts = None
        for backend in self._backends.values():
            with contextlib.suppress(TxnError, OSError):
                backend.close()
        self._backends.clear()


def _message(error: TxnError | OSError) -> str:
    return f"{error} [{error.number}]" if isinstance(error, TxnError) else str(error)


def _with_connect_timeout(config: TopologyConfig) -> TopologyConfig:
    """Return the settings with a short connect timeout: the next poll is a second away."""
    return config.model_copy(update={"zookeeper_connect_secs": _CONNECT_SECS})
