"""A table's log is read once: what is new at once, what is old bit by bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.made_logs import BEGAN_MS, append_version, counts, made_table, publication
from txn.dashboard.watching import follower as module
from txn.dashboard.watching.entries import Filter
from txn.dashboard.watching.follower import LogFollower
from txn.dashboard.watching.index import LogIndex
from txn.delta.commits import Commit
from txn.storage.storage import Storage


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LogIndex]:
    found = LogIndex(tmp_path / "index.sqlite", "t")
    yield found
    found.close()


def log_of(folder: Path, count: int) -> Path:
    table = made_table(folder / "table", {"x": "long"})
    for version in range(1, count + 1):
        append_version(table, version, publication(version))
    return table


def test_the_newest_come_first_then_older_ones(tmp_path: Path, index: LogIndex) -> None:
    """From where ZooKeeper says the table is: forwards to its end, then backwards to its begin."""
    found = LogFollower(index, 0, Storage(str(log_of(tmp_path, 100))), 10**6)
    assert found.catch_up(hint=98) == 3
    assert index.span() == (98, 100)
    assert found.step_back()
    assert index.span() == (66, 100)
    read_back(found)
    assert (index.span(), found.complete, found.oldest) == ((1, 100), True, 0)


def test_new_versions_are_read_once(tmp_path: Path, index: LogIndex) -> None:
    """A second look finds only what was appended since."""
    table = log_of(tmp_path, 3)
    found = LogFollower(index, 0, Storage(str(table)), 10**6)
    assert (found.catch_up(), found.catch_up()) == (4, 0)
    for version in range(4, 50):
        append_version(table, version, publication(version))
    assert (found.catch_up(), found.newest, index.span()) == (46, 49, (1, 49))


@pytest.mark.parametrize("hint", [None, 7, 10**6], ids=["none", "cleaned away", "not there"])
def test_the_newest_is_found_without_help(
    tmp_path: Path, index: LogIndex, hint: int | None
) -> None:
    """Where old commit files are gone and nobody knows the version, the log is listed."""
    table = log_of(tmp_path, 40)
    for version in range(20):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    found = LogFollower(index, 0, Storage(str(table)), 10**6)
    assert found.catch_up(hint) == 1
    assert not found.step_back()
    assert (index.span(), found.complete) == ((20, 40), True)


def test_a_table_that_is_not_there_yet(tmp_path: Path, index: LogIndex) -> None:
    """Nothing is read, and the table is found once it is made."""
    found = LogFollower(index, 0, Storage(str(tmp_path / "table")), 10**6)
    assert (found.catch_up(), found.step_back(), found.newest) == (0, False, -1)
    log_of(tmp_path, 2)
    assert (found.catch_up(), index.span()) == (3, (1, 2))


def test_so_many_versions_at_most(tmp_path: Path, index: LogIndex) -> None:
    """Reading backwards ends where the limit is."""
    found = LogFollower(index, 0, Storage(str(log_of(tmp_path, 100))), 40)
    found.catch_up(hint=100)
    read_back(found)
    assert (found.complete, counts(index)["versions"]) == (True, 65)


def test_what_comes_lets_the_oldest_go(
    tmp_path: Path, index: LogIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit also holds for what is appended for months; other tables' parts stay."""
    monkeypatch.setattr(module, "_AT_ONCE_GONE", 8)
    table = log_of(tmp_path, 60)
    found = LogFollower(index, 0, Storage(str(table)), 40)
    found.catch_up(hint=60)
    read_back(found)
    index.add_newer(1, [Commit(1, BEGAN_MS, "WRITE", publication=publication(30, rows=7))])
    for version in range(61, 201):
        append_version(table, version, publication(version))
    found.catch_up()
    assert (found.newest, found.complete, found.step_back()) == (200, True, False)
    assert 40 < counts(index)["versions"] < 40 + 8 + 32
    assert index.versions(0)[-1].version == found.oldest
    assert index.span(0) == (found.oldest, 200)
    kept = [one.txid for one in index.page(Filter(), None, 1000).txids]
    assert kept == [*range(200, found.oldest - 1, -1), 30]
    only_there = index.txid(30)
    assert only_there is not None
    assert only_there[0].rows == 7


def test_a_broken_commit_file_is_shown_and_passed(tmp_path: Path, index: LogIndex) -> None:
    """One version that cannot be read hides none of the others."""
    table = log_of(tmp_path, 3)
    (table / "_delta_log" / f"{2:020d}.json").write_text("{", "utf-8")
    followed(table, index, hint=3)
    assert [one.version for one in index.strange()] == [2]
    assert [one.kind for one in index.versions(0)] == [
        "publication",
        "unreadable",
        "publication",
        "created",
    ]


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"userName": "J\udcfcrgen"}, "foreign"),
        ({"engineInfo": "\ud83d", "operation": "WR\udcfcTE"}, "foreign"),
        ({"add": {"numRecords": 2**63}}, "unreadable"),
        ({"txn": {"rows": 2**63}}, "unreadable"),
        ({"txn": {"timings_ms": {"staged": float("nan")}}}, "unreadable"),
        ({"txn": {"quarantined": "no f\udcfcle", "read": {"s": "\udcfc"}}}, "publication"),
    ],
    ids=str,
)
def test_odd_text_and_numbers_hold_nothing_up(
    tmp_path: Path, index: LogIndex, told: dict[str, Any], kind: str
) -> None:
    """Half a character in a stranger's commit is an escape; a number that the index cannot hold
    makes that one version unreadable.
    """
    table = log_of(tmp_path, 2)
    said = publication(3).model_dump(mode="json") | told.pop("txn", {})
    files = []
    if stats := told.pop("add", None):
        add = {"path": "f", "size": 1, "partitionValues": {}, "dataChange": True}
        files = [{"add": {**add, "stats": json.dumps(stats)}}]
    if kind != "foreign":
        told["txn"] = said
    info = {"timestamp": BEGAN_MS, "operation": "WRITE", **told}
    data = [{"metaData": {"id": "x"}}] if kind == "foreign" else []
    lines = map(json.dumps, [{"commitInfo": info}, *files, *data])
    (table / "_delta_log" / f"{3:020d}.json").write_text("\n".join(lines), "utf-8")
    append_version(table, 4, publication(4))
    followed(table, index, hint=2)
    assert index.versions(0)[1].kind == kind
    txids = [one.txid for one in index.page(Filter()).txids]
    assert txids == ([4, 3, 2, 1] if kind == "publication" else [4, 2, 1])


def read_back(found: LogFollower) -> None:
    """Read all older versions that it may."""
    while found.step_back():
        pass


def followed(table: Path, index: LogIndex, hint: int) -> LogFollower:
    """One that has read the whole log of a table."""
    found = LogFollower(index, 0, Storage(str(table)), 10**6)
    found.catch_up(hint=hint)
    read_back(found)
    return found


def files_of(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def test_a_log_that_is_gone_and_comes_back(tmp_path: Path, index: LogIndex) -> None:
    """It is told, what is known of it stays, and it is read on where it was left."""
    table = log_of(tmp_path, 5)
    found = LogFollower(index, 0, Storage(str(table)), 10**6)
    found.catch_up()
    away = table.rename(tmp_path / "away")
    assert (found.catch_up(), found.is_gone, index.span()) == (0, True, (1, 5))
    append_version(away, 6, publication(6))
    away.rename(table)
    assert (found.catch_up(), found.is_gone, index.span()) == (1, False, (1, 6))


def test_another_table_in_the_same_folder(tmp_path: Path, index: LogIndex) -> None:
    """A table that was deleted and made anew is read from its beginning; nothing of the old one
    is left.
    """
    table = log_of(tmp_path, 50)
    found = followed(table, index, hint=50)
    table.rename(tmp_path / "old")
    log_of(tmp_path, 3)
    found.catch_up(hint=50)
    found.catch_up(hint=50)
    read_back(found)
    assert (index.span(), index.span(0), found.newest, found.oldest) == ((1, 3), (1, 3), 3, 0)
    assert [one.version for one in index.versions(0)] == [3, 2, 1, 0]
    assert counts(index) == {"txids": 3, "versions": 4, "failures": 0}


@pytest.mark.parametrize("count", [50, 51, 120], ids=["as many", "one more", "many more"])
def test_another_table_with_as_many_versions_or_more(
    tmp_path: Path, index: LogIndex, count: int
) -> None:
    """It is told from the old one by the newest commit that was read of that."""
    table = log_of(tmp_path, 50)
    found = followed(table, index, hint=50)
    table.rename(tmp_path / "old")
    made_table(table, {"x": "long"})
    for version in range(1, count + 1):
        append_version(table, version, publication(1000 + version), at_ms=BEGAN_MS + 1)
    for _ in range(2):
        found.catch_up(hint=count)
    read_back(found)
    assert (found.newest, found.oldest, found.incarnation) == (count, 0, 1)
    assert index.span() == (1001, 1000 + count)
    assert counts(index)["versions"] == count + 1


def test_versions_that_were_deleted_unseen(tmp_path: Path, index: LogIndex) -> None:
    """Who slept while the log was cleaned goes on with what there is, also without a hint."""
    table = log_of(tmp_path, 10)
    found = LogFollower(index, 0, Storage(str(table)), 10**6)
    found.catch_up()
    for version in range(11, 40):
        append_version(table, version, publication(version))
    for path in files_of(table)[:30]:
        path.unlink()
    found.catch_up()
    assert (found.catch_up(), found.newest, found.is_gone, index.span()) == (10, 39, False, (1, 39))


def test_what_keeps_python_busy_has_its_turn(tmp_path: Path, index: LogIndex) -> None:
    """Old versions are put into the index in a turn; storage is waited for before it."""
    found = LogFollower(index, 0, Storage(str(log_of(tmp_path, 20))), 10**6)
    found.catch_up(hint=20)
    before: list[int] = []

    @contextmanager
    def turn() -> Iterator[None]:
        before.append(counts(index)["versions"])
        yield
        before.append(counts(index)["versions"])

    found.step_back(turn)
    assert before == [1, 21]
