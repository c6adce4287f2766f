"""Files that were changed after they were read: found once each, and no other file is."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from spouts.files import FileBatch, FileSpout
from spouts.files.folder.changed import Changed
from spouts.files.folder.listing import Listing
from spouts.files.folder.polls import Polls
from txn.attempts import TransactionAttempt
from txn.storage.local import LocalStore

SCHEMA = StructType([StructField("value", StringType())])


class Folder:
    """A folder whose files have the times that a clock says, and a reader that takes some."""

    def __init__(self, part: int) -> None:
        self.clock = 100
        self.files: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.newest: int | None = None
        self.asked: list[int] = []
        self.part = part
        self.restart()

    def restart(self) -> None:
        """Another process goes on."""
        self.changed = Changed(self.times, self.part)

    def times(self, names: Sequence[str]) -> Iterator[tuple[str, int | None]]:
        self.asked.append(len(names))
        return ((name, self.files[name]) for name in names)

    def write(self, name: str) -> None:
        """A file appears, or is changed."""
        self.clock += 1
        self.files[name] = self.clock

    def look(self, take: int = 0) -> set[str]:
        """One look at the folder, and the files that it takes."""
        names = sorted(self.files)
        unseen = [name for name in names if name not in self.taken]
        found = self.changed.look(names, unseen, self.newest)
        files = [(name, self.files[name]) for name in unseen[:take]]
        self.changed.take(files)
        self.taken.update(files)
        times = [time for _, time in files] + [*found.values()]
        self.newest = max([*times, *([self.newest] if self.newest else [])], default=None)
        return set(found)


def folder(*names: str, part: int = 10) -> Folder:
    """A folder with these files, all of them taken."""
    made = Folder(part)
    for name in names:
        made.write(name)
    assert made.look(len(names)) == set()
    return made


def test_a_change_is_found_by_the_next_look_and_once() -> None:
    """Also if a newer file was taken since; another process tells only what came after that."""
    made = folder("a", "b")
    made.write("a")
    made.write("c")
    assert made.look(1) == {"a"}
    made.restart()
    assert made.look() == set()
    made.write("b")
    assert made.look() == {"b"}
    made.write("b")
    assert made.look() == set()


def test_what_changed_while_nobody_looked_is_found_by_the_next_process() -> None:
    """The position alone is enough for that."""
    made = folder("a", "b")
    made.write("a")
    made.restart()
    assert made.look() == {"a"}


def test_a_look_asks_for_a_part_from_the_last_name_backwards() -> None:
    """However many files there are; in the next round it begins with the last ones again."""
    names = [f"{n:03}" for n in range(7)]
    made = folder(*names, part=3)
    for name in names:
        made.write(name)
    made.restart()
    found = [sorted(made.look()) for _ in range(4)]
    assert found == [names[4:], names[1:4], names[:1], []]
    assert max(made.asked) == 3


@settings(max_examples=300, deadline=None)
@given(data=st.data(), part=st.integers(1, 4))
def test_within_a_run_every_change_is_found_and_nothing_else(
    data: st.DataObject, part: int
) -> None:
    """Whatever is written and taken between the looks, in whatever order the names are."""
    made = folder(*"aceg", part=part)
    changed: set[str] = set()
    found: list[str] = []
    letters = st.sampled_from("abcdefgh")
    for _ in range(data.draw(st.integers(1, 12))):
        for name in data.draw(st.lists(letters, max_size=3)):
            if name in made.taken:
                changed.add(name)
            made.write(name)
        found += sorted(made.look(data.draw(st.integers(0, 2))))
        assert set(found) <= changed
    for _ in range(2 * (len(made.files) // part + 1)):
        found += sorted(made.look())
    assert sorted(found) == sorted(changed)


def test_many_files_at_once_are_not_kept_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a round begins anew, with the newest time of all that was taken."""
    monkeypatch.setattr("spouts.files.folder.changed._RECENT", 500)
    made = folder("a", "b")
    for number in range(501):
        made.write(f"c{number:06}")
    assert made.look(501) == set()
    assert made.changed._taken == ({}, {})
    made.write("c000000")
    looks: Iterable[set[str]] = (made.look() for _ in range(500))
    assert next(found for found in looks if found) == {"c000000"}


def test_a_position_of_an_earlier_release_is_followed_after_one_round() -> None:
    """It does not say how new its files were: what one round has seen stands for it."""
    made = folder("a", "b", "c")
    made.newest = None
    made.restart()
    assert made.changed.newest is None
    for _ in range(2):
        assert made.changed.look(sorted(made.files), [], None) == {}
    assert made.changed.look(sorted(made.files), [], None) == {}
    assert made.changed.newest == made.files["c"]
    made.write("c")
    looks = [made.changed.look(sorted(made.files), [], None) for _ in range(2)]
    assert {name for found in looks for name in found} == {"c"}


# --- the spout ---------------------------------------------------------------------------------


def spout(path: Path, previous: FileBatch | None = None) -> FileSpout:
    """A spout as a new process has it."""
    made = FileSpout(f"{path}/*.txt", format="text", schema=SCHEMA, files_per_batch=2)
    made.open(None, previous)  # type: ignore[arg-type]  # a given schema needs no session
    return made


def test_rows_that_are_appended_to_a_file_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By name and with the way out, by the run that goes on and by one that comes later."""

    def plan(one: FileSpout, previous: FileBatch | None) -> FileBatch | None:
        caplog.clear()
        planned = one.initialize_transaction(TransactionAttempt(1), previous)
        return planned and FileBatch.model_validate_json(planned.model_dump_json())

    caplog.set_level(logging.WARNING, "txn.notices")
    a, b, c = (tmp_path / f"{name}.txt" for name in "abc")
    for second, file in enumerate((a, b)):
        file.write_text("x\n")
        os.utime(file, (100 + second, 100 + second))
    running = spout(tmp_path)
    first = plan(running, None)
    assert first is not None
    assert first.newest_ns == 101 * 10**9
    assert plan(running, first) is None
    assert caplog.messages == []
    a.write_text("x\ny\n")
    os.utime(a, (102, 102))
    assert plan(running, first) is None
    told = (
        f"{running!r} had read these files before they were changed, and reads no file twice: {a}. "
        "Rows that were added to them are in no table: write those into a new file."
    )
    assert caplog.messages == [told]
    assert plan(running, first) is None
    assert caplog.messages == []
    assert [*running.notices()] == [told]
    c.write_text("z\n")
    os.utime(c, (50, 50))
    later = spout(tmp_path, first)
    second = plan(later, first)
    assert second is not None
    assert ([file.path for file in second.files], len(caplog.messages)) == ([str(c)], 1)
    assert plan(spout(tmp_path, second), second) is None
    assert caplog.messages == []
    assert plan(running, first) == second


def test_of_many_changed_files_some_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says how many more there are."""
    files = [tmp_path / f"{n:03}.txt" for n in range(30)]
    for file in files:
        file.touch()
        os.utime(file, (100, 100))
    made, batch = spout(tmp_path), None
    while (planned := made.initialize_transaction(TransactionAttempt(1), batch)) is not None:
        batch = planned
    for file in files:
        os.utime(file, (200, 200))
    assert made.initialize_transaction(TransactionAttempt(1), batch) is None
    [line] = caplog.messages
    assert f"{files[19]} and 10 more. Rows" in line
    assert str(files[20]) not in line


class Elsewhere(Listing):
    """A remote storage: another name for local files."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self._store = LocalStore(self.base.removeprefix("s3:/"))


def test_a_remote_listing_has_the_times(tmp_path: Path) -> None:
    """For one call, of the files asked for that it has listed, in whole seconds."""
    for number, name in enumerate("ab"):
        (tmp_path / f"{name}.txt").touch()
        os.utime(tmp_path / f"{name}.txt", ns=(0, number * 10**9 + 7))
    polls = Polls(Elsewhere(f"s3:/{tmp_path}/*.txt"), 0.0, 9, lambda: 0.0)
    poll = polls.poll(list)
    assert poll is not None
    a, b = poll.names
    assert polls.times([b, a, "gone"]) == [(b, 10**9), (a, 0)]
    assert polls.times([a]) == []
