"""The store of a run on S3: a server that can be killed, and a proxy before it that does harm.

The reader and the judge go straight to the server. Its clock is an hour ahead of everybody's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from obstore.exceptions import AlreadyExistsError, BaseError

from tests.chaos.place import Place
from tests.children import LOOPBACK
from tests.stores.proxy import Fault, Proxy, Request, Skew
from tests.stores.s3 import S3Server, storage_options

__all__ = ["Lake"]

CLOCK_SECS = 3600.0
PAUSE_SECS = 0.2
TRIES = 600
FILES = "in"


class Lake:
    """One bucket on one server.

    Args:
        folder: of the server and of its data.
        host: the address of the proxy.
    """

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        folder.mkdir()
        self._server = S3Server(folder)
        self.proxy = Proxy(self._server.url, host=host)

    def __enter__(self) -> Lake:  # noqa: PYI034 - typing.Self is Python 3.11
        self._server.start()
        self.proxy.__enter__()
        self._bucket = self._server.bucket("lake")
        self._calm()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.proxy.__exit__(kind, error, at)
        self._server.stop()

    @property
    def place(self) -> Place:
        """The bucket as the processes of a run know it."""
        # By way of the proxy: it is to know what is new.
        store = self._server.store(self._bucket, url=self.proxy.url)

        def put(name: str, content: str) -> None:
            for _ in range(TRIES):  # the server may be away
                try:
                    store.put(f"{FILES}/{name}", content.encode(), mode="create")
                except AlreadyExistsError:
                    return
                except BaseError:
                    time.sleep(PAUSE_SECS)
                else:
                    return
            raise AssertionError(f"{name} could not be written")

        return Place(
            f"s3://{self._bucket}/warehouse",
            f"s3://{self._bucket}/{FILES}",
            put,
            storage_options(self.proxy.url),
            storage_options(self._server.url),
        )

    @contextlib.contextmanager
    def trouble(
        self,
        *faults: Fault,
        when: Callable[[Request], bool] = lambda _: True,
        probability: float = 1.0,
        seed: int = 0,
    ) -> Iterator[list[int]]:
        """These faults for the time of the block, to all but the writer of the files.

        Yields: a list that has, after the block, how many requests met each fault.
        """
        met: list[int] = []
        rules = [
            self.proxy.inject(
                fault, lambda it: not _is_input(it) and when(it), probability=probability, seed=seed
            )
            for fault in faults
        ]
        try:
            yield met
        finally:
            self._calm()
            met.extend(len(rule.met) for rule in rules)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The server is killed, and back after the block."""
        self._server.kill()
        try:
            yield
        finally:
            self._server.start()

    def _calm(self) -> None:
        self.proxy.clear()
        self.proxy.inject(Skew(CLOCK_SECS))


def _is_input(request: Request) -> bool:
    return request.operation.startswith("PUT") and request.key.startswith(f"{FILES}/")
