"""Start ZooKeeper and look for refusals while Spark starts."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from txn.errors import SetupError, TxnError
from txn.operations.changes.topology import refuse_changes
from txn.storage.catalog_names import is_table_name

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["Start", "given_up"]


class Start:
    """Start ZooKeeper and compare program and progress, on a thread, while Spark starts.

    A refusal interrupts Spark's start: a user waits no longer for it than it takes to find.

    Args:
        resources: end an embedded server.
        spec: as for `Topology.run`.
        given_up: set when Spark's start has failed.
        compares: False for a standby: the leader goes on, and so may its progress.
    """

    def __init__(
        self,
        resources: contextlib.ExitStack,
        spec: str,
        topology: Topology,
        given_up: threading.Event,
        *,
        compares: bool,
    ) -> None:
        self._resources = resources
        self._spec = spec
        self._topology = topology
        self._sleep = _unless(given_up)
        # A name in Spark's catalog is a table only once Spark runs.
        named = any(is_table_name(sink.name) for sink in topology.sinks)
        self._compares = compares and not named
        self._busy = threading.Lock()
        self._is_starting = False
        self._refusal: TxnError | None = None

    def zookeeper(self) -> str:
        """Return a connect string, as `zookeeper_of_run`.

        Raises:
            TxnError: ZooKeeper does not answer, or the program does not fit the progress.
        """
        from txn.backends import require_answer
        from txn.embedded.service import zookeeper_of_run

        name, settings = self._topology.name, self._topology.settings
        try:
            require_answer(self._spec, settings, sleep=self._sleep)
            served = zookeeper_of_run(self._spec, name, settings, sleep=self._sleep)
            hosts = self._resources.enter_context(served)
            if self._compares:
                refuse_changes(self._topology, hosts)
        except TxnError as error:
            with self._busy:
                self._refusal = error
                if self._is_starting:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            raise
        return hosts

    @contextlib.contextmanager
    def spark_starts(self) -> Iterator[None]:
        """Raise a refusal as soon as it comes, while the body runs."""
        with self._busy:
            if self._refusal is not None:
                raise self._refusal
            self._is_starting = True
        try:
            try:
                yield
            finally:
                with self._busy:
                    self._is_starting = False
        except KeyboardInterrupt:
            if self._refusal is None:
                raise
            raise self._refusal from None


@contextlib.contextmanager
def given_up() -> Iterator[threading.Event]:
    """Yield an event that is set if the body fails, so that the thread beside it stops."""
    event = threading.Event()
    try:
        yield event
    except BaseException:
        event.set()
        raise


def _unless(given_up: threading.Event) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        if given_up.wait(seconds):
            raise SetupError(
                "The start was given up; nothing was changed. Run it again.", number="TXN-514"
            )

    return sleep
