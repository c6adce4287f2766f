"""The threads of a run: everything slow, off the protocol's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from txn.faults import first_line

__all__ = ["Threads"]

log = logging.getLogger("txn")

Job = Callable[[], None]


class Threads:
    """The threads of a run; see `txn.pipeline` for who does what.

    Args:
        pending: batches in flight; dead attempts may still be ending, hence twice as many threads.
    """

    def __init__(self, topology: str, pending: int) -> None:
        self._topology = topology
        self.planner = ThreadPoolExecutor(1, "txn-planner")
        self.processing = ThreadPoolExecutor(2 * pending, "txn-processing")
        self.commit = ThreadPoolExecutor(1, "txn-commit")
        self.cleaner = ThreadPoolExecutor(1, "txn-clean-up")
        self.maintenance = ThreadPoolExecutor(1, "txn-maintenance")

    def spawn(
        self, pool: ThreadPoolExecutor, job: Job, raised: Callable[[BaseException], None]
    ) -> None:
        """Run `job` on a thread of `pool`; hand what it raises to `raised`, on that thread."""

        def guarded() -> None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - every end of a thread is a fact
                raised(error)

        pool.submit(guarded)

    def clean(self, job: Job) -> None:
        """Run a best-effort job on the clean-up thread."""
        self.cleaner.submit(self.quietly, job)

    def quietly(self, job: Job) -> None:
        """Run what is best effort: clean-up that fails is left to the next run."""
        try:
            job()
        except Exception as error:  # noqa: BLE001 - best effort by design
            log.warning("[%s] clean-up: %s", self._topology, first_line(error))

    def join(self) -> None:
        """Wait for the end of every thread; jobs not yet begun are dropped, but for clean-up."""
        for pool in (self.planner, self.processing, self.commit, self.maintenance):
            pool.shutdown(wait=True, cancel_futures=True)
        self.cleaner.shutdown(wait=True)
