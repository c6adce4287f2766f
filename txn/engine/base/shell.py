"""The calls that parts of the shell may make to the whole: the one way up. `Pipeline` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from txn.attempts import TransactionAttempt
from txn.observers import FailureCause
from txn.protocol.events import CoordinatorState, Event

__all__ = ["Fact", "Shell"]

Fact = Event | Callable[[], None]
"""An item of the protocol's queue: an event for the coordinator, or a step of the shell's own."""


class Shell(Protocol):
    """A run, for its parts."""

    @property
    def state(self) -> CoordinatorState:
        """The coordinator's state. Never changed in place, so any thread may read it."""

    def post(self, fact: Fact) -> None:
        """Hand a fact to the protocol's thread. From any thread."""

    def after(self, seconds: float, fact: Fact) -> None:
        """Hand a fact to the protocol's thread later. From the protocol's thread only."""

    def failed(self, attempt: TransactionAttempt, why: str, cause: FailureCause) -> None:
        """Fail an attempt, which is then replayed. From the protocol's thread only."""

    def raised(self, attempt: TransactionAttempt, error: BaseException) -> None:
        """Take the error of an attempt's station. From any thread."""

    def end(self, error: BaseException) -> None:
        """End the run with this error, at once. From the protocol's thread only."""

    def halt(self, error: BaseException) -> None:
        """End the run with this error, in its place among the facts. From any thread."""

    def assert_leading(self, seconds: float | None = None) -> None:
        """Raise unless this process still leads. From any thread.

        Args:
            seconds: how long to ask; None: as long as a write may take.

        Raises:
            FencedError: another process leads.
            ProgressUnavailableError: ZooKeeper did not answer in time.
        """
