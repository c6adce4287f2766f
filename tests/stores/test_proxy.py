"""The proxy counts what passes, hands signatures on, and each of its faults reaches a client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.client import HTTPConnection

import pytest
from deltalake import write_deltalake
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from pyarrow import table

from tests.children import wait_until
from tests.stores.proxy import (
    Delay,
    Fail,
    Fault,
    HideNew,
    Hold,
    Late,
    LoseAnswer,
    Proxy,
    Repeat,
    Reset,
    Skew,
    lists,
    puts,
)
from tests.stores.races import check_race, create
from tests.stores.s3 import S3Server, storage_options


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    return s3.bucket(request.node.name)


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[Proxy]:
    with Proxy(s3.url) as proxy:
        yield proxy


@pytest.fixture
def store(s3: S3Server, proxy: Proxy, bucket: str) -> S3Store:
    """A client by way of the proxy; it never retries."""
    return s3.store(bucket, url=proxy.url)


def seen(proxy: Proxy) -> list[tuple[str, str, int]]:
    return [(entry.operation, entry.key, entry.status) for entry in proxy.log]


def names(store: S3Store) -> list[str]:
    """The keys as a client lists them."""
    return [str(found["path"]) for page in store.list() for found in page]


# --- what passes -------------------------------------------------------------------------------


def test_an_error_to_a_look_leaves_its_connection_usable(proxy: Proxy, bucket: str) -> None:
    """An answer to a HEAD has no body, a fault's neither: the client finds the next answer."""
    proxy.inject(Fail(503, "SlowDown"), nth=1)
    connection = HTTPConnection(proxy.url.removeprefix("http://"), timeout=10)
    for method, status in (("HEAD", 503), ("GET", 404)):
        connection.request(method, f"/{bucket}/a")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()


def test_every_request_is_written_down(proxy: Proxy, store: S3Store) -> None:
    """Operation, key, status and bytes of each request stand in the log, in order."""
    store.put("folder/a b", b"12345")
    store.get("folder/a b").bytes()
    store.head("folder/a b")
    assert not create(store, "folder/a b", b"")
    names(store)
    store.copy("folder/a b", "c")
    store.delete(["folder/a b", "c"])
    assert seen(proxy) == [
        ("PUT", "folder/a b", 200),
        ("GET", "folder/a b", 200),
        ("HEAD", "folder/a b", 200),
        ("PUT IF ABSENT", "folder/a b", 412),
        ("LIST", "", 200),
        ("COPY", "c", 200),
        ("DELETE MANY", "", 200),
    ]
    put, get, head = proxy.log[:3]
    assert [(one.received, one.sent) for one in (put, get, head)] == [(5, 0), (0, 5), (0, 0)]


def test_clients_are_told_apart(proxy: Proxy, store: S3Store, bucket: str) -> None:
    """delta-rs and obstore, both Rust's object_store, are counted each by itself."""
    store.put("a", b"1")
    options = storage_options(proxy.url)
    write_deltalake(f"s3://{bucket}/table", table({"id": [1]}), storage_options=options)
    counts = proxy.counts()
    assert {client for client, _ in counts} == {"obstore", "delta-rs"}
    assert (counts["obstore", "PUT"], counts["delta-rs", "PUT IF ABSENT"]) == (1, 1)
    puts_only = {key: n for key, n in proxy.counts("operation", "kind").items() if "PUT" in key[0]}
    assert puts_only == {("PUT", "data"): 2, ("PUT IF ABSENT", "commit"): 1}


def test_signatures_stay_valid_and_are_checked(
    s3: S3Server, proxy: Proxy, store: S3Store, bucket: str
) -> None:
    """A signed request passes; one with a wrong secret is refused by the server behind."""
    store.put("a", b"1")
    with pytest.raises(BaseError, match="SignatureDoesNotMatch"):
        s3.store(bucket, url=proxy.url, secret="guessed").put("a", b"2")
    assert seen(proxy) == [("PUT", "a", 200), ("PUT", "a", 403)]


def test_large_and_empty_objects_pass(store: S3Store) -> None:
    """Bodies arrive as they were sent: of no bytes, and of many in parts."""
    content = bytes(range(256)) * 50_000
    store.put("large", content, use_multipart=True, chunk_size=5 << 20)
    store.put("empty", b"")
    assert bytes(store.get("large").bytes()) == content
    assert bytes(store.get("empty").bytes()) == b""
    assert store.head("large")["size"] == len(content)
    assert bytes(store.get_range("large", start=256, end=259)) == bytes([0, 1, 2])


def test_many_clients_at_once(s3: S3Server, proxy: Proxy, bucket: str) -> None:
    """A race through the proxy has one winner a round, too."""
    check_race(lambda: s3.store(bucket, url=proxy.url), rounds=20)
    won = [
        entry for entry in proxy.log if entry.operation == "PUT IF ABSENT" and entry.status < 300
    ]
    assert len(won) == 20


def test_latency_is_added_to_each_request(proxy: Proxy, store: S3Store) -> None:
    """A request takes at least as long as it was given, and many at once wait side by side."""
    store.put("warm", b"")
    proxy.forget()
    proxy.latency = 0.8
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(str(number), b"1"), range(8)))
    assert 0.8 <= min(entry.secs for entry in proxy.log)
    assert time.monotonic() - began < 8 * 0.8


# --- faults before the server ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (Fail(503, "SlowDown"), 503, "SlowDown"),
        (Fail(500, "InternalError"), 500, "InternalError"),
        (Reset(), 0, "error sending request|connection"),
    ],
    ids=["slow down", "internal error", "reset"],
)
def test_the_server_never_hears_of_it(
    s3: S3Server,
    proxy: Proxy,
    store: S3Store,
    bucket: str,
    fault: Fault,
    status: int,
    words: str,
) -> None:
    """The second PUT fails, and nothing of it arrives; the others do."""
    rule = proxy.inject(fault, puts(), nth=2)
    store.put("a", b"1")
    with pytest.raises(BaseError, match=words):
        store.put("b", b"2")
    store.put("c", b"3")
    assert s3.keys(bucket) == ["a", "c"]
    wait_until(lambda: len(proxy.log) == 3, "the request is in the log")
    assert [(entry.status, entry.faults) for entry in proxy.log] == [
        (200, ()),
        (status, (type(fault).__name__,)),
        (200, ()),
    ]
    assert [request.key for request in rule.met] == ["b"]


def test_a_request_meets_the_newest_rule_first(proxy: Proxy, store: S3Store) -> None:
    """A rule counts what comes to it: what a newer one has refused does not."""
    lost = proxy.inject(LoseAnswer(500), puts(), nth=1)
    proxy.inject(Fail(503), puts(), nth=1)
    assert [succeeds(store, key) for key in "abc"] == [False, False, True]
    assert [request.key for request in lost.met] == ["b"]
    assert [entry.faults for entry in proxy.log] == [("Fail",), ("LoseAnswer",), ()]


def test_a_probability_is_the_same_each_time(proxy: Proxy, store: S3Store) -> None:
    """A seeded rule hits the same requests again, and some of them only."""

    def failed() -> list[int]:
        proxy.clear()
        proxy.inject(Fail(), puts("x"), probability=0.3, seed=7)
        return [number for number in range(30) if not succeeds(store, f"x{number}")]

    first = failed()
    assert 3 < len(first) < 20
    assert failed() == first


def succeeds(store: S3Store, key: str) -> bool:
    try:
        store.put(key, b"")
    except BaseError:
        return False
    return True


def test_a_client_that_retries_gets_through(proxy: Proxy, bucket: str) -> None:
    """delta-rs, which retries, commits through two refusals of its commit."""
    proxy.inject(Fail(), puts("_delta_log/"), nth=(1, 2))
    options = storage_options(proxy.url)
    write_deltalake(f"s3://{bucket}/table", table({"id": [1]}), storage_options=options)
    commits = [entry.status for entry in proxy.log if entry.key.endswith("0.json")]
    assert commits[:3] == [503, 503, 200]


# --- faults behind the server ------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 500])
def test_an_answer_that_is_lost(
    s3: S3Server, proxy: Proxy, store: S3Store, bucket: str, status: int
) -> None:
    """The client fails, and what it wrote is there: a second try finds it taken."""
    proxy.inject(LoseAnswer(status), puts(), nth=1)
    with pytest.raises(BaseError) as failed:
        store.put("a", b"1", mode="create")
    assert not isinstance(failed.value, AlreadyExistsError)
    assert s3.keys(bucket) == ["a"]
    with pytest.raises(AlreadyExistsError):
        store.put("a", b"2", mode="create")


def test_a_put_that_lands_late(s3: S3Server, proxy: Proxy, store: S3Store, bucket: str) -> None:
    """The client is told 500, somebody else takes its place, and the late one overwrites it."""
    proxy.inject(Late(0.3), puts("a"), nth=1)
    with pytest.raises(BaseError, match="500"):
        store.put("a", b"late")
    assert s3.keys(bucket) == []
    store.put("a", b"second")
    proxy.settle()
    assert bytes(store.get("a").bytes()) == b"late"
    assert proxy.put_at[f"{bucket}/a"] - proxy.log[0].request.at >= 0.3


def test_a_conditional_put_that_lands_late(proxy: Proxy, store: S3Store) -> None:
    """It loses against who came meanwhile: the server checks when it arrives."""
    proxy.inject(Late(0.3), puts("a"), nth=1)
    with pytest.raises(BaseError, match="500"):
        store.put("a", b"late", mode="create")
    assert create(store, "a", b"second")
    proxy.settle()
    assert bytes(store.get("a").bytes()) == b"second"


@pytest.mark.parametrize("fault", [Late(0.9, status=0), Delay(0.9, before=True)], ids=repr)
def test_a_put_that_lands_after_the_client_has_given_up(
    s3: S3Server, proxy: Proxy, store: S3Store, bucket: str, fault: Fault
) -> None:
    """A client without an answer gives up after its own time; what it sent still lands."""
    impatient = S3Store(
        bucket,
        **{name: value for name, value in store.config.items() if name != "bucket"},
        client_options={"allow_http": True, "timeout": "300ms"},
        retry_config={"max_retries": 0},
    )
    proxy.inject(fault, puts(), nth=1)
    with pytest.raises(BaseError, match="timed out|error sending request"):
        impatient.put("a", b"1")
    assert s3.keys(bucket) == []
    wait_until(lambda: proxy.log, "the request is in the log")
    proxy.settle()
    assert s3.keys(bucket) == ["a"]
    assert [entry.status for entry in proxy.log] == [0]
    assert proxy.log[0].secs >= 0.29


# --- time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["requests", "answers"])
def test_what_was_held_is_overtaken(proxy: Proxy, store: S3Store, before: bool) -> None:
    """A request held before the server loses the race; one whose answer is held has won it."""
    hold = Hold(before=before)
    rule = proxy.inject(hold, puts(), nth=1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(create, store, "a", b"first")
        wait_until(lambda: rule.met, "the first one is held")
        wait_until(lambda: before or proxy.put_at, "the first one is there")
        assert create(store, "a", b"second") is before
        assert not first.done()
        hold.release()
        assert first.result(10) is not before


def test_answers_are_slow_and_out_of_order(proxy: Proxy, store: S3Store) -> None:
    """Each takes its own time within the limits, and the first to ask is not the first served."""
    proxy.inject(Delay((0.05, 0.6)), puts())
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: store.put(str(number), b"1"), range(6)))
    came = [entry.request.at for entry in proxy.log]
    assert came != sorted(came)
    assert min(entry.secs for entry in proxy.log) >= 0.05


def test_the_servers_clock_differs(proxy: Proxy, store: S3Store) -> None:
    """Times of modification are an hour later, whichever way they are asked for."""
    store.put("a", b"1")
    true = store.head("a")["last_modified"]
    proxy.inject(Skew(3600))
    (listed,) = next(iter(store.list()))
    assert store.head("a")["last_modified"] - true == timedelta(hours=1)
    assert abs(listed["last_modified"] - true - timedelta(hours=1)) < timedelta(seconds=1)


# --- listings that lag -------------------------------------------------------------------------


def test_a_listing_lacks_what_is_new(proxy: Proxy, store: S3Store, bucket: str) -> None:
    """New objects are missing for a time, also in a listing that is asked for the first time."""
    hidden = HideNew(2.0)
    store.put("a", b"1")
    wait_until(lambda: time.monotonic() - proxy.put_at[f"{bucket}/a"] > hidden.secs, "it is old")
    store.put("b&c", b"2")
    proxy.inject(hidden, lists())
    assert names(store) == ["a"]
    assert bytes(store.get("b&c").bytes()) == b"2"
    wait_until(lambda: names(store) == ["a", "b&c"], "the new one shows", 10)


def test_a_listing_of_a_moment_ago(proxy: Proxy, store: S3Store) -> None:
    """The same listing again shows the state that it showed: what was deleted is still there."""
    store.put("a", b"1")
    proxy.inject(Repeat(2.0), lists())
    assert names(store) == ["a"]
    store.put("b", b"2")
    store.delete("a")
    assert names(store) == ["a"]
    wait_until(lambda: names(store) == ["b"], "the state of now shows", 10)
