"""The edges of a batch, and the acker's verdict on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from txn.attempts import TransactionAttempt
from txn.interfaces import Prepared, Published, Staged, StagedFile
from txn.protocol.ledgers import CommitLedger, ProcessingLedger, Tracking

ATTEMPT = TransactionAttempt(7, 2)
LATER = TransactionAttempt(8, 0)


@pytest.fixture
def ids() -> Callable[[], int]:
    """Ids of one bit each, so that an XOR shows which edges are in it."""
    bits = itertools.count()
    return lambda: 1 << next(bits)


def staged(*names: str) -> Staged:
    """A staging result with one file per name."""
    return Staged(ATTEMPT, tuple(StagedFile(name, size=10, rows=1) for name in names))


def test_a_processing_ledger_has_an_edge_per_job_and_per_part(ids):
    """START sends out one edge for itself, one per staging job and one per part it is to read."""
    ledger = ProcessingLedger(ids, {"a": {"s": ["p1", "p2"]}, "b": {}})
    expected = {("job", "a"), ("part", "a", "s", "p1"), ("part", "a", "s", "p2"), ("job", "b")}
    assert {("emission",), *expected} == set(ledger.edges)
    assert ledger.initial == 0b111110
    assert ledger.root == 1


def test_a_part_shared_by_two_tables_has_an_edge_into_each(ids):
    """Two tables that read one file both have to see it: that is two edges."""
    ledger = ProcessingLedger(ids, {"a": {"s": ["p"]}, "b": {"s": ["p"]}})
    ledger.staged("a", {"s": ["p"]})
    assert ledger.missing() == "emission, job b, part b s p"


def test_the_acks_of_all_staging_jobs_close_the_processing_ledger(ids):
    """What went out at START comes back with the jobs, in any order."""
    ledger = ProcessingLedger(ids, {"a": {"s": ["p1", "p2"]}, "b": {"t": ["q"]}})
    initial = ledger.initial
    jobs = ledger.staged("b", {"t": ["q"]}) ^ ledger.staged("a", {"s": ["p1", "p2"]})
    assert initial ^ jobs != 0, "a phase without any job has an edge too"
    assert initial ^ jobs ^ ledger.emitted() == 0
    assert ledger.missing() == "nothing"


def test_a_part_that_was_not_read_stays_in_the_ledger(ids):
    """A planned file that the staging job did not read keeps the ledger from closing."""
    ledger = ProcessingLedger(ids, {"a": {"s": ["p1", "p2"]}})
    initial = ledger.initial
    assert initial ^ ledger.staged("a", {"s": ["p1"]}) ^ ledger.emitted() != 0
    assert ledger.missing() == "part a s p2"


def test_a_part_that_nobody_planned_or_that_came_twice_keeps_the_ledger_open(ids):
    """Reading more than was planned is as wrong as reading less: its edge is never closed."""
    ledger = ProcessingLedger(ids, {"a": {"s": ["p"]}})
    initial = ledger.initial
    assert initial ^ ledger.staged("a", {"s": ["p", "q"]}) ^ ledger.emitted() != 0
    assert ledger.missing() == "unexpected part a s q"


def test_a_commit_ledger_has_an_edge_per_table_and_per_staged_file(ids):
    """A table without files still has the edge of its publication."""
    ledger = CommitLedger(ids, {"a": staged("f1", "f2"), "b": staged()})
    assert len(ledger.edges) == 4
    assert ledger.initial == 0b11110


def test_files_added_as_staged_close_the_commit_ledger_when_they_are_found_published(ids):
    """The way of an append table: staged files are themselves the version's files."""
    files = staged("f1", "f2")
    ledger = CommitLedger(ids, {"a": files})
    left = ledger.initial ^ ledger.prepared("a", Prepared(files, adds=files.files))
    assert ledger.initial == left
    left ^= ledger.published("a", Published(3, files.files)) ^ ledger.committed(["a"])
    assert left == 0
    assert ledger.missing() == "nothing"


def test_rewritten_files_take_the_place_of_the_staged_ones(ids):
    """The way of an upsert table: staged partials are consumed, new files must be published."""
    partials, rewritten = staged("partials"), staged("bucket-0", "bucket-1").files
    ledger = CommitLedger(ids, {"a": partials})
    left = ledger.initial ^ ledger.prepared("a", Prepared(partials, adds=rewritten))
    assert left ^ ledger.committed([]) != 0
    left ^= ledger.published("a", Published(3, rewritten)) ^ ledger.committed(["a"])
    assert left == 0


@pytest.mark.parametrize(
    ("found", "unexpected"),
    [
        ([], ""),
        ([StagedFile("f", size=9, rows=1)], ", unexpected file a f 9 1"),
        ([StagedFile("f", size=10, rows=2)], ", unexpected file a f 10 2"),
        ([StagedFile("g", size=10, rows=1)], ", unexpected file a g 10 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_the_log_does_not_name_unchanged_keeps_the_commit_ledger_open(
    ids, found, unexpected
):
    """Path, size and row count must all be as staged: a table version without it is not enough."""
    files = staged("f")
    ledger = CommitLedger(ids, {"a": files})
    left = ledger.initial ^ ledger.prepared("a", Prepared(files, adds=files.files))
    left ^= ledger.published("a", Published(3, tuple(found))) ^ ledger.committed(["a"])
    assert left != 0
    assert ledger.missing() == "file a f 10 1" + unexpected


def test_a_table_staged_in_the_turn_brings_its_job_its_parts_and_its_files(ids):
    """What the turn itself stages is announced with the turn, file by file when the job ends."""
    ledger = CommitLedger(ids, {"a": staged()}, {"b": {"s": ["p"]}})
    value = ledger.initial ^ ledger.staged_late("b", staged("f"), {"s": ["p"]})
    published = Published(version=1, files=staged("f").files)
    value ^= ledger.prepared("b", Prepared(staged("f"), staged("f").files))
    value ^= ledger.published("b", published) ^ ledger.committed(["a", "b"])
    assert (value, ledger.missing()) == (0, "nothing")


@pytest.mark.parametrize(
    ("parts", "missing"),
    [({}, "part b s p"), ({"s": ["p", "q"]}, "unexpected part b s q")],
)
def test_a_late_job_that_reads_other_parts_keeps_the_ledger_open(ids, parts, missing):
    """A stream that meets new values in the turn is held to its planned parts there too."""
    ledger = CommitLedger(ids, {}, {"b": {"s": ["p"]}})
    value = ledger.initial ^ ledger.staged_late("b", staged(), parts)
    assert value ^ ledger.committed(["b"]) != 0
    assert ledger.missing() == missing


def test_a_table_that_committed_does_not_name_keeps_the_commit_ledger_open(ids):
    """COMMITTED must name the version of every table."""
    ledger = CommitLedger(ids, {"a": staged(), "b": staged()})
    assert ledger.initial ^ ledger.committed(["a"]) != 0
    assert ledger.missing() == "table b"


def test_a_skipped_table_consumes_its_staged_files_and_publishes_none(ids):
    """A replay that a transactional table holds already leaves nothing open."""
    files = staged("f")
    ledger = CommitLedger(ids, {"a": files})
    left = ledger.initial ^ ledger.prepared("a", Prepared(files, adds=(), skipped=True))
    left ^= ledger.published("a", Published(2, (), skipped=True)) ^ ledger.committed(["a"])
    assert left == 0


def test_tracking_acknowledges_the_attempt_whose_ledger_closes(ids):
    """The last edge closes the ledger, and no earlier one does."""
    tracking = Tracking(3, enabled=True)
    ledger = ProcessingLedger(ids, {"a": {}, "b": {}})
    tracking.open(ATTEMPT, ledger)
    assert tracking.ack(ledger, ledger.staged("a", {})) is False
    assert tracking.ack(ledger, ledger.staged("b", {})) is False
    assert tracking.is_open(ledger)
    assert tracking.ack(ledger, ledger.emitted()) is True
    assert not tracking.is_open(ledger)


def test_tracking_fails_a_ledger_without_progress_at_its_last_tick(ids):
    """A ledger that nobody touches expires, and names its attempt."""
    tracking = Tracking(3, enabled=True)
    ledger = ProcessingLedger(ids, {"a": {}})
    tracking.open(ATTEMPT, ledger)
    expired = [tracking.tick() for _ in range(3)]
    assert [[], [], [ATTEMPT]] == expired
    assert tracking.tick() == []


def test_progress_starts_the_time_of_a_ledger_anew(ids):
    """A batch whose tables come in one by one does not expire between them."""
    tracking = Tracking(3, enabled=True)
    ledger = ProcessingLedger(ids, {"a": {}, "b": {}})
    tracking.open(ATTEMPT, ledger)
    for _ in range(5):
        assert tracking.tick() == []
        assert tracking.tick() == []
        tracking.progress(ledger)


def test_a_dropped_attempt_is_nobodys_news(ids):
    """Neither a late ack nor the passing of time says anything of an attempt that was dropped."""
    tracking = Tracking(3, enabled=True)
    ledger = ProcessingLedger(ids, {"a": {}})
    tracking.open(ATTEMPT, ledger)
    tracking.drop(ATTEMPT)
    assert tracking.ack(ledger, ledger.staged("a", {})) is False
    assert [attempt for _ in range(4) for attempt in tracking.tick()] == []


def test_dropping_one_attempt_leaves_the_others(ids):
    """Two attempts in flight have ledgers of their own."""
    tracking = Tracking(3, enabled=True)
    mine, other = ProcessingLedger(ids, {"a": {}}), ProcessingLedger(ids, {"a": {}})
    tracking.open(ATTEMPT, mine)
    tracking.open(LATER, other)
    tracking.drop(ATTEMPT)
    value = other.staged("a", {}) ^ other.emitted()
    assert tracking.ack(other, value) is True


def test_a_late_ack_of_a_failed_attempt_does_not_complete_the_replay(ids):
    """The replay's ledger has a root and edges of its own."""
    tracking = Tracking(3, enabled=True)
    failed, replay = ProcessingLedger(ids, {"a": {}}), ProcessingLedger(ids, {"a": {}})
    tracking.open(ATTEMPT, failed)
    tracking.drop(ATTEMPT)
    tracking.open(ATTEMPT.next(), replay)
    assert tracking.ack(failed, failed.staged("a", {})) is False
    assert tracking.is_open(replay)


def test_with_tracking_off_no_ledger_is_ever_open(ids):
    """`ackers = 0`: nothing is tracked, nothing is judged."""
    tracking = Tracking(3, enabled=False)
    ledger = ProcessingLedger(ids, {"a": {}})
    tracking.open(ATTEMPT, ledger)
    assert not tracking.is_open(ledger)
    assert tracking.ack(ledger, 0) is False
    assert [attempt for _ in range(4) for attempt in tracking.tick()] == []
