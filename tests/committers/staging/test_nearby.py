"""A table's files on this machine's disk: what need not be fetched, and how much room it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from committers.staging.nearby import Nearby
from txn.storage.storage import Storage


class Turns:
    """A table elsewhere, and the files that commit turns write and read again."""

    def __init__(self, folder: Path) -> None:
        self.table = Storage(str(folder / "table"))
        self.near = Nearby()
        self.sizes: dict[str, int] = {}

    def send(self, **files: str) -> None:
        """Write these files here, as a job would, and send them on."""
        for name, content in files.items():
            self.near.storage.write(name, content.encode())
            self.sizes[name] = len(content)
        self.near.send(self.table, files)

    def read(self, *names: str) -> tuple[dict[str, bytes], list[str]]:
        """What a turn reads of these files of the table, and which of them it had to fetch."""
        files = [(name, self.sizes[name]) for name in names]
        with self.near.copies(self.table, files) as url_of:
            places = {name: Path(url_of(name).removeprefix("file:")) for name in names}
            fetched = [name for name, place in places.items() if place.parent.name != "kept"]
            return {name: place.read_bytes() for name, place in places.items()}, fetched

    def kept(self) -> Sequence[bytes]:
        """What lies here between two turns."""
        files = sorted(Path(self.near.storage.uri).rglob("*.parquet"), key=lambda it: int(it.stem))
        return [file.read_bytes() for file in files]


@pytest.fixture
def turns(tmp_path: Path) -> Turns:
    """Nothing is sent yet."""
    return Turns(tmp_path)


def test_what_was_sent_is_not_fetched(turns: Turns) -> None:
    """A file is in the table and here; one that somebody else has written is fetched."""
    turns.send(a="one", b="two")
    turns.table.write("c", b"three")
    turns.sizes["c"] = 5
    assert turns.table.read("a") == b"one"
    assert turns.read("a", "c") == ({"a": b"one", "c": b"three"}, ["c"])
    assert turns.kept() == [b"one", b"two"]


def test_what_the_table_no_longer_has_goes(turns: Turns) -> None:
    """Only what a next turn may read stays."""
    turns.send(a="one", b="two")
    turns.near.keep_only({"b", "another"})
    assert turns.kept() == [b"two"]
    assert turns.read("a", "b") == ({"a": b"one", "b": b"two"}, ["a"])


def test_a_file_that_is_not_whole_any_more_is_fetched(turns: Turns) -> None:
    """Somebody cleans up temporary folders, or cuts a file short."""
    turns.send(a="one", b="two")
    first, second = sorted(Path(turns.near.storage.uri).rglob("*.parquet"))
    first.unlink()
    second.write_bytes(b"tw")
    assert turns.read("a", "b") == ({"a": b"one", "b": b"two"}, ["a", "b"])


def test_the_oldest_make_room(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays has a limit, and what a turn fetches counts for it; what it reads is left."""
    monkeypatch.setattr("committers.staging.nearby.MOST", 8)
    turns.send(a="one", b="two", c="three")
    assert turns.kept() == [b"two", b"three"]
    turns.table.write("d", b"four")
    turns.sizes["d"] = 4
    assert turns.read("b", "d") == ({"b": b"two", "d": b"four"}, ["d"])
    assert turns.kept() == [b"two"]
