"""The tables of a commit turn, one after the other: what a fault between publications needs."""

from __future__ import annotations

import threading

from txn.attempts import TransactionAttempt
from txn.engine.base.killpoints import Observer

__all__ = ["OneByOne"]

_LIMIT_SECS = 10.0
"""For a first table that is refused, and so never comes to the point."""


class OneByOne:
    """An observer of killpoints around another one, which finds the first table alone.

    The product publishes side by side. Here the further tables of a turn wait until the observer
    has seen that the first one holds it; should it raise there, they raise as well.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._changed = threading.Condition()
        self._seen: dict[TransactionAttempt, BaseException | None] = {}

    def __call__(self, point: str, attempt: TransactionAttempt) -> None:
        """Called by the pipeline's threads."""
        if point == "publishing-beside":
            self._wait(attempt)
        error: BaseException | None = None
        try:
            self._observer(point, attempt)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if point == "between-publications":
                with self._changed:
                    self._seen[attempt] = error
                    self._changed.notify_all()

    def _wait(self, attempt: TransactionAttempt) -> None:
        with self._changed:
            self._changed.wait_for(lambda: attempt in self._seen, _LIMIT_SECS)
            error = self._seen.get(attempt)
        if error is not None:
            raise error
