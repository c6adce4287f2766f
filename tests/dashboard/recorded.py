"""A run to which everything happens, and when the page and Prometheus first show each of it.

All servers are real: ZooKeeper, a Prometheus that scrapes both drivers every half second, the page
in Chromium. The drivers are `txn run` in processes of their own: a leader, and a standby that takes
it for one of another machine, and so waits for the end of its session. The page is on the machine
of the leader.

Everything has a moment at which it happened: when it was done to a process, or when ZooKeeper or
the log had it. A step says how much later it was seen.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kazoo.client import KazooClient
from typing_extensions import Self

from tests.children import free_ports, wait_until
from tests.dashboard.recorded_cast import ROOT, Driver, Sale, Service
from tests.metrics.server import PrometheusServer
from tests.pressure import Pressure

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = ["CORRECTIONS", "LIMIT_SECS", "Recording", "Step", "table"]

LIMIT_SECS = 2.0
"""How much later a step may be seen where nothing waits for a CPU."""
CORRECTIONS = {"12,50": "12.50"}
"""An amount that no cast understands, and what it means."""
PATIENCE_SECS = 180.0
VIEWS = {
    "overview": ("", (1280, 345), "light"),
    "transactions": ("t/sales/transactions", (1280, 352), "light"),
    "trouble": ("t/sales/trouble", (1280, 412), "light"),
}
"""The pages that are open from beginning to end: address, size, colours."""


@dataclass(frozen=True)
class Step:
    """Something that happened, and how many seconds later it was seen."""

    name: str
    moment: str
    """What counts as the moment at which it happened."""
    page: float
    prometheus: float
    late: float
    """The longer of the two, without the time in which something has waited for a CPU."""


def table(steps: Sequence[Step]) -> str:
    """The steps as a table in Markdown."""
    head = ["| what happens | counted from | on the page | in Prometheus |", "|---|---|---|---|"]
    rows = [f"| {s.name} | {s.moment} | {s.page:.1f} s | {s.prometheus:.1f} s |" for s in steps]
    return "\n".join([*head, *rows])


@dataclass(frozen=True)
class Fact:
    """Something that is to be seen."""

    name: str
    moment: str
    at: Callable[[], float]
    """When it happened, seconds since 1970; asked when the page has it."""
    on_page: Callable[[], object]
    """Returns when the page shows it."""
    driver: Driver
    metric: str
    """Of this driver."""
    shows: Callable[[float], bool] = bool
    """Whether a value of the metric shows it."""
    labels: str = ""


class Recording:
    """The run, its servers, and who watches it.

    Args:
        folder: the working folder of the drivers and of the page; empty.
        hosts: a ZooKeeper without topologies, or a chroot of one.
        environs: variables of the first and of the second driver.
    """

    def __init__(
        self,
        folder: Path,
        hosts: str,
        chrome: Browser,
        environs: Sequence[Mapping[str, str]] = ({}, {}),
    ) -> None:
        self.sold: list[tuple[Sale, ...]] = []
        """What was sold, batch by batch."""
        self.console: list[str] = []
        """What the browser has had to say."""
        self.pages: dict[str, Page] = {}
        self._folder = folder
        self._hosts = hosts
        self._chrome = chrome
        self._environs = environs
        self._ports = free_ports(2)
        self._service = Service()
        self._pressure = Pressure()
        servers, _, chroot = hosts.partition("/")
        self._zookeeper = KazooClient(hosts=servers)
        self._root = f"/{chroot}/txn/sales" if chroot else "/txn/sales"
        (folder / "prometheus").mkdir()
        self._prometheus = PrometheusServer(folder / "prometheus", self._ports)
        self._url = ""
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        shutil.copy(Path(__file__).with_name("sales.py"), self._folder)
        self._correct({})
        with ExitStack() as undo:
            undo.callback(self._resources.close)
            self._resources.enter_context(self._service)
            self._resources.enter_context(self._pressure)
            self._resources.enter_context(self._prometheus)
            self._resources.callback(self._zookeeper.close)
            self._resources.callback(self._zookeeper.stop)
            self._zookeeper.start()
            self._url = self._serve_page()
            self.pages = {name: self.open(*view) for name, view in VIEWS.items()}
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for said in sorted(self._folder.glob("*.out")) if error[0] else ():
            print(f"--- {said.name}\n{said.read_text()[-3000:]}")
        self._resources.close()

    def open(self, where: str, size: tuple[int, int], scheme: str) -> Page:
        """A page in a window of its own."""
        context = self._chrome.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        self._resources.callback(context.close)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_SECS * 1000)
        page.on("console", lambda said: self.console.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: self.console.append(f"error: {error}"))
        page.goto(f"{self._url}#/{where}")
        return page

    # --- what happens ------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """Let it happen, one thing after the other, and tell when each was seen.

        What has happened stays as it is until the next step is asked for.
        """
        first = self._start(0)
        yield from self._see(self._leads("A driver leads", first))
        self._sell(("north", "12.40"), ("south", "8.00"))
        yield from self._see(self._commits("It commits a batch", 1, first))
        second = self._start(1, "--standby")
        yield from self._see(self._stands_by(second))
        killed = first.kill()
        yield from self._see(self._is_gone(first, killed))
        yield from self._see(self._leads("The standby takes over", second, epoch=2))
        self._sell(("north", "3.20"))
        yield from self._see(self._commits("It commits a batch", 2, second))
        gone = self._service.go()
        yield from self._see(self._is_away(second, gone))
        self._sell(("south", "5.60"), ("west", "0.90"))
        self._service.come()
        yield from self._see(self._commits("The source is back: a batch is committed", 3, second))
        self._sell(("south", "12,50"), ("west", "7.00"))
        yield from self._see(self._fails(second), self._is_set_aside(second))
        self._sell(("west", "1.10"))
        yield from self._see(self._commits("The next batch is committed", 5, second))
        self._correct(CORRECTIONS)
        self._txn("quarantine", "replay", "sales", "4")
        yield from self._see(self._is_replayed(second))
        assert second.stop() == 0

    def _start(self, number: int, *options: str) -> Driver:
        environ = {**self._environs[number], "SALES_URL": self._service.url}
        machine = f"another-{number}" if number else ""
        where = ("--zookeeper", self._hosts)
        driver = Driver(self._folder, machine, self._ports[number], environ, *where, *options)
        self._resources.callback(driver.end)
        return driver

    def _sell(self, *sales: Sale) -> None:
        self.sold.append(sales)
        self._service.sales.extend(sales)

    def _correct(self, amounts: Mapping[str, str]) -> None:
        fresh = self._folder / "corrections.new"
        fresh.write_text(json.dumps(amounts), "utf-8")
        fresh.replace(self._folder / "corrections.json")

    def _txn(self, *words: str) -> None:
        command = [sys.executable, "-m", "txn", *words, "--zookeeper", self._hosts]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=self._folder, env=environ, check=True, capture_output=True)

    def _serve_page(self) -> str:
        command = [sys.executable, "-m", "txn", "dashboard", "--port", "0", "--json"]
        with (self._folder / "page.out").open("xb") as errors:
            page = subprocess.Popen(
                [*command, "--zookeeper", self._hosts],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert page.stdout is not None
        self._resources.enter_context(page)
        self._resources.callback(page.send_signal, signal.SIGINT)
        url: str = json.loads(page.stdout.readline())["url"]
        return url

    # --- what is to be seen of it --------------------------------------------------------------

    def _leads(self, name: str, driver: Driver, epoch: int = 1) -> Fact:
        card = self._card("Running", f"Leader {driver.name} since", f"epoch {epoch}")
        at = partial(self._created, "leader")
        return Fact(name, "its node in ZooKeeper", at, card, driver, "txn_leader")

    def _stands_by(self, driver: Driver) -> Fact:
        def announced() -> float:
            (node,) = self._zookeeper.get_children(f"{self._root}/standbys")
            return self._created(f"standbys/{node}")

        card = self._card("Running", f"Standby {driver.name}")
        name, moment = "A second driver waits as a standby", "its node in ZooKeeper"
        return Fact(name, moment, announced, card, driver, "txn_standby")

    def _is_gone(self, driver: Driver, at: float) -> Fact:
        card, is_down = self._card("Leader lost"), (0.0).__eq__
        return Fact("The leader is killed", "SIGKILL", lambda: at, card, driver, "up", is_down)

    def _commits(self, name: str, txid: int, driver: Driver) -> Fact:
        on_page, at = self._row(txid).wait_for, partial(self._committed, txid)
        metric, has_it = "txn_committed_txid", float(txid).__le__
        return Fact(name, "COMMITTED in ZooKeeper", at, on_page, driver, metric, has_it)

    def _is_away(self, driver: Driver, at: float) -> Fact:
        on_page = self._told("for a source or storage that does not answer").wait_for
        name, moment = "The source goes away", "its last answer"
        return Fact(name, moment, lambda: at, on_page, driver, "txn_blocked")

    def _fails(self, driver: Driver) -> Fact:
        on_page = self._told("CAST_INVALID_INPUT", "txid 4:0").wait_for
        name, moment, metric = "A poisoned batch fails", "the line in the log", "txn_replays_total"
        return Fact(name, moment, self._failed, on_page, driver, metric, labels=',cause="error"')

    def _is_set_aside(self, driver: Driver) -> Fact:
        told = self._told("Committed empty as attempt", "txn quarantine replay sales 4")
        at = partial(self._created, "quarantine/4")
        name, moment = "It goes into quarantine", "its node in ZooKeeper"
        return Fact(name, moment, at, told.wait_for, driver, "txn_in_quarantine")

    def _is_replayed(self, driver: Driver) -> Fact:
        badge = self.pages["transactions"].locator(".badge", has_text="replays 4")
        row, told = self._row(6).filter(has=badge), self._told("Committed empty as attempt")

        def on_page() -> None:
            row.wait_for()
            told.wait_for(state="detached")

        name, moment = "It is replayed, mended", "COMMITTED in ZooKeeper"
        at, is_none = partial(self._committed, 6), (0.0).__eq__
        return Fact(name, moment, at, on_page, driver, "txn_in_quarantine", is_none)

    # --- when that was -------------------------------------------------------------------------

    def _created(self, node: str) -> float:
        return float(self._zookeeper.get(f"{self._root}/{node}")[1].created)

    def _committed(self, txid: int) -> float:
        data, stat = self._zookeeper.get(f"{self._root}/committed")
        assert json.loads(data)["txid"] == txid
        return float(stat.last_modified)

    def _failed(self) -> float:
        log = (self._folder / ".txn/logs/sales.log").read_text("utf-8")
        found = re.search(r"^([-\d]+ [:\d]+),(\d+) WARNING txn \[sales 4:0\] failed: ", log, re.M)
        assert found is not None
        return datetime.fromisoformat(f"{found[1]}.{found[2]}").timestamp()

    # --- and when it was seen ------------------------------------------------------------------

    def _see(self, *facts: Fact) -> Iterator[Step]:
        """Wait for the page to show some facts; Prometheus keeps when it had them."""
        seen = []
        for fact in facts:
            fact.on_page()
            seen.append((fact, time.time()))
        for fact, on_page in seen:
            at = fact.at()
            both = on_page, self._scraped(fact, at)
            page, prometheus = (max(0.0, moment - at) for moment in both)
            late = max(moment - at - self._pressure.waited(at, moment) for moment in both)
            yield Step(fact.name, fact.moment, page, prometheus, late)

    def _scraped(self, fact: Fact, at: float) -> float:
        """When a scrape had ended whose value shows the fact."""
        where = f'{{instance="{fact.driver.instance}"{fact.labels}}}'
        found: list[float] = []

        def look() -> bool:
            series = self._prometheus.query(f"{fact.metric}{where}[5m]")
            values = [(float(t), float(v)) for one in series for t, v in one["values"]]
            found[:] = [moment for moment, v in values if moment > at - 1 and fact.shows(v)]
            return bool(found)

        wait_until(look, f"Prometheus has that {fact.name}", PATIENCE_SECS)
        scrapes = f'scrape_duration_seconds{{instance="{fact.driver.instance}"}}[1m]'
        return min(found) + (self._prometheus.value(f"max_over_time({scrapes})") or 0.0)

    def _card(self, state: str, *texts: str) -> Callable[[], object]:
        page = self.pages["overview"]
        found = page.locator("article.card", has=page.locator(".state", has_text=state))
        for text in texts:
            found = found.filter(has_text=text)
        return found.wait_for

    def _row(self, txid: int) -> Locator:
        """The row of a txid, once it is committed."""
        page = self.pages["transactions"]
        is_open = page.locator(".badge", has_text=re.compile("^open$"))
        return page.locator(f"tr[data-txid='{txid}']").filter(has_not=is_open)

    def _told(self, *texts: str) -> Locator:
        """An entry of the page of troubles."""
        found = self.pages["trouble"].locator("li.trouble")
        for text in texts:
            found = found.filter(has_text=text)
        return found.first
