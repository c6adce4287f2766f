"""What ZooKeeper says of some topologies, asked again and again on a thread of its own.

An embedded server ends with its run. While there is none, the last answer stays; one is started on
the folder for a moment at the beginning and after each run, as `txn status` does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from txn.config import TopologyConfig
from txn.embedded.service import is_served, running_server, zookeeper_service
from txn.errors import TxnError
from txn.operations.status import Status, status_of
from txn.text import first_line
from txn.zookeeper.location import resolve
from txn.zookeeper.status import StatusReader, TopologyStatus

__all__ = ["Look", "StatusFeed"]

log = logging.getLogger("txn.watching")

_UNKNOWN = "TXN-607"
"""Number of the error for a topology that ZooKeeper does not know."""
_EVERY_SECS = 1.0
_UNLED_SECS = 5.0
"""How often one that nobody leads is read: there may be many, and only people change them."""
_PATIENCE_SECS = 5.0
_AFTER_A_RUN_SECS = 5.0
"""A run that is started again at once finds the folder of its embedded server free."""


@dataclass(frozen=True)
class Look:
    """One look at ZooKeeper."""

    at: float
    """Seconds since 1970."""
    statuses: Mapping[str, Status] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    """topology -> why it cannot be read."""
    error: str | None = None
    """Why ZooKeeper itself could not be asked; the statuses are those of the look before."""
    hosts: str | None = None
    """Connect string of a server that goes on; None: there is none now."""
    absent: frozenset[str] = frozenset()
    """Topologies with an error that is: ZooKeeper does not know them."""


class StatusFeed:
    """Looks at ZooKeeper about once a second.

    Args:
        spec: as for `Topology.run`.
        wanted: topology -> its settings; empty: every topology that ZooKeeper knows.
        tell: called with each look, by the feed's thread.
        starts_server: whether an embedded server may be started for a moment.
    """

    def __init__(
        self,
        spec: str,
        wanted: Mapping[str, TopologyConfig],
        tell: Callable[[Look], None],
        *,
        starts_server: bool = True,
    ) -> None:
        self._spec = spec
        self._folder = resolve(spec).folder
        self._wanted = {name: _patient(config) for name, config in wanted.items()}
        self._default = _patient(TopologyConfig())
        self._tell = tell
        self._starts_server = starts_server
        self._found: dict[str, TopologyStatus] = {}
        self._again: dict[str, float] = {}
        """topology -> when it is read in any case."""
        self._errors: dict[str, str] = {}
        self._absent: frozenset[str] = frozenset()
        self._error: str | None = None
        self._readers: dict[int, StatusReader] = {}
        self._hosts: str | None = None
        self._due: float | None = 0.0 if starts_server else None
        """When a server may be started for a moment; None: not."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txn-watch-zookeeper", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a look that is under way."""
        self._closed.set()
        self._thread.join(2 * _PATIENCE_SECS)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._look()
            except (TxnError, OSError) as failure:
                self._error = _said(failure)
                self._forget_readers()
            except Exception as failure:
                log.exception("ZooKeeper could not be looked at")
                self._error = first_line(failure)
                self._forget_readers()
            try:
                if not self._closed.is_set():
                    self._tell(self._told())
            except Exception:
                log.exception("what ZooKeeper says could not be taken in")
            self._closed.wait(_EVERY_SECS)
        self._forget_readers()

    def _told(self) -> Look:
        # Whether the processes that it names still run is asked anew each time.
        # One that is too busy to answer is no server that does not run.
        served = self._hosts is not None or is_served(self._spec)
        statuses = {name: status_of(one, served=served) for name, one in self._found.items()}
        at, errors = time.time(), dict(self._errors)
        return Look(at, statuses, errors, self._error, self._hosts, self._absent)

    def _look(self) -> None:
        if self._folder is None:
            self._ask(resolve(self._spec).hosts)
            return
        hosts = running_server(self._folder, self._hosts)
        if hosts is not None:
            self._ask(hosts)
            if self._starts_server:
                self._due = time.monotonic() + _AFTER_A_RUN_SECS
            return
        self._forget_readers()
        if self._due is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + _AFTER_A_RUN_SECS  # should it fail
            with zookeeper_service(self._spec, share=True, must_exist=True) as own:
                self._ask(own)
            self._due = None
            self._forget_readers()

    def _ask(self, hosts: str) -> None:
        if hosts != self._hosts:
            self._forget_readers()
            self._hosts = hosts
        wanted = self._wanted or dict.fromkeys(
            self._reader(self._default).topologies(), self._default
        )
        found, errors, absent = {}, {}, set()
        for name, config in wanted.items():
            try:
                found[name] = self._status(name, config)
            except TxnError as error:
                errors[name] = _said(error)
                if error.number == _UNKNOWN:
                    absent.add(name)
                if name in self._found:
                    found[name] = self._found[name]
        self._found, self._errors, self._error = found, errors, None
        self._absent = frozenset(absent)

    def _status(self, name: str, config: TopologyConfig) -> TopologyStatus:
        reader, known, now = self._reader(config), self._found.get(name), time.monotonic()
        rests = known is not None and known.leader is None and now < self._again.get(name, 0.0)
        if known is not None and rests and not reader.is_led(name):
            return known
        self._again[name] = now + _UNLED_SECS
        return reader.read(name)

    def _reader(self, config: TopologyConfig) -> StatusReader:
        """One connection for all topologies with the same settings."""
        assert self._hosts is not None
        if id(config) not in self._readers:
            self._readers[id(config)] = StatusReader(self._hosts, config, remembers=True)
        return self._readers[id(config)]

    def _forget_readers(self) -> None:
        self._hosts = None
        for reader in self._readers.values():
            with contextlib.suppress(TxnError, OSError):
                reader.close()
        self._readers.clear()


def _said(error: TxnError | OSError) -> str:
    """An error with its number."""
    return f"{error} [{error.number}]" if isinstance(error, TxnError) else str(error)


def _patient(config: TopologyConfig) -> TopologyConfig:
    """The settings, for somebody who asks again in a second."""
    return config.model_copy(update={"zookeeper_connect_secs": _PATIENCE_SECS})
