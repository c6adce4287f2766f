"""What a run does, in one line of a terminal or a notebook: `Topology.run` in a program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txn.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from txn.dataflow.definition import Until
    from txn.engine.report import RunStatus
    from txn.engine.running import RunningTopology

__all__ = ["progress_bar", "told"]

_LOOK_SECS = 0.2
_LONGEST = 60


@contextmanager
def progress_bar(running: RunningTopology, until: Until, wanted: bool | None) -> Iterator[None]:
    """Show a line on stderr while the body runs, and nothing after it.

    Args:
        until: as for `Topology.run`; for a txid the line has a bar.
        wanted: None: if stderr is a terminal, or in a notebook.
    """
    from rich.console import Console

    console = Console(stderr=True, force_terminal=True if wanted else None)
    if wanted is False or not (console.is_terminal or console.is_jupyter):
        yield
        return
    ended = threading.Event()
    with _line(console, until) as line:
        watch = threading.Thread(
            target=_follow, args=(running, line, ended), name="txn-progress-bar", daemon=True
        )
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()


def told(status: RunStatus) -> str:
    """A snapshot of a run in one line."""
    parts = [f"txid {status.committed_txid} committed", f"{status.rows_committed:,} rows"]
    if status.in_flight:
        parts.append(f"{len(status.in_flight)} in flight")
    if status.replays:
        parts.append(f"{status.replays} replays")
    blocked = next((one.blocked for one in status.in_flight if one.blocked), None)
    if blocked:
        parts.append(f"waits: {blocked if len(blocked) <= _LONGEST else blocked[:_LONGEST] + '…'}")
    elif status.epoch:
        parts.append(f"held up by {status.held_up_by}")
    return printable(f"{status.topology}: {', '.join(parts)}")


def _line(console: object, until: Until) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    last = until if isinstance(until, int) else None
    line = Progress(
        SpinnerColumn(),
        # What is told may come from others: no markup.
        TextColumn("{task.description}", markup=False),
        *([BarColumn(bar_width=20)] if last else []),
        TimeElapsedColumn(),
        console=console,  # type: ignore[arg-type]
        transient=True,
    )
    line.add_task("starting", total=last)
    return line


def _follow(running: RunningTopology, line: Progress, ended: threading.Event) -> None:
    """Bring the line up to date until the run has ended, and once more then."""
    over = False
    while not over:
        over = ended.wait(_LOOK_SECS)
        status = running.status()
        (task,) = line.task_ids
        line.update(task, description=told(status), completed=status.committed_txid)
