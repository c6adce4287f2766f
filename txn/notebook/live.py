"""Show a run live in a notebook: its graph, its rates and the txids in flight."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from txn.text import duration, printable

__all__ = ["Moment", "Rates", "page", "show"]

_UPDATE_SECS = 0.5
_WINDOW_SECS = 10.0
_SHOWN = 12
"""Most txids in flight that are listed."""
_BOX = (190, 26, 10)
"""Width, height and gap of a box of the graph."""
_BETWEEN = 110
"""Width between streams and tables."""


@dataclass(frozen=True)
class Moment:
    """A run at one moment."""

    topology: str
    state: str
    """The run's state in one line."""
    committed_txid: int
    txids: int
    """Number of txids that this run committed."""
    records: int | None
    """Records that they read; None: unknown."""
    rows: int
    """Rows that they staged."""
    seconds: float
    edges: Sequence[tuple[str, str]] = ()
    """(stream, table) of the graph."""
    in_flight: Sequence[tuple[str, str, float]] = ()
    """txid:attempt, phase and seconds in it."""
    lags: Mapping[str, str] = field(default_factory=dict)
    """stream -> its lag, for people."""
    failure: str | None = None


class Rates:
    """Rates over the last ten seconds of a run, from its totals."""

    def __init__(self) -> None:
        self._totals: deque[tuple[float, tuple[int, ...]]] = deque()

    def add(self, seconds: float, *totals: int) -> tuple[float, ...]:
        """Add totals and return the rate of each.

        Args:
            seconds: since the run began, when all totals were 0.
        """
        if not self._totals:
            self._totals.append((0.0, (0,) * len(totals)))
        self._totals.append((seconds, totals))
        # Ends at the newest entry at the latest, which is inside the window.
        while self._totals[1][0] <= seconds - _WINDOW_SECS:
            self._totals.popleft()
        at, before = self._totals[0]
        passed = max(seconds - at, 1e-3)
        return tuple(
            (total - total_before) / passed
            for total, total_before in zip(totals, before, strict=True)
        )


def show(now: Callable[[], Moment], is_over: Callable[[], bool]) -> None:
    """Show a run below the cell, and update it in a thread until the run is over."""
    from IPython.display import display

    rates = Rates()

    def made() -> dict[str, str]:
        moment = now()
        return {"text/html": page(moment, rates), "text/plain": moment.state}

    shown = display(made(), raw=True, display_id=True)

    def follow() -> None:
        over = False
        while not over:
            time.sleep(_UPDATE_SECS)
            over = is_over()  # before the update, so the last update follows the end
            shown.update(made(), raw=True)

    threading.Thread(target=follow, name="txn-notebook", daemon=True).start()


def page(moment: Moment, rates: Rates) -> str:
    """Return a moment as HTML below a cell, and add it to `rates`. Escapes all names and errors."""
    totals = (moment.txids, moment.records or 0, moment.rows)
    txids, records, rows = rates.add(moment.seconds, *totals)
    numbers = {
        "committed txid": f"{moment.committed_txid:,}",
        "txids / s": f"{txids:,.1f}",
        "records / s": "unknown" if moment.records is None else f"{records:,.0f}",
        "rows staged / s": f"{rows:,.0f}",
        "in flight": str(len(moment.in_flight)),
        "running for": duration(moment.seconds),
    }
    cells = "".join(
        f"<td style='text-align:left;padding-right:2em'><span style='font-size:150%'>"
        f"{_safe(value)}</span><br><small>{_safe(name)}</small></td>"
        for name, value in numbers.items()
    )
    failure = f"<p>Last failure: {_safe(moment.failure)}</p>" if moment.failure else ""
    return (
        f"<p><b>{_safe(moment.topology)}</b>: {_safe(moment.state)}</p>"
        f"<table><tr>{cells}</tr></table>{_graph(moment)}{_in_flight(moment)}{failure}"
    )


def _in_flight(moment: Moment) -> str:
    if not moment.in_flight:
        return ""
    lines = "".join(
        f"<tr><td>{_safe(attempt)}</td><td>{_safe(phase)}</td><td>{duration(seconds)}</td></tr>"
        for attempt, phase, seconds in moment.in_flight[:_SHOWN]
    )
    more = len(moment.in_flight) - _SHOWN
    rest = f"<p>and {more} more</p>" if more > 0 else ""
    head = "<tr><th>txid:attempt</th><th>phase</th><th>for</th></tr>"
    return f"<table>{head}{lines}</table>{rest}"


def _graph(moment: Moment) -> str:
    """Draw streams on the left, tables on the right, and the lines between them."""
    width, height, gap = _BOX
    streams = list(dict.fromkeys(stream for stream, _ in moment.edges))
    tables = list(dict.fromkeys(table for _, table in moment.edges))
    far = width + _BETWEEN
    bend = _BETWEEN // 2
    middle = height / 2
    lines = "".join(
        f'<path d="M {width} {streams.index(s) * (height + gap) + middle} C {width + bend} '
        f"{streams.index(s) * (height + gap) + middle}, {far - bend} "
        f"{tables.index(t) * (height + gap) + middle}, {far} "
        f'{tables.index(t) * (height + gap) + middle}" fill="none" stroke="#7f8c9a"/>'
        for s, t in moment.edges
    )
    boxes = "".join(
        _box(0, at * (height + gap), name, moment.lags.get(name)) for at, name in enumerate(streams)
    ) + "".join(_box(far, at * (height + gap), name, None) for at, name in enumerate(tables))
    svg_height = max(len(streams), len(tables)) * (height + gap)
    return (
        f'<svg width="{far + width + 2}" height="{svg_height}" role="img" font-size="11" '
        f'font-family="sans-serif"><title>streams and tables of {_safe(moment.topology)}</title>'
        f"{lines}{boxes}</svg>"
    )


def _box(left: float, top: float, name: str, lag: str | None) -> str:
    width, height, _ = _BOX
    label = name if lag is None else f"{name}, lag {lag}"
    short = label if len(label) <= 30 else f"…{label[-29:]}"
    return (
        f'<g><title>{_safe(label)}</title><rect x="{left + 1}" y="{top + 1}" width="{width - 2}" '
        f'height="{height - 2}" rx="4" fill="none" stroke="#2f6fb0"/><text x="{left + 8}" '
        f'y="{top + 17}" fill="currentColor">{_safe(short)}</text></g>'
    )


def _safe(text: str) -> str:
    return escape(printable(text))
