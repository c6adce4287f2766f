"""Several attempts staged by one job: each has files of its own, and keeps them when others go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.staging.area import StagingArea
from committers.state_table import StateTable
from tests.committers.conftest import Driver, publication
from txn.attempts import TransactionAttempt
from txn.errors import StagedFileError
from txn.interfaces import Committer, Staged
from txn.storage.storage import Storage

SCHEMA = "k string, v bigint"


def together(
    driver: Driver, committer: Committer, folder: Path, batches: dict[int, list[Any]]
) -> list[Staged]:
    """Stage these batches by one job, one task each, out of files as a spout reads them."""
    group = []
    for txid, rows in batches.items():
        source = str(folder / f"source-{txid}")
        driver.frame(rows, SCHEMA).coalesce(1).write.parquet(source)
        frame = driver.spark.read.schema(SCHEMA).parquet(source).coalesce(1)
        group.append((committer.partials(frame), TransactionAttempt(txid)))
    return committer.stage_together(group)


def commit(committer: Committer, staged: Staged) -> None:
    """The commit turn of one txid."""
    own = publication(staged.attempt.txid, staged.attempt.attempt_id, rows=staged.rows)
    committer.publish(committer.prepare(staged, own), own)


def test_each_attempt_gets_its_own_files_and_rows(driver: Driver, tmp_path: Path) -> None:
    """Files carry the txid of their attempt, an empty batch has none; commits go one by one."""
    table = AppendTable(tmp_path / "t")
    committer = driver.open(table, SCHEMA)
    staged = together(driver, committer, tmp_path, {1: [("a", 1), ("b", 2)], 2: [], 3: [("a", 3)]})
    assert [one.attempt.txid for one in staged] == [1, 2, 3]
    assert [one.rows for one in staged] == [2, 0, 1]
    for one in staged:
        commit(committer, one)
    rows = sorted(map(tuple, table.read(driver.spark).collect()))
    assert rows == [("a", 1, 1), ("a", 3, 3), ("b", 2, 1)]


def test_partials_of_a_group_stay_apart(driver: Driver, tmp_path: Path) -> None:
    """A state table staged jointly holds after each txid what it would hold had each gone alone."""
    state = StateTable(tmp_path / "t")
    committer = driver.open(state.bind(["k"], {"n": Count(), "s": Sum("v")}), SCHEMA)
    staged = together(
        driver, committer, tmp_path, {1: [("a", 1), ("a", 2)], 2: [("a", 5), ("b", 7)]}
    )
    seen = []
    for one in staged:
        commit(committer, one)
        seen.append(sorted(map(tuple, state.read(driver.spark).collect())))
    assert seen == [[("a", 2, 3)], [("a", 3, 8), ("b", 1, 7)]]


def test_a_dead_attempt_takes_only_its_own_files_along(driver: Driver, tmp_path: Path) -> None:
    """Discarding one attempt of a group deletes its files; others can still be published."""
    table = AppendTable(tmp_path / "t")
    committer = driver.open(table, SCHEMA)
    one, two, three = together(driver, committer, tmp_path, {n: [("a", n)] for n in (1, 2, 3)})
    committer.discard(two.attempt)
    left = {path.name for path in (tmp_path / "t" / "data").rglob("part-*.parquet")}
    assert left == {Path(s.files[0].path).name for s in (one, three)}
    commit(committer, one)
    committer.discard(three.attempt)
    assert [row.v for row in table.read(driver.spark).collect()] == [1]
    left = {path.name for path in (tmp_path / "t" / "data").rglob("part-*.parquet")}
    assert left == {Path(one.files[0].path).name}, "published files stay, those of the dead go"


def test_the_folder_goes_with_the_last_attempt(driver: Driver, tmp_path: Path) -> None:
    """When nothing of a group was published, nothing of it is left."""
    committer = driver.open(AppendTable(tmp_path / "t"), SCHEMA)
    for staged in together(driver, committer, tmp_path, {1: [("a", 1)], 2: [("a", 2)]}):
        committer.discard(staged.attempt)
    assert not list((tmp_path / "t" / "data").iterdir())


def test_a_file_of_two_txids_is_refused(driver: Driver, tmp_path: Path) -> None:
    """Were rows of two txids ever to meet in one file, the joint job fails and says so."""
    area = StagingArea(Storage(str(tmp_path)))
    mixed = driver.frame([("a", 1), ("a", 2)], "k string, txid bigint").coalesce(1)
    none = driver.frame([], "k string, txid bigint")
    group = [(mixed, TransactionAttempt(1)), (none, TransactionAttempt(2))]
    with pytest.raises(StagedFileError, match="txids 1 to 2.*one by one"):
        area.stage_together(group)
    staged = area.stage_together(group)
    assert [one.rows for one in staged] == [2, 0], "from then on each has a job of its own"
