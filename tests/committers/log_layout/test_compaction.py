"""Which files of a log table are compacted, and what is left of a compaction that died."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from committers.log_layout.compaction import (
    BYTES_PER_SEC,
    SMALLEST_TIER,
    STILL_SECS,
    STILL_SHARE,
    Pace,
    files_to_compact,
)
from committers.log_layout.compactor import Compactor
from committers.log_layout.intents import Intents
from committers.publishing.files import ActiveFile
from committers.state.stored import SMALL_SHARE
from txn.delta.commits import Commit
from txn.interfaces import StagedFile
from txn.storage.storage import Storage


def file(path: str, size: int, txid: int = 1) -> ActiveFile:
    """An active file with rows of one txid."""
    return ActiveFile(path, size, {}, txid, txid)


def staged(count: int, size: int = 1000, first: int = 1) -> list[ActiveFile]:
    """One file of each txid."""
    return [file(f"data/{n}-0-x/part-0.parquet", size, n) for n in range(first, first + count)]


def chosen(files: list[ActiveFile], committed: int = 9) -> set[str]:
    """Paths of what is compacted when a tier is full with four files."""
    return paths(files_to_compact(files, committed, 4))


def paths(files: Iterable[ActiveFile]) -> set[str]:
    """Paths of files."""
    return {file.path for file in files}


def test_a_full_tier_is_compacted_as_a_whole() -> None:
    """Nothing is compacted below `factor` files; at `factor`, exactly those."""
    assert chosen(staged(3)) == set()
    assert chosen(staged(4)) == paths(staged(4))


def test_what_is_not_committed_is_left_alone() -> None:
    """Neither a later txid, nor a file with some rows of one, nor one of which nothing is known."""
    mixed = ActiveFile("mixed.parquet", 1000, {}, 1, 5)
    unknown = ActiveFile("unknown.parquet", 1000)
    files = [*staged(4), file("data/5-0-x/part-0.parquet", 1000, 5), mixed, unknown]
    assert chosen(files, committed=4) == paths(staged(4))
    assert chosen(files, committed=3) == set()


def test_a_large_result_is_not_rewritten_with_the_next_small_files() -> None:
    """Files of another size are another tier; smaller ones go along with a larger tier."""
    large = [file(f"data/compaction-{n}/part-0.parquet", 50 * SMALLEST_TIER) for n in range(4)]
    assert chosen([*staged(4), *large[:3]]) == paths(staged(4))
    assert chosen([*staged(2), *large]) == paths([*staged(2), *large])


def test_smaller_files_do_not_outgrow_the_largest() -> None:
    """With `factor` files in all, more than half of its bytes beside it are merged with it."""
    large = file("data/compaction-a/part-0.parquet", 60 * SMALLEST_TIER)
    middle = [file(f"data/compaction-b{n}/part-0.parquet", 10 * SMALLEST_TIER) for n in range(3)]
    assert chosen([large, *middle]) == set()
    assert chosen([large, *middle, *staged(1)]) == paths([large, *middle, *staged(1)])
    assert chosen([large, *middle[:2], *staged(3)]) == set()


def test_a_result_split_by_size_counts_once() -> None:
    """The files that one compaction wrote are compacted together or not at all."""
    parts = [file(f"data/compaction-a/part-{n}.parquet", 100 * SMALLEST_TIER) for n in range(9)]
    assert chosen(parts) == set()
    large = [file(f"data/1-0-x/part-{n}.parquet", 100 * SMALLEST_TIER) for n in range(9)]
    assert chosen([*large, *staged(3, first=2)]) == set()


@given(
    sizes=st.lists(st.integers(500, 40 * SMALLEST_TIER), min_size=1, max_size=120),
    factor=st.integers(2, 16),
    overlap=st.floats(0, 1),
)
def test_the_number_of_files_is_bounded(sizes: list[int], factor: int, overlap: float) -> None:
    """With a compaction after each commit there are less than `factor` files in each of at most
    1 + log(bytes) tiers, whether the batches' keys are the same (overlap 1) or all new (0).
    """
    files: list[ActiveFile] = []
    for txid, size in enumerate(sizes, start=1):
        files.append(file(f"data/{txid}-0-x/part-0.parquet", size, txid))
        while some := files_to_compact(files, txid, factor):
            small, large = max(f.size for f in some), sum(f.size for f in some)
            merged = round(large - overlap * (large - small))
            files = [f for f in files if f not in some]
            files.append(file(f"data/compaction-{txid}/part-0.parquet", merged, txid))
        tiers = 1 + math.ceil(math.log(max(sum(sizes) / SMALLEST_TIER, 1), factor) + 1e-9)
        assert len(files) <= (factor - 1) * tiers
        *smaller, largest = sorted(f.size for f in files)
        assert len(files) < factor or sum(smaller) <= SMALL_SHARE * largest


def test_compactions_take_a_share_of_the_time() -> None:
    """A compaction waits for nine times as long as it will take since the last one ended, or since
    the run began; with a share of 1 none waits.
    """
    now = 100.0
    tenth, at_once = Pace(0.1, lambda: now), Pace(1, lambda: now)
    size = round(0.7 * BYTES_PER_SEC)  # a second, the job included
    assert (tenth.may_begin(size), at_once.may_begin(size)) == (False, True)
    now = 109.1
    assert tenth.may_begin(size)
    tenth.begin()
    tenth.end()
    now = 118.0
    assert not tenth.may_begin(size)
    assert tenth.may_begin(0)


def test_a_compaction_that_took_long_is_paid_for_before_the_next() -> None:
    """Where a machine needs longer than is estimated, the share of the time is kept as well, and
    one that was not paid for counts from its own beginning.
    """
    now = 100.0
    tenth = Pace(0.1, lambda: now)
    for began in (110.0, 113.0):
        now = began
        tenth.begin()
        now = began + 2
        tenth.end()
    now = 115.0 + 17.9
    assert not tenth.may_begin(0)
    now = 115.0 + 18.1
    assert tenth.may_begin(0)


def test_a_table_is_still_once_it_has_kept_its_version_for_a_while() -> None:
    """A version that was seen `STILL_SECS` ago, and at every look since."""
    looks = {0: 7, 0.99: 7, 1.01: 8, 2.0: 8, 2.02: 8, 2.03: 9}
    times = iter([0, *(STILL_SECS * part for part in looks)])
    pace = Pace(1, lambda: next(times))
    assert [pace.is_still(looks[part]) for part in looks] == [*[False] * 4, True, False]


def test_all_files_of_a_still_table_become_one() -> None:
    """However few they are, unless they have little beside the largest; never uncommitted ones."""
    large = file("data/compaction-a/part-0.parquet", 64_000)
    little = round(64_000 * STILL_SHARE)
    small = file("data/2-0-x/part-0.parquet", little + 1, txid=2)
    assert files_to_compact([large, small], 2, 4) == ()
    assert paths(files_to_compact([large, small], 2, 4, still=True)) == paths([large, small])
    assert files_to_compact([large, replace(small, size=little)], 2, 4, still=True) == ()
    assert files_to_compact([large, small], 1, 4, still=True) == ()
    assert files_to_compact([large], 2, 4, still=True) == ()
    assert files_to_compact([], 2, 4, still=True) == ()


def test_a_still_table_compacts_what_it_has_the_time_for(tmp_path: Path) -> None:
    """All of it once that is paid for; until then a full tier, and nothing before that is."""
    second = round(BYTES_PER_SEC)
    large, small = file("data/compaction-a/part-0.parquet", 40 * second), staged(4, second)
    looks = {0.0: [], 5.0: small, STILL_SECS + 1: small, 50.0: [large, *small]}
    now = [0.0]
    compactor = Compactor(Storage(str(tmp_path)), 4, Pace(0.5, lambda: now[0]), lambda: "a")
    for now[0], due in looks.items():
        assert paths(compactor.choose([large, *small], 9, 1)) == paths(due), now


def test_files_that_wait_are_bounded() -> None:
    """While compactions wait, a tier is full at four times as many files; its bounds stay."""
    assert files_to_compact(staged(15), 99, 4, full=16) == ()
    assert paths(files_to_compact(staged(16), 99, 4, full=16)) == paths(staged(16))


# --- leftovers ---------------------------------------------------------------------------------


@pytest.fixture
def intents(tmp_path: Path) -> Intents:
    """Of a table in `tmp_path`, whose compactions are called a, b, c, ..."""
    names = iter("abcdef")
    return Intents(Storage(str(tmp_path)), lambda: next(names))


def made(intents: Intents, table: Path, version: int) -> Path:
    """The folder of a compaction that was written and not ended."""
    folder = table / intents.begin(version)
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").touch()
    return folder


def version(number: int, *paths: str) -> Commit:
    """A version that adds files."""
    return Commit(number, 0, "WRITE", tuple(StagedFile(path, 1, 1) for path in paths))


def found(folder: Path) -> list[str]:
    """What `StagingArea.folders` has found before the fence."""
    return [f"_txn/{path.name}" for path in sorted((folder / "_txn").iterdir())]


def test_only_what_no_version_has_is_swept(intents: Intents, tmp_path: Path) -> None:
    """A result that is active stays, one that was published and compacted again stays, one that was
    never published goes; of all of them the intent goes.
    """
    active, compacted, orphan = (made(intents, tmp_path, 3) for _ in range(3))
    log = {4: version(4, "data/compaction-b/part-0.parquet"), 5: version(5)}
    intents.sweep(found(tmp_path), 5, ["data/compaction-a/part-0.parquet"], log.get)
    assert [folder.exists() for folder in (active, compacted, orphan)] == [True, True, False]
    assert list((tmp_path / "_txn").iterdir()) == []


def test_what_nobody_can_tell_is_left(intents: Intents, tmp_path: Path) -> None:
    """Where the versions since were cleaned out of the log, a result is left for VACUUM."""
    folder = made(intents, tmp_path, 3)
    intents.sweep(found(tmp_path), 5, [], {5: version(5)}.get)
    assert folder.exists()


def test_an_ended_compaction_is_not_looked_at_again(intents: Intents, tmp_path: Path) -> None:
    """A published result is no business of `sweep`, however long the log has grown; a dropped one
    is deleted at once.
    """
    published, dropped = (made(intents, tmp_path, 3) for _ in range(2))
    intents.end(str(published.relative_to(tmp_path)), delete=False)
    intents.end(str(dropped.relative_to(tmp_path)), delete=True)
    intents.sweep(found(tmp_path), 5, [], {}.get)
    assert (published.exists(), dropped.exists()) == (True, False)


def test_an_intent_that_was_half_written(intents: Intents, tmp_path: Path) -> None:
    """A process that died while it wrote its intent has written nothing else: the sweep goes on."""
    folder = made(intents, tmp_path, 3)
    other = made(intents, tmp_path, 3)
    intent = tmp_path / "_txn" / folder.name / "intent.json"
    intent.write_bytes(b'{"ver')
    intents.sweep(found(tmp_path), 3, [], {}.get)
    assert (folder.exists(), other.exists()) == (True, False)
    assert intent.read_bytes() == b'{"ver'
