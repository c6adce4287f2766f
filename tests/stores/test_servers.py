"""The S3 server of the tests is one: signatures, conditions, uploads in parts, and Spark on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from obstore.exceptions import BaseError
from pyarrow import table

from tests.stores.proxy import Proxy
from tests.stores.races import check_race, create
from tests.stores.s3 import S3Server, spark_conf, storage_options

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    return s3.bucket(request.node.name)


def test_a_wrong_secret_is_refused(s3: S3Server, bucket: str) -> None:
    """The server checks signatures: who has another secret can neither write nor read."""
    s3.store(bucket).put("a", b"1")
    stranger = s3.store(bucket, secret="guessed")
    with pytest.raises(BaseError, match="SignatureDoesNotMatch"):
        stranger.put("a", b"2")
    with pytest.raises(BaseError, match="403"):
        stranger.get("a")
    assert bytes(s3.store(bucket).get("a").bytes()) == b"1"


def test_a_bucket_per_test(s3: S3Server) -> None:
    """Two buckets of one name are two, and nothing is in them."""
    first, second = s3.bucket("Odd_name[of a test]"), s3.bucket("Odd_name[of a test]")
    s3.store(first).put("a", b"1")
    assert first.startswith("odd-name-of-a-test-")
    assert (s3.keys(first), s3.keys(second)) == (["a"], [])


def test_six_writers_of_one_object(s3: S3Server, bucket: str) -> None:
    """A conditional PUT has one winner."""
    check_race(lambda: s3.store(bucket), rounds=40)


def test_an_upload_in_parts(s3: S3Server, bucket: str) -> None:
    """A large object arrives in parts, and in order."""
    content = bytes(range(256)) * 50_000
    store = s3.store(bucket)
    store.put("large", content, use_multipart=True, chunk_size=5 << 20)
    assert bytes(store.get("large").bytes()) == content


def test_data_and_port_stay_over_a_restart(tmp_path: Path) -> None:
    """A server that was killed comes back where it was, with all that it had."""
    with S3Server(tmp_path) as server:
        bucket = server.bucket("b")
        store = server.store(bucket)
        store.put("a", b"1")
        server.kill()
        with pytest.raises(BaseError):
            store.get("a")
        server.start()
        assert bytes(store.get("a").bytes()) == b"1"
        assert not create(store, "a", b"2")


def test_spark_writes_parquet_and_delta(s3: S3Server, bucket: str, spark: SparkSession) -> None:
    """A session with `S3A_PACKAGES` writes and reads there, and delta-rs reads and appends."""
    for name, value in spark_conf(s3.url, bucket).items():
        spark.conf.set(name, value)
    root = f"s3a://{bucket}"
    spark.range(100).write.parquet(f"{root}/files")
    spark.range(100).write.format("delta").save(f"{root}/table")
    with Proxy(s3.url) as proxy:
        options = storage_options(proxy.url)
        once = CommitProperties(app_transactions=[Transaction("test", 7)], max_commit_retries=0)
        more = table({"id": [100, 101]})
        write_deltalake(
            f"s3://{bucket}/table",
            more,
            mode="append",
            storage_options=options,
            commit_properties=once,
        )
        found = DeltaTable(f"s3://{bucket}/table", storage_options=options)
        assert (found.version(), found.transaction_version("test")) == (1, 7)
        assert proxy.counts()["delta-rs", "PUT IF ABSENT"] == 1
    rows = spark.read.format("delta").load(f"{root}/table")
    assert (spark.read.parquet(f"{root}/files").count(), rows.count()) == (100, 102)
