"""The threads of a run: everything slow, off the protocol's thread.

User code and storage may block for ever, and Python cannot end a thread. So a run waits for each of
its threads with a limit, and names those that do not end in time. They are daemon threads: unlike
those of `concurrent.futures`, an interpreter that exits does not wait for them.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import FrameType
from typing import Any

from txn.errors import AbandonedError
from txn.logs import carried
from txn.spark.causes import cause_line
from txn.text import is_installed, is_ours, is_the_users

__all__ = ["Pool", "Straggler", "Threads", "abandoned_error", "run_within"]

log = logging.getLogger("txn")

Job = Callable[[], None]

GRACE_SECS = 20.0
_CANCEL_SECS = 0.5
"""Between two cancellations of running jobs: one may begin just after it was cancelled."""
_READING_FRAMES = threading.Lock()
"""Held while garbage collection is off."""


@dataclass(frozen=True)
class Straggler:
    """A thread that has not ended in time."""

    thread: threading.Thread
    about: str
    """Its job."""
    seconds: float
    """Time that it has spent on it."""
    where: str
    """The innermost frame of the user's code, else of ours, else of a library."""

    @classmethod
    def of(cls, thread: threading.Thread, about: str, since: float) -> Straggler:
        """Describe a thread and its present position.

        Args:
            since: the time, by `time.monotonic`, at which it began its job.
        """
        frame = _current_frames().get(thread.ident or 0)
        return cls(thread, about, time.monotonic() - since, _describe_position(frame))

    def __str__(self) -> str:
        name, about, where = self.thread.name, self.about, self.where
        return f"thread {name}, {about}, for {self.seconds:.0f} s in {where}"


class Pool:
    """Daemon threads that do jobs in the order in which they come.

    Args:
        workers: most threads; each is started when it is first needed.
    """

    def __init__(self, workers: int, name: str) -> None:
        self._most = workers
        self._name = name
        self._lock = threading.RLock()
        # Two conditions, so that a job wakes one thread, and not every idle one.
        self._work_there = threading.Condition(self._lock)
        self._work_done = threading.Condition(self._lock)
        self._jobs: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], str]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False
        self._busy: dict[threading.Thread, tuple[str, float]] = {}
        """thread -> its job, and the time of its begin."""

    def submit(self, job: Callable[..., Any], *args: Any, about: str = "") -> Future[Any]:
        """Run a job on a thread; `about` describes the job if it never returns.

        Raises:
            RuntimeError: the pool is closed.
        """
        future: Future[Any] = Future()
        job = carried(job)  # with the log context of this thread
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.append((future, job, args, about or self._name))
            if len(self._jobs) > self._idle and len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._work_there.notify()
        return future

    def close(self, *, cancel: bool) -> None:
        """Take no more jobs; those not yet begun are cancelled, or done first."""
        with self._lock:
            self._closed = True
            for future, *_ in self._jobs if cancel else ():
                future.cancel()
            self._work_there.notify_all()

    def join(self, seconds: float) -> list[Straggler]:
        """Wait until nothing is left to do. Returns the threads still at work after that time."""
        until = time.monotonic() + seconds
        with self._lock:
            while self._busy or self._jobs:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._work_done.wait(left)
        return self.at_work()

    @property
    def is_done(self) -> bool:
        """True if nothing is left to do."""
        with self._lock:
            return not self._busy and not self._jobs

    def at_work(self) -> list[Straggler]:
        """Return the threads at work now, longest first."""
        with self._lock:
            busy = list(self._busy.items())
        working = [Straggler.of(thread, about, since) for thread, (about, since) in busy]
        return sorted(working, key=lambda one: -one.seconds)

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._lock:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._work_there.wait()
                self._idle -= 1
                if not self._jobs:
                    return
                future, job, args, about = self._jobs.popleft()
                self._busy[me] = about, time.monotonic()
            if future.set_running_or_notify_cancel():
                try:
                    result = job(*args)
                except BaseException as error:  # noqa: BLE001 - raised by the future
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, job, args
            with self._lock:
                del self._busy[me]
                if not self._busy and not self._jobs:
                    self._work_done.notify_all()


class Threads:
    """The threads of a run; see `txn.engine.loop.pipeline` for the work of each pool.

    Args:
        pending: batches in flight; dead attempts may still be ending, hence twice as many threads.
        grace: seconds for threads to end once the run has ended.
        clean_up: seconds for the clean-up that is left at the end.
    """

    def __init__(
        self,
        topology: str,
        pending: int,
        grace: float = GRACE_SECS,
        clean_up: float = GRACE_SECS,
    ) -> None:
        self._topology = topology
        self._grace = grace
        self._clean_up = clean_up
        self._until: float | None = None
        self.planner = Pool(1, "txn-planner")
        self.processing = Pool(2 * pending, "txn-processing")
        self.commit = Pool(1, "txn-commit")
        self.cleaner = Pool(1, "txn-clean-up")
        self.maintenance = Pool(1, "txn-maintenance")

    def spawn(
        self, pool: Pool, job: Job, raised: Callable[[BaseException], None], about: str = ""
    ) -> None:
        """Run `job` on a thread of `pool`; hand its error to `raised`, on that thread."""

        def guarded() -> None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - every end of a thread is a fact
                raised(error)

        pool.submit(guarded, about=about)

    def clean(self, job: Job) -> None:
        """Run a best-effort job on the clean-up thread."""
        self.cleaner.submit(self.quietly, job, about="clean-up")

    def quietly(self, job: Job) -> None:
        """Run a best-effort job: clean-up that fails is left to the next run."""
        try:
            job()
        except Exception as error:  # noqa: BLE001 - best effort by design
            log.warning("[%s] clean-up: %s", self._topology, cause_line(error))

    def grace_left(self) -> float:
        """Return the seconds of grace that are left; the grace begins with the first call."""
        if self._until is None:
            self._until = time.monotonic() + self._grace
        return max(0.0, self._until - time.monotonic())

    def join(self, cancel: Job = lambda: None) -> list[Straggler]:
        """Wait for the end of every thread within the grace; return those that did not end.

        Jobs not yet begun are dropped, except clean-up. A thread of clean-up is never returned: the
        next run deletes what it leaves.

        Args:
            cancel: called again and again, so that threads that wait for Spark end.
        """
        working = (self.planner, self.processing, self.commit, self.maintenance)
        for pool in working:
            pool.close(cancel=True)
        stragglers = [one for pool in working for one in self._join_pool(pool, cancel)]
        self._finish_clean_up(self.grace_left() if stragglers else self._clean_up)
        return stragglers

    def _finish_clean_up(self, seconds: float) -> None:
        """Do clean-up for `seconds`, unless one of its jobs outlasts the grace by itself."""
        self.cleaner.close(cancel=False)
        until = time.monotonic() + seconds
        # A job that has just begun has the whole grace, however long the queue was.
        while not self.cleaner.is_done:
            hung = [one for one in self.cleaner.join(_CANCEL_SECS) if one.seconds >= self._grace]
            if hung or (time.monotonic() >= until and not self.cleaner.is_done):
                self.cleaner.close(cancel=True)
                what = ", ".join(map(str, hung)) or f"not done within {seconds:g} s"
                log.warning("[%s] clean-up is left to the next run: %s", self._topology, what)
                return

    def _join_pool(self, pool: Pool, cancel: Job) -> list[Straggler]:
        stragglers = pool.join(min(self.grace_left(), _CANCEL_SECS))
        while stragglers:
            # At least once: another pool may have used all of the grace.
            cancel()
            stragglers = pool.join(_CANCEL_SECS)
            if not self.grace_left():
                break
        return stragglers


def run_within(
    seconds: float, job: Job, about: str, name: str = "txn-end"
) -> tuple[Future[None], list[Straggler]]:
    """Run a job on a thread of its own, and wait for it up to a limit.

    Returns:
        The job's outcome; and its thread, if it hangs.
    """
    pool = Pool(1, name)
    ended = pool.submit(job, about=about)
    pool.close(cancel=False)
    return ended, pool.join(seconds)


def _current_frames() -> dict[int, FrameType]:
    """Return `sys._current_frames()`, without a garbage collection in the middle of it.

    Before Python 3.11.9, a collection that runs Python code there, such as Py4J's finalizers, may
    hand the GIL to a thread that is starting another. Then the whole process hangs (CPython
    gh-106883).
    """
    with _READING_FRAMES:
        if not gc.isenabled():
            return sys._current_frames()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            gc.enable()


def abandoned_error(
    topology: str, stragglers: Sequence[Straggler], grace: float, error: BaseException | None
) -> AbandonedError:
    """Return the error of a run that ended without some of its threads."""
    ended = "" if error is None else f" The run had ended with {cause_line(error)}"
    result = AbandonedError(
        f"Topology '{topology}' ended, but these threads did not end within {grace:g} s: "
        f"{'; '.join(map(str, stragglers))}. Leadership was given up: nothing that they still do "
        "is published, and a standby or the next run goes on. End this process, which cannot "
        f"stop them itself, and give the call that they are in a time-out.{ended}"
    )
    result.__cause__ = error
    return result


def _describe_position(frame: FrameType | None) -> str:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    if not frames:
        return "no Python code"
    files = [frame.f_code.co_filename for frame in frames]  # innermost first
    users = (i for i, file in enumerate(files) if is_the_users(file) and not is_installed(file))
    ours = (i for i, file in enumerate(files) if is_ours(file))
    innermost = frames[next(users, next(ours, 0))]
    return f"{innermost.f_code.co_name} ({innermost.f_code.co_filename}:{innermost.f_lineno})"
