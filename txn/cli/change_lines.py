"""The section "changes" of `txn plan`."""

from __future__ import annotations

from collections.abc import Iterator

from txn.changes import Verdict
from txn.cli.words import aligned
from txn.operations.changes.tables import RebuildCost
from txn.operations.changes.topology import PlannedChange, TopologyChanges
from txn.text import duration, printable, size

__all__ = ["change_lines"]


def change_lines(changes: TopologyChanges) -> Iterator[str]:
    """Yield every difference with its verdict and its way out; one line if nothing differs."""
    if changes.is_new:
        yield f"changes: nothing is there yet, neither table nor progress{_compared_with(changes)}"
        return
    if not changes.changes:
        yield f"changes: nothing differs{_compared_with(changes)}"
        return
    yield f"changes{_compared_with(changes)}"
    for planned, line in zip(changes.changes, aligned(map(_row, changes.changes)), strict=True):
        yield line
        change = planned.change
        if not change.allowed:
            yield f"    {printable(' '.join(filter(None, (change.way_out, _number(planned)))))}"
    if changes.is_refused:
        yield "  `txn run` refuses to start."


def _compared_with(changes: TopologyChanges) -> str:
    if changes.unasked is not None:
        unasked = printable(changes.unasked.rstrip("."))
        return (
            " (by the tables' logs alone: streams, and tables that are new or gone, were not "
            f"compared; {unasked})"
        )
    facts = [f"txid {changes.committed} is committed" if changes.committed else "no txid committed"]
    if changes.begun:
        facts.append(f"begun and not committed: {', '.join(map(str, changes.begun))}")
    if changes.leader:
        facts.append(f"led by {printable(changes.leader)}")
    return f" ({'; '.join(facts)})"


def _row(planned: PlannedChange) -> tuple[str, ...]:
    change, verdict = planned.change, planned.change.verdict.value
    if planned.from_txid is not None:
        verdict += f" ({planned.from_txid})"
    elif change.allowed and change.verdict in (Verdict.CHOICE, Verdict.REBUILD):
        verdict += " (allowed)"
    what = change.what if planned.cost is None else f"{change.what} ({_cost(planned.cost)})"
    return printable(change.subject), verdict, printable(what)


def _cost(cost: RebuildCost) -> str:
    rows = f"{cost.rows:,} {'row' if cost.rows == 1 else 'rows'}"
    return f"{rows}, {size(cost.bytes)}, roughly {duration(cost.seconds)}"


def _number(planned: PlannedChange) -> str:
    return f"[{planned.change.number}]" if planned.change.number else ""
