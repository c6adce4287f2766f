"""One warehouse on a storage server that lives through bad weather and a chain of crashes.

Between the drivers and the server stands a proxy that does harm by rule (`tests.stores.proxy`). The
judge goes straight to the server.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.faults.harness import (
    Driver,
    Record,
    Spec,
    TableImage,
    drivers,
    file_of,
    make_records,
    read_tables,
)
from tests.stores.proxy import (
    Answer,
    Delay,
    Fail,
    Fault,
    Forward,
    HideNew,
    Late,
    LoseAnswer,
    Proxy,
    Repeat,
    Request,
    Rule,
    Skew,
    lists,
)
from txn.storage.opening import open_store

__all__ = ["TABLES", "WEATHERS", "Life", "Lived", "Place", "live_on"]

TABLES = ("rows", "totals", "log")
PER_LIFE = 12
"""Records: more than a life gets done before it ends."""
PER_FILE = 3
CONF = {
    # As it comes, Hadoop's client waits for up to half a minute after a 503.
    "spark.hadoop.fs.s3a.retry.throttle.interval": "10ms",
    "spark.hadoop.fs.s3a.retry.interval": "10ms",
    "spark.hadoop.fs.azure.io.retry.backoff.interval": "10",
    "spark.hadoop.fs.azure.io.retry.min.backoff.interval": "10",
    "spark.hadoop.fs.azure.io.retry.max.backoff.interval": "100",
}
LATE_SECS = 2.0
"""About as long as the next driver needs until it leads."""


@dataclass(frozen=True)
class Place:
    """Where a warehouse lies."""

    location: str
    direct: Mapping[str, str]
    """`storage_options` of the judge."""
    options: Mapping[str, str]
    """Those of the drivers: by way of the proxy, if there is one."""
    packages: tuple[str, ...] = ()
    proxy: Proxy | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    """Of Spark's, beside the options."""
    master: str = "local[2]"


class Gust(NamedTuple):
    """A fault, and what it happens to."""

    fault: Fault
    when: Callable[[Request], bool]
    probability: float = 1.0


def anything(_: Request) -> bool:
    return True


def is_commit(request: Request) -> bool:
    """Whether it is the conditional PUT of a commit after a txid, or of one that has it."""
    is_ours = request.kind == "commit" and request.operation == "PUT IF ABSENT"
    return is_ours and b"last_txid" in request.body


def is_publication(request: Request) -> bool:
    """Whether it is the conditional PUT of a commit that has a txid, and no leader's fence."""
    return is_commit(request) and any(
        "txn" in json.loads(line).get("commitInfo", {}) for line in request.body.splitlines()
    )


WEATHERS: Mapping[str, tuple[Gust, ...]] = {
    "fair": (),
    "busy": (Gust(Fail(503, "SlowDown"), anything, 0.03),),
    "answers-lost": (
        Gust(LoseAnswer(), is_commit, 0.5),
        Gust(LoseAnswer(500), anything, 0.02),
    ),
    "late": (Gust(Late(0.4), is_commit, 0.4),),
    "reordered": (
        Gust(Delay((0.0, 0.3)), anything),
        Gust(Delay((0.0, 0.3), before=True), anything),
    ),
    "lagging-lists": (Gust(HideNew(3.0), lists()), Gust(Repeat(1.0), lists())),
}
"""What happens to all requests of a driver, from its start to its end."""


@dataclass(frozen=True)
class Life:
    """One driver: the weather it meets, and how it ends.

    Args:
        end: a point of a batch's life; or the conditional PUT of a table's second publication, at
            which the driver dies while it "never" reaches the server, "has" reached it, or reaches
            it "later".
    """

    weather: str
    end: str
    table: str = "rows"

    @property
    def name(self) -> str:
        """For a test's name."""
        where = f"{self.table}-put-" if self.end in ("never", "has", "later") else ""
        return f"{self.weather}-{where}{self.end}"


@dataclass(frozen=True)
class Strike:
    """Kills a driver at a request of its own."""

    lands: Literal["never", "has", "later"]
    driver: list[Driver] = field(default_factory=list, repr=False)

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        try:
            if self.lands == "has":
                await forward(request)  # the weather may lose the answer
        finally:
            if self.lands == "later":
                proxy.later(LATE_SECS, request, forward)
            os.kill(self.driver[0].pid, signal.SIGKILL)
        raise ConnectionResetError


@dataclass(frozen=True)
class Lived:
    """What was seen of one warehouse."""

    kind: str
    records: list[Record]
    lives: Sequence[Life]
    struck: list[int]
    """Requests that met the weather, by life."""
    after_kill: list[dict[str, TableImage]]
    end: dict[str, TableImage]
    report: Mapping[str, Any]

    def after_restart(self, step: int) -> dict[str, TableImage]:
        """The tables as the driver after the kill left them."""
        return self.after_kill[step + 1] if step + 1 < len(self.after_kill) else self.end


def live_on(
    place: Place,
    folder: Path,
    lives: Sequence[Life],
    kind: str,
    source: str,
    clock_secs: float = 0.0,
) -> Lived:
    """Let one driver after the other die as it says, and one more run to its end in fair weather.

    Args:
        folder: of the drivers' output, and of ZooKeeper.
        source: "files" below the location, put there before the first life, or "log".
        clock_secs: how far the server's clock is ahead.
    """
    records = make_records(folder, PER_LIFE * (len(lives) + 1))
    if source == "files":
        _put_files(place, records)
    spec = Spec(
        folder=str(folder),
        warehouse=place.location,
        storage_options=dict(place.options),
        packages=place.packages,
        kind=kind,
        source=source,
        tables=TABLES,
        zookeeper=f"embedded:{folder}/zookeeper",
        master=place.master,
        conf={**CONF, **place.conf},
        config={"max_spout_pending": 2, "batch_emit_interval_ms": 1, "max_batch_attempts": 50},
    )
    struck, after_kill = [], []
    warm = place.master.startswith("local")  # of a cluster, each driver has its own executors
    with drivers() as start:
        for number, life in enumerate(lives):
            with _weather(place.proxy, life, clock_secs, number) as (rules, strike):
                at = None if strike else life.end
                driver = start(spec.model_copy(update={"at": at}), warm=warm)
                if strike:
                    strike.driver.append(driver)
                code = driver.wait()
            assert code == -signal.SIGKILL, f"{life.name}: {code}\n{driver.stderr()[-4000:]}"
            struck.append(sum(len(rule.met) for rule in rules))
            after_kill.append(read_tables(place.location, TABLES, place.direct))
        with _weather(place.proxy, Life("fair", ""), clock_secs, 0):
            report = start(spec, warm=warm).report()
    if place.proxy:
        place.proxy.settle()
    end = read_tables(place.location, TABLES, place.direct)
    return Lived(kind, records, lives, struck, after_kill, end, report)


@contextmanager
def _weather(
    proxy: Proxy | None, life: Life, clock_secs: float, seed: int
) -> Iterator[tuple[list[Rule], Strike | None]]:
    """The rules of a life, but for the one that ends it, if a request does."""
    if proxy is None:
        yield [], None
        return
    proxy.inject(Skew(clock_secs), anything)
    rules = [
        proxy.inject(gust.fault, gust.when, probability=gust.probability, seed=seed)
        for gust in WEATHERS[life.weather]
    ]
    strike = Strike(life.end) if life.end in ("never", "has", "later") else None  # type: ignore[arg-type]
    if strike:
        proxy.inject(strike, lambda it: is_publication(it) and f"/{life.table}/" in it.path, nth=2)
    try:
        yield rules, strike
    finally:
        proxy.clear()


def _put_files(place: Place, records: Sequence[Record]) -> None:
    store, _ = open_store(f"{place.location}/in", dict(place.direct))
    for first in range(0, len(records), PER_FILE):
        store.put(*file_of(records, first, min(first + PER_FILE, len(records))))
