"""Text for a run's reports: its stages, table versions, and its summary."""

from __future__ import annotations

import time
from collections.abc import Mapping

from txn.engine.bottleneck import BOUND_NAMES
from txn.engine.report import BatchReport, RunReport, RunStatus, Standby, Timeline
from txn.interfaces import Lag
from txn.interfaces.publication import Violations, processing_ms
from txn.text import duration, printable, size

__all__ = [
    "NOTHING_SET_ASIDE",
    "broken_rules",
    "ending",
    "held_up",
    "lagging",
    "phases_ms",
    "short_name",
    "short_versions",
    "standing_by",
]

NOTHING_SET_ASIDE = "no stream sets rows aside"
"""Of the table of bad rows in a topology without a rule that needs it."""


def phases_ms(batch: BatchReport) -> tuple[float, float, float]:
    """Milliseconds of processing, of waiting for Spark and for the turn, and of the commit turn."""
    durations = Timeline(dict(batch.times)).durations_ms()

    def total(*stations: str) -> float:
        return sum(durations.get(station, 0.0) for station in stations)

    return (
        processing_ms(durations),
        total("processing", "turn"),
        total("prepared", "published", "committed"),
    )


def short_versions(tables: Mapping[str, int]) -> str:
    """The last part of each table's path, and its version: `delays v7, routes v7`."""
    return ", ".join(f"{short_name(name)} v{version}" for name, version in tables.items())


def short_name(table: str) -> str:
    """The last part of a table's path."""
    return table.rstrip("/").rpartition("/")[2] or table


def standing_by(topology: str, standby: Standby) -> str:
    """Since when a standby waits, and for whom, in one line."""
    since = time.strftime("%H:%M:%S", time.localtime(standby.since))
    return f"{topology}: standing by since {since}, waiting for {standby}"


def ending(report: RunReport) -> list[str]:
    """What is said of a run that ended without an error: a line each."""
    lines = (_emptied(report), _broken_in(report), held_up(report), _summary(report))
    return [line for line in lines if line]


def _summary(report: RunReport) -> str:
    """The summary of a run without an error, in one line."""
    if not report.epoch and not report.batches_committed:
        return f"{report.topology}: {report.ended} while standing by; nothing was run."
    how = {
        "caught_up": "caught up",
        "until": "reached its last txid",
        "stopped": "stopped",
    }.get(report.ended, report.ended)
    return (
        f"{report.topology}: {how}. Committed txid {report.committed_txid}; this run committed "
        f"{_counted(report.batches_committed, 'batch', 'batches')} with "
        f"{_counted(report.rows_staged, 'row', 'rows')} and "
        f"{_counted(report.replays, 'replay', 'replays')} in {duration(report.seconds)}."
    )


def _emptied(report: RunReport) -> str:
    """How many txids were committed empty, and where they are shown; empty if none was."""
    if not report.quarantined:
        return ""
    were = _counted(report.quarantined, "txid was", "txids were")
    return (
        f"{report.topology}: {were} committed empty: "
        f"`txn quarantine list {report.topology}` says which, and why."
    )


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def held_up(report: RunReport) -> str | None:
    """The shares of the stages that held the run up, in one line; None if none was seen."""
    shares = [(bound, share) for bound, share in report.bound_shares.items() if share >= 0.005]
    if not shares:
        return None
    told = ", ".join(f"{BOUND_NAMES[bound]} {share:.0%}" for bound, share in shares)
    return f"{report.topology}: held up by {told}."


def lagging(status: RunStatus) -> str:
    """What of each source is not committed, such as "rows 7 records (5 records planned)"."""
    told = []
    for stream, lag in status.lags.items():
        planned = status.planned.get(stream, Lag())
        part = f" ({_lag(planned)} planned)" if any(planned.numbers.values()) else ""
        if words := _lag(lag):
            told.append(f"{printable(stream)} {words}{part}")
    return "; ".join(told)


def _lag(lag: Lag) -> str:
    counts = {"records": lag.records, "files": lag.files, "versions": lag.versions}
    told = [f"{count:,} {name}" for name, count in counts.items() if count is not None]
    told += [] if lag.bytes is None else [size(lag.bytes)]
    told += [] if lag.seconds is None else [duration(lag.seconds)]
    return ", ".join(told)


def broken_rules(violations: Violations) -> str:
    """Rules that rows broke, such as "known key 12 (flights)"; empty if none did."""
    return ", ".join(
        f"{printable(rule)} {rows:,} ({printable(stream)})"
        for stream, rules in violations.items()
        for rule, rows in rules.items()
        if rows
    )


def _broken_in(report: RunReport) -> str:
    """The rules that rows of a run broke, in one line; empty if none did."""
    broken = broken_rules(report.violations)
    return f"{report.topology}: rows that broke rules: {broken}." if broken else ""
