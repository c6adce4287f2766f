"""Show a run's state in one line of a terminal or a notebook, for `Topology.run`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from txn.engine.reporting.bottleneck import in_words
from txn.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from txn.dataflow.definition import Until
    from txn.engine.reporting.report import RunStatus
    from txn.engine.running import RunningTopology

    Show: TypeAlias = Callable[[RunStatus], object]

__all__ = ["progress_bar", "status_line"]

_UPDATE_SECS = 0.2
_LONGEST_WAIT = 60
"""Characters of the reason for which a batch waits."""


@contextmanager
def progress_bar(running: RunningTopology, until: Until, enabled: bool | None) -> Iterator[None]:
    """Show a line while the body runs: on stderr, removed afterwards; in a notebook it stays.

    Args:
        until: as for `Topology.run`; with a txid the line has a bar.
        enabled: None: if stderr is a terminal, or in a notebook.
    """
    from rich.console import Console

    console = Console(stderr=True, force_terminal=True if enabled else None)
    if enabled is False or not (console.is_terminal or console.is_jupyter):
        yield
        return
    ended = threading.Event()
    with _notebook_line() if console.is_jupyter else _terminal_line(console, until) as show:
        watch = threading.Thread(
            target=_follow, args=(running, show, ended), name="txn-progress-bar", daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()


def status_line(status: RunStatus) -> str:
    """Return a run's status in one line."""
    parts = [f"txid {status.committed_txid} committed", f"{status.totals.rows_staged:,} rows"]
    if status.in_flight:
        parts.append(f"{len(status.in_flight)} in flight")
    if status.replays:
        parts.append(f"{status.replays} replays")
    blocked = next((one.blocked for one in status.in_flight if one.blocked), None)
    if blocked:
        parts.append(
            f"waits: {blocked if len(blocked) <= _LONGEST_WAIT else blocked[:_LONGEST_WAIT] + '…'}"
        )
    elif status.epoch:
        parts.append(in_words(status.held_up_by))
    return printable(f"{status.topology}: {', '.join(parts)}")


@contextmanager
def _terminal_line(console: Console, until: Until) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    last = until if isinstance(until, int) else None
    line = Progress(
        SpinnerColumn(),
        # The text may come from strangers: no markup.
        TextColumn("{task.description}", markup=False),
        *([BarColumn(bar_width=20)] if last else []),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = line.add_task("starting", total=last)
    with line:
        yield lambda status: line.update(
            task, description=status_line(status), completed=status.committed_txid
        )


@contextmanager
def _notebook_line() -> Iterator[Show]:
    """Show a line below a notebook's cell, which stays; rich would need ipywidgets for it."""
    from IPython.display import display

    line = display({"text/plain": "starting"}, raw=True, display_id=True)
    yield lambda status: line.update({"text/plain": status_line(status)}, raw=True)


def _follow(running: RunningTopology, show: Show, ended: threading.Event) -> None:
    """Update the line until the run has ended, and once more then."""
    over = False
    while not over:
        over = ended.wait(_UPDATE_SECS)
        show(running.status())
