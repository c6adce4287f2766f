"""A clock that only moves when the test moves it."""

from __future__ import annotations

from threading import Lock

__all__ = ["ManualClock"]


class ManualClock:
    """Seconds that pass only by `advance` or `sleep`; call the object to read it.

    Pass it as an argument in place of `time.time` or `time.monotonic`, and its `sleep` in place of
    `time.sleep`. Safe from several threads.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._seconds = start
        self._lock = Lock()

    def __call__(self) -> float:
        """Return the present seconds."""
        with self._lock:
            return self._seconds

    def advance(self, seconds: float) -> float:
        """Let time pass; returns the new time.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not go back, and {seconds} s would")
        with self._lock:
            self._seconds += seconds
            return self._seconds

    def sleep(self, seconds: float) -> None:
        """Advance by `seconds` and return at once."""
        self.advance(seconds)
