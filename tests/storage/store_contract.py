"""What every store promises, as tests: a class to inherit from, with one fixture `place`.

    class TestLocal(StoreContract):
        @pytest.fixture
        def place(self, tmp_path):
            return Place(str(tmp_path / "t"))

A server of another kind is one more such class.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from txn.storage.opening import open_store
from txn.storage.store import Store, TooLargeError

__all__ = ["Place", "StoreContract"]

ODD = "data/k=a b/é#%41+~&(1)'.txt"
"""A file's name with what URLs and S3's signatures treat in ways of their own."""
PROCESSES, ROUNDS = 4, 25
LARGE = 3_000_000
RACER = """
import json, sys
from txn.storage.opening import open_store
location, options, prelude, mine, rounds = json.loads(sys.argv[1])
exec(prelude)
store, _ = open_store(location, options)
store.head(["x"])
print("ready", flush=True)
sys.stdin.readline()
won = [store.put_if_absent(f"race/{n}", mine.encode() * 1000) for n in range(rounds)]
print(json.dumps(won))
"""


@dataclass(frozen=True)
class Place:
    """A folder of one test, empty."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    """Python that another process runs before it opens the place."""

    def open(self) -> Store:
        """A store of it, with a client of its own."""
        return open_store(self.location, self.options)[0]


class StoreContract:
    """The tests; a subclass has the fixture `place`."""

    has_versions = True
    """Whether storage has an ETag for a file."""

    @pytest.fixture
    def store(self, place: Place) -> Store:
        """A store of the place."""
        return place.open()

    def test_what_is_not_there(self, store: Store) -> None:
        """Nothing is None or empty, and never an error, whoever asks."""
        assert store.get("a/b") is None
        assert store.beginning("a/b", 10) is None
        assert store.tail("a/b", 10) is None
        assert store.tail("a/b", 10, 20) is None
        assert store.head(["a", "a/b"]) == [None, None]
        assert store.head([]) == []
        assert [*store.walk("a")] == [*store.walk()] == []
        assert store.children() == store.children("a") == ([], [])
        store.delete(["a/b", "c"])
        store.delete([])
        store.delete_folder("a")

    def test_a_file_is_read_as_it_was_written(self, store: Store) -> None:
        """Whatever its name and its bytes; a second `put` replaces it."""
        store.put(ODD, b"\0\xff\r\n")
        assert store.get(ODD) == b"\0\xff\r\n"
        assert [entry.path for entry in store.walk()] == [ODD]
        store.put(ODD, b"")
        assert store.get(ODD) == b""
        assert [entry.size for entry in store.walk("data")] == [0]
        store.delete([ODD])
        assert store.get(ODD) is None

    def test_more_than_the_limit_is_not_read(self, store: Store) -> None:
        """A file of just so many bytes is read, a larger one is not."""
        store.put("x", b"12345")
        assert store.get("x", 5) == b"12345"
        with pytest.raises(TooLargeError, match="'x' has 5 bytes"):
            store.get("x", 4)

    def test_the_end_of_a_file(self, store: Store) -> None:
        """The last bytes, all of a shorter file, nothing of an empty one; with its size or not."""
        store.put("x", b"0123456789")
        store.put("empty", b"")
        for size in (None, 10):
            assert store.tail("x", 3, size) == b"789"
            assert store.tail("x", 10, size) == b"0123456789"
            assert store.tail("x", 99, size) == b"0123456789"
        assert store.tail("empty", 8) == store.tail("empty", 8, 0) == b""

    def test_the_beginning_of_a_file(self, store: Store) -> None:
        """The first bytes, all of a shorter file, nothing of an empty one."""
        store.put("x", b"0123456789")
        store.put("empty", b"")
        found = [store.beginning("x", length) for length in (3, 10, 99)]
        assert found == [b"012", b"0123456789", b"0123456789"]
        assert store.beginning("empty", 8) == b""

    def test_a_look_at_many_files(self, store: Store) -> None:
        """In the order of the question; the version changes with the content."""
        paths = [f"data/{n}" for n in range(40)]
        for n, path in enumerate(paths[::2]):
            store.put(path, b"x" * n)
        before = time.time()
        found = store.head(paths)
        assert [entry and entry.path for entry in found[::2]] == paths[::2]
        assert [entry and entry.size for entry in found[::2]] == [*range(20)]
        assert found[1::2] == [None] * 20
        listed = {entry.path: entry for entry in store.walk()}
        first = found[0]
        assert first is not None
        assert abs(first.modified_ns / 1e9 - before) < 60
        assert listed[first.path].version == first.version
        assert abs(listed[first.path].modified_ns - first.modified_ns) < 10**9
        store.put(paths[0], b"other")
        (again,) = store.head(paths[:1])
        assert again is not None
        assert (again.version, again.modified_ns) != (first.version, first.modified_ns)
        assert (again.version is not None) == self.has_versions
        assert (again.version != first.version) == self.has_versions

    def test_a_walk_is_in_the_order_of_bytes(self, store: Store) -> None:
        """Also from behind a name; hidden files too, and of one folder what is below it."""
        names = ["a-b", "a.b", "a/.b", "a/_b/c", "a/b", "a0", "ab/c", "z", "é"]
        for name in reversed(names):
            store.put(name, name.encode())
        assert [entry.path for entry in store.walk()] == names
        assert [entry.path for entry in store.walk("a")] == ["a/.b", "a/_b/c", "a/b"]
        for start, name in enumerate(names):
            assert [entry.path for entry in store.walk(after=name)] == names[start + 1 :]
        assert [entry.path for entry in store.walk("a", after="a/_")] == ["a/_b/c", "a/b"]
        assert [entry.path for entry in store.walk("a", after="a/b")] == []

    def test_what_lies_directly_below(self, store: Store) -> None:
        """Folders and files of one level, by path."""
        for name in ("t/z", "t/b/c/d", "t/a/x", "t/.c", "other/y"):
            store.put(name, b"1")
        folders, entries = store.children("t")
        assert (folders, [entry.path for entry in entries]) == (["t/a", "t/b"], ["t/.c", "t/z"])
        assert store.children()[0] == ["other", "t"]

    def test_a_file_that_is_there_is_not_written_again(self, store: Store) -> None:
        """The first one wins, also over an empty file; nothing else is left behind."""
        assert store.put_if_absent("log/0.json", b"first")
        assert not store.put_if_absent("log/0.json", b"second")
        assert store.get("log/0.json") == b"first"
        store.put("log/1.json", b"")
        assert not store.put_if_absent("log/1.json", b"second")
        assert [entry.path for entry in store.walk()] == ["log/0.json", "log/1.json"]
        store.delete(["log/0.json"])
        assert store.put_if_absent("log/0.json", b"third")

    def test_of_several_processes_one_wins(self, place: Place, store: Store) -> None:
        """In each round one of them wrote the file, and it alone was told so."""
        racers = []
        for mine in "abcd"[:PROCESSES]:
            given = json.dumps([place.location, dict(place.options), place.prelude, mine, ROUNDS])
            command = [sys.executable, "-c", RACER, given]
            racers.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
                )
            )
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        won = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
        winners = [[n for n in range(PROCESSES) if won[n][number]] for number in range(ROUNDS)]
        kept = [store.get(f"race/{number}") for number in range(ROUNDS)]
        assert kept == ["abcd"[found[0]].encode() * 1000 for found in winners]
        assert [len(found) for found in winners] == [1] * ROUNDS
        assert {entry.path for entry in store.walk()} == {f"race/{n}" for n in range(ROUNDS)}

    def test_nobody_sees_a_part(self, store: Store) -> None:
        """A reader finds nothing, the old bytes or all of the new ones, but never some of them."""
        seen: set[tuple[int, bytes]] = set()
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                for path in ("new", "replaced"):
                    found = store.get(path)
                    if found is not None:
                        seen.add((len(found), bytes(set(found))))
                for entry in store.walk():
                    if entry.path in ("new", "replaced"):  # a server's own names may show
                        seen.add((entry.size, b""))

        store.put("replaced", b"a" * LARGE)
        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            for letter in b"bcde" * 2:
                store.put("replaced", bytes([letter]) * LARGE)
                store.put_if_absent("new", bytes([letter]) * LARGE)
                store.delete(["new"])
            done.set()
            watching.result(60)
        assert seen
        assert {size for size, _ in seen} == {LARGE}
        assert {len(letters) for _, letters in seen} <= {0, 1}

    def test_a_thousand_files_go_at_once(self, store: Store) -> None:
        """Those that are there and those that are not; all others stay."""
        there = [f"data/{n:04}" for n in range(1003)]
        with ThreadPoolExecutor(16) as pool:
            [*pool.map(lambda path: store.put_if_absent(path, b"x"), there)]
        gone = [f"data/gone-{n}" for n in range(5)]
        store.delete([*there[:3], *gone, *there[3:1001]])
        assert [entry.path for entry in store.walk()] == there[1001:]

    def test_a_folder_goes_with_all_that_is_in_it(self, store: Store) -> None:
        """And not another one that begins with the same letters."""
        for name in ("d/1/a", "d/1/.b", "d/1/c/d", "d/10/a", "d/1.json"):
            store.put(name, b"x")
        store.delete_folder("d/1")
        assert [entry.path for entry in store.walk()] == ["d/1.json", "d/10/a"]
        assert store.children("d")[0] == ["d/10"]
