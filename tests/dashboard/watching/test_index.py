"""What the index makes of logs: one line per txid, whatever was replayed, searched and paged."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.dashboard.made_logs import BEGAN_MS, counts, publication
from txn.dashboard.watching import index as module
from txn.dashboard.watching import index_search as search
from txn.dashboard.watching.entries import Filter, Only, Unreadable
from txn.dashboard.watching.index import LogIndex
from txn.delta.commits import Commit
from txn.interfaces import Publication

ALL = Filter()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[LogIndex]:
    found = LogIndex(tmp_path / "index.sqlite", "t")
    yield found
    found.close()


def commit(version: int, said: Publication | None = None, **more: object) -> Commit:
    found: dict[str, object] = {"operation": "WRITE", "publication": said, "token": "x", **more}
    return Commit(version, BEGAN_MS + version * 1000, **found)  # type: ignore[arg-type]


def txids(index: LogIndex, wanted: Filter = ALL, **more: int) -> list[int]:
    return [one.txid for one in index.page(wanted, **more).txids]


def test_tables_come_together_in_one_line(index: LogIndex) -> None:
    """A txid has the rows of all tables, and its part of each."""
    index.add_newer(0, [commit(1, publication(1, rows=10))])
    index.add_newer(1, [commit(4, publication(1, rows=32))])
    found = index.txid(1)
    assert found is not None
    one, parts = found
    assert (one.rows, one.at_ms) == (42, BEGAN_MS + 4000)
    assert [(part.table, part.version, part.rows) for part in parts] == [(0, 1, 10), (1, 4, 32)]


def test_broken_rules_of_all_tables_are_added_up(index: LogIndex) -> None:
    """Each table knows the rules of the streams that feed it; a rule that two know counts once;
    those of an attempt that was taken back do not.
    """
    both, one = {"s": {"a": 3, "b": 0}}, {"s": {"a": 3, "b": 0}, "t": {"c": 2}}
    index.add_newer(0, [commit(1, publication(1, violations=both))])
    index.add_newer(1, [commit(1, publication(1, violations=one)), commit(2, publication(2))])
    found = index.txid(1)
    assert found is not None
    assert found[0].broken == 5
    assert [part.violations for part in found[1]] == [both, one]
    assert txids(index, Filter(only="broken")) == [1]
    again = publication(1, 1, epoch=2, violations={"s": {"a": 1}})
    for table, version in ((0, 2), (1, 3)):
        index.add_newer(table, [commit(version, again)])
    found = index.txid(1)
    assert found is not None
    assert found[0].broken == 1


def test_newest_first_by_pages(index: LogIndex) -> None:
    """Each page says where the next one begins, and the last one that there is none."""
    index.add_newer(0, [commit(v, publication(v)) for v in range(1, 8)])
    first = index.page(Filter(), limit=3)
    assert ([one.txid for one in first.txids], first.before) == ([7, 6, 5], 5)
    second = index.page(Filter(), first.before, 3)
    third = index.page(Filter(), second.before, 3)
    assert ([one.txid for one in third.txids], third.before) == ([1], None)


def test_old_versions_change_nothing_that_newer_ones_say(index: LogIndex) -> None:
    """A replay counts, whether it is read before or after the attempt that it took back."""
    old = [commit(v, publication(v)) for v in (1, 2, 3)]
    replay = commit(4, publication(2, 1, epoch=2, rows=99))
    index.add_newer(0, [replay])
    index.add_older(0, list(reversed(old)))
    assert txids(index) == [2, 1]
    index.add_newer(1, [*old, replay])
    assert txids(index) == [2, 1]
    found = index.txid(2)
    assert found is not None
    assert (found[0].attempt_id, found[0].rows, found[0].epoch) == (1, 198, 2)
    assert {part.version for part in found[1]} == {4}


def test_a_group_is_one_version_and_several_txids(index: LogIndex) -> None:
    """Every txid of a group is found, says which group it is of, and has rows of its own."""
    index.add_newer(0, [commit(1, publication(5, group=3))])
    assert txids(index) == [5, 4, 3]
    found = index.txid(4)
    assert found is not None
    assert (found[0].first, found[0].last, found[0].rows) == (3, 5, 10)
    assert index.version_of(0, 4) == 1
    assert index.version_of(0, 2) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("3-5", [5, 4, 3]),
        ("2013-000005", [5]),
        ("000006.CSV", [6]),
        ("partition-1", [2]),
        ("division BY zero", [8]),
        ("timed out", [4]),
        ("ÜBERLAUF in STRASSE", [3]),
        ("in straße", [3]),
        ("GRÖSSE", [8]),
        ("100%", []),
        ("_", []),
        ("\\", []),
        ("' OR 1=1 --", []),
        ("nothing has this", []),
    ],
)
def test_text_finds_txids(index: LogIndex, text: str, expected: list[int]) -> None:
    """By txid, range, file, partition and error; what is special to SQL is only text."""
    said = [publication(v) for v in range(1, 8)]
    said[1] = publication(2, read={"k": {"read": {"partition-1": 7}, "latest": {"partition-9": 1}}})
    said.append(publication(8, quarantined="ArithmeticException: division by zero: Größe"))
    index.add_newer(0, [commit(v, one) for v, one in enumerate(said, 1)])
    index.add_failures([(4, 0, BEGAN_MS, "BatchTimeoutError: timed out")])
    index.add_failures([(3, 0, BEGAN_MS, "ValueError: Überlauf in Straße 5")])
    assert txids(index, Filter(text=text)) == expected
    assert txids(index, Filter(text="partition-9")) == []


def test_conditions_pick_txids(index: LogIndex) -> None:
    """Each condition has the txids that it is named for, and a table only its own."""
    said = [
        publication(1),
        publication(2, quarantined="E"),
        publication(3, 1),
        publication(4, replay_of=2),
        publication(5, violations={"s": {"r": 3}}),
        publication(7, group=2),
    ]
    index.add_newer(0, [commit(v, one) for v, one in enumerate(said, 1)])
    index.add_newer(1, [commit(1, publication(1))])
    index.add_failures([(3, 0, BEGAN_MS, "E")])

    def only(which: Only) -> list[int]:
        return txids(index, Filter(only=which, committed=5))

    assert only("quarantined") == [2]
    assert only("replayed") == [4, 3]
    assert only("failed") == [3]
    assert only("broken") == [5]
    assert only("grouped") == [7, 6]
    assert only("open") == [7, 6]
    assert txids(index, Filter(table=1)) == [1]


def test_a_long_search_stops_and_goes_on(index: LogIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that takes too long ends its page early, and says where the next one begins."""
    index.add_newer(0, [commit(v, publication(v)) for v in range(1, 31)])
    monkeypatch.setattr(search, "_SEARCH_SECS", 0.0)
    monkeypatch.setattr(search, "_STEP", 10)
    found: list[int] = []
    before, pages = None, 0
    while pages == 0 or before is not None:
        page = index.page(Filter(text="000003.csv"), before)
        found += [one.txid for one in page.txids]
        before, pages = page.before, pages + 1
    assert (found, pages) == ([3], 3)


def test_a_search_over_large_metadata_is_bounded(
    index: LogIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of it ends when its time is over, and slow steps become shorter."""
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(ticks) * search._SEARCH_SECS / 2)
    monkeypatch.setattr(search, "time", clock)
    for first in range(1, 300, 100):
        said = [
            publication(v, read={"s": {"files": [{"path": f"{v}.csv"}]}})
            for v in range(first, first + 100)
        ]
        index.add_newer(0, [commit(v, one) for v, one in enumerate(said, first)])
    before: int | None = 301
    looked_at, found = [], []
    while before is not None:
        page = index.page(Filter(text="7.csv"), before)
        looked_at.append(before - (page.before or 1))
        found += [one.txid for one in page.txids]
        before = page.before
    a_page = search._STEP + search._STEP // 2
    assert looked_at == [a_page] * 3 + [300 - 3 * a_page]
    assert found == [txid for txid in range(300, 0, -1) if txid % 10 == 7]


def test_no_question_reads_all_of_a_long_history(index: LogIndex) -> None:
    """Those that are asked of every page look at the ends of an index only."""
    for table in range(3):
        index.add_newer(table, [commit(v, publication(v)) for v in range(1, 301)])
    asked: list[str] = []
    with index._database.reading() as reading:  # the questions that follow take the same
        reading.set_trace_callback(asked.append)
    assert index.rows_by_table(10) == {0: 100, 1: 100, 2: 100}
    assert (index.span(), index.span(1)) == ((1, 300), (1, 300))
    assert index.times_ms() == (BEGAN_MS + 1000, BEGAN_MS + 300_000)
    assert index.page(Filter(), None, 2).before == 299
    assert index.versions(1, None, 1, "fence") == []
    reading.set_trace_callback(None)
    plans = [line for sql in asked for *_, line in reading.execute(f"EXPLAIN QUERY PLAN {sql}")]
    assert len(asked) > 5
    assert [line for line in plans if line.startswith("SCAN") and "CONSTANT" not in line] == []


def test_kinds_of_versions_are_told_apart(index: LogIndex) -> None:
    """Ours, maintenance, what others changed, and what cannot be read."""
    theirs = commit(3, token=None, changed=(frozenset({"f"}), frozenset()), operation="DELETE")
    commits: list[Commit | Unreadable] = [
        commit(0, token=None, metadata_change=True),
        commit(1, publication(1)),
        commit(2, token=None, operation="OPTIMIZE"),
        theirs,
        commit(4, fence={"epoch": 2, "last": None}),
        Unreadable(5, "not JSON"),
        commit(6, publication(9, topology="another")),
    ]
    index.add_newer(0, commits)
    kinds = [one.kind for one in reversed(index.versions(0))]
    assert kinds == [
        "created",
        "publication",
        "maintenance",
        "foreign",
        "fence",
        "unreadable",
        "foreign",
    ]
    assert [one.version for one in index.strange()] == [6, 3, 5]
    assert [one.version for one in index.versions(0, before=3, limit=2)] == [2, 1]
    assert [one.version for one in index.versions(0, kind="fence")] == [4]


def test_series_add_up_by_time(index: LogIndex) -> None:
    """Rows, txids and latencies of each piece of time."""
    index.add_newer(0, [commit(v, publication(v, rows=v)) for v in range(1, 5)])
    found = index.series(BEGAN_MS, BEGAN_MS + 10_000, 2000)
    assert [(at - BEGAN_MS, count, rows) for at, count, rows, *_ in found] == [
        (0, 1, 1),
        (2000, 2, 5),
        (4000, 1, 4),
    ]
    assert found[0][3:] == (129.0, 123.0, 2.0, None, None, 1, 1)
    assert index.rate(BEGAN_MS + 4500, 2000) == (7, 2, None, None)
    assert index.times_ms() == (BEGAN_MS + 1000, BEGAN_MS + 4000)


def test_a_rate_goes_by_the_clock_of_who_publishes(index: LogIndex) -> None:
    """One that is an hour ahead does not count an hour as a minute; nor what it said before it was
    set right.
    """
    ahead = [commit(v, publication(v, rows=1)) for v in range(1, 8)]
    index.add_newer(0, ahead)
    assert index.rate(BEGAN_MS - 3_600_000, 2000)[:2] == (2, 2)
    late = Commit(8, BEGAN_MS - 3_599_000, "WRITE", publication=publication(8, rows=5))
    index.add_newer(0, [late])
    assert index.rate(BEGAN_MS - 3_598_500, 2000)[:2] == (5, 1)


def test_failures_are_kept_once_and_the_newest(
    index: LogIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told twice is one failure; beyond a number the oldest go."""
    monkeypatch.setattr(module, "_KEPT_FAILURES", 2)
    told = [(txid, 0, BEGAN_MS + txid, "E") for txid in (1, 2, 3)]
    index.add_failures(told)
    index.add_failures(told[-1:])
    assert [txid for txid, *_ in index.failures()] == [3, 2]
    assert index.failures(3) == [told[-1]]


def test_threads_that_come_and_go_leave_nothing(index: LogIndex) -> None:
    """Questions side by side have a connection each, which the next ones take; none is left when
    the index is closed.
    """
    index.add_newer(0, [commit(v, publication(v)) for v in range(1, 4)])

    def ask(together: threading.Barrier) -> None:
        with index._database.reading():
            together.wait(20)
            assert index.span() == (1, 3)

    at_once = 6
    for _ in range(10):
        together = threading.Barrier(at_once)
        threads = [threading.Thread(target=ask, args=(together,)) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Database, log and shared memory of each, and the writer's. SQLite closes some of them only
    # later, or takes them again: how many are open is a matter of moments, but not of rounds.
    assert len(open_files(index)) <= 3 * (2 * at_once + 1)
    index.close()
    assert open_files(index) == []
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        index.span()


def open_files(index: LogIndex) -> list[str]:
    """Names of the files that this process has open of an index."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(each.readlink()))
    return [name for name in found if name.startswith(str(index._database._path))]


def test_an_empty_index_has_answers(index: LogIndex) -> None:
    """Before anything was read, every question has an answer that says so."""
    assert index.page(Filter()).txids == ()
    assert (index.txid(1), index.span(), index.version_of(0, 1)) == (None, None, None)
    assert (index.times_ms(), index.rate(0, 1), index.series(0, 1, 1)) == ((0, 0), (0, 0, 0, 0), [])
    assert counts(index) == {"txids": 0, "versions": 0, "failures": 0}
