"""Topologies to look at without Spark and ZooKeeper: tables in a folder, a run's notes, a log.

One that runs (`flights`), one that has stopped (`orders`), and one whose every name is hostile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.dashboard.made_logs import append_version, made_table, publication
from txn.config import TopologyConfig
from txn.dashboard.watching.feed import Look, StatusFeed
from txn.dashboard.watching.run_files import RunNote, write_note
from txn.engine.reporting.report import InFlight
from txn.machine.liveness import machine_id
from txn.operations.status import status_of
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import (
    BatchRecord,
    CommittedRecord,
    LeaderIdentity,
    NoticesRecord,
    Progress,
    QuarantineRecord,
    StandbyIdentity,
)

__all__ = ["HOSTILE", "Sample", "Told", "hostile_topology", "with_stopped"]

HOSTILE = "<img src=x onerror=document.title='hacked'>\u202e"
"""A name, a file, a column and an error with markup, and a character that turns text around."""
STATE = {
    "carrier": "string",
    "flights": "long",
    "delay": "double",
    "txid": "long",
    "prev_flights": "long",
    "prev_txid": "long",
}
ROUTES = {"origin": "string", "dest": "string", "dep_delay": "double", "txid": "long"}
BAD = {
    "stream": "string",
    "rule": "string",
    "position": "string",
    "row": "string",
    "reason": "string",
    "txid": "long",
}
CARRIERS = ("AA", "B6", "DL", "EV", "UA", "US", "WN")


class Told(StatusFeed):
    """A feed that says what a test tells it to."""

    last: Told

    def __init__(
        self,
        spec: str,
        wanted: Mapping[str, TopologyConfig],
        tell: Callable[[Look], None],
        *,
        starts_server: bool = True,
    ) -> None:
        self.say = tell
        self.begin: Callable[[], None] = lambda: None
        Told.last = self

    def start(self) -> None:
        self.begin()

    def close(self) -> None:
        pass


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


class Sample:
    """A working folder with two topologies, and what ZooKeeper would say of them.

    Args:
        now: seconds since 1970; the newest txid was committed just before.
        txids: of `flights`.
    """

    def __init__(self, folder: Path, *, now: float | None = None, txids: int = 240) -> None:
        self.folder = folder
        self.now = time.time() if now is None else now
        self.txids = txids
        self.delays = str(folder / "warehouse/delays")
        self.routes = str(folder / "warehouse/routes")
        self.bad = str(folder / "warehouse/bad_rows")
        self.versions: dict[str, int] = {}
        self._last_file: str | None = None
        made_table(Path(self.delays), STATE, "upsert", "flights", self._ms(0))
        made_table(Path(self.routes), ROUTES, "append", "flights", self._ms(0))
        made_table(Path(self.bad), BAD, "append", "flights", self._ms(0))
        self.quarantined = max(1, txids - 60)
        self.open = (txids + 1, txids + 2, txids + 3, txids + 4)
        for txid in range(1, txids + 1):
            self.commit(txid)
            if txid == txids - 100:
                self._foreign()
        self._log()

    def _ms(self, txid: int) -> int:
        """When a txid was committed: every 7 s, the newest 2 s ago."""
        return int((self.now - 2 - (self.txids - txid) * 7) * 1000)

    def commit(self, txid: int, at_ms: int | None = None) -> None:
        """Append a txid to the tables."""
        at = self._ms(txid) if at_ms is None else at_ms
        wave = 1 + 0.6 * ((txid * 7) % 11 - 5) / 5
        said = publication(
            txid,
            1 if txid % 40 == 7 else 0,
            "flights",
            rows=int(24_000 * wave),
            epoch=3 if txid > self.txids - 120 else 2,
            read={
                "flights": {
                    "files": [{"path": f"data/flights/2013-{txid:04d}.csv", "size": 1_843_200}]
                }
            },
            timings_ms={
                "started": 6.1,
                "processing": 3.4,
                "staged": 310.0 * wave + (900 if txid % 53 == 0 else 0),
                "processed": 2.8,
                "turn": 14.0 * (1 + txid % 3),
                "prepared": 61.0,
            },
            violations={"flights": {"known carrier": 3 if txid % 9 == 0 else 0}},
            quarantined=(
                "BatchError: [MALFORMED_RECORD_IN_PARSING] line 17 of 2013-0180.csv"
                if txid == self.quarantined
                else None
            ),
        )
        if txid == self.quarantined:
            said = said.model_copy(update={"rows": 0})
        self._append(self.delays, said, self._state(txid), at)
        self._append(
            self.routes, said.model_copy(update={"rows": said.rows // 3}), self._new(txid), at
        )
        self._append(self.bad, said.model_copy(update={"rows": 1}), self._aside(txid), at)

    def _append(self, table: str, said: Any, rows: pa.Table | None, at: int) -> None:
        version = self.versions.get(table, 0) + 1
        gone = (self._last_file,) if table == self.delays and self._last_file else ()
        path = append_version(Path(table), version, said, at_ms=at, rows=rows, removes=gone)
        if table == self.delays:
            self._last_file = path
        self.versions[table] = version

    def _state(self, txid: int) -> pa.Table:
        count = min(len(CARRIERS), 3 + txid // 40)
        touched = txid % count
        return pa.table(
            {
                "carrier": list(CARRIERS[:count]),
                "flights": [
                    1000 * (k + 1) + (txid - (txid - k) % count) * 10 for k in range(count)
                ],
                "delay": [
                    round(4.2 * (k + 1) + (txid - (txid - k) % count) / 9, 2) for k in range(count)
                ],
                "txid": [
                    txid if k == touched else max(1, txid - (txid - k) % count)
                    for k in range(count)
                ],
                "prev_flights": [None] * count,
                "prev_txid": [None] * count,
            },
            schema=pa.schema(
                [
                    ("carrier", pa.string()),
                    ("flights", pa.int64()),
                    ("delay", pa.float64()),
                    ("txid", pa.int64()),
                    ("prev_flights", pa.int64()),
                    ("prev_txid", pa.int64()),
                ]
            ),
        )

    def _new(self, txid: int) -> pa.Table:
        return pa.table(
            {
                "origin": ["EWR", "JFK", "LGA"],
                "dest": ["IAH", "MIA", "ORD"],
                "dep_delay": [2.0, None, float(txid % 90)],
                "txid": pa.array([txid] * 3, pa.int64()),
            }
        )

    def _aside(self, txid: int) -> pa.Table | None:
        if txid % 9:
            return None
        return pa.table(
            {
                "stream": ["flights"],
                "rule": ["a number"],
                "position": [f"data/flights/2013-{txid:04d}.csv"],
                "row": ['{"carrier":"UA","dep_delay":"late"}'],
                "reason": [
                    "the row breaks the rule 'a number': try_cast(delay AS INT) IS NOT NULL"
                ],
                "txid": pa.array([txid], pa.int64()),
            }
        )

    def _foreign(self) -> None:
        version = self.versions[self.routes] + 1
        append_version(
            Path(self.routes),
            version,
            at_ms=self._ms(self.txids - 100) + 900,
            rows=self._new(0),
            operation="DELETE",
            engineInfo="Apache-Spark/4.2.0 Delta-Lake/4.4.0",
            userName="ann",
        )
        self.versions[self.routes] = version

    def _log(self) -> None:
        lines = []
        for txid, error in (
            (
                max(1, self.txids - 33),
                "FailedException: the service of carriers answered 503 (clean, flights.py:31)",
            ),
            (
                self.quarantined,
                "BatchError: [MALFORMED_RECORD_IN_PARSING] line 17 of 2013-0180.csv",
            ),
            (self.open[0], "BatchTimeoutError: no end of it within 300 s"),
        ):
            at = datetime.fromtimestamp(self._ms(min(txid, self.txids)) / 1000 - 3).astimezone()
            stamp = f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}"
            lines.append(f"{stamp} WARNING txn [flights {txid}:0] failed: {error}\n")
        folder = self.folder / ".txn/logs"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "flights.log").write_text("".join(lines), "utf-8")

    # --- what ZooKeeper and the run say ------------------------------------------------------

    def note(self, now: float | None = None, **more: Any) -> None:
        """Write the note of the running topology."""
        now = time.time() if now is None else now
        phases = ("committing", "processed", "processing", "processing")
        flights = tuple(
            InFlight(
                txid=txid,
                attempt_id=1 if number == 0 else 0,
                phase=phase,
                failures=1 if number == 0 else 0,
                since=now - (0.4, 1.1, 2.6, 0.9)[number],
            )
            for number, (txid, phase) in enumerate(zip(self.open, phases, strict=True))
        )
        told: dict[str, Any] = {
            "topology": "flights",
            "pid": os.getpid(),
            "machine": machine_id(),
            "epoch": 3,
            "at": now,
            "held_up_by": "commit",
            "waits": (
                f"txid {self.open[1]} waits for the commit turn of {self.open[0]} (publish, 0.4 s)",
            ),
            "in_flight": flights,
            "lags": {"flights": {"files": 14, "bytes": 25_804_800}, "weather": {"records": 1210}},
            "planned": {"flights": {"files": 4, "bytes": 7_372_800}, "weather": {"records": 0}},
            "plan": self.plan(),
            **more,
        }
        write_note(RunNote(**told), self.folder / ".txn/runs")

    def plan(self) -> dict[str, Any]:
        """The program of `flights`, as `txn plan` has it."""
        exactly = (
            "Every replay is identical; the table is opaque, and can also handle a different one."
        )

        def table(name: str, reads: str, kind: str, layout: str | None) -> dict[str, Any]:
            return {
                "name": name,
                "committer": kind,
                "layout": layout,
                "semantics": "opaque",
                "reads": reads,
                "phase": "processing",
                "columns": [],
                "guarantee": "exactly once",
                "why": exactly,
            }

        def stage(name: str, operation: str, reads: list[str], detail: str) -> dict[str, Any]:
            return {
                "id": name,
                "operation": operation,
                "reads": reads,
                "phase": "processing",
                "detail": detail,
            }

        return {
            "topology": "flights",
            "streams": [
                {
                    "id": "spout-flights",
                    "name": "flights",
                    "spout": "FileSpout",
                    "kind": "transactional",
                },
                {
                    "id": "spout-weather",
                    "name": "weather",
                    "spout": "KafkaSpout",
                    "kind": "transactional",
                },
            ],
            "stages": [
                stage(
                    "flights/expect-1",
                    "expect",
                    ["spout-flights"],
                    "known carrier: carrier IS NOT NULL, else drop",
                ),
                stage(
                    "flights/transform-1",
                    "transform",
                    ["flights/expect-1"],
                    "clean (flights.py:31)",
                ),
                stage(
                    "flights+weather/join-1",
                    "join",
                    ["flights/transform-1", "spout-weather"],
                    "left on origin, hour",
                ),
                stage(
                    "flights/aggregate-1",
                    "aggregate",
                    ["flights+weather/join-1"],
                    "by carrier: flights=Count(), delay=Avg(dep_delay)",
                ),
            ],
            "tables": [
                table(self.delays, "flights/aggregate-1", "UpsertCommitter", "upsert"),
                table(self.routes, "flights/transform-1", "AppendTable", None),
                table(self.bad, "flights/expect-1", "AppendTable", None),
            ],
            "settings": [
                {"name": "max_spout_pending", "value": "8", "place": "the program"},
                {
                    "name": "zookeeper_auth",
                    "value": "(('digest', SecretStr('**********')),)",
                    "place": "the program",
                },
            ],
        }

    def look(self, *, committed: int | None = None, running: bool = True) -> Look:
        """What ZooKeeper says."""
        newest = self.txids if committed is None else committed
        leader = LeaderIdentity(
            host="alpha",
            pid=os.getpid(),
            started=iso(self.now - 8400),
            epoch=3,
            token="leader-token",
            machine=machine_id(),
        )
        flights = TopologyStatus(
            "flights",
            Progress(
                committed=CommittedRecord(
                    txid=newest,
                    epoch=3,
                    spouts={
                        "flights": {"files": [{"path": f"data/flights/2013-{newest:04d}.csv"}]},
                        "weather": None,
                    },
                    tables=dict(self.versions),
                ),
                batches=tuple(
                    BatchRecord(
                        txid=txid,
                        attempt=1 if txid == self.open[0] else 0,
                        epoch=3,
                        spouts={
                            "flights": {"files": [{"path": f"data/flights/2013-{txid:04d}.csv"}]}
                        },
                    )
                    for txid in self.open
                    if txid > newest
                ),
            ),
            3,
            leader if running else None,
            leader,
            (
                QuarantineRecord(
                    txid=self.quarantined,
                    attempt=4,
                    spouts={"flights": {"files": [{"path": "data/flights/2013-0180.csv"}]}},
                    error="BatchError: [MALFORMED_RECORD_IN_PARSING] line 17 of 2013-0180.csv",
                ),
            ),
            standbys=(
                (StandbyIdentity(host="beta", pid=os.getpid(), since=iso(self.now - 8000)), None),
            ),
            notices=NoticesRecord(
                epoch=3,
                txid=newest,
                at=iso(self.now - 60),
                streams={
                    "flights": [
                        "2 files were changed after they were read: 2013-0003.csv, 2013-0004.csv"
                    ]
                },
            ),
        )
        return Look(time.time(), {"flights": status_of(flights)}, hosts=None)


def with_stopped(look: Look, folder: Path) -> Look:
    """The same look with `orders` in it, which has stopped three hours ago."""
    table = made_table(
        folder / "warehouse/orders", {"item": "string", "txid": "long"}, topology="orders"
    )
    ended = time.time() - 3 * 3600
    for txid in range(1, 31):
        said = publication(txid, 0, "orders", rows=5200)
        append_version(table, txid, said, at_ms=int((ended - (30 - txid) * 20) * 1000))
    status = TopologyStatus(
        "orders",
        Progress(
            committed=CommittedRecord(
                txid=30, epoch=2, spouts={"orders": {"at": 156000}}, tables={str(table): 30}
            )
        ),
        2,
        None,
        LeaderIdentity(host="alpha", pid=1, started=iso(ended - 600), epoch=2, token="t"),
        (),
    )
    return replace(look, statuses={**look.statuses, "orders": status_of(status)})


def hostile_topology(folder: Path) -> Look:
    """A topology, a table, a file, a column and an error that are all `HOSTILE`."""
    name = HOSTILE.replace("\u202e", "")
    table = made_table(
        folder / "warehouse" / name, {HOSTILE: "string", "txid": "long"}, "append", name
    )
    rows = pa.table({HOSTILE: [HOSTILE], "txid": pa.array([1], pa.int64())})
    said = publication(
        1,
        0,
        name,
        read={HOSTILE: {"files": [{"path": f"data/{HOSTILE}.csv"}]}},
        quarantined=HOSTILE,
    )
    append_version(table, 1, said, rows=rows, at_ms=int(time.time() * 1000))
    append_version(
        table,
        2,
        None,
        rows=rows,
        operation=HOSTILE,
        userName=HOSTILE,
        at_ms=int(time.time() * 1000),
    )
    status = TopologyStatus(
        name,
        Progress(
            committed=CommittedRecord(
                txid=1, epoch=1, spouts={HOSTILE: HOSTILE}, tables={str(table): 1}
            )
        ),
        1,
        None,
        LeaderIdentity(host=HOSTILE, pid=1, started=HOSTILE, epoch=1, token="t"),
        (QuarantineRecord(txid=1, attempt=0, spouts={HOSTILE: HOSTILE}, error=HOSTILE),),
        notices=NoticesRecord(epoch=1, txid=1, at=HOSTILE, streams={HOSTILE: [HOSTILE]}),
    )
    return Look(time.time(), {name: status_of(status)})
