"""A table's folder: what stands between its users and the store."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.stores.proxy import Fail, LoseAnswer, Proxy, lists, puts
from tests.stores.s3 import S3Server, storage_options
from txn.errors import StorageRefusedError, StorageUnavailableError, TopologyError
from txn.storage.profiles import profile_for
from txn.storage.retrying import is_momentary
from txn.storage.storage import Storage


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """A bucket of the test's own."""
    return s3.bucket(request.node.name)


def test_a_footer_is_one_request_and_a_long_one_two(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    """As Parquet's own reader has it, of few columns or of many."""
    few, many = tmp_path / "few", tmp_path / "many"
    parquet.write_table(pa.table({"v": range(50_000)}), few)
    wide = {f"a column with a long name {n:05}": [n] for n in range(1_000)}
    parquet.write_table(pa.table(wide), many)
    with Proxy(s3.url) as proxy:
        remote = Storage(f"s3://{bucket}/t", storage_options(proxy.url))
        for path, requests in ((few, 1), (many, 2)):
            data = path.read_bytes()
            remote.write(path.name, data)
            proxy.forget()
            for storage in (remote, Storage(str(tmp_path))):
                found = storage.footer(path.name, len(data))
                assert found is not None
                assert found.equals(parquet.read_metadata(path))
            assert [entry.operation for entry in proxy.log] == ["GET"] * requests
            assert max(entry.sent for entry in proxy.log[:1]) <= 65_536
        assert remote.footer("nowhere", 100) is None
        remote.write("no-parquet", b"x" * 100)
        with pytest.raises(pa.ArrowInvalid):
            remote.footer("no-parquet", 100)


def test_what_may_be_repeated_is(s3: S3Server, bucket: str) -> None:
    """Reading, listing, replacing and deleting are; a conditional write is asked for once."""
    with Proxy(s3.url) as proxy:
        storage = Storage(f"s3://{bucket}/t", storage_options(proxy.url))

        def twice(action: object) -> int:
            proxy.forget()
            proxy.clear()
            proxy.inject(Fail(503, "SlowDown"), nth=1)
            assert callable(action)
            action()
            return len(proxy.log)

        assert twice(lambda: storage.write("x", b"1")) == 2
        assert twice(lambda: storage.read("x")) == 2
        assert twice(lambda: storage.sizes(["x"])) == 2
        assert twice(lambda: storage.files("")) == 2
        assert twice(storage.entries) == 2
        assert twice(lambda: storage.delete_files(["x"])) == 2
        proxy.clear()
        proxy.inject(LoseAnswer(503), when=puts(), nth=1)
        proxy.forget()
        with pytest.raises(Exception, match="503") as raised:
            storage.put_if_absent("y", b"mine")
        assert is_momentary(raised.value)
        assert [entry.operation for entry in proxy.log] == ["PUT IF ABSENT"]
        assert storage.read("y") == b"mine"


def test_an_error_is_one_sentence_with_the_place(s3: S3Server, bucket: str) -> None:
    """The secret is neither in it nor in what the client said."""
    options = {**storage_options(s3.url), "aws_secret_access_key": "not-4711"}
    with pytest.raises(StorageRefusedError, match="read 'x' of table s3a://") as raised:
        Storage(f"s3a://{bucket}/t", options).read("x")
    assert "403 Forbidden" in str(raised.value)
    assert "4711" not in str(raised.value)
    assert "4711" not in repr(raised.value.__cause__)


def test_a_listing_that_fails_on_its_second_page_begins_anew(s3: S3Server, bucket: str) -> None:
    """No file is missing from it, and none is there twice."""
    with Proxy(s3.url) as proxy:
        storage = Storage(f"s3://{bucket}/t", storage_options(proxy.url))
        (s3.folder / "data" / bucket / "t").mkdir()
        for n in range(1_001):
            (s3.folder / "data" / bucket / "t" / f"{n:04}").touch()
        proxy.inject(Fail(500, "InternalError"), when=lists(), nth=2)
        assert len(storage.files("")) == 1_001
        assert len(proxy.log) == 4


def test_a_server_that_stays_away_is_waited_for() -> None:
    """Until the deadline of a retried call; then the batch waits, and its reason is a sentence."""
    options = storage_options("http://127.0.0.1:9")  # nobody listens on "discard"
    with pytest.raises(
        StorageUnavailableError, match="could not read 'x' of table s3://b/t"
    ) as raised:
        Storage("s3://b/t", options).read("x")
    assert "error sending request. A batch waits" in str(raised.value)


PROFILES = "[other]\naws_access_key_id = {}\naws_secret_access_key = {}\nregion = eu-central-1\n"


def test_credentials_of_a_profile(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS's files are read where nothing nearer has credentials, and a wrong profile is named."""
    options = storage_options(s3.url)
    key, secret = options.pop("aws_access_key_id"), options.pop("aws_secret_access_key")
    (tmp_path / "credentials").write_text(PROFILES.format(key, secret))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert profile_for(options) is None
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(TopologyError, match="profile 'default'.*it has no credentials"):
        Storage(f"s3://{bucket}/t", options).read("x")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(TopologyError, match="profile 'nobody'"):
        Storage(f"s3://{bucket}/t", options).read("x")
    monkeypatch.setenv("AWS_PROFILE", "other")
    found = profile_for(options)
    assert found is not None
    assert found.region == "eu-central-1"
    assert Storage(f"s3://{bucket}/t", options).put_if_absent("x", b"1")
    assert profile_for({"AWS_ACCESS_KEY_ID": "id"}) is None
    assert profile_for({"aws_skip_signature": "true"}) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    assert profile_for(options) is None
