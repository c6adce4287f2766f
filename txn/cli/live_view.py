"""What `txn run` shows: a live view on a terminal, plain lines or JSON lines elsewhere.

Three observers of one run, with the same four methods. They draw values (`RunStatus`,
`BatchReport`) and know nothing of the run itself; the loop that asks for them is in `txn.cli.app`.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.status import Status
from rich.table import Table
from rich.text import Text

from txn.cli.words import STAGE_NAMES, held_up, phases_ms, short_name, short_versions, summary
from txn.engine.report import BatchReport, InFlight, RunReport, RunStatus, Standby, Timeline
from txn.text import duration, printable

__all__ = [
    "JsonLines",
    "LiveView",
    "Observer",
    "PlainLines",
    "RunInfo",
    "Speed",
    "duration",
    "held_up",
    "phases_ms",
    "render",
    "short_name",
    "short_versions",
    "summary",
]

_PHASE_STYLES = {
    "waiting": "yellow",
    "blocked": "bold yellow",
    "planning": "dim",
    "processing": "cyan",
    "processed": "blue",
    "committing": "green",
}
_SPEED_SECS = 10.0
_RECENT = 5
_LINES_AROUND = 21
"""Lines of the view besides batches in flight: header, captions, who waits for whom, recent
batches, what blocks, failure, and an empty one for the cursor."""
_WAITING_EVENT_SECS = 1.0
_FAILURE_CHARACTERS = 150
"""Two lines of 80; the whole of it is in the log."""


@dataclass(frozen=True)
class RunInfo:
    """What does not change while a topology runs."""

    topology: str
    epoch: int
    zookeeper: str
    """As the user wrote it."""
    until: str
    committed_txid: int
    """Committed before this run."""


class Observer(ABC):
    """Told about a run by the loop in `txn.cli.app`, on one thread."""

    def starting(self, topology: str) -> None:
        """Spark and ZooKeeper are being started, tables and state are being read."""

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Ready, and waiting for the leader to end; again when that has changed."""

    @abstractmethod
    def started(self, info: RunInfo) -> None:
        """The topology leads, has recovered and runs."""

    @abstractmethod
    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Several times a second: a snapshot, and what is new since the last call.

        Args:
            batches: newly committed, in txid order.
            failures: each "txid:attempt: reason".
        """

    @abstractmethod
    def note(self, text: str) -> None:
        """Something to tell the user, in one line."""

    @abstractmethod
    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """The run is over; `error` if it did not end well."""

    def close(self) -> None:
        """Nothing more will be told. Idempotent; also comes when nothing was started."""

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, *_: object) -> None:
        self.close()


class Speed:
    """Batches and rows per second over the last ten seconds.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: list[tuple[float, int, int]] = []

    def of(self, batches: int, rows: int) -> tuple[float, float]:
        """(batches, rows) per second, given both totals now."""
        now = self._clock()
        self._seen.append((now, batches, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _SPEED_SECS:
            self._seen.pop(0)
        then, batches_then, rows_then = self._seen[0]
        if now <= then:
            return 0.0, 0.0
        return (batches - batches_then) / (now - then), (rows - rows_then) / (now - then)


# --- drawing ---------------------------------------------------------------------------------


def render(
    info: RunInfo,
    status: RunStatus,
    recent: Sequence[BatchReport],
    speed: tuple[float, float],
    now: float,
    height: int,
) -> RenderableType:
    """The live view.

    Args:
        recent: the newest committed batches, in txid order.
        speed: batches and rows per second.
        now: seconds since the epoch.
        height: lines of the terminal; more batches in flight than fit are counted only.
    """
    parts: list[RenderableType] = [
        _header(info, status, speed),
        _flight_table(status.in_flight, now, max(3, height - _LINES_AROUND)),
    ]
    if status.waits:
        parts.append(_waits(status))
    blocked = next((batch for batch in status.in_flight if batch.blocked), None)
    if blocked is not None:
        parts.append(_caption("blocked", f"{blocked.txid}: {blocked.blocked}", "yellow"))
    if recent:
        parts.append(_recent_table(recent[-_RECENT:]))
    if status.last_failure:
        parts.append(_caption("last failure", status.last_failure, "red"))
    # The cursor rests here: a terminal echoes ^C there, and must not break a full line with it.
    parts.append(Text())
    return Group(*parts)


def _caption(title: str, text: str, style: str) -> Text:
    caption = Text(printable(f"{title}  {' '.join(text.split())}"))
    caption.truncate(_FAILURE_CHARACTERS, overflow="ellipsis")
    caption.stylize(style, 0, len(title))
    return caption


def _waits(status: RunStatus) -> RenderableType:
    title = Text.assemble(("held up by", "bold"), f" {STAGE_NAMES[status.held_up_by]}")
    said = [Text(wait, style="dim", no_wrap=True, overflow="ellipsis") for wait in status.waits]
    return Group(title, *said)


def _header(info: RunInfo, status: RunStatus, speed: tuple[float, float]) -> RenderableType:
    first = Text.assemble(
        (info.topology, "bold"),
        f"  epoch {info.epoch}  until {info.until}  zookeeper {info.zookeeper}",
        no_wrap=True,
        overflow="ellipsis",
    )
    second = Text.assemble(
        "committed ",
        (f"{status.committed_txid}", "bold green"),
        f"  {speed[0]:.1f} batches/s  {speed[1]:,.0f} staged rows/s  replays ",
        (f"{status.replays}", "bold yellow" if status.replays else ""),
        f"  {duration(status.seconds)}",
        no_wrap=True,
        overflow="ellipsis",
    )
    return Group(first, second)


def _flight_table(batches: Sequence[InFlight], now: float, room: int) -> RenderableType:
    table = _table("in flight")
    for name in ("txid:attempt", "phase", "seconds", "failures"):
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for batch in batches[:room]:
        phase = "blocked" if batch.blocked else batch.phase
        replay = f" (replays {batch.replay_of})" if batch.replay_of else ""
        since = batch.blocked_since or batch.since
        table.add_row(
            f"{batch.txid}:{batch.attempt_id}",
            Text(phase + replay, style=_PHASE_STYLES.get(phase, "")),
            f"{max(0.0, now - since):.1f}",
            Text(str(batch.failures or ""), style="red"),
        )
    if not batches:
        table.add_row("-", Text("waiting for something to read", style="dim"), "", "")
    if len(batches) > room:
        table.add_row("...", f"and {len(batches) - room} more", "", "")
    return table


def _recent_table(batches: Sequence[BatchReport]) -> RenderableType:
    table = _table("committed")
    for name in ("txid:attempt", "rows", "processing", "waiting", "commit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("table versions", overflow="ellipsis", no_wrap=True, ratio=1)
    for batch in reversed(batches):
        processing, waiting, commit = phases_ms(batch)
        table.add_row(
            str(batch.attempt),
            f"{sum(batch.rows.values()):,}",
            f"{processing:,.0f} ms",
            f"{waiting:,.0f} ms",
            f"{commit:,.0f} ms",
            short_versions(batch.tables),
        )
    return table


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
        expand=title == "committed",
    )


# --- observers -------------------------------------------------------------------------------


def _standing_by(topology: str, standby: Standby) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(standby.since))
    return f"{topology}: standing by since {since}, waiting for {standby}"


class _Blocked:
    """Which batches have begun or ceased to wait for a source that is away."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def changes(self, status: RunStatus) -> tuple[list[InFlight], list[int]]:
        """(newly blocked, txids no longer blocked) since the last call."""
        blocked = [batch for batch in status.in_flight if batch.blocked]
        begun = [batch for batch in blocked if batch.txid not in self._known]
        ceased = sorted(self._known - {batch.txid for batch in blocked})
        self._known = {batch.txid for batch in blocked}
        return begun, ceased


class LiveView(Observer):
    """Redraws itself in place; the last picture stays.

    Args:
        wall: seconds since the epoch, the clock of the run's reports.
    """

    def __init__(self, console: Console, wall: Callable[[], float] = time.time) -> None:
        self._console = console
        self._wall = wall
        self._speed = Speed()
        self._recent: list[BatchReport] = []
        self._live: Live | None = None
        self._status: Status | None = None
        self._info: RunInfo | None = None

    def starting(self, topology: str) -> None:
        """Something that moves, for the seconds that Java takes."""
        self._status = self._console.status(f"{topology}: starting Spark and ZooKeeper")
        self._status.start()

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Say so beside what moves."""
        if self._status is not None:
            self._status.update(_standing_by(topology, standby))

    def started(self, info: RunInfo) -> None:
        """Begin to draw."""
        self._info = info
        self.close()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Draw again."""
        self._recent = [*self._recent, *batches][-_RECENT:]
        if self._live is None or self._info is None:
            return
        speed = self._speed.of(status.batches_committed, status.rows_committed)
        height = self._console.size.height
        picture = render(self._info, status, self._recent, speed, self._wall(), height)
        self._live.update(picture, refresh=True)

    def note(self, text: str) -> None:
        """Print above the picture."""
        self._console.print(text, highlight=False, markup=False)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Leave the last picture and say how it ended; an error is said by the caller."""
        self.close()
        if error is None:
            for line in filter(None, (held_up(report), summary(report, status))):
                self._console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        """Stop drawing; the last picture stays."""
        for drawn in (self._live, self._status):
            if drawn is not None:
                drawn.stop()


class PlainLines(Observer):
    """One line per committed batch, failure and wait, for pipes and log files."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._blocked = _Blocked()

    def standing_by(self, topology: str, standby: Standby) -> None:
        """One line."""
        self._print(_standing_by(topology, standby))

    def started(self, info: RunInfo) -> None:
        """Say what runs."""
        self._print(
            f"{info.topology}: running, epoch {info.epoch}, from txid {info.committed_txid + 1}, "
            f"until {info.until}, zookeeper {info.zookeeper}"
        )

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """One line each."""
        begun, ceased = self._blocked.changes(status)
        for held in begun:
            why = " ".join((held.blocked or "").split())
            self._print(f"{status.topology}: blocked {held.txid}:{held.attempt_id}: {why}")
        for unblocked in ceased:
            self._print(f"{status.topology}: txid {unblocked} is no longer blocked")
        for failure in failures:
            self._print(f"{status.topology}: failed {' '.join(failure.split())}")
        for batch in batches:
            processing, waiting, commit = phases_ms(batch)
            self._print(
                f"{status.topology}: committed {batch.attempt} rows={sum(batch.rows.values())} "
                f"processing={processing:.0f}ms waiting={waiting:.0f}ms commit={commit:.0f}ms "
                f"tables: {short_versions(batch.tables)}"
            )

    def note(self, text: str) -> None:
        """One line."""
        self._print(text)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Say how it ended; an error is said by the caller."""
        if error is None:
            for line in filter(None, (held_up(report), summary(report, status))):
                self._print(line)

    def _print(self, line: str) -> None:
        print(printable(line), file=self._out, flush=True)


class JsonLines(Observer):
    """One JSON object per line, each an event.

    They are: standby, started, committed, failed, blocked, unblocked, waiting (which stage waits
    for which; at most once a second), note, ended.

    Args:
        wall: seconds since the epoch; the `at` of every event.
    """

    def __init__(self, out: IO[str], wall: Callable[[], float] = time.time) -> None:
        self._out = out
        self._wall = wall
        self._blocked = _Blocked()
        self._waits: tuple[str, ...] = ()
        self._waits_told = float("-inf")

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Event `standby`."""
        self._print("standby", {"topology": topology, **vars(standby)})

    def started(self, info: RunInfo) -> None:
        """Event `started`."""
        self._print("started", vars(info))

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Events `blocked`, `unblocked`, `failed`, `committed`, and each second `waiting`."""
        begun, ceased = self._blocked.changes(status)
        for waiting in begun:
            fields = {"txid": waiting.txid, "attempt": waiting.attempt_id, "error": waiting.blocked}
            self._print("blocked", {**fields, "since": waiting.blocked_since})
        for unblocked in ceased:
            self._print("unblocked", {"txid": unblocked})
        for failure in failures:
            attempt, _, error = failure.partition(": ")
            txid, _, attempt_id = attempt.partition(":")
            self._print("failed", {"txid": int(txid), "attempt": int(attempt_id), "error": error})
        for batch in batches:
            self._print(
                "committed",
                {
                    "txid": batch.attempt.txid,
                    "attempt": batch.attempt.attempt_id,
                    "rows": dict(batch.rows),
                    "tables": dict(batch.tables),
                    "ms": Timeline(dict(batch.times)).durations_ms(),
                },
            )

        now = self._wall()
        if status.waits != self._waits and now >= self._waits_told + _WAITING_EVENT_SECS:
            self._waits, self._waits_told = status.waits, now
            held = {"held_up_by": status.held_up_by, "waits": list(status.waits)}
            self._print("waiting", held)

    def note(self, text: str) -> None:
        """Event `note`."""
        self._print("note", {"text": text})

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Event `ended`, with the error if there was one."""
        self._print(
            "ended",
            {
                "ended": "error" if error is not None else report.ended,
                "error": None if error is None else f"{type(error).__name__}: {error}",
                "committed_txid": status.committed_txid,
                "batches_committed": report.batches_committed,
                "rows_committed": status.rows_committed,
                "replays": report.replays,
                "seconds": round(status.seconds, 3),
                "bound_seconds": {
                    stage: round(seconds, 3) for stage, seconds in report.bound_seconds.items()
                },
            },
        )

    def _print(self, event: str, fields: Mapping[str, Any]) -> None:
        line = json.dumps({"event": event, "at": round(self._wall(), 3), **fields})
        print(line, file=self._out, flush=True)
