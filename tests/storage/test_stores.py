"""Every store keeps the contract of stores; what is one store's own stands below."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TypeVar

import pytest

from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from spouts.files.folder.listing import Listing
from tests.children import LOOPBACK, free_ports
from tests.storage.store_contract import Place, StoreContract
from tests.stores.azure import AzureServer
from tests.stores.azure import storage_options as azure_options
from tests.stores.gcs import GcsServer
from tests.stores.gcs import storage_options as google_options
from tests.stores.hdfs import HdfsServer
from tests.stores.proxy import Answer, Fail, Forward, LoseAnswer, Proxy, Request, lists, puts
from tests.stores.s3 import S3Server, storage_options
from txn import Topology
from txn.errors import StorageRefusedError, TopologyError
from txn.storage import local
from txn.storage.opening import open_store
from txn.storage.retrying import is_momentary, is_refusal
from txn.storage.storage import Storage
from txn.storage.store import Store

S = TypeVar("S")


class TestLocal(StoreContract):
    """A folder of this machine."""

    has_versions = False

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """A folder that is not there yet."""
        return Place(str(tmp_path / "new" / "t"))

    def test_a_failed_write_leaves_nothing(
        self, store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that is full leaves no file of a hidden name behind."""

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        store.put("log/0", b"1")
        monkeypatch.setattr(os, "link", full)
        monkeypatch.setattr(os, "replace", full)
        for write in (store.put, store.put_if_absent):
            with pytest.raises(OSError, match="No space"):
                write("log/1", b"2")
        assert os.listdir(f"{place.location}/log") == ["0"]

    def test_links_are_followed_and_deleted_as_links(self, store: Store, tmp_path: Path) -> None:
        """Data that was moved to another disk is found; deleting takes the link alone."""
        (tmp_path / "disk" / "d").mkdir(parents=True)
        (tmp_path / "disk" / "d" / "f").write_text("1")
        store.put("data/x", b"1")
        folder = tmp_path / "new" / "t"
        (folder / "linked").symlink_to(tmp_path / "disk")
        (folder / "broken").symlink_to(tmp_path / "nowhere")
        assert [entry.path for entry in store.walk()] == ["data/x", "linked/d/f"]
        assert store.children()[0] == ["data", "linked"]
        store.delete_folder("linked")
        assert (tmp_path / "disk" / "d" / "f").read_text() == "1"
        assert sorted(os.listdir(folder)) == ["broken", "data"]

    def test_a_disk_that_is_away_is_no_empty_folder(self, store: Store, tmp_path: Path) -> None:
        """A mount that fails every look is momentary, and never "nothing there"."""
        (tmp_path / "new").symlink_to(tmp_path / "new")
        asked = {
            "get": lambda: store.get("x"),
            "beginning": lambda: store.beginning("x", 1),
            "tail": lambda: store.tail("x", 1),
            "head": lambda: store.head(["x"]),
            "walk": lambda: [*store.walk()],
            "children": store.children,
            "put": lambda: store.put("x", b""),
            "put_if_absent": lambda: store.put_if_absent("x", b""),
            "delete": lambda: store.delete(["x"]),
            "delete_folder": lambda: store.delete_folder("x"),
        }
        for name, ask in asked.items():
            with pytest.raises(OSError, match="symbolic links") as raised:
                ask()
            assert is_momentary(raised.value), name


NO_LINKS = """
import errno, os
def refused(*_):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
os.link = refused
"""


class TestWithoutHardLinks(StoreContract):
    """A folder on a file system that has no hard links, such as FAT."""

    has_versions = False

    @pytest.fixture
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
        """Here and in every other process, the system refuses to link."""

        def refused(*_: object) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refused)
        return Place(str(tmp_path / "t"), prelude=NO_LINKS)

    def test_without_a_conditional_rename_it_is_refused(
        self, store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where neither is there, nothing is written that another writer could overwrite."""
        monkeypatch.setattr(local, "_RENAME_NOREPLACE", 1 << 30)  # a flag that no kernel knows
        with pytest.raises(OSError, match="neither link a file nor rename it") as raised:
            store.put_if_absent("log/0", b"1")
        assert is_refusal(raised.value)
        assert os.listdir(f"{place.location}/log") == []


def served(name: str, kind: Callable[[Path], AbstractContextManager[S]]) -> Callable[..., object]:
    """The fixture of that name: a server of this module."""

    @pytest.fixture(scope="module", name=name)
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S]:
        with kind(tmp_path_factory.mktemp(name)) as started:
            yield started

    return server


azure = served("azure", AzureServer)
google = served("google", GcsServer)
hdfs = served("hdfs", HdfsServer)


class TestAzure(StoreContract):
    """A server of Azure's Blob API."""

    @pytest.fixture
    def place(self, azure: AzureServer, request: pytest.FixtureRequest) -> Place:
        """A folder in a container of its own."""
        name = azure.bucket(request.node.name)
        return Place(f"az://{name}/lake/t", azure_options(azure.url))


class TestGoogle(StoreContract):
    """A server of Google's XML API, as far as an S3 server can stand in for it."""

    @pytest.fixture
    def place(self, google: GcsServer, request: pytest.FixtureRequest) -> Place:
        """A folder in a bucket of its own."""
        return Place(f"gs://{google.bucket(request.node.name)}/t", google_options(google.url))


class TestHdfs(StoreContract):
    """A name node and a data node."""

    has_versions = False

    @pytest.fixture
    def place(self, hdfs: HdfsServer, tmp_path: Path) -> Place:
        """A folder of its own."""
        return Place(f"{hdfs.url}/{tmp_path.name}/t")

    def test_a_server_that_goes_away_is_momentary(self, hdfs: HdfsServer, store: Store) -> None:
        """And it is served again when it is back."""
        store.put("x", b"1")
        hdfs.kill()
        try:
            began = time.monotonic()
            with pytest.raises(OSError, match="refused") as raised:
                store.get("x")
            assert is_momentary(raised.value)
            assert time.monotonic() - began < 20
        finally:
            hdfs.start()
        assert store.head(["x"]) != [None]


class TestS3(StoreContract):
    """An S3 server over HTTP."""

    @pytest.fixture
    def place(self, s3: S3Server, request: pytest.FixtureRequest) -> Place:
        """A folder in a bucket of its own."""
        name = s3.bucket(request.node.name)
        return Place(f"s3a://{name}/lake/t", storage_options(s3.url))

    def test_the_bucket_itself(self, s3: S3Server) -> None:
        """A location without a folder is all of the bucket, as a source may be."""
        name = s3.bucket("whole")
        store = Place(f"s3://{name}", storage_options(s3.url)).open()
        assert store.put_if_absent("a/b", b"1")
        assert s3.keys(name) == ["a/b"]
        assert [entry.path for entry in store.walk()] == ["a/b"]

    def test_markers_of_folders_are_no_files(self, s3: S3Server, place: Place) -> None:
        """Hadoop and consoles show a folder by an empty object `folder/`; a listing passes it over.

        An empty file with a name of its own is one.
        """
        store = place.open()
        store.put("data/k=1/x", b"1")
        store.put("data/empty", b"")
        with Proxy(s3.url) as proxy:
            proxy.inject(Marked(("lake/t/", "lake/t/data/", "lake/t/data/k=1/")), when=lists())
            through = at(s3, *place.location.split("/", 3)[2:], aws_endpoint_url=proxy.url)
            assert [entry.path for entry in through.walk()] == ["data/empty", "data/k=1/x"]
            assert [entry.path for entry in through.walk("data/k=1")] == ["data/k=1/x"]
            assert through.children("data") == store.children("data")
            assert through.children() == (["data"], [])


@dataclass(frozen=True)
class Marked:
    """A listing of S3 also shows these empty objects, in their places."""

    keys: tuple[str, ...]

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        answer = await forward(request)
        prefix, is_flat = request.query["prefix"], "delimiter" not in request.query
        listed = re.findall(rb"<Contents>.*?</Contents>", answer.body, re.DOTALL)
        marks = [
            b"<Contents><Key>%b</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            b'<ETag>"d4"</ETag><Size>0</Size></Contents>' % key.encode()
            for key in self.keys
            if key.startswith(prefix) and (is_flat or key == prefix)
        ]
        body = re.sub(rb"<Contents>.*?</Contents>", b"", answer.body, flags=re.DOTALL)
        all_of_them = b"".join(sorted([*listed, *marks]))
        body = body.replace(b"</ListBucketResult>", all_of_them + b"</ListBucketResult>")
        kept = tuple(one for one in answer.headers if one[0].lower() != "content-length")
        return Answer(answer.status, (*kept, ("Content-Length", str(len(body)))), body)


def at(s3: S3Server, bucket: str, folder: str = "t", **changes: str) -> Store:
    """A store of a bucket with other options than it should have."""
    return open_store(f"s3://{bucket}/{folder}", {**storage_options(s3.url), **changes})[0]


def asked(store: Store) -> dict[str, Callable[[], object]]:
    """One question of each kind."""
    return {
        "get": lambda: store.get("x"),
        "beginning": lambda: store.beginning("x", 8),
        "tail": lambda: store.tail("x", 8),
        "head": lambda: store.head(["x"]),
        "walk": lambda: [*store.walk()],
        "children": store.children,
        "put": lambda: store.put("x", b"1"),
        "put_if_absent": lambda: store.put_if_absent("x", b"1"),
        "delete": lambda: store.delete(["x"]),
    }


def judged(store: Store) -> dict[str, str]:
    """What became of each question: an error's kind, or the answer."""
    found = {}
    for name, ask in asked(store).items():
        try:
            found[name] = repr(ask())
        except Exception as error:  # noqa: BLE001 - its kind is what is judged
            kinds = {"refused": is_refusal(error), "momentary": is_momentary(error)}
            found[name] = " and ".join(kind for kind, so in kinds.items() if so) or repr(error)
    return found


@pytest.mark.parametrize("changed", ["aws_access_key_id", "aws_secret_access_key"])
def test_wrong_credentials_are_refused(s3: S3Server, changed: str) -> None:
    """Every question says so for good, and no message has the key's secret in it."""
    store = at(s3, s3.bucket("refused"), **{changed: "not-4711"})
    assert set(judged(store).values()) == {"refused"}


def test_a_bucket_that_is_not_there_is_refused(s3: S3Server) -> None:
    """It is no empty folder; only a look at a file (HEAD) cannot tell the two apart."""
    found = judged(at(s3, "nowhere-at-all"))
    assert found.pop("head") == "[None]"
    assert found.pop("delete") == "None"  # this server says so; S3 itself refuses that, too
    assert set(found.values()) == {"refused"}, found


def test_a_server_that_is_away_is_momentary(s3: S3Server) -> None:
    """Every question may be asked again later."""
    (port,) = free_ports(1)
    found = judged(at(s3, "any", aws_endpoint_url=f"http://{LOOPBACK}:{port}"))
    assert set(found.values()) == {"momentary"}, found


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError")])
def test_a_server_in_trouble_is_momentary_and_asked_once(
    s3: S3Server, status: int, code: str
) -> None:
    """The client repeats nothing by itself: one question is one request."""
    name = s3.bucket("trouble")
    with Proxy(s3.url) as proxy:
        proxy.inject(Fail(status, code))
        found = judged(at(s3, name, aws_endpoint_url=proxy.url))
        assert set(found.values()) == {"momentary"}, found
        assert len(proxy.log) == len(found)


def test_a_conditional_write_whose_answer_is_lost(s3: S3Server) -> None:
    """It raises, is not repeated, and what it wrote is there: the caller has to look."""
    name = s3.bucket("lost")
    with Proxy(s3.url) as proxy:
        proxy.inject(LoseAnswer(), when=puts(), nth=1)
        store = at(s3, name, aws_endpoint_url=proxy.url)
        with pytest.raises(Exception, match="Generic S3 error") as raised:
            store.put_if_absent("log/0", b"mine")
        assert is_momentary(raised.value)
        assert not store.put_if_absent("log/0", b"mine")
        assert store.get("log/0") == b"mine"
        assert [entry.operation for entry in proxy.log] == ["PUT IF ABSENT"] * 2 + ["GET"]


def test_writes_that_cross_say_nothing_about_the_file(s3: S3Server) -> None:
    """S3's 409 is no "somebody was first": nothing need be there."""
    name = s3.bucket("crossed")
    with Proxy(s3.url) as proxy:
        proxy.inject(Fail(409, "ConditionalRequestConflict"), when=puts(), nth=1)
        store = at(s3, name, aws_endpoint_url=proxy.url)
        with pytest.raises(OSError, match="crossed another one") as raised:
            store.put_if_absent("log/0", b"mine")
        assert is_momentary(raised.value)
        assert store.get("log/0") is None
        assert store.put_if_absent("log/0", b"mine")


def test_requests_are_counted(s3: S3Server) -> None:
    """One request each, one per file of a look, one per thousand of a listing or a deletion."""
    name = s3.bucket("counted")
    with Proxy(s3.url) as proxy:
        store = at(s3, name, aws_endpoint_url=proxy.url)
        with ThreadPoolExecutor(16) as pool:
            [*pool.map(lambda n: store.put(f"d/{n:04}", b"x" * n), range(1001))]
        steps: dict[str, Callable[[], object]] = {
            "GET": lambda: (store.get("d/0001"), store.tail("d/0900", 8)),
            "HEAD": lambda: store.head([f"d/{n:04}" for n in range(5)]),
            "LIST": lambda: ([*store.walk()], [*store.walk(after="d/0990")]),
            "PUT IF ABSENT": lambda: store.put_if_absent("d/x", b""),
            "DELETE MANY": lambda: store.delete([f"d/{n:04}" for n in range(1001)]),
        }
        told = {}
        for operation, step in steps.items():
            proxy.forget()
            step()
            assert {entry.operation for entry in proxy.log} == {operation}
            told[operation] = len(proxy.log)
        assert told == {"GET": 2, "HEAD": 5, "LIST": 3, "PUT IF ABSENT": 1, "DELETE MANY": 2}


def test_opening_asks_nobody(s3: S3Server) -> None:
    """A store, a table, a source and a plan of them are made without one request."""
    with Proxy(s3.url) as proxy:
        options = {**storage_options(proxy.url)}
        table = AppendTable("s3://nowhere/t", storage_options=options)
        StateTable("s3a://nowhere/s", semantics="opaque", storage_options=options)
        source = FileSpout("s3://nowhere/in/*.csv", format="csv", storage_options=options)
        topology = Topology("lazy")
        topology.stream("in", source).partition_persist(table)
        topology.stream("d", DeltaSpout("s3://nowhere/d", storage_options=options))
        assert proxy.log == []
        assert open_store("s3://nowhere/t", options)[0].head(["x"]) == [None]
        assert len(proxy.log) == 1


@pytest.mark.parametrize("shout", [str.lower, str.upper])
def test_options_in_either_case(s3: S3Server, shout: Callable[[str], str]) -> None:
    """Names of options are those of object_store, in upper or lower case; delta-rs's own pass."""
    name = s3.bucket("case")
    options = {**storage_options(s3.url), "max_retries": "3", "aws_s3_allow_unsafe_rename": "true"}
    store, _ = open_store(f"s3://{name}/t", {shout(k): v for k, v in options.items()})
    assert store.put_if_absent("x", b"1")


NO_PATHS = ["in//x", "in/./x", "in/a\x7fb"]


class Lists(BaseHTTPRequestHandler):
    """An S3 with one object in each bucket, which is named by the number of its key."""

    def do_GET(self) -> None:
        """A listing."""
        key = NO_PATHS[int(self.path.split("/")[1].split("?")[0])]
        body = (
            "<ListBucketResult><Contents><Size>1</Size>"
            f"<Key>{key}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
            "</Contents></ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("bucket", range(len(NO_PATHS)))
def test_a_key_that_is_no_path_is_named(bucket: int) -> None:
    """Object_store cannot list past it: the error says which one it is, and what to do."""
    with ThreadingHTTPServer((LOOPBACK, 0), Lists) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        options = storage_options(f"http://{LOOPBACK}:{server.server_port}")
        storage = Storage(f"s3://{bucket}/in", options)
        listing = Listing(f"s3://{bucket}/in/*.txt", options)
        for ask in (lambda: storage.files("x"), storage.entries, listing.names):
            with pytest.raises(StorageRefusedError, match="Rename or delete that object") as told:
                ask()
            assert f'Path "{NO_PATHS[bucket]}"' in str(told.value)
            assert told.value.number == "TXN-701"
        server.shutdown()


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("s3", "aws_endpoint_url"),
        ("s3", "endpoint"),
        ("s3", "aws_endpoint_url_s3"),
        ("az", "AZURE_ENDPOINT"),
        ("gs", "google_base_url"),
        ("s3", "$AWS_ENDPOINT_URL"),
        ("s3", "$AWS_ENDPOINT_URL_S3"),
        ("az", "$AZURE_STORAGE_ENDPOINT"),
    ],
)
def test_an_endpoint_with_credentials_is_refused(
    scheme: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's messages show the URL that it asked, wherever it comes from (`$`: out of the
    environment); this one shows neither user nor password.
    """
    url, options = "http://me:4711@127.0.0.1:9", {}
    if name.startswith("$"):
        monkeypatch.setenv(name[1:], url)
    else:
        options = {name: url}
    store, _ = open_store(f"{scheme}://b/t", options)
    with pytest.raises(
        TopologyError, match=f"{name.strip('$')} has credentials before its host"
    ) as told:
        store.get("a")
    assert "4711" not in str(told.value)


def test_a_proxy_may_have_credentials() -> None:
    """It has no other place for them, and no message shows them."""
    options = {**storage_options("http://127.0.0.1:9"), "proxy_url": "http://me:4711@127.0.0.1:9"}
    store, _ = open_store("s3://b/t", options)
    with pytest.raises(Exception, match="error sending request") as told:
        store.get("a")
    assert is_momentary(told.value)
    assert "4711" not in str(told.value)


def test_a_misspelt_option_is_refused() -> None:
    """It is not passed over, and its value is not shown."""
    store, _ = open_store("s3://b/t", {"aws_secret_acces_key": "4711"})
    with pytest.raises(TopologyError, match="aws_secret_acces_key") as raised:
        store.get("x")
    assert "4711" not in str(raised.value)
