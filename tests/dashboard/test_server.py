"""Where the page listens, who may ask, and that it ends."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children import free_ports, wait_until
from tests.dashboard.hanging import hanging
from tests.dashboard.sample import Sample, Told
from tests.dashboard.serving import served
from txn.dashboard.scrub import Scrubber
from txn.dashboard.server import given_token, serve
from txn.dashboard.watching.topologies import Watch
from txn.errors import SetupError, UserError
from txn.machine.listening import Address, reached_at


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    sample = Sample(tmp_path, txids=5)
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch:
        Told.last.say(sample.look())
        yield watch


def test_a_token_comes_from_a_file_or_a_variable(tmp_path: Path) -> None:
    """The file first; neither is an argument, which other users of the machine could see."""
    file = tmp_path / "token"
    file.write_text("out-of-a-file\n", "utf-8")
    assert given_token({}) is None
    assert given_token({"TXN_DASHBOARD_TOKEN": "12345678"}) == "12345678"
    both = {"TXN_DASHBOARD_TOKEN": "12345678", "TXN_DASHBOARD_TOKEN_FILE": str(file)}
    assert given_token(both) == "out-of-a-file"
    with pytest.raises(UserError, match="fewer than 8"):
        given_token({"TXN_DASHBOARD_TOKEN": "short"})
    with pytest.raises(UserError, match="names '.*/none', which cannot be read: No such file"):
        given_token({"TXN_DASHBOARD_TOKEN_FILE": str(tmp_path / "none")})


def test_the_page_is_served_and_streams(watch: Watch) -> None:
    """Over a real socket: an answer, and an event when something has changed."""
    with served(watch) as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{url}api/overview", timeout=10) as answer:
            assert json.load(answer)["topologies"][0]["name"] == "flights"
            assert "uvicorn" not in str(answer.headers).lower()
        with urllib.request.urlopen(f"{url}api/events", timeout=10) as stream:
            lines = iter(stream.readline, b"")
            assert next(lines) == b"retry: 2000\n"
            told = next(line for line in lines if line.startswith(b"data: "))
            assert json.loads(told[6:])["topologies"][0]["name"] == "flights"
            watch.topology("flights").revision += 1000
            again = next(line for line in lines if line.startswith(b"data: "))
            assert json.loads(again[6:])["topologies"][0]["revision"] >= 1000


def test_a_stream_is_never_silent_for_long(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would end it: the overview is sent again although nothing has changed."""
    monkeypatch.setattr("txn.dashboard.app._AT_LEAST_SECS", 0.2)
    found = watch.topology("flights")
    wait_until(lambda: found.index.span() == (1, 5) and not found.reads_old, "all txids", 20)
    wait_until(lambda: all(table.facts for table in found.tables), "the tables' facts", 20)
    with served(watch) as url, urllib.request.urlopen(f"{url}api/events", timeout=5) as stream:
        lines = (line for line in iter(stream.readline, b"") if line.startswith(b"data: "))
        told = [json.loads(next(lines)[6:])["topologies"][0]["revision"] for _ in range(4)]
    assert len({*told}) < len(told)


def test_many_readers_cost_one_overview(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once for all who listen, and no part of it on the thread that serves them."""
    found = watch.topology("flights")
    wait_until(lambda: found.index.span() == (1, 5) and not found.reads_old, "all txids", 20)
    wait_until(lambda: all(table.facts for table in found.tables), "the tables' facts", 20)
    made: list[str] = []

    class Counted(Scrubber):
        def answer(self, value: Any) -> Any:
            if isinstance(value, dict) and "topologies" in value:
                made.append(threading.current_thread().name)
            return super().answer(value)

    monkeypatch.setattr("txn.dashboard.app.Scrubber", Counted)
    monkeypatch.setattr("txn.dashboard.app._AT_LEAST_SECS", 3600.0)
    with served(watch) as url, contextlib.ExitStack() as streams:
        lines = []
        for _ in range(8):
            stream = streams.enter_context(urllib.request.urlopen(f"{url}api/events", timeout=10))
            lines.append(iter(stream.readline, b""))
            next(line for line in lines[-1] if line.startswith(b"data: "))
        made.clear()
        found.revision += 1000
        for each in lines:
            next(line for line in each if line.startswith(b"data: "))
        assert 1 <= len(made) <= 3
        assert all(name.startswith("asyncio_") for name in made)


def test_storage_that_does_not_answer_holds_up_no_other_question(tmp_path: Path) -> None:
    """However many readers wait for a record out of a table, the rest of the page is answered."""
    sample = Sample(tmp_path, txids=5)
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch, served(watch) as url:
        Told.last.say(sample.look())
        found = watch.topology("flights")
        wait_until(lambda: found.index.span() == (1, 5) and not found.reads_old, "all txids", 20)
        wait_until(lambda: all(table.facts for table in found.tables), "the tables' facts", 20)
        sent = threading.Semaphore(0)

        def ask() -> None:
            asking = http.client.HTTPConnection(url.split("/")[2], timeout=60)
            asking.request("GET", "/api/transaction?txid=3")
            sent.release()
            asking.getresponse().read()

        readers = [threading.Thread(target=ask, daemon=True) for _ in range(60)]
        with contextlib.ExitStack() as away:
            for table in found.tables:
                version = found.index.version_of(table.number, 3)
                away.enter_context(hanging(Path(table.name) / f"_delta_log/{version:020d}.json"))
            for reader in readers:
                reader.start()
            assert all(sent.acquire(timeout=20) for _ in readers)
            for what in ("overview", "topology", "transactions", "tables", "trouble"):
                with urllib.request.urlopen(f"{url}api/{what}", timeout=5) as answer:
                    assert answer.status == 200
        for reader in readers:
            reader.join(30)
        assert not any(reader.is_alive() for reader in readers)


def test_it_ends_while_a_browser_listens(watch: Watch) -> None:
    """An open stream of events does not hold it up."""
    with contextlib.ExitStack() as streams:
        with served(watch) as url:
            streams.enter_context(contextlib.closing(urllib.request.urlopen(f"{url}api/events")))
        assert not [t for t in threading.enumerate() if "uvicorn" in t.name]


def test_elsewhere_only_with_a_token(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is made and printed, in an address that others can open; without it nobody reads."""
    monkeypatch.delenv("TXN_DASHBOARD_TOKEN", raising=False)
    found: list[str] = []
    over = threading.Event()
    ready = threading.Event()

    def told(url: str) -> None:
        found.append(url)
        ready.set()

    where = Address("0.0.0.0", 0)
    thread = threading.Thread(
        target=serve, args=(watch, where, told), kwargs={"is_over": over.is_set}
    )
    thread.start()
    try:
        assert ready.wait(20)
        url, _, token = found[0].partition("?token=")
        assert url.startswith(f"http://{reached_at('0.0.0.0')}:")
        assert len(token) >= 32
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}api/overview", timeout=10)
        shown = urllib.request.Request(
            f"{url}api/overview", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(shown, timeout=10) as answer:
            assert answer.status == 200
    finally:
        over.set()
        thread.join(20)


def test_a_token_does_not_open_loopback_to_every_name(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the page listens on all addresses are its names unknown."""
    monkeypatch.setenv("TXN_DASHBOARD_TOKEN", "0123456789abcdef")
    with served(watch) as url:
        overview = f"{url.partition('?')[0]}api/overview"
        shown = {"Authorization": "Bearer 0123456789abcdef"}
        asked = urllib.request.Request(overview, headers=shown)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert answer.status == 200
        asked = urllib.request.Request(overview, headers={**shown, "Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(asked, timeout=10)


def test_a_port_that_is_taken(watch: Watch) -> None:
    """Named, with the way out; nothing else is answered in its place."""
    (port,) = free_ports(1)
    taken = f"cannot listen on 127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(SetupError, match=taken):
        serve(watch, Address("127.0.0.1", port), lambda _: None)


def test_a_port_that_is_taken_leaves_nothing_open(watch: Watch) -> None:
    """The socket that could not listen is closed."""
    (port,) = free_ports(1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with socket.create_server(("127.0.0.1", port)), contextlib.suppress(SetupError):
            serve(watch, Address("127.0.0.1", port), lambda _: None)
        gc.collect()
    assert [str(one.message) for one in told if one.category is ResourceWarning] == []


def test_a_host_that_cannot_be_one(watch: Watch) -> None:
    """Refused by name, as an address is that this machine does not have."""
    with pytest.raises(SetupError, match=r"cannot listen on no\.\.name:0"):
        serve(watch, Address("no..name", 0), lambda _: None)


def test_a_token_of_any_characters_works_in_the_printed_address(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password of one's own may have characters that mean something in a URL."""
    monkeypatch.setenv("TXN_DASHBOARD_TOKEN", "a+b c&d#e%41/ü")
    with served(watch) as url:
        jar = urllib.request.HTTPCookieProcessor()
        with urllib.request.build_opener(jar).open(url, timeout=10) as answer:
            assert (answer.status, answer.geturl()) == (200, url.partition("?")[0])
