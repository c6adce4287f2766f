"""What a run knows of its streams' columns, and metadata that several threads parse at once."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel
from pyspark.sql.types import LongType, StringType, StructType

from spouts.memory import MemoryTransactionalSpout
from txn.dataflow.columns import StreamColumns
from txn.dataflow.graph import Source
from txn.engine.work.spouts import Spouts
from txn.errors import ProgressUnreadableError, TopologyError

OLD = StructType().add("k", StringType())
NEW = StructType().add("k", StringType()).add("n", LongType())


def test_columns_are_durable_before_anything_is_done_with_them() -> None:
    """They are written once, when they become known; if that fails, they are not known."""
    written: list[Any] = []
    columns = StreamColumns(lambda *record: written.append(record))
    columns.learn("s", OLD)
    columns.learn("s", OLD)
    assert written == [("s", OLD.jsonValue())]
    assert (columns.get("s"), columns.get("t"), columns.assumed) == (OLD, None, frozenset())

    def fails(*_: Any) -> None:
        raise OSError("away")

    unlucky = StreamColumns(fails)
    with pytest.raises(OSError, match="away"):
        unlucky.learn("s", OLD)
    assert unlucky.get("s") is None


def test_a_source_may_change_between_runs_and_not_within_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the spout says now wins over what it had, loudly; within a run it stays the same."""
    written: list[Any] = []
    columns = StreamColumns(lambda *record: written.append(record))
    columns.recall({"s": OLD.jsonValue(), "t": OLD.jsonValue()})
    assert (columns.get("s"), columns.assumed) == (OLD, {"s", "t"})
    with caplog.at_level(logging.WARNING, "txn"):
        columns.learn("s", NEW)
        columns.learn("t", OLD)
    assert (columns.get("s"), columns.assumed) == (NEW, frozenset())
    assert written == [("s", NEW.jsonValue())]
    assert "Stream 's' had the columns struct<k:string> in earlier runs" in caplog.text
    with pytest.raises(TopologyError, match="Stream 's' changed its columns"):
        columns.learn("s", OLD)


def test_what_may_be_null_within_a_column_is_of_no_account() -> None:
    """A struct whose field may be NULL in one batch and not in the next is the same column."""
    columns = StreamColumns(lambda *_: None)
    loose, strict = (
        StructType().add("s", StructType().add("x", LongType(), nullable)) for nullable in (1, 0)
    )
    columns.learn("s", strict)
    columns.learn("s", loose)
    assert columns.get("s") == strict


def test_columns_that_name_code_are_neither_kept_nor_read() -> None:
    """A type of the user's own would have Spark import what a node in ZooKeeper names."""
    kept = {"type": "struct", "fields": [{"name": "v", "type": {"type": "udt", "pyClass": "x.Y"}}]}
    harmless = StructType().add("udt", StringType())
    columns = StreamColumns(print)
    columns.recall({"s": harmless.jsonValue()})
    assert columns.get("s") == harmless
    for bad in (kept, {"type": "nothing"}, {}):
        with pytest.raises(ProgressUnreadableError, match="stream 's' cannot be read"):
            StreamColumns(print).recall({"s": bad})


def test_metadata_is_parsed_on_several_threads() -> None:
    """Old entries go while others come, and nobody meets a dictionary that changes below it."""

    class Metadata(BaseModel):
        n: int

    spout: Any = MemoryTransactionalSpout([], "k string")
    spout.metadata_type = Metadata
    source = Source("s", spout)
    spouts = Spouts("t", [source])

    def parse_many(thread: int) -> int:
        return sum(spouts.parse(source, {"n": thread}).n for _ in range(20_000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(parse_many, range(8))) == [20_000 * n for n in range(8)]
    finally:
        sys.setswitchinterval(before)
