"""Texts for a run's reports: its stages, table versions and summary."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from txn.engine.reporting.bottleneck import BOUND_NAMES
from txn.engine.reporting.report import BatchReport, RunReport, RunStatus, Standby, Timeline
from txn.interfaces import Lag
from txn.interfaces.publication import Violations, processing_ms, waiting_ms
from txn.text import counted, duration, printable, size

__all__ = [
    "NOTHING_SET_ASIDE",
    "aligned",
    "batch_line",
    "broken_rules",
    "ending",
    "held_up",
    "lagging",
    "phases_ms",
    "rows_by_table",
    "short_name",
    "standing_by",
]

NOTHING_SET_ASIDE = "no stream sets rows aside"
"""Text for the table of bad rows in a topology without a rule that needs it."""


def aligned(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows with aligned columns, indented; empty columns take no room."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [c.ljust(w) for c, w in zip(row, widths, strict=True) if w]
        yield ("  " + "  ".join(cells)).rstrip()


def phases_ms(batch: BatchReport) -> tuple[float, float, float]:
    """Return the milliseconds of processing, of waiting for Spark and the turn, and of the turn."""
    durations = Timeline(dict(batch.times)).durations_ms()
    return (
        processing_ms(durations),
        waiting_ms(durations),
        sum(durations.get(station, 0.0) for station in ("prepared", "published", "committed")),
    )


def batch_line(batch: BatchReport) -> str:
    """Return what one txid read and staged, and its seconds, in one line.

    Such as: `read 3 records, 84 bytes; totals 2 rows (v1), bad_rows 1 row (v1); processing 2.9 s,
    waiting 2 ms, commit 810 ms`.
    """
    phases = zip(("processing", "waiting", "commit"), phases_ms(batch), strict=True)
    seconds = ", ".join(f"{phase} {_lasted(ms)}" for phase, ms in phases)
    return "; ".join(filter(None, (_read(batch), rows_by_table(batch), seconds)))


def rows_by_table(batch: BatchReport) -> str:
    """List what a txid staged, with versions: `totals 2 rows (v1), bad_rows 1 row (v1)`."""
    return ", ".join(
        f"{short_name(table)} {counted(batch.rows.get(table, 0), 'row')} (v{version})"
        for table, version in batch.tables.items()
    )


def _lasted(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 999.5 else duration(ms / 1000)


def _read(batch: BatchReport) -> str:
    """Name what a txid read, as far as its spouts know; empty if it is not known."""
    records, read = list(batch.read.records.values()), list(batch.read.bytes.values())
    if not records:
        return "read nothing"
    known = sum(count for count in records if count is not None)
    parts = [] if None in records else [counted(known, "record")]
    parts += [] if None in read else [size(sum(count for count in read if count is not None))]
    return f"read {', '.join(parts)}" if parts else ""


def short_name(table: str) -> str:
    """Return the last part of a table's path."""
    return table.rstrip("/").rpartition("/")[2] or table


def standing_by(topology: str, standby: Standby) -> str:
    """Describe in one line a standby, the start of its wait, and the leader it waits for."""
    since = time.strftime("%H:%M:%S", time.localtime(standby.since))
    return f"{topology}: standing by since {since}, waiting for {standby}"


def ending(report: RunReport) -> list[str]:
    """Return the closing lines of a run that ended without an error."""
    lines = (_emptied_line(report), _broken_rules_line(report), held_up(report), _summary(report))
    return [line for line in lines if line]


def _summary(report: RunReport) -> str:
    if not report.epoch and not report.batches_committed:
        return f"{report.topology}: {report.ended} while standing by; nothing was run."
    how = {
        "caught_up": "caught up",
        "until": "reached its last txid",
        "stopped": "stopped",
    }.get(report.ended, report.ended)
    return (
        f"{report.topology}: {how}. Committed txid {report.committed_txid}; this run committed "
        f"{counted(report.batches_committed, 'batch', 'batches')} with "
        f"{counted(report.rows_staged, 'row')} and "
        f"{counted(report.replays, 'replay')} in {duration(report.seconds)}."
    )


def _emptied_line(report: RunReport) -> str:
    """Count the txids committed empty, with the command that lists them; empty if none."""
    if not report.quarantined:
        return ""
    were = counted(report.quarantined, "txid was", "txids were")
    return (
        f"{report.topology}: {were} committed empty: "
        f"`txn quarantine list {report.topology}` says which, and why."
    )


def held_up(report: RunReport) -> str | None:
    """List the bottlenecks of a run with their shares in one line; None if there were none."""
    shares = [(bound, share) for bound, share in report.bound_shares.items() if share >= 0.005]
    if not shares:
        return None
    parts = ", ".join(f"{BOUND_NAMES[bound]} {share:.0%}" for bound, share in shares)
    return f"{report.topology}: held up by {parts}."


def lagging(status: RunStatus) -> str:
    """Describe each source's lag, such as "rows 7 records (5 records planned)"."""
    parts = []
    for stream, lag in status.lags.items():
        planned = status.planned.get(stream, Lag())
        part = f" ({_lag(planned)} planned)" if any(planned.numbers.values()) else ""
        if words := _lag(lag):
            parts.append(f"{printable(stream)} {words}{part}")
    return "; ".join(parts)


def _lag(lag: Lag) -> str:
    counts = {"records": lag.records, "files": lag.files, "versions": lag.versions}
    parts = [f"{count:,} {name}" for name, count in counts.items() if count is not None]
    parts += [] if lag.bytes is None else [size(lag.bytes)]
    parts += [] if lag.seconds is None else [duration(lag.seconds)]
    return ", ".join(parts)


def broken_rules(violations: Violations) -> str:
    """List the broken rules, such as "known key 12 (flights)"; empty if none was broken."""
    return ", ".join(
        f"{printable(rule)} {rows:,} ({printable(stream)})"
        for stream, rules in violations.items()
        for rule, rows in rules.items()
        if rows
    )


def _broken_rules_line(report: RunReport) -> str:
    """List a run's broken rules in one line; empty if none was broken."""
    broken = broken_rules(report.violations)
    return f"{report.topology}: rows that broke rules: {broken}." if broken else ""
