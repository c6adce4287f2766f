"""Many writers want to create one object at once: a store that keeps its word has one winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore
from pyarrow import table

__all__ = ["WRITERS", "check_commits", "check_race", "create"]

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
    stores = [open_store() for _ in range(WRITERS)]

    def write(writer: int, number: int) -> bool:
        return create(stores[writer], f"{prefix}/{number:020}", str(writer).encode())

    winners = compete(write, rounds)
    kept = [bytes(stores[0].get(f"{prefix}/{n:020}").bytes()) for n in range(rounds)]
    assert winners == [[int(writer)] for writer in kept]


def check_commits(uri: str, options: Mapping[str, str], rounds: int) -> None:
    """In each round, delta-rs lets one of six writers commit the next version of a new table."""
    own = dict(options)
    write_deltalake(uri, table({"writer": [0]}).slice(0, 0), storage_options=own)
    once = CommitProperties(max_commit_retries=0)

    def commit(writer: int, number: int) -> bool:
        found = DeltaTable(uri, version=number, storage_options=own)
        row = table({"writer": [writer]})
        try:
            write_deltalake(found, row, mode="append", commit_properties=once)
        except CommitFailedError:
            return False
        return True

    winners = compete(commit, rounds)
    found = DeltaTable(uri, storage_options=own)
    rows = found.to_pyarrow_table()["writer"].to_pylist()
    assert found.version() == rounds
    assert [len(won) for won in winners] == [1] * rounds
    assert sorted(rows) == sorted(writer for won in winners for writer in won)


def compete(act: Callable[[int, int], bool], rounds: int) -> list[list[int]]:
    """Who won in each round: `act(writer, round)`, by all writers at once."""
    barrier = Barrier(WRITERS)

    def run(writer: int) -> list[bool]:
        won = []
        for number in range(rounds):
            barrier.wait(60)
            won.append(act(writer, number))
        return won

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(run, range(WRITERS)))
    return [[w for w in range(WRITERS) if won[w][number]] for number in range(rounds)]
