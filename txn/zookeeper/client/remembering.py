"""A connection that reads a node again only when it has changed.

For programs that poll the same nodes every second. ZooKeeper reports a change, by a watch, before
it answers with anything newer (ZooKeeper Programmer's Guide, "ZooKeeper Watches").
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from txn.config import TopologyConfig
from txn.zookeeper.client.connection import Connection, Node, Watch

__all__ = ["RememberingConnection"]

T = TypeVar("T")

_CACHED_SECS = 15.0
"""A node is read again after this time: ZooKeeper reports no change of a node's ACL, and no change
at all to clients that may no longer read the node.
"""
_SETTLE_SECS = 1.0
"""Most time that kazoo's thread may need to handle the answers it has received."""


class _Entry:
    """The cached value of a node, until ZooKeeper reports a change.

    One for each path: kazoo keeps one watch of it, however often it is set.
    """

    def __init__(self) -> None:
        self.value: Any = None
        """None: the node does not exist."""
        self.at = -math.inf
        """The time of the read, by the connection's clock."""
        self.generation = 0
        """The session of the read."""
        self.is_old = False

    def changed(self, _: object) -> None:
        """Mark it as old: ZooKeeper reported a change, or the connection was lost."""
        self.is_old = True


class RememberingConnection(Connection):
    """A `Connection` with a cache of nodes; for one thread.

    Args:
        changes_often: says for a path if its node changes between most reads, so that a watch costs
            more than a read.
    """

    def __init__(
        self,
        hosts: str,
        config: TopologyConfig,
        *,
        changes_often: Callable[[str], object],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(hosts, config, sleep=sleep, clock=clock)
        self._changes_often = changes_often
        self._nodes: dict[str, _Entry] = {}
        self._lists: dict[str, _Entry] = {}
        self._is_settled = True
        """False after each answer: kazoo may still hold changes that came before it."""

    def get(self, path: str, deadline: float, watch: Watch | None = None) -> Node | None:
        """As `Connection.get`, from the cache if the node has not changed."""
        if watch is not None or self._changes_often(path):
            return super().get(path, deadline, watch)
        ask = partial(super().get, path, deadline)
        return self._read_cached(self._nodes, path, deadline, ask)

    def children(self, path: str, deadline: float, watch: Watch | None = None) -> list[str] | None:
        """As `Connection.children`, from the cache if the node has not changed."""
        if watch is not None or self._changes_often(path):
            return super().children(path, deadline, watch)
        ask = partial(super().children, path, deadline)
        return self._read_cached(self._lists, path, deadline, ask)

    def get_each(self, paths: Sequence[str], deadline: float) -> list[Node | None]:
        """As `Connection.get_each`; existing nodes that have not changed come from the cache."""
        cached = {path: self._fresh_entry(self._nodes, path) for path in paths}
        new = [path for path, entry in cached.items() if entry is None]
        self._sweep(self._nodes)
        watched = (path for path in new if not self._changes_often(path))
        fresh = {path: self._open_entry(self._nodes, path) for path in watched}
        asked = [(path, fresh[path].changed if path in fresh else None) for path in new]
        answers = dict(zip(new, self._get_each(asked, deadline), strict=True))
        for path, entry in fresh.items():
            if answers[path] is None:
                self._nodes.pop(path, None)
            else:
                self._fill(entry, answers[path])
        return [held.value if held else answers[path] for path, held in cached.items()]

    def _answer(self, request: Any, deadline: float) -> Any:
        self._is_settled = False
        return super()._answer(request, deadline)

    def _read_cached(
        self,
        cache: dict[str, _Entry],
        path: str,
        deadline: float,
        ask: Callable[[Watch], T | None],
    ) -> T | None:
        entry = self._fresh_entry(cache, path)
        if entry is not None:
            value: T | None = entry.value
            return value
        self._sweep(cache)
        entry = self._open_entry(cache, path)
        answer = ask(entry.changed)
        # If there is no node, no watch was set either.
        if answer is not None or self._watch_creation(path, deadline, entry):
            self._fill(entry, answer)
        return answer

    def _watch_creation(self, path: str, deadline: float, entry: _Entry) -> bool:
        """Watch for the creation of a node; False if it exists by now."""
        return self._read("exists_async", path, deadline, entry.changed) is None

    def _fresh_entry(self, cache: dict[str, _Entry], path: str) -> _Entry | None:
        if path not in cache:
            return None
        self._settle()
        entry = cache.get(path)
        if entry is None or entry.is_old or entry.generation != self.generation:
            return None
        return entry if self._clock() - entry.at < _CACHED_SECS else None

    def _open_entry(self, cache: dict[str, _Entry], path: str) -> _Entry:
        """The cache entry that the next read fills."""
        entry = cache.setdefault(path, _Entry())
        entry.is_old, entry.at, entry.generation = False, -math.inf, self.generation
        return entry

    def _fill(self, entry: _Entry, value: Any) -> None:
        entry.value, entry.at = value, self._clock()

    def _sweep(self, cache: dict[str, _Entry]) -> None:
        """Drop changed entries, which may never be asked for again."""
        for path in [path for path, entry in cache.items() if entry.is_old]:
            del cache[path]

    def _settle(self) -> None:
        session = self._session
        if self._is_settled or session is None:
            return
        if not session.settle(_SETTLE_SECS):
            self._nodes.clear()
            self._lists.clear()
        self._is_settled = True
