"""A connection that asks for a node again only when it has changed.

For who looks at the same nodes every second. ZooKeeper tells of a change, by a watch, before it
answers with anything that is newer (ZooKeeper Programmer's Guide, "ZooKeeper Watches").
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from txn.config import TopologyConfig
from txn.zookeeper.connection import Connection, Node, Watch

__all__ = ["RememberingConnection"]

T = TypeVar("T")

_REMEMBERED_SECS = 15.0
"""A node is read again after this time: ZooKeeper does not tell of a change to who may not read the
node by then, nor of a change of who may.
"""
_SETTLE_SECS = 1.0
"""How long kazoo's thread may need for what it has received."""


class _Remembered:
    """What a node was when it was read, until ZooKeeper says that it has changed.

    One for each path: kazoo keeps one watch of it, however often it is left.
    """

    def __init__(self) -> None:
        self.value: Any = None
        """None: there was no such node."""
        self.at = -math.inf
        """When it was read, by the connection's clock."""
        self.generation = 0
        """In which session."""
        self.is_old = False

    def changed(self, _: object) -> None:
        """ZooKeeper says so, or the connection was lost and it could not say it."""
        self.is_old = True


class RememberingConnection(Connection):
    """As `Connection`, but that it remembers; for one thread.

    Args:
        changes_often: whether a path is that of a node which is another one at each look: it costs
            more to watch than to read.
    """

    def __init__(
        self,
        hosts: str,
        config: TopologyConfig,
        *,
        changes_often: Callable[[str], bool],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(hosts, config, sleep=sleep, clock=clock)
        self._changes_often = changes_often
        self._nodes: dict[str, _Remembered] = {}
        self._lists: dict[str, _Remembered] = {}
        self._settled = True
        """False after each answer: kazoo may still hold changes that came before it."""

    def get(self, path: str, deadline: float, watch: Watch | None = None) -> Node | None:
        """As `Connection.get`, out of memory where nothing has changed."""
        if watch is not None or self._changes_often(path):
            return super().get(path, deadline, watch)
        ask = partial(super().get, path, deadline)
        return self._remembered(self._nodes, path, deadline, ask)

    def children(self, path: str, deadline: float, watch: Watch | None = None) -> list[str] | None:
        """As `Connection.children`, out of memory where nothing has changed."""
        if watch is not None or self._changes_often(path):
            return super().children(path, deadline, watch)
        ask = partial(super().children, path, deadline)
        return self._remembered(self._lists, path, deadline, ask)

    def get_each(self, paths: Sequence[str], deadline: float) -> list[Node | None]:
        """As `Connection.get_each`; nodes that are there and have not changed are not asked for."""
        known = {path: self._known(self._nodes, path) for path in paths}
        new = [path for path, found in known.items() if found is None]
        self._sweep(self._nodes)
        watched = (path for path in new if not self._changes_often(path))
        fresh = {path: self._begin(self._nodes, path) for path in watched}
        asked = [(path, fresh[path].changed if path in fresh else None) for path in new]
        answers = dict(zip(new, self._get_each(asked, deadline), strict=True))
        for path, begun in fresh.items():
            if answers[path] is None:
                self._nodes.pop(path, None)
            else:
                self._keep(begun, answers[path])
        return [found.value if found else answers[path] for path, found in known.items()]

    def _answer(self, request: Any, deadline: float) -> Any:
        self._settled = False
        return super()._answer(request, deadline)

    def _remembered(
        self,
        known: dict[str, _Remembered],
        path: str,
        deadline: float,
        ask: Callable[[Watch], T | None],
    ) -> T | None:
        found = self._known(known, path)
        if found is not None:
            kept: T | None = found.value
            return kept
        self._sweep(known)
        found = self._begin(known, path)
        value = ask(found.changed)
        # Where there is no node, its watch was not left either.
        if value is not None or self._watch_for_it(path, deadline, found):
            self._keep(found, value)
        return value

    def _watch_for_it(self, path: str, deadline: float, answer: _Remembered) -> bool:
        """Be told when a node is made; False: it has been by now."""
        return self._read("exists_async", path, deadline, answer.changed) is None

    def _known(self, known: dict[str, _Remembered], path: str) -> _Remembered | None:
        if path not in known:
            return None
        self._settle()
        found = known.get(path)
        if found is None or found.is_old or found.generation != self.generation:
            return None
        return found if self._clock() - found.at < _REMEMBERED_SECS else None

    def _begin(self, known: dict[str, _Remembered], path: str) -> _Remembered:
        """What will be remembered of a node that is about to be read."""
        found = known.setdefault(path, _Remembered())
        found.is_old, found.at, found.generation = False, -math.inf, self.generation
        return found

    def _keep(self, found: _Remembered, value: Any) -> None:
        found.value, found.at = value, self._clock()

    def _sweep(self, known: dict[str, _Remembered]) -> None:
        """Drop what has changed, and may be gone: nobody may ever ask for it again."""
        for path in [path for path, found in known.items() if found.is_old]:
            del known[path]

    def _settle(self) -> None:
        session = self._session
        if self._settled or session is None:
            return
        if not session.settle(_SETTLE_SECS):
            self._nodes.clear()
            self._lists.clear()
        self._settled = True
