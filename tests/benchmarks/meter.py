"""Wall time of a piece of work, its processor time, and what other processes used meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Meter", "busy_share", "wait_until_quiet"]

_PROC = Path("/proc")
_QUIET = 0.08
_LOOK_SECS = 2.0


class Meter:
    """A context manager. Processor times are known where there is a /proc; else they are None."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.own_cpu: float | None = None
        """Processor seconds of this process and everything below it."""
        self.forked_cpu: float | None = None
        """The part of it that short-lived children had (Hadoop's chmod and the like)."""
        self.noise: float | None = None
        """Share of all cores that everything else on the machine used."""

    def __enter__(self) -> Self:
        self._before = (time.monotonic(), _busy(), _own())
        return self

    def __exit__(self, *_: object) -> None:
        began, busy, own = self._before
        self.seconds = time.monotonic() - began
        busy_now, own_now = _busy(), _own()
        if busy is None or busy_now is None or own is None or own_now is None:
            return
        self.own_cpu = own_now[0] - own[0]
        self.forked_cpu = own_now[1] - own[1]
        others = max(0.0, busy_now - busy - self.own_cpu)
        self.noise = others / max(0.01, self.seconds * (os.cpu_count() or 1))

    def detail(self) -> dict[str, float]:
        """Processor seconds for the raw figures."""
        known = {"cpu_s": self.own_cpu, "forked_cpu_s": self.forked_cpu}
        return {name: round(value, 2) for name, value in known.items() if value is not None}


def busy_share(seconds: float = _LOOK_SECS) -> float | None:
    """Share of all cores that are busy, over the next seconds; None: not known."""
    before, began = _busy(), time.monotonic()
    time.sleep(seconds)
    after = _busy()
    if before is None or after is None:
        return None
    return (after - before) / ((time.monotonic() - began) * (os.cpu_count() or 1))


def wait_until_quiet(limit_secs: float) -> None:
    """Wait until the machine is idle, or the limit is over."""
    began = time.monotonic()
    while time.monotonic() - began < limit_secs:
        share = busy_share()
        if share is None or share < _QUIET:
            return


def _busy() -> float | None:
    """Processor seconds of the whole machine, since it was started."""
    try:
        fields = (_PROC / "stat").read_text("ascii").splitlines()[0].split()[1:]
    except OSError:
        return None
    ticks = [int(field) for field in fields]
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # idle, iowait


def _own() -> tuple[float, float] | None:
    """Processor seconds of this process tree, and of its children that have ended."""
    if not (_PROC / "stat").exists():
        return None
    tick = os.sysconf("SC_CLK_TCK")
    children: dict[int, list[int]] = {}
    used: dict[int, tuple[float, float]] = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        process = int(folder.name)
        children.setdefault(int(fields[1]), []).append(process)
        used[process] = (
            (int(fields[11]) + int(fields[12])) / tick,
            (int(fields[13]) + int(fields[14])) / tick,
        )
    todo, total, ended = [os.getpid()], 0.0, 0.0
    while todo:
        process = todo.pop()
        alive, reaped = used.get(process, (0.0, 0.0))
        total += alive + reaped
        ended += reaped
        todo += children.get(process, [])
    return total, ended
