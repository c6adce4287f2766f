"""`FileSpout` on a real S3 server: what it pins, what it asks for, and that it misses nothing."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from spouts.files import FileBatch, FileSpout
from spouts.files.folder import polls as _polls
from spouts.files.folder.listing import Listing
from spouts.files.folder.polls import Polls
from tests.storage.test_stores import Marked
from tests.stores.proxy import Fail, Proxy, lists
from tests.stores.s3 import S3Server, storage_options
from txn.attempts import TransactionAttempt
from txn.errors import (
    BatchError,
    FailedException,
    SourceChangedError,
    StorageRefusedError,
    TopologyError,
)
from txn.storage.opening import open_store
from txn.storage.store import Store

SCHEMA = StructType([StructField("value", StringType())])
FIRST = TransactionAttempt(1)
NO_SPARK: Any = None


class Lake:
    """A bucket, and what is asked of it by way of a proxy."""

    def __init__(self, s3: S3Server, proxy: Proxy, bucket: str) -> None:
        self.proxy = proxy
        self.folder = s3.folder / "data" / bucket / "in"
        self.options = storage_options(proxy.url)
        self.pattern = f"s3://{bucket}/in/*.txt"
        self.now = 0.0
        """By the clock of its spouts' looks."""
        self.straight: Store = open_store(f"s3://{bucket}/in", storage_options(s3.url))[0]

    def put(self, *names: str, content: bytes = b"row\n") -> None:
        """Objects, not through the proxy."""
        for name in names:
            self.straight.put(name, content)

    def spout(self, previous: FileBatch | None = None, **arguments: Any) -> FileSpout:
        """A spout over the bucket's text files, opened; what it asks from now on is counted."""
        arguments = {"schema": SCHEMA} | arguments
        spout = FileSpout(self.pattern, format="text", storage_options=self.options, **arguments)
        spout._polls._monotonic = lambda: self.now
        spout.open(NO_SPARK, previous)
        self.proxy.log.clear()
        return spout

    def asked(self) -> list[str]:
        """The requests since the last time, by operation."""
        operations = sorted(entry.operation for entry in self.proxy.log)
        self.proxy.log.clear()
        return operations


@pytest.fixture
def lake(s3: S3Server, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A bucket of this test alone."""
    with Proxy(s3.url) as proxy:
        yield Lake(s3, proxy, s3.bucket(request.node.name))


def planned(spout: FileSpout, previous: FileBatch | None = None) -> FileBatch:
    """The next batch; its metadata goes through JSON, as it does for real."""
    batch = spout.initialize_transaction(FIRST, previous)
    assert batch is not None
    return FileBatch.model_validate_json(batch.model_dump_json())


def short(batch: FileBatch) -> list[str]:
    """The names of a batch's files."""
    return [file.path.rpartition("/")[2] for file in batch.files]


# --- what is pinned --------------------------------------------------------------------------


def test_a_file_that_was_replaced_after_it_was_planned_is_refused(lake: Lake) -> None:
    """Another content of the same length within the same second: its ETag tells, and the error
    names the file and both ETags. With the planned content again, whatever its time, all is well.
    """
    lake.put("a.txt", content=b"one\n")
    spout = lake.spout()
    batch = planned(spout)
    (file,) = batch.files
    lake.put("a.txt", content=b"two\n")
    with pytest.raises(
        SourceChangedError, match=rf"a\.txt changed .*ETag {file.version}, "
    ) as told:
        spout.emit_batch(NO_SPARK, FIRST, batch)
    assert told.value.number == "TXN-407"
    assert "with its time" not in str(told.value)
    with pytest.raises(FailedException, match=r"a\.txt changed"):
        spout.check_read(FIRST, batch)
    lake.put("a.txt", content=b"one\n")
    spout.check_read(FIRST, batch)


def test_a_file_that_was_replaced_before_a_replay_is_refused(lake: Lake) -> None:
    """Another process that replays the batch refuses it; a file that is gone it refuses as well."""
    lake.put("a.txt", content=b"one\n")
    batch = planned(lake.spout())
    again = lake.spout(batch)
    lake.put("a.txt", content=b"two\n")
    with pytest.raises(SourceChangedError, match=r"a\.txt changed"):
        again.emit_batch(NO_SPARK, FIRST, batch)
    lake.straight.delete(["a.txt"])
    with pytest.raises(SourceChangedError, match="it is gone"):
        again.emit_batch(NO_SPARK, FIRST, batch)
    again.check_read(FIRST, batch)  # it was read before it went


def test_a_folder_that_a_console_made_is_no_file(lake: Lake) -> None:
    """It is an empty object `folder/`: a listing shows it, and nobody could read it. An empty file
    is one.
    """
    lake.pattern = lake.pattern.removesuffix(".txt")
    lake.put("a.txt")
    lake.put("empty", content=b"")
    lake.proxy.inject(Marked(("in/sub/",)), when=lists())
    spout = lake.spout(files_per_batch=9)
    batch = planned(spout)
    assert short(batch) == ["a.txt", "empty"]
    spout.check_read(FIRST, batch)
    lake.now += 60
    assert spout.initialize_transaction(FIRST, batch) is None


def test_a_batch_of_an_earlier_release_is_known_by_its_times(lake: Lake) -> None:
    """Metadata without ETags is held against size and time, as it was then."""
    lake.put("a.txt", content=b"one\n")
    spout = lake.spout()
    batch = planned(spout)
    (file,) = batch.files
    assert file.mtime_ns is not None
    old = batch.model_copy(update={"files": (file.model_copy(update={"version": None}),)})
    spout.check_read(FIRST, old)
    moved = file.model_copy(update={"version": None, "mtime_ns": file.mtime_ns - 10**9})
    with pytest.raises(FailedException, match="changed"):
        spout.check_read(FIRST, batch.model_copy(update={"files": (moved,)}))


def test_a_file_that_waits_for_long_is_pinned_when_it_is_planned(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may replace a file that no batch has yet: what is there at planning counts."""
    monkeypatch.setattr("spouts.files.folder.backlog._FRESH_SECS", 0.0)
    lake.put("a.txt", "b.txt")
    spout = lake.spout()
    first = planned(spout)
    lake.put("b.txt", content=b"another\n")
    second = planned(spout, first)
    assert (short(second), second.files[0].size) == (["b.txt"], 8)


# --- what is asked ---------------------------------------------------------------------------


def test_requests_of_a_batch(lake: Lake) -> None:
    """A look is one request, and the batches out of it none; reading a file is one before and one
    after it was read.
    """
    lake.put(*(f"{name}.txt" for name in "abcd"))
    spout = lake.spout(files_per_batch=2)
    first = planned(spout)
    assert lake.asked() == ["LIST"]
    second = planned(spout, first)
    assert (short(second), lake.asked()) == (["c.txt", "d.txt"], [])
    spout.check_read(FIRST, second)
    assert lake.asked() == ["HEAD", "HEAD"]
    lake.now = 1.0
    assert spout.initialize_transaction(FIRST, second) is None
    assert lake.asked() == ["LIST"]


@pytest.mark.parametrize(("every", "looks"), [(None, 4), (2.0, 2)])
def test_it_looks_once_a_second_unless_told_otherwise(
    lake: Lake, every: float | None, looks: int
) -> None:
    """However often it is asked, an idle source costs one request a second."""
    spout = lake.spout(**({} if every is None else {"look_every_secs": every}))
    for tenth in range(31):
        lake.now = tenth / 10
        assert spout.initialize_transaction(FIRST, None) is None
    assert lake.asked() == ["LIST"] * looks
    lake.put("a.txt")
    assert spout.initialize_transaction(FIRST, None) is None
    lake.now += every or 1.0
    assert short(planned(spout)) == ["a.txt"]


@pytest.mark.parametrize("secs", [-1, "1", float("nan")])
def test_an_interval_that_is_none_is_refused(secs: Any) -> None:
    """Seconds from 0 on."""
    with pytest.raises((TopologyError, TypeError), match=r"look_every_secs|not supported"):
        FileSpout("s3://lake/in/*.txt", format="text", look_every_secs=secs)


def test_a_large_prefix_is_listed_from_near_its_end(lake: Lake) -> None:
    """Of 2,500 objects the first look lists all, the next ones only what sorts behind; what sorts
    before is found by the look at everything that follows in time.
    """
    lake.folder.mkdir()
    for number in range(2500):
        (lake.folder / f"n-{number:05}.txt").write_text("row\n")
    spout = lake.spout(files_per_batch=5000)
    batch = planned(spout)
    assert (len(batch.files), lake.asked()) == (2500, ["LIST"] * 3)
    lake.put("n-02501.txt", "n-02500.txt", "n-02400-late.txt", "n-00001-late.txt")
    lake.now = 1.0
    batch = planned(spout, batch)
    assert short(batch) == ["n-02400-late.txt", "n-02500.txt", "n-02501.txt"]
    assert lake.asked() == ["LIST"]
    lake.now = 9.9
    assert spout.initialize_transaction(FIRST, batch) is None
    assert lake.asked() == ["LIST"]
    lake.now = 10.9
    batch = planned(spout, batch)
    assert (short(batch), lake.asked()) == (["n-00001-late.txt"], ["LIST"] * 3)


def test_a_listing_goes_on_where_it_failed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of a long listing repeats a page, and no name is lost or twice."""
    monkeypatch.setattr("spouts.files.folder.listing.PAGE", 1000)
    listing = Listing(lake.pattern, lake.options)
    lake.folder.mkdir()
    for number in range(3500):
        (lake.folder / f"{number:05}.txt").write_text("row\n")
    rule = lake.proxy.inject(Fail(), when=lists(), nth=3)
    found = [entry.path for page in listing.pages(at_once=1000) for entry in page]
    assert found == [f"{number:05}.txt" for number in range(3500)]
    assert len(rule.met) == 1
    assert len(lake.asked()) == 4 + 2


def test_after_an_error_everything_is_listed_again(lake: Lake) -> None:
    """A plan that failed has taken names from the backlog that are in no batch: none is missed."""
    lake.put("a.txt", "b.txt", "c.txt")
    spout = lake.spout()
    first = planned(spout)
    refuse = lake.proxy.inject(Fail(403, "AccessDenied"), when=lambda request: True)
    spout._backlog._listed_at = float("-inf")
    with pytest.raises(StorageRefusedError, match="403"):
        spout.initialize_transaction(FIRST, first)
    assert refuse.met
    lake.proxy.clear()
    second = planned(spout, first)
    assert short(second) == ["b.txt"]
    assert short(planned(spout, second)) == ["c.txt"]


def test_more_files_than_are_kept_are_listed_from_the_last_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a look found and did not keep is listed next, from where it was, and nothing twice."""
    monkeypatch.setattr("spouts.files.spout._LOOK", 2)
    lake.put(*(f"{number}.txt" for number in range(5)))
    spout = lake.spout()
    batch, seen = None, []
    while (batch := spout.initialize_transaction(FIRST, batch)) is not None:
        seen += short(batch)
        last, lake.now = batch, lake.now + (len(seen) == 5)
    assert spout.initialize_transaction(FIRST, last) is None
    assert seen == [f"{number}.txt" for number in range(5)]
    starts = [entry.request.query.get("start-after", "") for entry in lake.proxy.log]
    assert [start.rpartition("/")[2] for start in starts] == ["", "1.txt", "3.txt", "3.txt"]


def test_a_look_that_goes_on_lists_no_more_than_is_kept(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 5,500 new files, 1,000 of which are kept at once: everything is listed once, and after
    that 1,000 at a time (and the client asks for one page ahead). The lag counts all of them.
    """
    monkeypatch.setattr("spouts.files.spout._LOOK", 1000)
    lake.folder.mkdir()
    for number in range(5500):
        (lake.folder / f"n-{number:05}.txt").write_text("row\n")
    spout = lake.spout(files_per_batch=1000)
    batch, found = None, []
    while (batch := spout.initialize_transaction(FIRST, batch)) is not None:
        found += [(len(batch.files), spout.lag(batch).files, len(lake.asked()))]
    assert found == [
        (1000, 4500, 6),
        (1000, 3500, 2),
        (1000, 2500, 2),
        (1000, 1500, 2),
        (1000, 500, 2),
        (500, 0, 1),
    ]


def test_a_schema_is_inferred_from_one_page(lake: Lake) -> None:
    """The first files are found without a listing of all, and without a look at them."""
    lake.folder.mkdir()
    for number in range(2500):
        (lake.folder / f"{number:05}.txt").write_text("row\n")
    listing = Listing(lake.pattern, lake.options)
    lake.asked()
    assert [name[-9:] for name in listing.first_few(2)] == ["00000.txt", "00001.txt"]
    assert lake.asked() == ["LIST"]


def test_a_schema_is_inferred_behind_a_page_that_has_no_file_of_the_pattern(lake: Lake) -> None:
    """A listing that begins with a page of other files is read on."""
    lake.folder.mkdir()
    for number in range(950):
        (lake.folder / f"{number:05}.log").write_text("other\n")
    (lake.folder / "a.txt").write_text("row\n")
    listing = Listing(lake.pattern, lake.options)
    assert [name[-5:] for name in listing.first_few(2)] == ["a.txt"]


# --- nothing is missed -----------------------------------------------------------------------

NAMES = st.text("abc", min_size=1, max_size=3)
STEPS = st.lists(st.one_of(NAMES, st.sampled_from([0.5, 1.0, 30.0])), max_size=40)


@given(steps=STEPS, kept=st.integers(1, 4), overlap=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_no_file_is_missed_or_taken_twice(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | float], kept: int, overlap: int
) -> None:
    """Whatever the order in which files come, each is taken once; all are when some time passed."""
    folder = tmp_path_factory.mktemp("in")
    listing = Listing(f"file://{folder}/*.txt")
    now, taken, left = 0.0, [], []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_polls, "_OVERLAP", overlap)
        polls = Polls(listing, 1.0, kept, lambda: now)

        def look() -> None:
            while seen := polls.poll(lambda names: [n for n in names if n not in taken]):
                left[:] = seen.unseen[:kept]
                taken.extend(left)
                if not left:
                    return

        for step in steps:
            if isinstance(step, str):
                (Path(folder) / f"{step}.txt").touch()
            else:
                now += step
                look()
        now += 30.0
        look()
    assert len(taken) == len(set(taken))
    assert sorted(taken) == listing.names()


def test_the_first_bytes_tell_a_packed_object(lake: Lake) -> None:
    """Gzip without its ending is named before anything is read, at the cost of one request."""
    lake.put("a.txt", "b.txt")
    lake.put("c.txt", content=gzip.compress(b"row\n"))
    spout = lake.spout(files_per_batch=3)
    batch = planned(spout)
    lake.asked()
    with pytest.raises(BatchError, match=r"c\.txt \(\d+ bytes\): it is packed by gzip"):
        spout.emit_batch(NO_SPARK, FIRST, batch)
    assert lake.asked() == ["GET"] * 3 + ["HEAD"] * 3
