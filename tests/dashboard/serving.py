"""The page over a sample, served for a browser or for `python -m tests.dashboard.serving`."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.dashboard.sample import Sample, Told
from txn.dashboard.server import serve
from txn.dashboard.watching.topologies import Watch
from txn.machine.listening import Address

__all__ = ["served"]


@contextmanager
def served(watch: Watch, port: int = 0) -> Iterator[str]:
    """The page on loopback, while the body runs; its address."""
    ready, over = threading.Event(), threading.Event()
    found: list[str] = []

    def told(url: str) -> None:
        found.append(url)
        ready.set()

    where = Address("127.0.0.1", port)
    thread = threading.Thread(
        target=serve, args=(watch, where, told), kwargs={"is_over": over.is_set}
    )
    thread.start()
    try:
        assert ready.wait(20)
        yield found[0]
    finally:
        over.set()
        thread.join(20)


def main() -> None:
    """Serve a sample until a key is pressed."""
    with tempfile.TemporaryDirectory() as folder:
        sample = Sample(Path(folder))
        sample.note()
        with Watch([], "zk1:2181", where=Path(folder), feed=Told) as watch:
            Told.last.say(sample.look())
            with served(watch, int(sys.argv[1]) if len(sys.argv) > 1 else 0) as url:
                print(url, flush=True)
                over = threading.Event()
                txid = sample.txids
                while not over.wait(2.5):
                    txid += 1
                    sample.commit(txid)
                    sample.open = tuple(range(txid + 1, txid + 5))
                    Told.last.say(sample.look(committed=txid))
                    sample.note()


if __name__ == "__main__":
    main()
