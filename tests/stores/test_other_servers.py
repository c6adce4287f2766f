"""Azure's, Google's and HDFS's servers, and a second S3 server: each lets one of six writers win.

`make stores` installs them; `make test` runs only what needs no more than the S3 server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.exceptions import BaseError
from pyarrow import table

from tests.stores import azure, gcs, s3
from tests.stores.azure import AzureServer
from tests.stores.gcs import GcsServer
from tests.stores.hdfs import HdfsServer
from tests.stores.proxy import LoseAnswer, Proxy, puts
from tests.stores.races import check_commits, check_race, create
from tests.stores.versity import VersityServer


@dataclass(frozen=True)
class Store:
    """A server that runs, and how it is named and opened."""

    server: Any
    scheme: str
    options: Callable[[str], Mapping[str, str]]


STORES: dict[str, tuple[type[Any], str, Callable[[str], Mapping[str, str]]]] = {
    "azure": (AzureServer, "az", azure.storage_options),
    "gcs": (GcsServer, "gs", gcs.storage_options),
    "versity": (VersityServer, "s3", s3.storage_options),
}


@pytest.fixture(scope="module", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    kind, scheme, options = STORES[request.param]
    with kind(tmp_path_factory.mktemp(request.param)) as server:
        yield Store(server, scheme, options)


@pytest.fixture
def bucket(store: Store) -> str:
    return str(store.server.bucket("test"))


def test_six_writers_of_one_object(store: Store, bucket: str) -> None:
    """A conditional PUT has one winner."""
    check_race(lambda: store.server.store(bucket), rounds=100)


def test_six_writers_of_one_version(store: Store, bucket: str) -> None:
    """delta-rs commits a version once."""
    check_commits(f"{store.scheme}://{bucket}/table", store.options(store.server.url), rounds=10)


def test_a_listing_starts_behind_a_key(store: Store, bucket: str) -> None:
    """A client that knows some of the keys is shown those that follow."""
    client = store.server.store(bucket)
    for number in range(4):
        client.put(f"log/{number}.json", b"")
    pages = client.list("log", offset="log/2")
    assert [found["path"] for page in pages for found in page] == ["log/2.json", "log/3.json"]


def test_what_passes_the_proxy(store: Store, bucket: str) -> None:
    """Requests pass it and are counted; one whose answer is lost has done its work."""
    with Proxy(store.server.url) as proxy:
        rule = proxy.inject(LoseAnswer(), puts("a"), nth=1)
        client = store.server.store(bucket, url=proxy.url)
        with pytest.raises(BaseError):
            client.put("a", b"1", mode="create")
        assert not create(client, "a", b"2")
        assert len(rule.met) == 1
        options = dict(store.options(proxy.url))
        uri = f"{store.scheme}://{bucket}/table"
        write_deltalake(uri, table({"id": [1]}), storage_options=options)
        assert DeltaTable(uri, storage_options=options).version() == 0
        counts = proxy.counts()
        assert (counts["obstore", "PUT IF ABSENT"], counts["delta-rs", "PUT IF ABSENT"]) == (2, 1)


@pytest.mark.parametrize("store", ["azure", "versity"], indirect=True)
def test_a_wrong_secret_is_refused(store: Store, bucket: str) -> None:
    """The server checks signatures."""
    with pytest.raises(BaseError, match="403"):
        store.server.store(bucket, secret="b3BlbiBzZXNhbWU=").put("a", b"1")


def test_six_writers_of_one_version_on_hdfs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """HDFS lets one rename a commit into place, and keeps all of them over a SIGKILL."""
    with HdfsServer(tmp_path_factory.mktemp("hdfs")) as server:
        check_commits(f"{server.url}/table", {}, rounds=10)
        server.kill()
        server.start()
        assert DeltaTable(f"{server.url}/table").version() == 10
