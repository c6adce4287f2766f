"""The page's answers, asked for as a browser would, over a sample without Spark and ZooKeeper."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from tests.children import wait_until
from tests.dashboard.made_logs import append_version, made_table, publication
from tests.dashboard.sample import HOSTILE, Sample, Told, hostile_topology
from txn.config import TopologyConfig
from txn.dashboard.app import page
from txn.dashboard.guard import LOOPBACK
from txn.dashboard.watching.topologies import Watch
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.doctor.findings import Finding, ok
from txn.operations.table_logs import opened_table
from txn.zookeeper.client.access import find_access, lend, take_back


class Page:
    """A client, and what it asks about."""

    def __init__(self, watch: Watch, sample: Sample) -> None:
        self.watch = watch
        self.sample = sample
        self.client = TestClient(page(watch, LOOPBACK), "http://localhost")

    def get(self, what: str, **params: Any) -> Any:
        answer = self.client.get(f"/api/{what}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def error(self, what: str, status: int, **params: Any) -> str:
        answer = self.client.get(f"/api/{what}", params=params)
        assert answer.status_code == status, answer.text
        return str(answer.json()["error"])


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A running topology, all indexed."""
    folder = tmp_path_factory.mktemp("page")
    sample = Sample(folder, txids=240)
    sample.note()
    with Watch([], "zk1:2181", where=folder, feed=Told) as watch:
        Told.last.say(sample.look())
        found = watch.topology("flights")
        wait_until(lambda: found.index.span() == (1, 240) and not found.reads_old, "all txids", 30)
        wait_until(lambda: all(t.facts for t in found.tables), "the tables' facts", 30)
        wait_until(lambda: found.is_live, "the note", 30)
        yield Page(watch, sample)


def test_the_overview_says_how_it_goes(asked: Page) -> None:
    """State, txid, rate, lag, age of the last commit, what holds it up, leader and standbys."""
    asked.sample.note()
    told = asked.get("overview")
    (one,) = told["topologies"]
    assert (one["name"], one["state"], one["committed"]) == ("flights", "running", 240)
    assert one["lag"] == {
        "flights": {"files": 14, "bytes": 25_804_800},
        "weather": {"records": 1210},
    }
    assert one["planned"]["flights"] == {"files": 4, "bytes": 7_372_800}
    assert (one["held_up_by"], one["in_flight"]) == ("commit", 4)
    assert one["leader"]["host"] == "alpha"
    assert [each["host"] for each in one["standbys"]] == ["beta"]
    assert one["troubles"]["error"] == 1
    assert len(one["spark"]) == 60
    assert max(one["spark"]) > 0


def test_the_topology_has_its_graph_and_what_is_in_flight(asked: Page) -> None:
    """Streams, stages and tables as declared; each batch with its phase; no secrets."""
    asked.sample.note()
    told = asked.get("topology", name="flights")
    kinds = [node["kind"] for node in told["graph"]["nodes"]]
    assert (kinds.count("stream"), kinds.count("stage"), kinds.count("table")) == (2, 4, 3)
    ids = {node["id"] for node in told["graph"]["nodes"]}
    assert all({*edge} <= ids for edge in told["graph"]["edges"])
    assert [flight["phase"] for flight in told["flights"]] == [
        "committing",
        "processed",
        "processing",
        "processing",
    ]
    assert [setting["name"] for setting in told["settings"]] == ["max_spout_pending"]
    assert max(node["rows"] for node in told["graph"]["nodes"]) > 1_000_000


def test_series_cover_the_time_that_is_asked_for(asked: Page) -> None:
    """Evenly spaced; all lists of one length; rows of all buckets are those of the logs."""
    for minutes in (15, 60, 0):
        told = asked.get("topology", name="flights", minutes=minutes)["series"]
        steps = {round(b - a, 3) for a, b in zip(told["t"], told["t"][1:], strict=False)}
        (step,) = steps
        assert {len(told[key]) for key in ("rows_per_s", "read_per_s", "max_ms", "ran")} == {
            len(told["t"])
        }
        assert len(told["t"]) <= 155
    rows = sum(rate * step for rate in told["rows_per_s"] if rate)
    listed = sum(one["rows"] for one in pages(asked))
    assert round(rows) == listed


def test_series_of_a_topology_without_a_txid(tmp_path: Path) -> None:
    """Are of this moment, and do not begin in 1970."""
    with Watch([TopologyFacts("t")], "zk1:2181", where=tmp_path, feed=Told) as watch:
        client = TestClient(page(watch, LOOPBACK), "http://localhost")
        for minutes in (60, 0):
            told = client.get("/api/topology", params={"minutes": minutes}).json()["series"]
            assert time.time() - 600 < told["t"][0] <= told["t"][-1] <= time.time() + 1
            assert not any(told["rows_per_s"])


def test_an_error_of_any_kind_is_an_answer(tmp_path: Path) -> None:
    """As JSON, which the page shows; a note that is not as it should be, for example."""
    with Watch(
        [TopologyFacts("t", plan={"streams": [{}]})], "zk1:2181", where=tmp_path, feed=Told
    ) as watch:
        client = TestClient(page(watch, LOOPBACK), "http://localhost")
        answer = client.get("/api/topology")
        assert (answer.status_code, answer.json()["error"]) == (500, "KeyError: 'spout'")


def pages(asked: Page, **params: Any) -> list[dict[str, Any]]:
    """Every txid that fits, page by page."""
    found: list[dict[str, Any]] = []
    before = None
    while True:
        told = asked.get("transactions", name="flights", before=before, **params)
        found += told["txids"]
        before = told["before"]
        if before is None:
            return found


def test_transactions_come_by_pages(asked: Page) -> None:
    """All of them, each once, newest first."""
    assert [one["txid"] for one in pages(asked)] == list(range(240, 0, -1))
    assert [one["txid"] for one in pages(asked, limit=7)] == list(range(240, 0, -1))


def test_transactions_are_searched(asked: Page) -> None:
    """By file, range, error, table and condition."""

    def found(**params: Any) -> list[int]:
        return [one["txid"] for one in pages(asked, **params)]

    assert found(q="2013-0077.csv") == [77]
    assert found(q="10-12") == [12, 11, 10]
    assert found(q="answered 503") == [207]
    assert found(only="quarantined") == [180]
    assert found(only="failed") == [207, 180]
    assert found(only="open") == []
    assert len(found(only="replayed")) == 6
    assert len(found(table=asked.sample.bad)) == 240
    assert "is one of all, open" in asked.error("transactions", 404, name="flights", only="x")


def test_one_txid_whole(asked: Page) -> None:
    """What it read, its failed attempt, stations, rows, versions, and queries as of it."""
    told = asked.get("transaction", name="flights", txid=207)
    assert told["metadata"]["flights"]["files"][0]["path"] == "data/flights/2013-0207.csv"
    assert [one["attempt"] for one in told["attempts"]] == [0]
    assert "answered 503" in told["attempts"][0]["error"]
    assert told["timings_ms"]["staged"] > 0
    tables = {Path(part["table"]).name: part for part in told["tables"]}
    assert (tables["delays"]["version"], tables["routes"]["version"]) == (207, 208)
    queries = {one["title"]: one["text"] for one in tables["routes"]["queries"]}
    assert queries["SQL"].endswith("VERSION AS OF 208 WHERE txid <= 207")
    assert "StateTable" in {q["title"]: q["text"] for q in tables["delays"]["queries"]}["Spark"]


def test_a_state_is_read_without_the_keys_that_are_removed(asked: Page) -> None:
    """By every recipe: an opaque table still stores keys whose removal it may have to take back."""
    table = asked.watch.topology("flights").table(asked.sample.delays)
    assert table.facts is not None
    before = table.facts
    table.facts = replace(before, columns={**before.columns, "txn_removed": "boolean"})
    told = asked.get("transaction", name="flights", txid=207)
    table.facts = before
    (part,) = (one for one in told["tables"] if one["table"] == asked.sample.delays)
    queries = {one["title"]: one["text"] for one in part["queries"]}
    assert queries["SQL"].endswith("VERSION AS OF 207 WHERE txn_removed IS NOT TRUE")
    assert queries["Spark"].startswith("StateTable(")
    rows = pa.table({"txn_removed": [True, False, None], "k": [1, 2, 3]})
    path = asked.sample.folder / "removed.parquet"
    pq.write_table(rows, path)
    chosen = queries["deltalake"].partition(".to_pyarrow_dataset()")[2]
    found = eval(f"ds.dataset({str(path)!r}){chosen}", {"ds": ds})
    assert found["k"].to_pylist() == [2, 3]


def test_a_txid_in_flight_is_told_by_zookeeper(asked: Page) -> None:
    """No log has it yet; one that nobody knows is an error that says what there is."""
    told = asked.get("transaction", name="flights", txid=241)
    assert (told["open"], told["attempt"], told["phase"]) == (True, 1, "committing")
    assert "Those from 1 to 240 are here" in asked.error(
        "transaction", 404, name="flights", txid=999
    )


def test_tables_versions_and_files(asked: Page) -> None:
    """As the log has them, the newest version first."""
    told = {Path(one["name"]).name: one for one in asked.get("tables", name="flights")["tables"]}
    assert (told["routes"]["version"], told["routes"]["span"]) == (241, [1, 240])
    assert (told["delays"]["facts"]["kind"], told["delays"]["facts"]["files"]) == ("upsert", 1)
    found = asked.get("versions", name="flights", table=asked.sample.routes)
    assert (len(found["versions"]), found["before"]) == (100, 142)
    more = asked.get("versions", name="flights", table=asked.sample.routes, before=142)
    assert more["versions"][0]["kind"] == "foreign"
    only = asked.get("versions", name="flights", table=asked.sample.routes, kind="foreign")
    assert [one["operation"] for one in only["versions"]] == ["DELETE"]


def test_rows_as_of_a_txid_and_what_it_changed(asked: Page) -> None:
    """Of the table as it was then."""
    told = asked.get("rows", name="flights", table=asked.sample.delays, txid=10)
    assert (len(told["rows"]), told["version"]) == (3, 10)
    assert asked.get("rows", name="flights", table=asked.sample.delays)["version"] == 240
    few = asked.get("rows", name="flights", table=asked.sample.routes, txid=240, limit=5)
    assert (len(few["rows"]), few["more"]) == (5, True)
    found = asked.get("changes", name="flights", table=asked.sample.delays, **{"from": 9, "to": 10})
    assert found["counts"] == {"added": 0, "changed": 1, "removed": 0}
    assert "smaller" in asked.error(
        "changes", 404, table=asked.sample.delays, **{"from": 5, "to": 5}
    )
    assert "no txid 999" in asked.error("rows", 404, table=asked.sample.delays, txid=999)


def test_a_txid_within_a_group_is_not_shown_as_another(tmp_path: Path) -> None:
    """The state after it was never published: the page says so, and what can be compared."""
    table = made_table(tmp_path / "state", {"carrier": "string", "flights": "long"}, "upsert")
    for version, said in ((1, publication(4)), (2, publication(7, group=3))):
        held = pa.table({"carrier": ["AA"], "flights": pa.array([version], pa.int64())})
        append_version(table, version, said, rows=held)
    with Watch(
        [TopologyFacts("t", tables={str(table): {}})], "zk", where=tmp_path, feed=Told
    ) as watch:
        found = watch.topology("t")
        wait_until(lambda: found.index.span() == (4, 7), "all txids", 20)
        client = TestClient(page(watch, LOOPBACK), "http://localhost")
        rows = client.get("/api/rows", params={"table": str(table), "txid": 6}).json()
        assert "after txid 7" in rows["note"]
        between = {"table": str(table), "from": 5, "to": 6}
        assert "Compare 4 with 7" in client.get("/api/changes", params=between).json()["error"]


def test_trouble_and_bad_rows(asked: Page) -> None:
    """Each with what to do; bad rows by rule, the newest first."""
    told = asked.get("trouble", name="flights")
    command = "txn quarantine replay flights 180 --zookeeper zk1:2181"
    assert told["troubles"][0]["command"] == command
    found = asked.get("bad-rows", name="flights")
    assert found["table"] == asked.sample.bad
    assert found["rules"][0]["rule"] == "a number"
    assert found["rows"][0]["txid"] == 234


def test_bad_rows_are_read_once_for_all_readers(
    asked: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their table is known by its columns, and read again only when it has another version."""
    loaded: list[str] = []

    def counted(table: str, options: Any) -> Any:
        loaded.append(table)
        return opened_table(table, options)

    monkeypatch.setattr("txn.operations.table_logs.opened_table", counted)
    table = asked.watch.topology("flights").table(asked.sample.bad)
    assert table.follower is not None
    table.follower.incarnation += 1
    told = [asked.get("bad-rows", name="flights") for _ in range(3)]
    assert told[0] == told[1] == told[2]
    assert loaded == [asked.sample.bad]


def test_a_log_without_failures_is_no_run_without_failures(asked: Page) -> None:
    """At --log-level error a run's log has no failed attempt, and the page says so."""
    found = asked.watch.topology("flights")

    def told(**more: bool) -> bool:
        asked.sample.note(**more)
        found.refresh()
        return bool(asked.get("trouble", name="flights")["failures_logged"])

    assert [told(failures_logged=False), told()] == [False, True]


def test_the_doctor_looks_without_writing(asked: Page) -> None:
    """In the background; its findings have what they mean and what to do."""
    before = sorted(asked.sample.folder.rglob("*"))
    wait_until(lambda: not asked.get("doctor", name="flights")["at_work"], "findings", 60)
    areas = {one["area"] for one in asked.get("doctor", name="flights")["findings"]}
    assert {"machine" in areas or "java" in areas, f"table {asked.sample.delays}" in areas} == {
        True
    }
    assert not any(area.startswith("storage") for area in areas)
    assert [p for p in sorted(asked.sample.folder.rglob("*")) if "doctor" in p.name] == []
    assert len(sorted(asked.sample.folder.rglob("*"))) <= len(before) + 1


def test_the_doctor_says_what_it_found_until_it_failed(
    asked: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finding as soon as it is there, the failure as one more; asked again, it looks at once,
    however new its findings are.
    """
    ends, looks = threading.Event(), 0

    def broken(*_: object) -> Iterator[Finding]:
        nonlocal looks
        looks += 1
        yield ok("machine", "memory", "enough")
        assert ends.wait(20)
        raise KeyError("seen")

    def found(**params: Any) -> list[str]:
        told = asked.get("doctor", name="flights", **params)
        return [one["found"] for one in told["findings"]] + ["..."] * told["at_work"]

    wait_until(lambda: found()[-1:] != ["..."], "an end of the look before", 60)
    monkeypatch.setattr("txn.dashboard.app.look", broken)
    found(again=1)
    wait_until(lambda: found() == ["enough", "..."], "the first finding", 20)
    assert (found(again=1), looks) == (["enough", "..."], 1)
    ends.set()
    wait_until(lambda: found() == ["enough", "KeyError: 'seen'"], "the failure", 20)
    assert (found(), looks) == (["enough", "KeyError: 'seen'"], 1)
    found(again=1)
    wait_until(lambda: looks == 2, "another look", 20)


def test_the_doctor_looks_again_when_its_findings_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not each time that somebody asks, but without being told to once they are."""
    looks: list[object] = []

    def counted(*said: object) -> Iterator[Finding]:
        looks.append(said)
        yield ok("machine", "memory", "enough")

    monkeypatch.setattr("txn.dashboard.app.look", counted)
    with Watch([TopologyFacts("t")], "zk1:2181", where=tmp_path, feed=Told) as watch:
        client = TestClient(page(watch, LOOPBACK), "http://localhost")

        def is_done() -> bool:
            told = client.get("/api/doctor").json()
            return bool(told["findings"]) and not told["at_work"]

        wait_until(is_done, "findings", 20)
        assert (is_done(), len(looks)) == (True, 1)
        monkeypatch.setattr("txn.dashboard.app._DOCTOR_SECS", 0.0)
        client.get("/api/doctor")
        wait_until(lambda: len(looks) == 2, "another look", 20)


@pytest.mark.parametrize(
    ("what", "params"),
    [
        ("topology", {"name": "other"}),
        ("topology", {"name": "../../etc"}),
        ("rows", {"table": "/etc"}),
        ("rows", {"table": "s3://elsewhere/t"}),
        ("versions", {"table": ""}),
        ("transactions", {"before": "-1"}),
        ("transactions", {"before": "1e9"}),
        ("transactions", {"before": "9" * 400}),
        ("transaction", {"txid": ""}),
        ("transaction", {"txid": "٣"}),
        ("changes", {"table": "x", "from": "a", "to": "b"}),
    ],
    ids=str,
)
def test_questions_that_make_no_sense(asked: Page, what: str, params: dict[str, str]) -> None:
    """An error in words; nothing is opened that the topology does not have."""
    assert asked.error(what, 404, **params)


def test_nobody_gets_more_than_the_page_can_show(asked: Page) -> None:
    """A number above the most stands for the most, however large it is."""
    assert len(asked.get("transactions", limit=10**15)["txids"]) == 100
    told = asked.get("topology", minutes=10**15)["series"]
    assert told["range"][1] - told["range"][0] == pytest.approx(600_000 * 60)


@pytest.mark.parametrize(
    "path", ["/nothing", "/api/nothing", "/assets/../app.py", "/assets/%2e%2e/app.py"]
)
def test_other_paths_are_not_there(asked: Page, path: str) -> None:
    """Neither the code beside the assets nor anything else."""
    assert asked.client.get(path).status_code == 404


def test_the_page_and_its_files(asked: Page) -> None:
    """The document, its scripts and styles, each with its type."""
    index = asked.client.get("/")
    assert index.headers["content-type"].startswith("text/html")
    for name, kind in (
        ("app.js", "text/javascript"),
        ("app.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        found = asked.client.get(f"/assets/{name}")
        assert found.headers["content-type"].startswith(kind)
        again = {"If-None-Match": found.headers["etag"]}
        assert asked.client.get(f"/assets/{name}", headers=again).status_code == 304
        assert found.headers["cache-control"] == "no-cache"
    assert asked.client.head("/api/events").text == ""


def test_answers_say_how_long_they_took(asked: Page) -> None:
    """In all and of the CPU, in a header that a browser's tools show."""
    told = asked.client.get("/api/overview").headers["server-timing"]
    found = re.fullmatch(r"app;dur=([\d.]+), cpu;dur=([\d.]+)", told)
    assert found
    assert 0 < float(found[2]) <= float(found[1]) + 0.2 < 5000


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    """A topology, table, file, column and error with markup come back as they are, as JSON."""
    look = hostile_topology(tmp_path)
    (name,) = look.statuses
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch:
        Told.last.say(look)
        found = watch.topology(name)
        wait_until(lambda: found.index.span() == (1, 1), "the txid", 20)
        wait_until(lambda: all(t.facts for t in found.tables), "the table's facts", 20)
        client = TestClient(page(watch, LOOPBACK), "http://localhost")
        table = found.tables[0].name
        markup = HOSTILE.replace("\u202e", "")
        for what in (
            "overview",
            "topology",
            "transactions",
            "tables",
            "trouble",
            "transaction?txid=1&",
        ):
            mark = "" if "?" in what else "?"
            answer = client.get(f"/api/{what}{mark}name={quote(name)}")
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"] == "application/json"
            assert markup in json.dumps(answer.json(), ensure_ascii=False)
            assert "\u202e" not in json.dumps(answer.json(), ensure_ascii=False)
        rows = client.get("/api/rows", params={"name": name, "table": table, "txid": 1})
        assert rows.json()["rows"][0][0].startswith(markup)


def test_no_secret_is_in_any_answer(tmp_path: Path) -> None:
    """Storage options, the leader's token, and what a storage's error repeats of them."""
    sample = Sample(tmp_path, txids=30)
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch:
        Told.last.say(sample.look())
        found = watch.topology("flights")
        wait_until(lambda: found.index.span() == (1, 30), "all txids", 20)
        for table in found.tables:
            table.options = {"aws_secret_access_key": "topsecret-1", "sas_token": "topsecret-2"}
        found.tables[0].error = "403 for key topsecret-1 at s3://u:topsecret-2@b/t"
        client = TestClient(page(watch, LOOPBACK), "http://localhost")
        for what in (
            "overview",
            "topology",
            "tables",
            "trouble",
            "transactions",
            "transaction?txid=3",
        ):
            text = client.get(f"/api/{what}").text
            assert "topsecret" not in text
            assert "leader-token" not in text


def test_no_credential_of_zookeeper_is_in_any_answer(tmp_path: Path) -> None:
    """A program's, the environment's, and an embedded server's, wherever an error repeats them."""
    sample = Sample(tmp_path, txids=1)
    config = TopologyConfig(
        zookeeper_auth=(("digest", SecretStr("ann:topsecret-1")),),
        zookeeper_keyfile_password=SecretStr("topsecret-2"),
    )
    lend("127.0.0.1:20001", "txn:topsecret-3")
    take_back("127.0.0.1:20001")
    find_access(TopologyConfig(), "zk1:2181", {"TXN_ZOOKEEPER_AUTH": "sasl:bob:topsecret-4"})
    known = TopologyFacts("flights", config)
    with Watch([known], "zk1:2181", where=tmp_path, feed=Told) as watch:
        Told.last.say(sample.look())
        leaked = " ".join(f"topsecret-{number}" for number in range(1, 5))
        Told.last.say(replace(sample.look(), error=f"NoAuth for ann:topsecret-1, {leaked}"))
        client = TestClient(page(watch, LOOPBACK), "http://localhost")
        for what in ("overview", "topology", "trouble"):
            text = client.get(f"/api/{what}").text
            assert "NoAuth for ***" in text
            assert "topsecret" not in text


def test_a_stopped_topology_is_shown_as_it_was(tmp_path: Path) -> None:
    """Without a leader, a run and ZooKeeper's server: its logs have everything else."""
    sample = Sample(tmp_path, txids=30)
    look = sample.look(running=False)
    status = replace(look.statuses["flights"], standbys=())
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch:
        Told.last.say(replace(look, statuses={"flights": status}))
        found = watch.topology("flights")
        wait_until(lambda: found.index.span() == (1, 30), "all txids", 20)
        client = TestClient(page(watch, LOOPBACK), "http://localhost")
        told = client.get("/api/topology").json()
        assert (told["state"], told["live"], told["lag"], told["held_up_by"]) == (
            "stopped",
            False,
            None,
            None,
        )
        assert told["graph"]["declared"] is False
        assert told["last_leader"]["host"] == "alpha"
        assert len(client.get("/api/transactions").json()["txids"]) == 30
