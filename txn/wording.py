"""Words for what a run tells: durations, table versions, and how it went as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from txn.report import BatchReport, RunReport, RunStatus, Timeline

__all__ = [
    "STAGE_NAMES",
    "duration",
    "held_up",
    "phases_ms",
    "printable",
    "short_name",
    "short_versions",
    "summary",
]

STAGE_NAMES = {
    "source": "the source",
    "processing": "processing",
    "commit": "commits",
    "replay": "replays",
    "idle": "nothing to read",
}
"""Stage -> how users read it; see `txn.backpressure`."""


def phases_ms(batch: BatchReport) -> tuple[float, float, float]:
    """Milliseconds of processing, of waiting for the commit turn, and of the commit turn."""
    durations = Timeline(dict(batch.times)).durations_ms()

    def total(*stations: str) -> float:
        return sum(durations.get(station, 0.0) for station in stations)

    return (
        total("processing", "staged", "processed"),
        total("turn"),
        total("prepared", "published", "committed"),
    )


def short_versions(tables: Mapping[str, int]) -> str:
    """The last part of each table's path, and its version: `delays v7, routes v7`."""
    return ", ".join(f"{short_name(name)} v{version}" for name, version in tables.items())


def short_name(table: str) -> str:
    """The last part of a table's path."""
    return table.rstrip("/").rpartition("/")[2] or table


def printable(text: str) -> str:
    r"""Text from a stranger as a terminal may have it.

    Characters that move the cursor, hide or turn around what stands beside them, and halves of
    characters, become escapes such as `\x1b`; line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def duration(seconds: float) -> str:
    """Seconds for people: `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def summary(report: RunReport, status: RunStatus) -> str:
    """How a run that ended well went, in one line."""
    if not report.epoch and not report.batches_committed:
        return f"{report.topology}: {report.ended} while standing by; nothing was run."
    how = {
        "caught_up": "caught up",
        "until": "reached its last txid",
        "stopped": "stopped",
    }.get(report.ended, report.ended)
    return (
        f"{report.topology}: {how}. Committed txid {report.committed_txid}; this run committed "
        f"{report.batches_committed} batches with {status.rows_committed:,} rows and "
        f"{report.replays} replays in {duration(report.seconds)}."
    )


def held_up(report: RunReport) -> str | None:
    """What held the run up for how much of its time, in one line; None when nothing was seen."""
    shares = [(stage, share) for stage, share in report.bound_shares.items() if share >= 0.005]
    if not shares:
        return None
    told = ", ".join(f"{STAGE_NAMES[stage]} {share:.0%}" for stage, share in shares)
    return f"{report.topology}: held up by {told}."
