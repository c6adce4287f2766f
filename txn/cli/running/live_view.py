"""The live view of `txn run`: a picture on a terminal that redraws itself in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.status import Status
from rich.table import Table
from rich.text import Text

from txn.cli.running.observers import CliObserver, RunInfo
from txn.cli.words import (
    ending,
    lagging,
    phases_ms,
    rows_by_table,
    standing_by,
)
from txn.engine.reporting.bottleneck import in_words
from txn.engine.reporting.report import BatchReport, InFlight, RunReport, RunStatus, Standby
from txn.notebook.live import Rates
from txn.text import duration, printable

__all__ = ["LiveView", "render"]

_PHASE_STYLES = {
    "waiting": "yellow",
    "blocked": "bold yellow",
    "planning": "dim",
    "queued": "dim",
    "processing": "cyan",
    "processed": "blue",
    "committing": "green",
}
_RECENT = 5
_LINES_AROUND = 25
"""Lines of the view besides batches in flight: header, lag, rows left out, captions, waits, recent
batches, blocked batch, failure, and an empty one for the cursor."""
_FAILURE_CHARACTERS = 150
"""Two lines of 80; the log has the whole text."""


# --- drawing ---------------------------------------------------------------------------------


def render(
    info: RunInfo,
    status: RunStatus,
    recent: Sequence[BatchReport],
    speed: Sequence[float],
    now: float,
    height: int,
) -> RenderableType:
    """Return the live view.

    Args:
        recent: the newest committed batches, in txid order.
        speed: batches and rows per second.
        now: seconds since the epoch.
        height: lines of the terminal; batches in flight that do not fit are only counted.
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
    title = Text(in_words(status.held_up_by), style="bold")
    lines = [Text(wait, style="dim", no_wrap=True, overflow="ellipsis") for wait in status.waits]
    return Group(title, *lines)


def _header(info: RunInfo, status: RunStatus, speed: Sequence[float]) -> RenderableType:
    place = "embedded" if info.zookeeper.startswith("embedded") else info.zookeeper
    first = Text.assemble(
        (info.topology, "bold"),
        f"  epoch {info.epoch}  until {info.until}  zookeeper {place}",
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
    lines = [first, second, Text(status.totals.amounts(), no_wrap=True, overflow="ellipsis")]
    if ahead := lagging(status):
        lines.append(Text(f"lag  {ahead}", no_wrap=True, overflow="ellipsis"))
    if left_out := status.totals.left_out():
        lines.append(_caption("left out", left_out, "yellow"))
    return Group(*lines)


def _flight_table(batches: Sequence[InFlight], now: float, room: int) -> RenderableType:
    table = _table("in flight")
    for name in ("txid:attempt", "phase", "seconds", "failures"):
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    # The line that counts the rest takes as much room as one more batch.
    shown = batches if len(batches) <= room + 1 else batches[:room]
    for batch in shown:
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
    if len(shown) < len(batches):
        table.add_row("...", f"and {len(batches) - room} more", "", "")
    return table


def _recent_table(batches: Sequence[BatchReport]) -> RenderableType:
    table = _table("committed")
    for name in ("txid:attempt", "processing", "waiting", "commit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("rows staged (version)", overflow="ellipsis", no_wrap=True, ratio=1)
    for batch in reversed(batches):
        processing, waiting, commit = phases_ms(batch)
        table.add_row(
            str(batch.attempt),
            f"{processing:,.0f} ms",
            f"{waiting:,.0f} ms",
            f"{commit:,.0f} ms",
            rows_by_table(batch),
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


class LiveView(CliObserver):
    """Redraws itself in place; the last picture stays.

    Args:
        wall: seconds since the epoch, the clock of the run's reports.
    """

    def __init__(self, console: Console, wall: Callable[[], float] = time.time) -> None:
        self._console = console
        self._wall = wall
        self._rates = Rates()
        self._recent: list[BatchReport] = []
        self._live: Live | None = None
        self._status: Status | None = None
        self._info: RunInfo | None = None

    def starting(self, topology: str, step: str) -> None:
        """Show it with a spinner."""
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(f"{topology}: {step}")

    def standing_by(self, topology: str, standby: Standby) -> None:
        """Show it beside the spinner."""
        if self._status is not None:
            self._status.update(standing_by(topology, standby))

    def started(self, info: RunInfo) -> None:
        """Start drawing."""
        self._info = info
        self.close()
        self._console.print(f"{info.topology}: {info.progress}", highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def update(
        self, status: RunStatus, batches: Sequence[BatchReport], failures: Sequence[str]
    ) -> None:
        """Draw again."""
        self._recent = [*self._recent, *batches][-_RECENT:]
        if self._live is None or self._info is None:
            return
        totals = (status.batches_committed, status.totals.rows_staged)
        speed = self._rates.add(status.seconds, *totals)
        height = self._console.size.height
        picture = render(self._info, status, self._recent, speed, self._wall(), height)
        self._live.update(picture, refresh=True)

    def note(self, text: str) -> None:
        """Print above the picture."""
        self._console.print(text, highlight=False, markup=False)

    def ended(self, report: RunReport, status: RunStatus, error: BaseException | None) -> None:
        """Leave the last picture and print how the run ended; the caller prints an error."""
        self.close()
        if error is None:
            for line in ending(report):
                self._console.print(line, highlight=False, markup=False)

    def close(self) -> None:
        """Stop drawing; the last picture stays."""
        for drawn in (self._live, self._status):
            if drawn is not None:
                drawn.stop()
