"""What is kept for spouts beside several tables, of which some fail: files, and no Spark."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from committers import kept_files
from txn.engine.work.table_keeper import TableKeeper
from txn.errors import ProgressUnreadableError, StorageRefusedError, StorageUnavailableError
from txn.interfaces.committer_capabilities import IdentifiesTable
from txn.storage.storage import Storage
from txn.testing.recording_committer import RecordingCommitter

CONTENT = b"txnseen1" + b"12345678"


class Beside(RecordingCommitter):
    """Keeps in its folder once it is open, as a Delta table does, and fails as it is told."""

    fails: Exception | None = None
    opened = True

    def keep(self, name: str, content: bytes) -> bool:
        if self.fails is not None:
            raise self.fails
        if self.opened:
            kept_files.keep(Storage(self.name), name, content)
        return self.opened

    def kept(self, name: str) -> bytes | None:
        if self.fails is not None:
            raise self.fails
        return kept_files.kept(Storage(self.name), name)

    def copy(self, name: str) -> Path:
        return Path(self.name) / kept_files.KEPT / name


@pytest.fixture
def a(tmp_path: Path) -> Beside:
    """A table."""
    return Beside(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Beside:
    """Another table."""
    return Beside(tmp_path / "b")


@pytest.mark.parametrize("error", [StorageUnavailableError, StorageRefusedError, OSError])
def test_a_table_that_fails_is_passed_over(
    error: type[Exception], a: Beside, b: Beside, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as one table answers, it keeps and gives; what failed is told, and given its own."""
    a.fails = error("the storage of a is gone")
    keeper = TableKeeper("t", [a, b])
    name = keeper.keep(CONTENT)
    assert name is not None
    assert keeper.kept(name) == CONTENT
    assert caplog.text.count("the storage of a is gone") == 2
    a.fails = None
    keeper.mend()
    assert a.copy(name).read_bytes() == CONTENT
    a.fails = b.fails = error("both are gone")
    keeper.mend()
    assert keeper.keep(CONTENT) is None
    with pytest.raises(error, match="both are gone"):
        keeper.kept(name)


def test_what_waiting_may_mend_is_waited_for(a: Beside, b: Beside) -> None:
    """With one table forbidden and the other away, the batch waits; absence is told by all only."""
    name = TableKeeper("t", [b]).keep(CONTENT)
    assert name is not None
    a.fails, b.fails = StorageRefusedError("forbidden"), StorageUnavailableError("away")
    with pytest.raises(StorageUnavailableError, match="away"):
        TableKeeper("t", [a, b]).kept(name)
    b.fails = None
    b.copy(name).unlink()
    with pytest.raises(StorageRefusedError, match="forbidden"):
        TableKeeper("t", [a, b]).kept(name)
    a.fails = None
    with pytest.raises(ProgressUnreadableError, match="Restore"):
        TableKeeper("t", [a, b]).kept(name)


def test_tables_that_open_later_are_given_what_they_lack(a: Beside, b: Beside) -> None:
    """What a table lacks, or has damaged, it is given once it is open, of whatever size it is."""
    name = TableKeeper("t", [a, b]).keep(CONTENT)
    assert name is not None
    b.copy(name).write_bytes(bytes(len(CONTENT)))
    late = Beside(Path(a.name).parent / "late")
    for one in (a, b, late):
        one.opened = False
    keeper = TableKeeper("t", [a, b, late])
    assert keeper.kept(name) == CONTENT
    assert not late.copy(name).exists()
    for one in (a, b, late):
        one.opened = True
    keeper.mend()
    assert [one.copy(name).read_bytes() for one in (a, b, late)] == [CONTENT] * 3


def test_committers_that_keep_nothing_are_told_once(
    tmp_path: Path, a: Beside, caplog: pytest.LogCaptureFixture
) -> None:
    """A position that grows because no committer keeps is warned of, once in a run."""
    keeper = TableKeeper("t", [RecordingCommitter(tmp_path / "own")])
    with caplog.at_level(logging.WARNING, "txn.keeping"):
        assert [keeper.keep(CONTENT), keeper.keep(CONTENT + b"more")] == [None, None]
    (said,) = caplog.messages
    assert "define `keep` and `kept`" in said
    assert "own" in said
    caplog.clear()
    a.opened = False
    keeper = TableKeeper("t", [a])
    assert [keeper.keep(CONTENT), keeper.keep(CONTENT)] == [None, None]
    (said,) = caplog.messages
    assert "no table that keeps exists yet" in said


def test_a_copy_outlasts_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are synced, then the folder that names them, and the folders made for it."""
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        of = os.fstat(fd)
        synced.append((of.st_ino, stat.S_ISDIR(of.st_mode)))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    table = tmp_path / "t"
    table.mkdir()
    kept_files.keep(Storage(str(table)), "0" * 32, CONTENT)
    copy = table / kept_files.KEPT / ("0" * 32)
    assert synced == [
        (copy.stat().st_ino, False),
        (copy.parent.stat().st_ino, True),
        (table.stat().st_ino, True),
    ]


def test_an_attribute_of_a_users_committer_stays_the_users(tmp_path: Path) -> None:
    """A committer of a user may call something of its own `table_id`."""

    class Warehouse(RecordingCommitter):
        def __init__(self) -> None:
            super().__init__(tmp_path)
            self.table_id = "project.dataset.sales"

    made = Warehouse()
    assert made.table_id == "project.dataset.sales"
    assert not isinstance(made, IdentifiesTable)
