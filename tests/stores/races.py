"""Many writers want to create one object at once: a store that keeps its word has one winner."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

__all__ = ["WRITERS", "check_race", "create"]

WRITERS = 6


def create(store: ObjectStore, key: str, value: bytes) -> bool:
    """Write an object unless it is there; whether this was the one that wrote it."""
    try:
        store.put(key, value, mode="create", use_multipart=False)
    except AlreadyExistsError:
        return False
    return True


def check_race(open_store: Callable[[], ObjectStore], rounds: int, prefix: str = "race") -> None:
    """In each round, one of six writers wins, each with a client of its own, and its value stays.

    Args:
        open_store: makes a client.
    """
    barrier = Barrier(WRITERS)
    reader = open_store()

    def compete(writer: int) -> list[bool]:
        store = open_store()
        won = []
        for number in range(rounds):
            barrier.wait(60)
            won.append(create(store, f"{prefix}/{number:020}", str(writer).encode()))
        return won

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(compete, range(WRITERS)))
    winners = [[w for w in range(WRITERS) if won[w][number]] for number in range(rounds)]
    kept = [int(bytes(reader.get(f"{prefix}/{n:020}").bytes())) for n in range(rounds)]
    assert winners == [[writer] for writer in kept]
