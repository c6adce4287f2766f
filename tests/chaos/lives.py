"""Drivers, one after the other: started, watched, killed as their fate says, and succeeded."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.history import History
from tests.chaos.links import Links, Slot, Trouble
from tests.chaos.plan import Fate
from tests.chaos.processes import children, send
from tests.chaos.topology import DriverSpec

__all__ = ["ROOT", "SLOTS", "Driver", "Lives", "StuckError"]

ROOT = Path(__file__).parents[2]
ZOMBIES = 2
"""At once: there are executors for no more."""
SLOTS = 1 + ZOMBIES
TICK_SECS = 0.03
PATIENCE_SECS = 45.0
"""A driver that has committed nothing for so long is killed whatever its fate."""
PATIENCE_STARTS = 3.0
"""But not before this many times what the quickest life needed for its first commit: on a slow
machine, or with tables on S3, none would commit anything."""
ZOMBIE_PATIENCE_SECS = 150.0
"""The same for one that is to become a zombie: it must have led."""
BARREN_LIVES = 3
"""After so many lives without a commit one is spared until it has committed."""
STUCK_SECS = 600.0
"""Servers and executors are killed meanwhile, and the machine may be slow."""
ZOMBIE_SECS = 60.0
ORPHAN_SECS = 20.0


class StuckError(Exception):
    """The run does not go on although nothing is done to it."""


class Driver:
    """One driver process, and what it has told."""

    def __init__(self, spec: DriverSpec, slot: Slot, history: History) -> None:
        self.spec = spec
        self.slot = slot
        self.began = time.monotonic()
        self.led = False
        self.first_commit = 0.0
        """Of this life, by the monotonic clock; 0: none yet."""
        self.error: dict[str, Any] = {}
        self.at_point: dict[str, Any] = {}
        self.is_over = False
        self._history = history
        self._read = 0
        self._said = Path(spec.out).with_suffix(".out").open("wb")
        history.add("driver", life=spec.life, what="start")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.topology", spec.model_dump_json()],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # its end is the end of the driver
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "TMPDIR": spec.scratch, "SPARK_LOCAL_DIRS": spec.scratch},
        )

    def poll(self) -> None:
        """Take in what it has told, and whether it is over."""
        over = self.process.poll() is not None  # asked before: no line is missed
        with contextlib.suppress(FileNotFoundError), Path(self.spec.out).open("rb") as out:
            out.seek(self._read)
            for line in out:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._take(json.loads(line))
        if over and not self.is_over:
            self._end()

    def _take(self, event: dict[str, Any]) -> None:
        self._history.write(event)
        match event["what"]:
            case "leading":
                self.led = True
            case "commit":
                self.first_commit = self.first_commit or time.monotonic()
            case "error":
                self.error = event
            case "point":
                self.at_point = event

    def _end(self) -> None:
        self.is_over = True
        code = self.process.returncode
        error, message = self.error.get("error"), self.error.get("message", "")
        if error is None and code not in (0, -signal.SIGKILL):
            error, message = "unknown", "\n".join(self.tail().splitlines()[-12:])
        end = {"code": code, "error": error, "message": message}
        self._history.add("driver", life=self.spec.life, what="end", **end)
        self.clear()

    def clear(self) -> None:
        """Nothing of it lives on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._said.close()

    def signal(self, number: signal.Signals) -> None:
        """To Python and JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self, victim: str) -> None:
        """SIGKILL all of it, or its Python process, or its JVM; wait until it is over."""
        if victim == "python":
            send(self.process.pid, signal.SIGKILL)
        elif victim == "jvm" and (found := children(self.process.pid, b"java")):
            send(found[0], signal.SIGKILL)
        else:
            self.signal(signal.SIGKILL)
        try:
            self.process.wait(ORPHAN_SECS)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.poll()

    def tail(self) -> str:
        """The end of what it has said."""
        with contextlib.suppress(OSError):
            return Path(self._said.name).read_text(errors="replace")[-4000:]
        return ""


@dataclass
class _Zombie:
    """A driver that was stopped or cut off, and is to meet its successor."""

    driver: Driver
    fate: Fate
    trouble: Trouble | None
    at: float
    succeeded: float = 0.0
    """When a successor led, by the monotonic clock; 0: none does yet."""
    resumed: float = 0.0


class Lives:
    """The lives of one run.

    Args:
        spec: of a driver: its number, its links, the point at which it kills itself, if any, and at
            which arrival there.
        count: told each fault of a driver's, as it is done.
        enough: whether the run has had what it was to have: the current life ends at once.
    """

    def __init__(
        self,
        history: History,
        links: Links,
        spec: Callable[[int, Slot, str | None, int], DriverSpec],
        fates: Iterator[Fate],
        count: Callable[[str], None],
        enough: Callable[[], bool],
    ) -> None:
        self._history = history
        self._enough = enough
        self._links = links
        self._spec = spec
        self._fates = fates
        self._count = count
        self._life = 0
        self._barren = 0
        self._quickest = 0.0
        self._owed: Fate | None = None
        self._zombies: list[_Zombie] = []
        self.current: Driver | None = None

    @property
    def lives(self) -> int:
        """Drivers that were started."""
        return self._life

    def one(self) -> None:
        """One life, from its start to its end."""
        fate = self._owed or next(self._fates)
        self._owed = None
        if self._barren >= BARREN_LIVES:
            self._owed, fate = fate, Fate("spared", 0.5)
        if fate.how.startswith("zombie") and len(self._zombies) >= ZOMBIES:
            self._owed, fate = fate, Fate("time", fate.after)
        driver = self._start(fate)
        while not driver.is_over:
            self._tick(driver)
            if not driver.is_over and self._is_due(driver, fate):
                zombie = fate.how.startswith("zombie") and driver.first_commit
                if zombie and not self._enough():
                    self._make_zombie(driver, fate)
                    break
                self._kill(driver, fate)
        if driver.at_point:
            point = driver.at_point["point"]
            self._killed(driver, driver.at_point["at"], how="point", point=point)
        if fate.how.startswith("zombie") and not driver.first_commit:
            self._owed = fate  # who never led cannot be succeeded: the next one shall be
        self._barren = 0 if driver.first_commit else self._barren + 1
        if driver.first_commit:
            needed = driver.first_commit - driver.began
            self._quickest = min(self._quickest or needed, needed)

    def last(self) -> None:
        """Settle all zombies, then let one driver catch up with everything.

        Raises:
            StuckError: it does not.
        """
        began = time.monotonic()
        while time.monotonic() < began + STUCK_SECS:
            driver = self._start(Fate("spared", 0.0), until="caught_up")
            while not driver.is_over and time.monotonic() < began + STUCK_SECS:
                self._tick(driver)
            if not driver.is_over:
                self._history.add("driver", life=driver.spec.life, what="stuck")
                driver.kill("driver")
            elif driver.process.returncode == 0:
                self._settle_zombies()
                return
        raise StuckError(f"the last driver did not catch up within {STUCK_SECS:g} s")

    def stop(self) -> None:
        """Kill whatever lives."""
        for driver in (self.current, *(zombie.driver for zombie in self._zombies)):
            if driver is not None:
                driver.clear()

    # --- inside ----------------------------------------------------------------------------------

    def _start(self, fate: Fate, until: str = "forever") -> Driver:
        used = [id(zombie.driver.slot) for zombie in self._zombies]
        slot = next(slot for slot in self._links.slots if id(slot) not in used)
        self._life += 1
        spec = self._spec(self._life, slot, fate.point, fate.nth)
        self.current = Driver(spec.model_copy(update={"until": until}), slot, self._history)
        return self.current

    def _tick(self, driver: Driver) -> None:
        time.sleep(TICK_SECS)
        driver.poll()
        for zombie in self._zombies[:]:
            self._look_after(zombie, driver)

    def _is_due(self, driver: Driver, fate: Fate) -> bool:
        now = time.monotonic()
        if self._enough():
            return True
        if fate.how == "start":
            return now >= driver.began + fate.after
        if driver.first_commit:
            patience = PATIENCE_SECS if fate.how == "point" else fate.after
            return now >= driver.first_commit + patience
        if fate.how == "spared":
            if now >= driver.began + STUCK_SECS:
                raise StuckError(f"life {driver.spec.life} was spared and committed nothing")
            return False
        patience = ZOMBIE_PATIENCE_SECS if fate.how.startswith("zombie") else PATIENCE_SECS
        return now >= driver.began + max(patience, PATIENCE_STARTS * self._quickest)

    def _kill(self, driver: Driver, fate: Fate) -> None:
        at = time.time()
        driver.kill(fate.victim)
        if not driver.at_point:  # it may have been faster
            how = "time" if driver.first_commit else "patience"
            how = "start" if fate.how == "start" else how
            self._killed(driver, at, how=how, victim=fate.victim)

    def _killed(self, driver: Driver, at: float, **how: Any) -> None:
        life, led = driver.spec.life, driver.led
        fault = {"fault": "driver_kill", "at": round(at, 3), "until": round(time.time(), 3)}
        self._history.add("fault", **fault, life=life, led=led, **how)
        self._count("driver_kill")

    # --- zombies ---------------------------------------------------------------------------------

    def _make_zombie(self, driver: Driver, fate: Fate) -> None:
        trouble = None
        at = time.time()
        if fate.how == "zombie_stop":
            driver.signal(signal.SIGSTOP)
        else:
            trouble = Trouble(silent=fate.silent, cut=not fate.silent)
            self._links.begin(driver.slot, trouble)
        self._zombies.append(_Zombie(driver, fate, trouble, at))

    def _look_after(self, zombie: _Zombie, current: Driver) -> None:
        now = time.monotonic()
        if current.led and current is not zombie.driver:
            zombie.succeeded = zombie.succeeded or now
        if zombie.succeeded and not zombie.resumed and now >= zombie.succeeded + zombie.fate.pause:
            self._resume(zombie)
        if zombie.trouble is not None or zombie.resumed:
            zombie.driver.poll()
        if zombie.driver.is_over:
            self._bury(zombie)
        elif zombie.resumed and now >= zombie.resumed + ZOMBIE_SECS:
            self._history.add("driver", life=zombie.driver.spec.life, what="stuck")
            zombie.driver.kill("driver")
            self._bury(zombie)

    def _resume(self, zombie: _Zombie) -> None:
        zombie.resumed = time.monotonic()
        if zombie.trouble is None:
            zombie.driver.signal(signal.SIGCONT)
        else:
            self._links.end(zombie.driver.slot, zombie.trouble)

    def _bury(self, zombie: _Zombie) -> None:
        self._zombies.remove(zombie)
        if zombie.trouble is not None:
            self._links.end(zombie.driver.slot, zombie.trouble)
        met = bool(zombie.succeeded and zombie.resumed)
        fault = {"fault": "zombie", "at": round(zombie.at, 3), "until": round(time.time(), 3)}
        how = zombie.fate.how.removeprefix("zombie_")
        life = zombie.driver.spec.life
        self._history.add("fault", **fault, life=life, how=how, succeeded=met, led=True)
        if met:
            self._count("zombie")

    def _settle_zombies(self) -> None:
        """All resumed and over: a successor has led by now."""
        for zombie in self._zombies[:]:
            zombie.succeeded = zombie.succeeded or time.monotonic()
            if not zombie.resumed:
                self._resume(zombie)
        while self._zombies:
            time.sleep(TICK_SECS)
            for zombie in self._zombies[:]:
                self._look_after(zombie, zombie.driver)
