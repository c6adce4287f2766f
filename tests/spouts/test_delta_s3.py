"""A Delta table in an object store as a spout: its options alone lead to it, Spark included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spouts.delta import DeltaBatch, DeltaSpout
from tests.stores.proxy import Proxy
from tests.stores.s3 import S3Server, storage_options
from txn.attempts import TransactionAttempt
from txn.errors import SourceChangedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPT = TransactionAttempt(1)


def first(spout: DeltaSpout) -> DeltaBatch:
    """The first batch, as it comes back out of ZooKeeper."""
    batch = spout.initialize_transaction(ATTEMPT, None)
    assert batch is not None
    return DeltaBatch.model_validate_json(batch.model_dump_json())


def test_partitions_are_read_by_the_options_alone(
    spark: SparkSession, s3: S3Server, request: pytest.FixtureRequest
) -> None:
    """Rows and partition columns come out of S3, planned by the driver and read by Spark; a version
    whose file is gone is refused.
    """
    options = storage_options(s3.url)
    bucket = s3.bucket(request.node.name)
    table = f"s3://{bucket}/orders"
    rows = pa.table({"v": [1, 2, 3], "day": ["mo", "tu", "mo"]})
    write_deltalake(table, rows, partition_by=["day"], storage_options=options)
    spout = DeltaSpout(table, storage_options=options)
    spout.open(spark, None)
    batch = first(spout)
    found = spout.emit_batch(spark, ATTEMPT, batch)
    assert sorted(map(tuple, found.collect())) == [(1, "mo"), (2, "tu"), (3, "mo")]
    assert list(spout.parts_read(found, batch)) == list(spout.planned_parts(batch))
    (gone,) = [key for key in s3.keys(bucket) if "day=tu" in key]
    (s3.folder / "data" / bucket / gone).unlink()
    with pytest.raises(SourceChangedError):
        spout.emit_batch(spark, ATTEMPT, batch)


def test_changes_are_read_by_the_options_alone(
    spark: SparkSession, s3: S3Server, request: pytest.FixtureRequest
) -> None:
    """The change data feed, which Delta's own reader reads, too."""
    options = storage_options(s3.url)
    table = f"s3a://{s3.bucket(request.node.name)}/orders"
    feed = {"delta.enableChangeDataFeed": "true"}
    rows = pa.table({"v": [1, 2]})
    write_deltalake(table, rows, configuration=feed, storage_options=options)
    spout = DeltaSpout(table, changes=True, storage_options=options)
    spout.open(spark, None)
    found = spout.emit_batch(spark, ATTEMPT, first(spout))
    assert sorted((r["v"], r["_change_type"]) for r in found.collect()) == [
        (1, "insert"),
        (2, "insert"),
    ]


@pytest.mark.parametrize(("every", "looks"), [(None, 4), (2.0, 2)])
def test_an_idle_source_looks_once_a_second(
    s3: S3Server, request: pytest.FixtureRequest, every: float | None, looks: int
) -> None:
    """However often it is asked; while there is something to read, it never waits."""
    bucket, now = s3.bucket(request.node.name), 0.0
    with Proxy(s3.url) as proxy:
        options = storage_options(proxy.url)
        table = f"s3://{bucket}/orders"
        for value in range(3):
            row = pa.table({"v": [value]})
            write_deltalake(table, row, mode="append", storage_options=options)
        more: dict[str, Any] = {} if every is None else {"look_every_secs": every}
        spout = DeltaSpout(table, storage_options=options, **more)
        spout._monotonic = lambda: now
        nothing: Any = None
        spout.open(nothing, None)
        batch = first(spout)
        for _ in range(2):
            after = spout.initialize_transaction(ATTEMPT, batch)
            assert after is not None
            batch = after
        proxy.log.clear()
        for tenth in range(31):
            now = tenth / 10
            assert spout.initialize_transaction(ATTEMPT, batch) is None
        assert proxy.counts("operation")["LIST",] == looks
        spout.open(nothing, batch)  # another run begins with a look
        proxy.log.clear()
        assert spout.initialize_transaction(ATTEMPT, batch) is None
        assert proxy.counts("operation")["LIST",] == 1
