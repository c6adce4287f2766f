"""A connection that asks for a node again only when it has changed.

For who looks at the same nodes every second. ZooKeeper tells of a change, by a watch, before it
answers with anything that is newer (ZooKeeper Programmer's Guide, "ZooKeeper Watches").
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kazoo.protocol.states import Callback

from txn.zookeeper.connection import Connection, Node

__all__ = ["RememberingConnection"]

T = TypeVar("T")

_SETTLE_SECS = 1.0
"""How long kazoo's thread may need for what it has received."""


class _Answer:
    """What a node was, in one session, until ZooKeeper says that it has changed."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.value: Any = None
        self.is_old = False

    def changed(self, _: object) -> None:
        """ZooKeeper says so, or the connection was lost and it could not say it."""
        self.is_old = True


class RememberingConnection(Connection):
    """As `Connection`, but that it remembers; for one thread.

    Args:
        passing: whether a path is that of a node which is another one at each look: it costs more
            to watch than to read.
    """

    def __init__(self, *args: Any, passing: Callable[[str], bool], **more: Any) -> None:
        super().__init__(*args, **more)
        self._passing = passing
        self._nodes: dict[str, _Answer] = {}
        self._lists: dict[str, _Answer] = {}
        self._settled = True
        """Whether all changes are marked that were told before the newest answer."""

    def get(
        self, path: str, deadline: float, watch: Callable[[Any], None] | None = None
    ) -> Node | None:
        """As `Connection.get`, out of memory where nothing has changed."""
        if watch is not None or self._passing(path):
            return super().get(path, deadline, watch)
        ask = partial(super().get, path, deadline)
        return self._remembered(self._nodes, path, deadline, ask)

    def children(
        self, path: str, deadline: float, watch: Callable[[Any], None] | None = None
    ) -> list[str] | None:
        """As `Connection.children`, out of memory where nothing has changed."""
        if watch is not None or self._passing(path):
            return super().children(path, deadline, watch)
        ask = partial(super().children, path, deadline)
        return self._remembered(self._lists, path, deadline, ask)

    def get_each(
        self,
        paths: Sequence[str],
        deadline: float,
        watches: Sequence[Callable[[Any], None] | None] = (),
    ) -> list[Node | None]:
        """As `Connection.get_each`: only those that have changed are asked for."""
        new = [path for path in paths if self._known(self._nodes, path) is None]
        answers = [_Answer(self.generation) for _ in new]
        watches = [
            None if self._passing(path) else answer.changed
            for path, answer in zip(new, answers, strict=True)
        ]
        asked = dict(zip(new, super().get_each(new, deadline, watches), strict=True))
        found = [asked[path] if path in asked else self._nodes[path].value for path in paths]
        for path, answer, watch in zip(new, answers, watches, strict=True):
            if watch is not None and asked[path] is not None:
                self._keep(self._nodes, path, answer, asked[path])
        return found

    def _answer(self, request: Any, deadline: float) -> Any:
        self._settled = False
        return super()._answer(request, deadline)

    def _remembered(
        self,
        known: dict[str, _Answer],
        path: str,
        deadline: float,
        ask: Callable[[Callable[[Any], None]], T | None],
    ) -> T | None:
        found = self._known(known, path)
        if found is not None:
            value: T | None = found.value
            return value
        answer = _Answer(self.generation)
        asked = ask(answer.changed)
        # Where there is no node, its watch was not left either.
        if asked is not None or self._is_absent(path, deadline, answer):
            self._keep(known, path, answer, asked)
        return asked

    def _is_absent(self, path: str, deadline: float, answer: _Answer) -> bool:
        return self._read("exists_async", path, deadline, answer.changed) is None

    def _known(self, known: dict[str, _Answer], path: str) -> _Answer | None:
        if path not in known:
            return None
        self._settle()
        found = known.get(path)
        if found is None or found.is_old or found.generation != self.generation:
            known.pop(path, None)
            return None
        return found

    def _settle(self) -> None:
        """Wait until kazoo's thread for watches has told what came before the newest answer."""
        session = self._session
        if self._settled or session is None:
            return
        done = threading.Event()
        session.client.handler.dispatch_callback(Callback("settle", done.set, ()))
        if not done.wait(_SETTLE_SECS):
            self._nodes.clear()
            self._lists.clear()
        self._settled = True

    def _keep(self, known: dict[str, _Answer], path: str, answer: _Answer, value: Any) -> None:
        answer.value = value
        known[path] = answer
