"""A clock that only moves when the test moves it."""

from __future__ import annotations

from threading import Lock

__all__ = ["ManualClock"]


class ManualClock:
    """Seconds that pass only by `advance` or `sleep`; call the object to read it.

    Goes wherever `time.time` or `time.monotonic` is an argument, and its `sleep` where
    `time.sleep` is. Safe from several threads.

    Args:
        start: seconds that it shows at first.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = Lock()

    def __call__(self) -> float:
        """Seconds now."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> float:
        """Let time pass; returns the new time.

        Raises:
            ValueError: backwards.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not go back, and {seconds} s would")
        with self._lock:
            self._now += seconds
            return self._now

    def sleep(self, seconds: float) -> None:
        """Return at once, the given time later."""
        self.advance(seconds)
