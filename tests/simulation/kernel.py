"""Simulated time, and threads of which exactly one runs at any moment.

A *process* of the simulation has *tasks*; each task is a greenlet: a stack of its own in the one
thread of the operating system that there is. A task lets another one run where it would wait: for a
simulated I/O, a lock, a queue, a time. Whose turn it is then says the heap of events, ordered by
simulated time and, at the same time, by number. So a run is a pure function of its seed.

A process that crashes runs no further: each of its tasks is woken once, and whatever primitive of
the simulation it calls from then on raises `Crash`, so that nothing it does on its way out has any
effect. A process that is paused (SIGSTOP) gets no turn; what it has sent is under way.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet

__all__ = ["Crash", "Kernel", "Process", "Task"]


class Crash(BaseException):
    """The process of this task is dead: SIGKILL, or the end of the simulation."""


@dataclass(eq=False)
class Process:
    """One simulated process of the operating system."""

    name: str
    pid: int = 0
    machine: str = ""
    dead: bool = False
    paused_until: float = 0.0
    tasks: list[Task] = field(default_factory=list)
    on_death: list[Callable[[], None]] = field(default_factory=list)
    epoch: int = 0
    """As far as the world has seen it lead."""
    label: Any = None
    release: int = 0
    """Of the program that it runs."""

    def __str__(self) -> str:
        return self.name


class Task:
    """One thread of a process, and where it waits."""

    __slots__ = ("done", "function", "name", "process", "stack", "tags", "thread", "ticket")

    def __init__(self, process: Process, name: str, function: Callable[[], Any]) -> None:
        self.process = process
        self.name = name
        self.function = function
        self.ticket = 0
        """Counts waits: an event that wakes an earlier wait wakes nobody."""
        self.done = False
        self.tags: set[str] = set()
        self.thread: object = None
        self.stack: greenlet | None = None

    def __str__(self) -> str:
        return f"{self.process}/{self.name}"


Entry = tuple[float, int, Any, int]
_CALL = -1


class Kernel:
    """The heap of events, whose turn it is, and the first thing that went wrong."""

    def __init__(self, *, most_events: int = 400_000) -> None:
        self.now = 0.0
        self.current: Task | None = None
        self.failure: str | None = None
        self.cause: BaseException | None = None
        self.stopping = False
        self.events = 0
        self.switches = 0
        self._most_events = most_events
        self._heap: list[Entry] = []
        self._number = 0
        self._main = getcurrent()
        self.processes: list[Process] = []
        self.record: Callable[[str], None] | None = None

    # --- running -----------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`, a failure, or nothing is left to happen."""
        while (task := self._following()) is not None:
            self._switch_to(task)  # comes back when a task has ended, or nothing is left

    def stop(self) -> None:
        """End the run at the next event."""
        self.stopping = True

    def fail(self, message: str, cause: BaseException | None = None) -> None:
        """Remember the first thing that went wrong, and end the run."""
        if self.failure is None:
            self.failure, self.cause = message, cause
            if self.record is not None:
                self.record(f"VIOLATION {message}")
        self.stopping = True

    def wind_up(self) -> None:
        """Let every task end, so that nothing of it is left."""
        self.failure, kept = self.failure or "", self.failure
        for process in self.processes:
            self.kill(process)
        self._heap = [entry for entry in self._heap if entry[3] != _CALL]
        heapq.heapify(self._heap)
        self._most_events *= 2
        for _ in range(1000):
            if not any(process.tasks for process in self.processes):
                break
            self.stopping = False
            self.run()
            for process in self.processes:
                for task in process.tasks:
                    self.wake(task)
        else:
            raise RuntimeError("tasks of a dead process do not end")
        self.failure = kept

    # --- tasks and processes -----------------------------------------------------------------

    def spawn(self, process: Process, name: str, function: Callable[[], Any]) -> Task:
        """A new task; it gets its first turn at this time."""
        task = Task(process, name, function)
        process.tasks.append(task)
        task.stack = greenlet(lambda: self._live(task), self._main)
        self.wake(task)
        return task

    def _live(self, task: Task) -> None:
        try:
            if not task.process.dead:
                task.function()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - told by the simulation
            self.fail(f"{task} ended with {type(error).__name__}: {error}", error)
        task.done = True
        task.stack = None
        if task in task.process.tasks:
            task.process.tasks.remove(task)

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        if process.dead:
            return
        process.dead = True
        for task in process.tasks:
            self.wake(task)
        for told in process.on_death:
            told()

    # --- time --------------------------------------------------------------------------------

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Let something happen at a time, whatever process lives by then. It must not wait."""
        self._number += 1
        heapq.heappush(self._heap, (time, self._number, call, _CALL))

    def wake(self, task: Task, delay: float = 0.0) -> None:
        """End the wait that a task is in (or is about to begin)."""
        self._number += 1
        heapq.heappush(self._heap, (self.now + delay, self._number, task, task.ticket))

    def alive(self) -> Task:
        """The running task; raises `Crash` if its process is dead."""
        task = self.current
        if task is None or task.process.dead:
            raise Crash
        return task

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass for the running task."""
        task = self.current
        if task is None or task.process.dead:
            raise Crash
        end = self.now + seconds
        heap = self._heap
        # The next event is ours: nobody has to be asked.
        if (
            (not heap or heap[0][0] > end)
            and not self.stopping
            and task.process.paused_until <= end
        ):
            self.now = end
            self.events += 1
            return
        self._number += 1
        heapq.heappush(heap, (end, self._number, task, task.ticket))
        self._wait(task)

    def suspend(self, timeout: float | None = None) -> None:
        """Wait until `wake`, or until the time is over."""
        task = self.alive()
        if timeout is not None:
            self._number += 1
            end = self.now + max(0.0, timeout)
            heapq.heappush(self._heap, (end, self._number, task, task.ticket))
        self._wait(task)

    def _wait(self, task: Task) -> None:
        following = self._following()
        if following is None:
            self._main.switch()
        elif following is task:
            self.current = task
        else:
            self._switch_to(following)
        task.ticket += 1
        if task.process.dead:
            raise Crash

    def _switch_to(self, task: Task) -> None:
        self.current = task
        self.switches += 1
        assert task.stack is not None
        task.stack.switch()

    def _following(self) -> Task | None:
        """The task whose event is next; None: the run is over."""
        heap = self._heap
        while heap and not self.stopping:
            time, _, entry, ticket = heapq.heappop(heap)
            self.events += 1
            if self.events > self._most_events:
                self.fail(f"no end after {self.events} events, at {time:.2f} s")
                return None
            if ticket == _CALL:
                if time > self.now:
                    self.now = time
                self.current = None
                try:
                    entry()
                except Exception as error:  # noqa: BLE001 - told by the simulation
                    self.fail(f"an event failed: {type(error).__name__}: {error}", error)
                continue
            if entry.done or entry.ticket != ticket:
                continue
            process = entry.process
            if process.paused_until > time and not process.dead:
                self._number += 1
                heapq.heappush(heap, (process.paused_until, self._number, entry, ticket))
                continue
            if time > self.now:
                self.now = time
            found: Task = entry
            return found
        return None
