"""What the product takes from `threading`, `queue`, `time` and `concurrent.futures`, cooperative.

Each has the names and the behaviour that the product relies on, and no more. The kernel of the run
is a global of this module: there is one run at a time in an operating system process.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from tests.simulation.kernel import Crash, Kernel, Process, Task

__all__ = ["CLOCK", "THREADING", "Future", "Pool", "SimpleQueue", "kernel", "use", "wait"]

EPOCH = 1_700_000_000.0
_kernels: list[Kernel] = []


def use(new: Kernel | None) -> None:
    """From now on this kernel runs things."""
    _kernels[:] = [] if new is None else [new]


def kernel() -> Kernel:
    """The kernel of the run."""
    if not _kernels:
        raise Crash
    return _kernels[0]


class _Waiters:
    """Tasks that wait for one thing, in order."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def wait(self, timeout: float | None = None) -> None:
        own = kernel()
        task = own.alive()
        self._tasks.append(task)
        try:
            own.suspend(timeout)
        finally:
            if task in self._tasks:
                self._tasks.remove(task)

    def wake(self, *, everybody: bool = False) -> None:
        own = kernel()
        while self._tasks:
            own.wake(self._tasks.popleft())
            if not everybody:
                return


class RLock:
    """`threading.RLock` and `Lock`: fair, re-entrant."""

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._count = 0
        self._waiters = _Waiters()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        own = kernel()
        task = own.alive()
        if self._owner is task:
            self._count += 1
            return True
        end = None if timeout < 0 else own.now + timeout
        while self._owner is not None:
            if not blocking or (end is not None and own.now >= end):
                return False
            self._waiters.wait(None if end is None else end - own.now)
        self._owner, self._count = task, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._owner = None
            self._waiters.wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters = _Waiters()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake(everybody=True)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiters.wait(timeout)
        return self._set


class Thread:
    """`threading.Thread`: a task of the process that starts it."""

    def __init__(
        self, *, target: Callable[..., Any], name: str = "", daemon: bool = True, args: Any = ()
    ) -> None:
        self._target = lambda: target(*args)
        self.name = name
        self._task: Task | None = None
        self._waiters = _Waiters()

    def start(self) -> None:
        own = kernel()
        self._task = own.spawn(own.alive().process, self.name, self._run)
        self._task.thread = self

    def _run(self) -> None:
        self._target()
        assert self._task is not None
        self._task.done = True
        self._waiters.wake(everybody=True)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._waiters.wait(timeout)


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters = _Waiters()

    def __class_getitem__(cls, _: Any) -> type[SimpleQueue]:
        return cls

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake()

    def get(self, timeout: float | None = None) -> Any:
        own = kernel()
        own.alive()
        end = None if timeout is None else own.now + timeout
        while not self._items:
            if end is not None and own.now >= end:
                raise queue.Empty
            self._waiters.wait(None if end is None else end - own.now)
        return self._items.popleft()


class Future:
    """`concurrent.futures.Future`, as far as it is used."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self.job = job
        self.begun = False
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiters = _Waiters()

    def __class_getitem__(cls, _: Any) -> type[Future]:
        return cls

    def run(self) -> None:
        self.begun = True
        try:
            self._value = self.job()
        except Crash:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks
            self._error = error
        self.finish()

    def finish(self) -> None:
        self._done = True
        self._waiters.wake(everybody=True)

    def done(self) -> bool:
        return self._done

    def cancel(self) -> bool:
        if self.begun:
            return False
        if not self._done:
            self._error = CancelledError()
            self.finish()
        return True

    def result(self, timeout: float | None = None) -> Any:
        if not self._done:
            self._waiters.wait(timeout)
        if not self._done:
            raise FutureTimeoutError
        if self._error is not None:
            raise self._error
        return self._value


def wait(futures: Iterable[Future], timeout: float | None = None) -> None:
    """`concurrent.futures.wait` of one future."""
    (future,) = futures
    if not future.done():
        future._waiters.wait(timeout)


class Pool:
    """`txn.engine.base.threads.Pool`: jobs in order, so many at a time. None of them hangs here."""

    def __init__(self, workers: int, name: str = "pool") -> None:
        self._most = workers
        self._name = name
        self._jobs: deque[Future] = deque()
        self._busy = 0
        self._closed = False
        self._idle = _Waiters()

    def submit(self, function: Callable[..., Any], *args: Any, about: str = "") -> Future:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        own = kernel()
        process: Process = own.alive().process
        future = Future(lambda: function(*args))
        self._jobs.append(future)
        if self._busy < self._most:
            self._busy += 1
            own.spawn(process, self._name, self._work)
        return future

    def _work(self) -> None:
        while self._jobs:
            future = self._jobs.popleft()
            if not future.done():
                future.run()
        self._busy -= 1
        self._idle.wake(everybody=True)

    def close(self, *, cancel: bool) -> None:
        self._closed = True
        if cancel:
            for future in self._jobs:
                future.cancel()

    def join(self, seconds: float) -> list[Any]:
        while self._busy:
            self._idle.wait()
        return []

    @property
    def is_done(self) -> bool:
        return not self._busy

    def at_work(self) -> list[Any]:
        return []


class THREADING:
    """In place of the module `threading`."""

    Lock = RLock
    RLock = RLock
    Event = Event
    Thread = Thread

    @staticmethod
    def current_thread() -> object:
        task = kernel().current
        return None if task is None else task.thread

    @staticmethod
    def main_thread() -> object:
        return threading.main_thread()


class QUEUE:
    """In place of the module `queue`."""

    SimpleQueue = SimpleQueue
    Empty = queue.Empty


class CLOCK:
    """In place of the module `time`."""

    @staticmethod
    def monotonic() -> float:
        return kernel().now

    @staticmethod
    def time() -> float:
        return EPOCH + kernel().now

    @staticmethod
    def time_ns() -> int:
        return int(CLOCK.time() * 1e9)

    @staticmethod
    def sleep(seconds: float) -> None:
        kernel().sleep(seconds)
