"""Keys of a state table that end, seen from its files and its log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as sf

from committers.aggregates import Count, Min
from committers.state import stored
from committers.state.layouts import LogLayout
from committers.state_table import StateTable
from tests.committers.conftest import publication
from txn.attempts import TransactionAttempt
from txn.errors import TableRefusedError, TopologyError
from txn.interfaces import WATERMARK, CommitterContext, Expiry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "k string, at timestamp"
BEGIN = datetime(2026, 3, 29, tzinfo=timezone.utc)
MINUTE = 60_000_000


def minute(n: int) -> datetime:
    """A time."""
    return BEGIN + timedelta(minutes=n)


def watermark(n: int) -> int:
    """A watermark, as a publication has it."""
    return int(minute(n).timestamp()) * 1_000_000


class World:
    """A table of (k -> the first event time), and the programs that open it one after the other.

    Args:
        nested: a key "nested" stands before k.
    """

    def __init__(
        self, driver: Any, path: Path, schema: str = SCHEMA, *, nested: bool = False
    ) -> None:
        self.keys = ["nested", "k"] if nested else ["k"]
        self.driver = driver
        self.path = path
        self.schema = schema
        self.epoch = self.txid = 0
        self.committer: Any = None

    def start(self, expiry: Expiry | None, layout: str = "log", *, rebuilt: bool = False) -> None:
        """Begin a run of a program with this rule."""
        self.epoch += 1
        self.state = StateTable(
            self.path, "opaque", layout, buckets=1, compact_files=2, compact_share=1
        )
        committer: Any = self.state.bind(self.keys, {"at": Min("at")}, expiry=expiry)
        tables = (str(self.path),) if rebuilt else ()
        context = CommitterContext("tests", self.epoch, rebuilt_tables=tables)
        self.committer = committer
        committer.open(self.driver.spark, context, self.partials([], 0).schema)
        committer.fence()
        if publish := committer.change_shape(self.txid):
            publish()

    def key(self, k: str | int) -> Any:
        """The key of a row; a number is a minute."""
        if self.schema.startswith("k struct"):
            return minute(int(k) - 1), minute(int(k))
        return minute(int(k)) if self.schema.startswith("k timestamp") else k

    def partials(self, rows: Sequence[tuple[str | int, int]], mark: int) -> DataFrame:
        """What a batch stages in a txid whose watermark is at this minute."""
        named = [(self.key(k), minute(n)) for k, n in rows]
        batch = self.driver.frame(named, self.schema)
        if "nested" in self.keys:
            batch = batch.withColumn("nested", sf.array(sf.lit("x")))
        if self.committer.takes_watermark:
            batch = batch.withColumn(WATERMARK, sf.lit(watermark(mark)).cast("bigint"))
        found: DataFrame = self.committer.partials(batch)
        return found

    def commit(self, mark: int, *rows: tuple[str | int, int]) -> None:
        """Commit rows in the next txid, whose watermark is at this minute."""
        self.txid += 1
        staged = self.committer.stage(self.partials(rows, mark), TransactionAttempt(self.txid))
        own = publication(self.txid, epoch=self.epoch, rows=staged.rows)
        own = own.model_copy(update={"watermark": watermark(mark)})
        self.committer.publish(self.committer.prepare(staged, own), own)

    def compact(self, committed: int) -> None:
        """Both halves of a compaction, which must have something to do."""
        publish = self.committer.maintain(committed)
        assert publish is not None
        publish()

    def shown(self, txid: int | None = None) -> dict[str, int]:
        """Key -> minute, as readers see it."""
        found = self.state.read(self.driver.spark, txid=txid).collect()
        return {r["k"]: (r["at"].astimezone(timezone.utc) - BEGIN).seconds // 60 for r in found}

    def stored(self) -> list[str]:
        """The keys in the files."""
        return sorted(DeltaTable(str(self.path)).to_pyarrow_table()["k"].to_pylist())


@pytest.fixture
def world(driver: Any, warehouse: Path) -> World:
    """A new table."""
    return World(driver, warehouse / "t")


LAST = Expiry("last event", 10 * MINUTE, "at")


@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_the_rule_begins_changes_and_ends(world: World, layout: str) -> None:
    """Keys from before end once a row has come for them; a longer time, and none, need a rebuild,
    which leaves ended keys out for good.
    """
    world.start(None, layout)
    world.commit(0, ("a", 1), ("b", 2))
    world.start(LAST, layout)
    world.commit(11, ("a", 12), ("c", 12))
    assert world.shown() == {"a": 1, "b": 2, "c": 12}
    world.commit(22, ("b", 23))
    assert world.shown() == {"b": 2}
    assert world.shown(2) == {"a": 1, "b": 2, "c": 12}
    world.start(Expiry("last event", 5 * MINUTE, "at"), layout)
    world.commit(28, ("c", 30))
    assert world.shown() == {"c": 30}
    for later in (LAST, None):
        with pytest.raises(TableRefusedError, match="the end of its keys changes from 300 s after"):
            world.start(later, layout)
    world.start(None, layout, rebuilt=True)
    assert world.stored() == ["c"]
    world.commit(90, ("a", 91))
    assert world.shown() == {"a": 91, "c": 30}
    world.start(LAST, layout)
    world.commit(99, ("c", 102))
    assert world.shown() == {"a": 91, "c": 30}


def test_a_rebuild_keeps_the_end_of_keys(world: World) -> None:
    """Another layout has the same keys, and they end at the same time."""
    world.start(LAST, "log")
    world.commit(0, ("a", 1), ("b", 5))
    world.commit(11, ("a", 7))
    world.start(LAST, "upsert", rebuilt=True)
    assert world.shown() == {"a": 7, "b": 5}
    world.commit(16)
    assert world.shown() == {"a": 7}
    world.start(LAST, "log", rebuilt=True)
    assert world.stored() == ["a"]
    world.commit(17, ("a", 8))
    assert world.shown() == {"a": 8}
    world.commit(17, ("a", 19))
    assert world.shown() == {"a": 8}
    world.commit(29, ("a", 30))
    assert world.shown() == {"a": 30}


@pytest.mark.parametrize("rule", [LAST, Expiry("key", 10 * MINUTE, "k")])
@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_a_view_hides_what_has_ended_since_it_was_made(
    driver: Any, warehouse: Path, layout: str, rule: Expiry
) -> None:
    """Each query goes by the newest txid that has brought the table rows."""
    world = World(driver, warehouse / "t", "k timestamp, at timestamp")
    world.start(rule, layout)
    world.commit(0, (1, 1), (5, 5))
    world.state.create_view(driver.spark, "ending")

    def viewed() -> list[int]:
        found = driver.spark.table("ending").collect()
        return sorted((r["k"].astimezone(timezone.utc) - BEGIN).seconds // 60 for r in found)

    assert viewed() == [1, 5]
    world.commit(12, (13, 13))
    assert viewed() == [5, 13]
    world.commit(16)
    assert viewed() == [5, 13]
    world.commit(16, (17, 17))
    assert viewed() == [13, 17]


def test_the_oldest_files_are_read_apart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader merges only keys that later files have, and they begin anew all the same."""
    monkeypatch.setattr(stored, "SPLIT_FROM_BYTES", 0)
    parts = []
    monkeypatch.setattr(
        LogLayout,
        "shown_in_two",
        lambda *args, shown=LogLayout.shown_in_two, **more: parts.append(1) or shown(*args, **more),
    )
    world.start(LAST)
    world.commit(0, *((f"{n:x}{n * 7919:x}", n % 3) for n in range(900)), ("a", 1), ("b", 5))
    world.commit(11, ("a", 12))
    world.commit(14, ("a", 13), ("b", 6))
    assert world.shown() == {"a": 12, "b": 5}
    assert parts == [1]


@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_a_state_at_rest_keeps_its_size(world: World, layout: str) -> None:
    """New keys come and go with each txid: the files have those that live, and few others."""
    world.start(LAST, layout)
    sizes = []
    for n in range(20):
        world.commit(4 * n, (f"k{n}", 4 * n), ("always", 4 * n))
        if layout == "log" and (publish := world.committer.maintain(world.txid)):
            publish()
        sizes.append(len(world.stored()))
    assert set(world.shown()) == {"k17", "k18", "k19", "always"}
    assert max(sizes[10:]) <= 10


def test_a_rule_that_a_state_cannot_have_is_refused(driver: Any, warehouse: Path) -> None:
    """A column that the table lacks, one that is no time, and replays that are applied again."""
    columns = f"{SCHEMA}, {WATERMARK} bigint"
    state = StateTable(warehouse / "ids", layout="log")
    with pytest.raises(TopologyError, match=r"by column 'n': it is none of its keys \(k\)"):
        state.bind(["k"], {"n": Count()}, expiry=Expiry("key", MINUTE, "n"))
    wrong = state.bind(["k"], {"n": Count()}, expiry=Expiry("key", MINUTE, "k"))
    with pytest.raises(TopologyError, match="it is string, and neither a timestamp nor a window"):
        driver.open(wrong, columns)
    window = state.bind(["k"], {"n": Count()}, expiry=Expiry("window end", MINUTE))
    with pytest.raises(TopologyError, match=r"0 of its keys \(k\) are windows"):
        driver.open(window, columns)
    again = StateTable(warehouse / "ids", "non_transactional")
    with pytest.raises(TopologyError, match="it applies replays again"):
        again.bind(["at"], {"n": Count()}, expiry=Expiry("key", MINUTE, "at"))


@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_a_replay_whose_former_watermark_is_cleaned_away_is_refused(
    world: World, layout: str
) -> None:
    """Without the bound of the txid before, a key that had ended would end once more."""
    rule = Expiry("last event", 10 * MINUTE, "at")
    world.start(rule, layout)
    for mark in (0, 5, 20):
        world.commit(mark, (f"k{mark}", mark))
    table = DeltaTable(str(world.path))
    table.create_checkpoint()
    for version in range(table.version()):
        (world.path / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)
    world.start(rule, layout)
    staged = world.committer.stage(world.partials([("k20", 20)], 20), TransactionAttempt(3, 1))
    own = publication(3, epoch=world.epoch, rows=staged.rows)
    own = own.model_copy(update={"watermark": watermark(20)})

    def replay() -> None:
        prepared = world.committer.prepare(staged, own)
        world.committer.publish(prepared, own)
        world.committer.changes(prepared, own).rows.collect()

    with pytest.raises(TableRefusedError, match="cleaned out of its log"):
        replay()
