"""One `storage_options` reaches everything: our reads, delta-rs, and Spark by its own client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from tests.stores.s3 import S3Server, storage_options
from txn import Topology
from txn.storage.opening import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def lake(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """A bucket of the test's own, which nothing but `storage_options` leads to."""
    return s3.bucket(request.node.name)


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_a_topology_on_s3_needs_its_storage_options_alone(
    spark: SparkSession, s3: S3Server, lake: str, tmp_path: Path, layout: Any
) -> None:
    """Files are read, rows appended, totals kept, and both tables read again, by `s3://` URLs.

    Neither the environment nor Spark's settings know the server.
    """
    options = storage_options(s3.url)
    store, _ = open_store(f"s3://{lake}/in", options)
    for n in range(3):
        store.put(f"{n}.csv", f"a,{n}\nb,10\n".encode())
    rows = AppendTable(f"s3://{lake}/rows", storage_options=options)
    totals = StateTable(f"s3a://{lake}/totals", layout=layout, storage_options=options)
    source = FileSpout(
        f"s3://{lake}/in/*.csv", format="csv", schema="k string, v long", storage_options=options
    )
    topology = Topology("on_s3")
    stream = topology.stream("s", source)
    stream.partition_persist(rows)
    stream.group_by("k").persistent_aggregate(totals, n=Count(), total=Sum("v"))
    zookeeper = f"embedded:{tmp_path}/zookeeper"
    topology.run(spark, zookeeper=zookeeper, until="caught_up")

    found = sorted(map(tuple, totals.read(spark).collect()))
    assert found == [("a", 3, 3), ("b", 3, 30)]
    again = Topology("reads_it")
    copied = AppendTable(str(tmp_path / "copied"))
    second = again.stream("rows", DeltaSpout(f"s3a://{lake}/rows", storage_options=options))
    second.transform(lambda frame: frame.select("k", "v")).partition_persist(copied)
    again.run(spark, zookeeper=zookeeper, until="caught_up")
    assert spark.read.format("delta").load(str(tmp_path / "copied")).count() == 6
