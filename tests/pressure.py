"""For how long something on this machine has waited for a CPU, as Linux counts it."""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_left, bisect_right
from pathlib import Path

from typing_extensions import Self

from tests.children import wait_until

__all__ = ["Pressure"]

FILE = Path("/proc/pressure/cpu")


class Pressure:
    """Counts while its block runs. What a test says of times it can say without those waits."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        """(seconds since 1970, seconds waited until then)."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if FILE.exists():
            self._look()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._seen:
            self._thread.join()

    def waited(self, since: float, until: float) -> float:
        """Seconds of that time, which is past; all of it where the kernel does not count."""
        whole = max(0.0, until - since)
        if not self._seen:
            return whole
        wait_until(lambda: self._seen[-1][0] >= until, "the kernel's count")
        times = [at for at, _ in self._seen]
        first, last = bisect_right(times, since) - 1, bisect_left(times, until)
        return min(whole, self._seen[last][1] - self._seen[max(0, first)][1])

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self._look()

    def _look(self) -> None:
        found = re.search(r"some .*total=(\d+)", FILE.read_text())
        assert found is not None
        self._seen.append((time.time(), int(found[1]) / 1e6))
