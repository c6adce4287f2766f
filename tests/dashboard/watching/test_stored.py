"""The files of a table's old versions, counted in the background."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.children import wait_until
from tests.dashboard.made_logs import append_version, made_table, publication
from txn.dashboard.watching import stored as module
from txn.dashboard.watching.stored import Stored, StoredFiles
from txn.storage.storage import Storage


def table(folder: Path, topology: str = "t") -> Storage:
    """A table with one file, and one that its newest version has replaced long ago."""
    made = made_table(folder / "table", {"txid": "long"}, "upsert", topology)
    old = append_version(made, 1, publication(1), rows=pa.table({"txid": [1, 2, 3]}))
    append_version(made, 2, publication(2), rows=pa.table({"txid": [1]}), removes=(old or "",))
    return Storage(str(made))


def counted(files: StoredFiles, storage: Storage) -> Stored:
    wait_until(lambda: files.ask(storage) is not None, "the files are counted", 20)
    found = files.ask(storage)
    assert found is not None
    return found


def test_old_versions_count(tmp_path: Path) -> None:
    """All files are counted, and those that VACUUM would delete; the log itself is not."""
    storage = table(tmp_path)
    sizes = {p.name: p.stat().st_size for p in Path(storage.location).glob("*.parquet")}
    found = counted(StoredFiles("t"), storage)
    old = sizes["part-000001.parquet"]
    assert found == Stored(sum(sizes.values()), 1, old)


def test_a_table_that_vacuum_leaves_alone_says_why(tmp_path: Path) -> None:
    """Of another topology's table only the size is known."""
    found = counted(StoredFiles("t"), table(tmp_path, "another"))
    assert (found.bytes > 0, found.why) == (True, "it belongs to topology 'another'")


def test_an_error_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be listed leaves the numbers unknown."""

    def refuse(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(module, "plan_vacuum", refuse)
    assert counted(StoredFiles("t"), table(tmp_path)) == Stored(why="OSError: no route")


def test_a_folder_is_listed_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks again within the minute gets the same count."""
    files, storage = StoredFiles("t"), table(tmp_path)
    first = counted(files, storage)
    append_version(Path(storage.location), 3, publication(3), rows=pa.table({"txid": [1]}))
    assert files.ask(storage) is first
    monkeypatch.setattr(files, "_next", 0.0)
    files.ask(storage)
    wait_until(lambda: files.ask(storage) != first, "the files are counted again", 20)
    again = files.ask(storage)
    assert again is not None
    assert again.bytes > first.bytes
