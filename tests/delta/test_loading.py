"""A table's folder that comes and goes while delta-rs looks at it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from txn.delta.loading import find, is_there
from txn.storage.storage import Storage


@pytest.fixture
def flickering(tmp_path: Path) -> Iterator[Path]:
    """A folder that is made and deleted all the time, as by first batches that fail."""
    folder, over = tmp_path / "table", Event()

    def flicker() -> None:
        while not over.is_set():
            folder.mkdir(exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    thread = Thread(target=flicker)
    thread.start()
    yield folder
    over.set()
    thread.join()


def raised(ask: Callable[[], object], text: str) -> DeltaError:
    """The error with this text that delta-rs raises, sooner or later, while the folder flickers."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            ask()
        except DeltaError as error:
            if text in str(error):
                return error
    raise AssertionError(f"delta-rs never said {text!r}: is this test still needed?")


def raising_once(error: DeltaError, then: Callable[..., object]) -> Callable[..., object]:
    """A call that raises the error the first time."""
    errors = [error]

    def call(*args: object, **options: object) -> object:
        if errors:
            raise errors.pop()
        return then(*args, **options)

    return call


def test_a_folder_that_goes_while_it_is_looked_for(flickering: Path) -> None:
    """Whoever asks if there is a table while its folder is deleted is told that there is none."""
    storage = Storage(str(flickering))
    for _ in range(20_000):
        assert not is_there(storage)


@pytest.mark.parametrize(
    "name", [f"{0:020d}.json", f"{7:020d}.json", f"{7:020d}.checkpoint.parquet", "_last_checkpoint"]
)
def test_whatever_a_log_begins_with_is_a_table(tmp_path: Path, name: str) -> None:
    """A log whose first commit files were cleaned out of it is one; other files are none."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    for other in ("0.json", f"{7:020d}.json.tmp", f".{7:020d}.json"):
        (log / other).write_bytes(b"")
    assert not is_there(Storage(str(tmp_path)))
    (log / name).write_bytes(b"")
    assert is_there(Storage(str(tmp_path)))


def test_a_folder_that_goes_while_it_is_loaded(
    flickering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever loads a table while its folder is deleted is told that there is none."""
    uri = str(flickering)
    error = raised(lambda: DeltaTable(uri), "Invalid table location")
    monkeypatch.setattr("txn.delta.loading.load", raising_once(error, DeltaTable))
    assert find(Storage(uri)) is None


def test_a_folder_that_goes_while_it_is_listed(flickering: Path) -> None:
    """A listing of a folder that is deleted meanwhile is empty, as Arrow was asked for."""
    storage = Storage(str(flickering))
    for _ in range(20_000):
        assert storage.entries() == []
