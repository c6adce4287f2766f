"""Clean-up of the log: what is older than the table keeps it goes, and nothing is lost by that."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from committers.append_table import AppendTable
from committers.publishing.cleanup import EVERY_VERSIONS, LogCleanup
from tests.committers.conftest import Driver
from txn.attempts import TransactionAttempt
from txn.storage.storage import Storage

SCHEMA = "k string"
DAY = 24 * 3600.0


@pytest.fixture(scope="module")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of sixty txids, and with them checkpoints at 24 and 49."""
    path: Path = tmp_path_factory.mktemp("original") / "table"
    driver = Driver(spark)
    committer = driver.open(AppendTable(path), SCHEMA, 1)
    for txid in range(1, 61):
        driver.commit(committer, driver.frame([(str(txid),)], SCHEMA), txid)
        committer.committed(TransactionAttempt(txid, 0))
    assert (path / f"_delta_log/{49:020d}.checkpoint.parquet").exists()
    return path


@pytest.fixture
def table(original: Path, driver: Any, warehouse: Path) -> Any:
    """A committer, and a table of its own that is as the original."""
    shutil.copytree(original, warehouse, dirs_exist_ok=True)
    return driver.open(AppendTable(warehouse), SCHEMA, 1)


def age(path: Path, days: float) -> None:
    """Make all of a log as old as that."""
    then = time.time() - days * DAY
    for file in (path / "_delta_log").iterdir():
        os.utime(file, (then, then))


def versions(path: Path) -> list[int]:
    """The versions whose commit files are there."""
    return sorted(int(file.stem) for file in (path / "_delta_log").glob("*.json"))


def keys(path: Path) -> list[str]:
    """What a reader sees."""
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["k"].to_pylist(), key=int)


def test_expired_commit_files_go_and_every_row_stays(table: Any, warehouse: Path) -> None:
    """What is behind a checkpoint and older than thirty days is deleted; readers see the same."""
    age(warehouse, 31)
    LogCleanup(Storage(str(warehouse))).run(60)
    assert versions(warehouse)[0] == 49
    assert versions(warehouse)[-1] == DeltaTable(str(warehouse)).version()
    assert keys(warehouse) == [str(n) for n in range(1, 61)]


def test_a_younger_log_is_kept_as_a_whole(table: Any, warehouse: Path) -> None:
    """The table's own retention counts: thirty days unless it says otherwise."""
    age(warehouse, 29)
    before = versions(warehouse)
    LogCleanup(Storage(str(warehouse))).run(60)
    assert versions(warehouse) == before


@pytest.mark.parametrize(
    ("name", "value", "goes"),
    [
        ("delta.logRetentionDuration", "interval 7 days", True),
        ("delta.logRetentionDuration", "interval 9 days", False),
        ("delta.enableExpiredLogCleanup", "false", False),
    ],
)
def test_the_tables_properties_are_heeded(
    table: Any, warehouse: Path, name: str, value: str, goes: bool
) -> None:
    """As any writer of Delta does it."""
    properties = {"delta.logRetentionDuration": "interval 1 days", name: value}
    DeltaTable(str(warehouse)).alter.set_table_properties(properties)
    age(warehouse, 8)
    LogCleanup(Storage(str(warehouse))).run(61)
    assert (versions(warehouse)[0] > 0) is goes


def test_it_is_looked_at_now_and_then(table: Any, warehouse: Path) -> None:
    """A look costs a listing of the log: one at first, and one every so many versions."""
    cleanup = LogCleanup(Storage(str(warehouse)))
    cleanup.run(60)
    age(warehouse, 31)
    cleanup.run(59 + EVERY_VERSIONS)
    assert versions(warehouse)[0] == 0
    cleanup.run(60 + EVERY_VERSIONS)
    assert versions(warehouse)[0] > 0


def test_there_need_be_no_table(warehouse: Path) -> None:
    """Before the first batch there is nothing to clean up."""
    LogCleanup(Storage(str(warehouse))).run(-1)
    assert list(warehouse.iterdir()) == []


def test_a_committer_cleans_up_after_a_commit(table: Any, warehouse: Path, driver: Any) -> None:
    """On the clean-up thread, with the scratch files of what is committed; the run goes on."""
    age(warehouse, 31)
    table.committed(TransactionAttempt(60))
    assert versions(warehouse)[0] == 49
    driver.commit(table, driver.frame([("61",)], SCHEMA), 61)
    assert keys(warehouse)[-1] == "61"


def test_a_new_leader_goes_on_behind_a_log_that_was_cleaned_up(
    table: Any, warehouse: Path, driver: Any
) -> None:
    """The newest publication is in a commit file that was kept, or in a fence."""
    age(warehouse, 31)
    LogCleanup(Storage(str(warehouse))).run(60)
    successor = driver.open(AppendTable(warehouse), SCHEMA, 2)
    successor.fence()
    assert successor.last_publication()[1].last_txid == 60
    driver.commit(successor, driver.frame([("61",)], SCHEMA), 61, epoch=2)
    assert keys(warehouse) == [str(n) for n in range(1, 62)]
