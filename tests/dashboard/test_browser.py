"""The page in a real browser: every page of it, live, hostile, by keys, on a phone.

Most of it over the sample; the last test over a real run with `txn run --dashboard`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.children import free_ports, wait_until
from tests.dashboard.browser import axe_source, browser
from tests.dashboard.made_logs import append_version, made_table, publication
from tests.dashboard.sample import Sample, Told, hostile_topology
from tests.dashboard.serving import served
from txn.dashboard.watching.feed import Look
from txn.dashboard.watching.topologies import Watch
from txn.dashboard.watching.topology_facts import TopologyFacts
from txn.engine.reporting.report import InFlight

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent.parent
PAGES = ("topology", "transactions", "transactions/180", "tables", "trouble")
WIDE, PHONE = (1360, 900), (390, 844)


class Seen:
    """A sample's page in a browser, and what the browser's console says."""

    def __init__(self, chrome: Browser, url: str, sample: Sample) -> None:
        self.url = url
        self.sample = sample
        self.said: list[str] = []
        self._chrome = chrome

    def open(self, where: str = "", size: tuple[int, int] = WIDE, scheme: str = "light") -> Page:
        context = self._chrome.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.goto(f"{self.url}#/{where}")
        return page

    def is_quiet(self) -> bool:
        """Whether the console has nothing; a test ends with it."""
        said, self.said = self.said, []
        assert said == []
        return True


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def seen(chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A running topology with 240 txids."""
    sample = Sample(tmp_path_factory.mktemp("seen"))
    sample.note()
    with Watch([], "zk1:2181", where=sample.folder, feed=Told) as watch:
        Told.last.say(sample.look())
        found = watch.topology("flights")
        wait_until(lambda: not found.reads_old and all(t.facts for t in found.tables), "all", 30)
        with served(watch) as url:
            yield Seen(chrome, url, sample)


def test_the_overview_shows_topologies(seen: Seen) -> None:
    """State, numbers with units, trouble; a click leads to the topology."""
    seen.sample.note()
    page = seen.open()
    card = page.locator("article.card")
    card.get_by_text("Running").wait_for()
    card.get_by_text("14 files, 25.8 MB").wait_for()
    text = card.inner_text()
    assert "commits" in text
    assert "alpha" in text
    assert "1 error" in text
    card.get_by_role("link", name="flights", exact=True).click()
    page.get_by_role("heading", name="Graph").wait_for()
    assert page.url.endswith("#/t/flights/topology")
    assert seen.is_quiet()


def test_the_topology_is_drawn(seen: Seen) -> None:
    """Its graph, batches by phase, and three charts with their newest values."""
    seen.sample.note()
    page = seen.open("t/flights/topology")
    page.locator("svg.graph .node").nth(8).wait_for()
    assert page.locator("svg.graph .node.slow").count() == 3
    assert page.locator(".flight").count() == 4
    page.locator(".chart canvas").nth(2).wait_for()
    told = page.locator(".chart", has_text="Time of a txid").inner_text()
    assert re.search(r"processing\s+[\d.]+ m?s\s+waiting\s+[\d.]+ m?s", told)
    assert page.locator(".chart", has_text="Bytes read").is_visible()
    assert not page.locator(".chart", has_text="Records read").is_visible()
    page.get_by_role("button", name="15 min").click()
    assert page.get_by_role("button", name="15 min").get_attribute("aria-pressed") == "true"
    assert seen.is_quiet()


def test_transactions_are_endless_and_searched(seen: Seen) -> None:
    """More come by scrolling; a search finds a file, and clearing it brings all back."""
    page = seen.open("t/flights/transactions")
    page.locator("tr[data-txid='240']").wait_for()
    for _ in range(12):
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(100)
    page.locator("tr[data-txid='1']").wait_for(state="attached")
    page.evaluate("scrollTo(0, 0)")
    page.get_by_role("searchbox").fill("2013-0077")
    page.locator("tr[data-txid='240']").wait_for(state="detached")
    page.locator("tr[data-txid='77']").wait_for()
    assert page.locator("tbody tr").count() == 1
    assert "q=2013-0077" in page.url
    page.get_by_role("searchbox").fill("nothing like it")
    page.get_by_text("No txid matches.").wait_for()
    page.get_by_role("searchbox").fill("")
    page.get_by_label("Which").select_option("quarantined")
    page.locator("tr[data-txid='180']").wait_for()
    page.locator("tr[data-txid='240']").wait_for(state="detached")
    assert seen.is_quiet()


def test_one_txid_is_shown_whole(seen: Seen) -> None:
    """What it read, attempts, stations, queries; Escape closes it."""
    page = seen.open("t/flights/transactions")
    page.locator("tr[data-txid='207'] a").click()
    detail = page.locator(".detail")
    detail.locator("li", has_text="data/flights/2013-0207.csv").wait_for()
    text = detail.inner_text()
    assert "answered 503" in text
    assert "wait for Spark" in text
    detail.locator("summary", has_text="delays").click()
    detail.get_by_text("VERSION AS OF 207").first.wait_for()
    page.keyboard.press("Escape")
    detail.wait_for(state="hidden")
    assert page.url.endswith("#/t/flights/transactions")
    assert seen.is_quiet()


def test_tables_rows_and_differences(seen: Seen) -> None:
    """The rows as of a txid, what it changed, and the versions with others' commits."""
    page = seen.open("t/flights/tables")
    page.locator("table.tables tbody tr").nth(2).wait_for()
    page.get_by_role("button", name="Rows as of a txid").click()
    page.get_by_label("Txid", exact=True).fill("10")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("Version 10.").wait_for()
    assert page.locator("table.rows tbody tr").count() == 3
    page.get_by_role("button", name="Difference").click()
    page.locator("td.changed").first.wait_for()
    page.locator("table.tables a", has_text="routes").click()
    page.get_by_role("button", name="Versions").click()
    page.get_by_label("Kind of version").select_option("foreign")
    page.get_by_text("by ann").wait_for()
    assert page.locator(".view-box tbody tr").count() == 1
    page.get_by_role("button", name="About").click()
    page.get_by_text("hash buckets").wait_for()
    assert seen.is_quiet()


def test_trouble_says_what_to_do(seen: Seen) -> None:
    """The quarantined txid with its command, bad rows, the doctor's findings, and history."""
    page = seen.open("t/flights/trouble")
    page.get_by_text("txn quarantine replay flights 180").wait_for()
    page.get_by_text("txn rows export").wait_for()
    page.get_by_text("rows were set aside: they broke a rule, or did not parse.").wait_for()
    parts = "import(new URL('assets/parts.js', location.origin))"
    one = "{troubles: {error: 0, warning: 0}, set_aside: 1466}"
    badge = page.evaluate(f"{parts}.then((m) => m.troubleWords({one}).textContent)")
    assert badge == "1,466 rows set aside"
    page.get_by_text("checks without a fault").wait_for()
    page.get_by_text("DELETE by ann").wait_for()
    assert seen.is_quiet()


def test_only_a_whole_command_is_copied(seen: Seen) -> None:
    """With the program that was run if it is known; else the page says what to fill in."""
    export = "txn rows export {} --stream flights open.csv --zookeeper zk1:2181"
    seen.sample.note()
    page = seen.open("t/flights/trouble")
    bad = page.get_by_role("region", name="Bad rows").first
    bad.get_by_text(export.format("FILE.py:TOPOLOGY"), exact=True).wait_for()
    bad.get_by_text("FILE.py:TOPOLOGY is your program").wait_for()
    assert bad.get_by_role("button", name="Copy").count() == 0
    seen.sample.note(program="my flights.py:topology")
    bad = seen.open("t/flights/trouble").get_by_role("region", name="Bad rows").first
    bad.get_by_text(export.format("'my flights.py:topology'"), exact=True).wait_for()
    bad.get_by_role("button", name="Copy").wait_for()
    assert seen.is_quiet()


def test_an_emptied_attempt_is_not_called_committed(seen: Seen) -> None:
    """The badge of the attempt that committed a quarantined txid says that it has no rows."""
    page = seen.open("t/flights/transactions/180")
    page.locator(".attempts .badge.warn", has_text="180:0 committed empty").wait_for()
    assert seen.is_quiet()


def test_an_idle_run_is_healthy(seen: Seen) -> None:
    """It waits for records: no warning, and the question to a source is not in flight."""
    asked = InFlight(245, 0, "planning", failures=0, since=0.0)
    waits = ("source: nothing to read",)
    seen.sample.note(held_up_by="idle", waits=waits, in_flight=(asked,))
    page = seen.open("t/flights/topology")
    page.locator(".waits.calm").get_by_text("Waiting for new records.", exact=True).wait_for()
    page.get_by_text("Nothing is in flight.").wait_for()
    assert page.locator(".stat", has_text=re.compile("^In flight")).inner_text().split() == [
        "In",
        "flight",
        "0",
        "txids",
    ]
    assert seen.is_quiet()


def test_charts_have_one_range_and_seconds_where_they_differ(seen: Seen) -> None:
    """What was chosen is drawn, from the same left edge; no label stands twice."""
    drawn = """async ([from, until]) => {
        const { Chart } = await import('./assets/charts.js');
        const chart = new Chart('A', [{ label: 'a', colour: 'accent' }], String);
        document.body.append(chart.node);
        chart.set([[until - 2, until - 1], [1, 2]], [from, until]);
        await new Promise((ready) => setTimeout(ready, 100));
        const { axes, scales } = chart.plot;
        return [axes[0]._values, scales.x.min, scales.x.max];
    }"""
    page = seen.open("t/flights/topology")
    page.locator(".chart canvas").nth(1).wait_for()
    labels, first, last = page.evaluate(drawn, [1795645800, 1795645830])
    assert (first, last) == (1795645800, 1795645830)
    assert len(set(labels)) == len(labels) > 1
    asked = "fetch('api/topology?name=flights&minutes=60').then((r) => r.json())"
    told = page.evaluate(asked)["series"]
    assert told["range"][1] - told["range"][0] == 3600
    assert seen.is_quiet()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_every_text_can_be_read(seen: Seen, size: tuple[int, int]) -> None:
    """No text is smaller than 12 px, in the graph and the charts neither."""
    small = """() => [...document.querySelectorAll('body *')].filter((one) =>
        [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
        && one.getClientRects().length && !one.closest('.sr')
        && parseFloat(getComputedStyle(one).fontSize) * (one.getBoundingClientRect().width
            / (one.getComputedTextLength?.() || one.getBoundingClientRect().width)) < 11.5)
        .map((one) => one.textContent)"""
    for where in ("", *(f"t/flights/{each}" for each in PAGES)):
        page = seen.open(where, size)
        page.wait_for_timeout(700)
        assert page.evaluate(small) == []
        page.context.close()
    assert seen.is_quiet()


def test_a_bar_ends_before_its_text(seen: Seen) -> None:
    """The slowest txid's bar, too; processing and waiting are apart."""
    page = seen.open("t/flights/transactions")
    page.locator("tr[data-txid='240']").wait_for()
    ends = """() => [...document.querySelectorAll('.times')].map((cell) => {
        const box = (part) => part.getBoundingClientRect();
        const bars = [...cell.querySelectorAll('.bar')].map((bar) => box(bar).right);
        return box(cell.lastChild).left - Math.max(...bars);
    })"""
    assert min(page.evaluate(ends)) > 0
    words = page.locator("tr[data-txid='240'] .times").inner_text()
    assert re.fullmatch(r"[\d.]+ m?s \+ [\d.]+ m?s waiting", words.strip())
    read = page.locator("tr[data-txid='240'] td.read").inner_text()
    assert read == "flights 2013-0240.csv, 1.8 MB"
    assert seen.is_quiet()


@pytest.mark.parametrize(
    ("where", "sentences"),
    [
        ("topology", ["Asking for the graph", "Asking for the batches"]),
        ("transactions", ["Reading the newest txids"]),
        ("tables", ["Asking for the tables"]),
        ("trouble", ["Looking for what is wrong", "Counting the rows", "Reading failed attempts"]),
    ],
)
def test_a_card_says_what_it_waits_for(seen: Seen, where: str, sentences: list[str]) -> None:
    """Until the answer is there, it has a sentence and a skeleton, and is not white and empty."""
    page = seen.open()
    page.locator("article.card").wait_for()
    page.route(re.compile(r"/api/(?!events|overview)"), lambda _: None)
    page.goto(f"{seen.url}#/t/flights/{where}")
    for sentence in sentences:
        page.get_by_text(sentence).wait_for()
    assert page.locator(".bone").count() >= 2 * len(sentences)
    assert seen.is_quiet()


def test_a_line_goes_on_over_idle_time_only(seen: Seen) -> None:
    """No value while a run goes on is no gap; and a chart without a value says so."""
    page = seen.open("t/flights/topology")
    page.locator(".chart canvas").nth(1).wait_for()
    drawn = """async () => {
        const { Chart, gapped } = await import('./assets/charts.js');
        const chart = new Chart('A', [{ label: 'a', colour: 'accent' }], String);
        document.body.append(chart.node);
        chart.set([[1, 2], [null, null]], [0, 3]);
        const none = chart.place.textContent;
        const values = gapped([1, null, 1, null, 1], [true, true, true, false, true]);
        chart.set([[1, 2, 3, 4, 5], values], [0, 6]);
        await new Promise((ready) => setTimeout(ready, 100));
        const gaps = chart.plot.series[1]._paths.gaps.length;
        return [none, gaps, chart.place.textContent.includes(none)];
    }"""
    assert page.evaluate(drawn) == ["Nothing was committed in this time.", 1, False]
    assert seen.is_quiet()


def test_what_is_not_known_is_called_unknown(seen: Seen) -> None:
    """Numbers, times and sizes; a table's size is that of all its versions, too."""
    page = seen.open("t/flights/tables")
    page.locator("table.tables tbody tr").nth(2).wait_for()
    words = "async () => { const f = await import('./assets/format.js'); "
    words += "return [f.num(null), f.short(), f.bytes(null), f.ms(), f.clock(0)]; }"
    assert page.evaluate(words) == ["unknown"] * 5
    row = page.locator("table.tables tbody tr", has_text="delays")
    row.get_by_text("nothing", exact=True).wait_for()  # VACUUM: no file is a week old
    sizes = re.findall(r"([\d.]+) ([kM]B)", row.inner_text())
    assert float(sizes[1][0]) * (1000 if sizes[1][1] == "MB" else 1) > float(sizes[0][0])
    assert seen.is_quiet()


def test_words_stay_in_the_boxes_of_the_graph(seen: Seen) -> None:
    """A name is whole, on several lines; words are cut by their width, and a path shows its end."""
    page = seen.open("t/flights/topology")
    page.locator("svg.graph .node").nth(8).wait_for()
    drawn = """async () => {
        const { drawGraph } = await import('./assets/graph.js');
        const wide = { id: 'a', kind: 'table', label: 'W'.repeat(40), words: 'W'.repeat(90) };
        const path = { id: 'b', kind: 'stage', label: 'b', words: `/${'W'.repeat(90)}/end.csv` };
        const one = { id: 'c', kind: 'table', label: 'a/table_of_rows', words: '', rows: 1 };
        const graph = drawGraph({ nodes: [wide, path, one], edges: [] });
        document.querySelector('.graph-box').append(graph);
        const room = (text) => text.parentNode.querySelector('rect').width.baseVal.value - 16;
        const wider = (text) => text.getComputedTextLength() > room(text);
        const of = (node, kind) => [...node.querySelectorAll(kind)].map((one) => one.textContent);
        const told = (node) => [of(node, '.node-label').join(''), of(node, '.node-words')];
        const texts = [...document.querySelectorAll('.node text')];
        return [texts.filter(wider).length, [...graph.querySelectorAll('.node')].map(told)];
    }"""
    wider, (wide, path, one) = page.evaluate(drawn)
    assert wider == 0
    assert (wide[0], len(wide[1]), wide[1][1][-1]) == ("W" * 40, 2, "…")
    assert (path[1][0][0], path[1][-1][-7:]) == ("…", "end.csv")
    assert one == ["table_of_rows", ["1 staged"]]
    assert seen.is_quiet()


def test_a_phone_shows_whole_words(seen: Seen) -> None:
    """The title of an opened txid, the kinds of tables, the count of troubles, whole lines of an
    error, and whether the page is live, in a word.
    """
    seen.sample.note()
    page = seen.open("t/flights/transactions/180", PHONE)
    title = page.locator(".detail-title")
    title.wait_for()
    page.wait_for_timeout(300)
    header = page.locator("header.top").bounding_box()
    at = title.bounding_box()
    assert header
    assert at
    assert header["y"] + header["height"] <= at["y"]
    nav = page.evaluate("(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])(nav)")
    assert nav[0] <= nav[1]
    assert page.locator("#live span").is_visible()
    page = seen.open("t/flights/tables", PHONE)
    cell = page.locator("table.tables td", has_text="upsert, opaque")
    cell.wait_for()
    box = cell.bounding_box()
    assert box
    assert box["height"] < 40
    page = seen.open("", PHONE)
    lines = "(e) => e.clientHeight / parseFloat(getComputedStyle(e).lineHeight)"
    assert page.locator(".worst span").evaluate(lines) == pytest.approx(2, abs=0.1)
    assert seen.is_quiet()


def test_what_is_not_new_any_more_is_not_live(seen: Seen) -> None:
    """A connection that says nothing is given up: the page says how old is what it shows."""
    script = (ROOT / "txn/dashboard/assets/data.js").read_text("utf-8")
    sent = {"body": script.replace("25000", "1500"), "content_type": "text/javascript"}
    page = seen.open()
    page.route("**/data.js", lambda route: route.fulfill(**sent))
    page.reload()
    page.locator("#live", has_text="live").wait_for()
    page.route("**/api/events", lambda route: None)
    page.locator("#live", has_text="not connected").wait_for()
    shown = page.locator("#live").inner_text()
    assert re.fullmatch(r"not connected, as of \d\d:\d\d:\d\d", shown)
    page.context.close()
    seen.said.clear()


def test_an_address_that_is_no_page(seen: Seen) -> None:
    """It says so, with a way back."""
    for where in ("nowhere", "t/flights/nowhere"):
        page = seen.open(where)
        page.get_by_text("There is no such page.").wait_for()
        page.get_by_role("link", name="All topologies").click()
        page.locator("article.card").wait_for()
    assert seen.is_quiet()


def test_a_named_topology_is_not_live_without_zookeeper(chrome: Browser, tmp_path: Path) -> None:
    """Each name is asked for by itself, with credentials of its own: none of them answers."""
    with Watch([TopologyFacts("t")], "zk1:2181", where=tmp_path, feed=Told) as watch:
        Told.last.say(Look(time.time(), {}, {"t": "ZooKeeper did not answer. [TXN-600]"}))
        with served(watch) as url:
            seen = Seen(chrome, url, Sample(tmp_path / "unused", txids=1))
            page = seen.open()
            page.locator("#live", has_text="ZooKeeper error").wait_for()
            absent = frozenset({"t"})
            Told.last.say(Look(time.time(), {}, {"t": "It knows no 't'."}, absent=absent))
            page.locator("#live", has_text="live").wait_for()
            page.locator("article.card").get_by_text("Never run").wait_for()
            assert seen.is_quiet()


def test_keys_lead_everywhere(seen: Seen) -> None:
    """Pages by number, the search by a slash, rows by j and k, Enter, Escape, t and ?."""
    page = seen.open()
    page.locator("article.card").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("3")
    page.locator("tr[data-txid='240']").wait_for()
    page.keyboard.press("/")
    page.locator("input[type='search']:focus").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.dataset.txid") == "240"
    page.keyboard.press("Enter")
    page.locator(".detail").get_by_role("heading", name="Txid 240").wait_for()
    page.keyboard.press("Escape")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    page.get_by_role("heading", name="Graph").wait_for()
    assert seen.is_quiet()


def test_what_happens_appears_within_two_seconds(seen: Seen) -> None:
    """A commit, what the run says of itself, and a failure, while the page is open."""
    page = seen.open("t/flights/transactions")
    page.locator("tr[data-txid='240']").wait_for()
    sample = seen.sample
    sample.commit(241, int(time.time() * 1000))
    Told.last.say(sample.look(committed=241))
    page.locator("tr[data-txid='241']").wait_for(timeout=2000)
    fail(sample, "242:0", "Boom: the disk is full")
    page.keyboard.press("5")
    page.get_by_text("Boom: the disk is full").wait_for(timeout=2500)
    sample.note(held_up_by="away", waits=("flights waits for Kafka",))
    page.keyboard.press("2")
    page.get_by_text("flights waits for Kafka").wait_for(timeout=2500)
    assert seen.is_quiet()


def test_the_page_listens_again_after_a_refusal(seen: Seen) -> None:
    """A proxy answers 502 for a moment: what happens afterwards still appears."""
    page = seen.open("t/flights/topology")
    page.locator("svg.graph .node").nth(8).wait_for()
    page.route("**/api/events", lambda route: route.fulfill(status=502, body="away"), times=1)
    page.reload()
    page.locator("svg.graph .node").nth(8).wait_for()
    seen.sample.note(held_up_by="away", waits=("flights waits for a proxy",))
    page.get_by_text("flights waits for a proxy").wait_for(timeout=8000)
    assert [line for line in seen.said if "502" not in line] == []
    seen.said.clear()


def test_the_list_has_no_gap_and_an_end(chrome: Browser, tmp_path: Path) -> None:
    """What came while nobody looked at the top is all in it; the oldest rows give way."""
    table = made_table(tmp_path / "rows", {"x": "long"})

    def commit(first: int, last: int) -> None:
        for version in range(first, last + 1):
            append_version(table, version, publication(version))
        wait_until(lambda: found.index.span() == (1, last), "the new ones", 30)

    def listed() -> list[int]:
        ids = "[...document.querySelectorAll('tbody tr')].map((row) => +row.dataset.txid)"
        return list(page.evaluate(ids))

    script = (ROOT / "txn/dashboard/assets/transactions.js").read_text("utf-8")
    few = script.replace("const MOST_ROWS = 3000", "const MOST_ROWS = 300")
    known = TopologyFacts("t", tables={str(table): {}})
    with Watch([known], "zk", where=tmp_path, feed=Told) as watch, served(watch) as url:
        found = watch.topology("t")
        commit(1, 150)
        page = chrome.new_context(reduced_motion="reduce").new_page()
        sent = {"body": few, "content_type": "text/javascript"}
        page.route("**/transactions.js", lambda route: route.fulfill(**sent))
        page.goto(f"{url}#/t/t/transactions")
        page.locator("tr[data-txid='150']").wait_for()
        for last, more in ((150, 90), (240, 400)):
            page.evaluate("scrollTo(0, 600)")
            commit(last + 1, last + more)
            page.get_by_role("button", name="Newer txids").wait_for()
            page.evaluate("scrollTo(0, 0)")
            commit(last + more + 1, last + more + 1)
            page.locator(f"tr[data-txid='{last + more + 1}']").wait_for()
            top = last + more + 1
            assert listed() == list(range(top, top - len(listed()), -1))
        while len(listed()) < 300:
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            page.wait_for_timeout(50)
        page.evaluate("scrollTo(0, 0)")
        commit(642, 642)
        page.locator("tr[data-txid='642']").wait_for()
        assert listed() == list(range(642, 342, -1))
        page.get_by_text("300 txids are shown.").wait_for()
        page.context.close()


def fail(sample: Sample, attempt: str, error: str) -> None:
    """Have an attempt of the running topology fail."""
    with (sample.folder / ".txn/logs/flights.log").open("a", encoding="utf-8") as log:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        log.write(f"{stamp},000 WARNING txn [flights {attempt}] failed: {error}\n")


def test_what_changes_while_the_page_asks_is_not_missed(seen: Seen) -> None:
    """An answer that is older than the newest event is followed by another question."""
    page = seen.open("t/flights/trouble")
    page.get_by_text("checks without a fault").wait_for()
    told = "import('./assets/data.js').then((data) => data.topologyNamed('flights').revision)"
    held: list[Any] = []
    page.route("**/api/trouble?*", lambda route: held.append((route, route.fetch())), times=1)
    fail(seen.sample, "243:0", "Boom: the first of two")
    wait_until(lambda: page.evaluate(told) and held, "the page asks", 20)
    before = page.evaluate(told)
    fail(seen.sample, "243:1", "Boom: the second of two")
    wait_until(lambda: page.evaluate(told) > before, "the page is told", 20)
    route, answer = held[0]
    route.fulfill(response=answer)
    page.get_by_text("Boom: the second of two").wait_for(timeout=2500)
    assert seen.is_quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_axe_finds_nothing_serious(seen: Seen, scheme: str, size: tuple[int, int]) -> None:
    """No page has a serious or critical fault, in either colours and on a phone."""
    seen.sample.note()
    found = []
    for where in ("", *(f"t/flights/{name}" for name in PAGES)):
        page = seen.open(where, size, scheme)
        page.locator("main .page").wait_for()
        page.wait_for_timeout(700)
        page.evaluate(axe_source())
        told = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            (where, one["id"], [node["html"][:120] for node in one["nodes"]][:3])
            for one in told["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        page.context.close()
    assert found == []
    assert seen.is_quiet()


def test_a_phone_scrolls_in_one_direction(seen: Seen) -> None:
    """Nothing is wider than the screen; wide tables scroll in themselves."""
    for where in ("", *(f"t/flights/{name}" for name in PAGES)):
        page = seen.open(where, PHONE)
        page.locator("main .page").wait_for()
        page.wait_for_timeout(500)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE[0], where
        page.context.close()
    assert seen.is_quiet()


def test_hostile_names_do_not_run(chrome: Browser, tmp_path: Path) -> None:
    """Markup in the name of a topology, table, file, column, and in errors, is shown as text."""
    look = hostile_topology(tmp_path)
    (name,) = look.statuses
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch:
        Told.last.say(look)
        found = watch.topology(name)
        wait_until(lambda: found.index.span() == (1, 1), "the txid", 20)
        wait_until(lambda: all(t.facts for t in found.tables), "the table's facts", 20)
        with served(watch) as url:
            seen = Seen(chrome, url, Sample(tmp_path / "unused", txids=1))
            page = seen.open()
            page.locator("article.card").get_by_text("<img src=x").first.wait_for()
            for key in "2345":
                page.keyboard.press(key)
                page.wait_for_timeout(700)
                assert page.locator("main").get_by_text("<img src=x").count() > 0
            page.keyboard.press("3")
            page.locator("tr[data-txid='1'] a").click()
            page.locator(".detail").get_by_text("<img src=x").first.wait_for()
            page.keyboard.press("4")
            page.get_by_role("button", name="Rows as of a txid").click()
            page.locator("table.rows td").first.wait_for()
            assert page.locator("img").count() == 0
            assert "hacked" not in page.title().replace(name, "")
            assert seen.is_quiet()


def test_empty_states_say_what_to_do(chrome: Browser, tmp_path: Path) -> None:
    """No topology, and a topology that has committed nothing."""
    with Watch([], "zk1:2181", where=tmp_path, feed=Told) as watch, served(watch) as url:
        seen = Seen(chrome, url, Sample(tmp_path / "unused", txids=1))
        Told.last.say(Look(time.time()))
        page = seen.open()
        page.get_by_text("No topology has run here yet.").wait_for()
        page.get_by_text("txn run sales.py:topology --zookeeper zk1:2181 --dashboard").wait_for()
        Told.last.say(Look(time.time(), {}, {}, "ZooKeeper at zk1:2181 did not answer."))
        page.get_by_text("ZooKeeper at zk1:2181 did not answer.").wait_for()
        page.get_by_text("txn dashboard --zookeeper HOST:PORT").wait_for()
        assert page.get_by_role("button", name="Copy").count() == 0
        assert seen.is_quiet()


PROGRAM = """
import time
from pathlib import Path
from pyspark.sql import functions as sf
from committers.append_table import AppendTable
from committers.aggregates import Count
from committers.state_table import StateTable
from spouts.rate import RateSpout
from txn import FailedException, Topology, TopologyConfig

def once(df):
    # The first attempt of the third batch fails, and its replay does not.
    mark = Path("failed-once")
    if Path("fail").exists() and not mark.exists():
        mark.touch()
        raise FailedException("made to fail once")
    return df

# One by one: in a group the failure would be nobody's.
config = TopologyConfig(batch_emit_interval_ms=300, retry_backoff_ms=500, max_spout_pending=1)
topology = Topology("live", config=config)
rows = topology.stream("rows", RateSpout(100)).transform(once)
rows.partition_persist(AppendTable("table"))
rows.group_by("value").persistent_aggregate(StateTable("state", layout="log"), rows=Count())
"""


def test_a_real_run_is_live(chrome: Browser, tmp_path: Path) -> None:
    """`txn run --dashboard`: batches commit before one's eyes, a failure appears, and the page of
    a stopped topology still has everything.
    """
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    (port,) = free_ports(1)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    txn = [sys.executable, "-m", "txn"]
    command = [*txn, "run", "program.py:topology", "--master", "local[1]", "--json"]
    run = subprocess.Popen(
        [*command, "--dashboard", f"127.0.0.1:{port}"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    limit = threading.Timer(180, run.kill)  # lines that do not come end the test
    limit.start()
    try:
        assert run.stdout is not None
        lines = (json.loads(line) for line in run.stdout)
        told = next(line for line in lines if "The page is at" in line.get("text", ""))
        assert told["text"].endswith(f":{port}/")
        seen = Seen(chrome, f"http://127.0.0.1:{port}/", Sample(tmp_path / "unused", txids=1))
        page = seen.open("t/live/transactions")
        next(line for line in lines if line["event"] == "committed")
        page.locator("tr[data-txid='1']").wait_for(timeout=5000)
        committed = next(line for line in lines if line["event"] == "committed")
        page.locator(f"tr[data-txid='{committed['txid']}']").wait_for(timeout=2000)
        (tmp_path / "fail").touch()
        failed = next(line for line in lines if line["event"] == "failed")
        page.keyboard.press("5")
        page.get_by_text("made to fail once").first.wait_for(timeout=2500)
        page.keyboard.press("2")
        page.locator("svg.graph .node.table").nth(1).wait_for()
        page.get_by_text("Running").first.wait_for()
        assert seen.is_quiet()
        next(line for line in lines if line.get("txid") == failed["txid"] + 1)
    finally:
        limit.cancel()
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=90)
    assert run.returncode == 0
    page.get_by_text("not connected").wait_for()
    seen.said.clear()
    stopped = subprocess.Popen(
        [*txn, "dashboard", "--port", str(port), "--json"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stopped.stdout is not None
        assert json.loads(stopped.stdout.readline())["url"] == seen.url
        page = seen.open("t/live/topology")
        page.get_by_text("Stopped").first.wait_for(timeout=30_000)
        page.locator("svg.graph .node.stage").first.wait_for()
        page.keyboard.press("3")
        page.locator(f"tr[data-txid='{failed['txid']}'] a").click()
        page.locator(".detail").get_by_text("made to fail once").wait_for()
    finally:
        stopped.send_signal(signal.SIGINT)
        stopped.communicate(timeout=30)
    assert stopped.returncode == 0
