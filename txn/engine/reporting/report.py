"""The values of a report: one record per committed batch, and the end of the run.

All times are seconds since the epoch, from the clock given to the run; durations are milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from txn.attempts import TransactionAttempt
from txn.dataflow.expectations import Treatment
from txn.engine.base.input import NOTHING_READ, Input
from txn.interfaces import Lag
from txn.interfaces.publication import Violations, summed_violations
from txn.notebook.charts import LagPoint, TxidFacts, draw
from txn.text import size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "BatchReport",
    "InFlight",
    "RunReport",
    "RunStatus",
    "Standby",
    "Timeline",
    "Totals",
]

_BARS = 150
KEPT_BATCHES = 500
"""Most batch records in memory; older ones are in the tables' logs (`txn history`)."""

STATIONS = (
    "planned",
    "started",
    "processing",
    "staged",
    "processed",
    "turn",
    "prepared",
    "published",
    "committed",
)


@dataclass
class Timeline:
    """The times at which one attempt came to each station of its life; see `STATIONS`."""

    at: dict[str, float] = field(default_factory=dict)

    def mark(self, station: str, now: float) -> None:
        """Record the first arrival at `station`."""
        self.at.setdefault(station, now)

    def durations_ms(self) -> dict[str, float]:
        """Station -> milliseconds since the station before it, for the stations reached."""
        reached = [(s, self.at[s]) for s in STATIONS if s in self.at]
        return {
            station: round((now - before) * 1000, 3)
            for (_, before), (station, now) in pairwise(reached)
        }


@dataclass(frozen=True)
class Totals:
    """The amounts that the committed txids of a run read, staged, wrote and left out."""

    input_records: int | None = 0
    """None once a stream of one of them did not know it; the same for the next three."""
    input_bytes: int | None = 0
    rows_staged: int = 0
    rows_written: int | None = 0
    rows_dropped: int = 0
    """Rows that broke a rule and went no further."""
    rows_set_aside: int = 0
    """Rows that broke a rule and went to the table of bad rows."""
    quarantined: int = 0
    """Txids that were committed empty."""

    def amounts(self) -> str:
        """Describe the amounts read, staged and written in one line, without unknown ones."""
        records, read = self.input_records, self.input_bytes
        input_parts = [] if records is None else [f"{records:,} records"]
        input_parts += [size(read)] if read else []
        parts = [f"read {', '.join(input_parts)}"] if input_parts else []
        parts.append(f"staged {self.rows_staged:,} rows")
        parts += [] if self.rows_written is None else [f"wrote {self.rows_written:,} rows"]
        return "; ".join(parts)

    def left_out(self) -> str:
        """Describe the rows and txids that no table has in one line; empty if there are none."""
        txids = f"{self.quarantined} txid{'s' if self.quarantined > 1 else ''} quarantined"
        counts = {
            f"{self.rows_dropped:,} rows dropped": self.rows_dropped,
            f"{self.rows_set_aside:,} rows set aside": self.rows_set_aside,
            txids: self.quarantined,
        }
        return ", ".join(words for words, number in counts.items() if number)


@dataclass(frozen=True)
class BatchReport:
    """One committed txid."""

    attempt: TransactionAttempt
    rows: Mapping[str, int]
    """table -> rows staged for it (partial aggregates count as rows here)."""
    tables: Mapping[str, int]
    """table -> version that holds the txid."""
    times: Mapping[str, float]
    """station -> when the committed attempt came to it; see `STATIONS`."""
    group: int = 1
    """Txids that one version of the tables holds: this one, and those committed with it."""
    violations: Violations = field(default_factory=dict)
    """stream -> rule -> rows that broke it (`Stream.expect`)."""
    read: Input = NOTHING_READ
    """The records and bytes that it read."""
    written: Mapping[str, int | None] = field(default_factory=dict)
    """table -> rows in the files that its version adds; None: its log has no counts. For a table
    with aggregates also stored rows that were rewritten. A group's version counts at its last
    txid, and not at the others; one that an earlier run had published does not count."""
    quarantined: bool = False
    """True if it was committed empty."""

    def facts(self, *, records: bool) -> TxidFacts:
        """The values for a chart: with the records that it read, else the rows that it staged."""
        seconds = {
            mark: ms / 1000 for mark, ms in Timeline(dict(self.times)).durations_ms().items()
        }
        amounts = self.read.records.values() if records else self.rows.values()
        ended = self.times.get("committed", 0.0)
        amount = _sum(0, *amounts)
        return TxidFacts(self.attempt.txid, ended, seconds, amount, self.quarantined)


@dataclass(repr=False)
class RunReport:
    """The report of a run. Printed, and in a notebook, it is a summary with one line per table."""

    topology: str
    epoch: int = 0
    first_txid: int = 0
    """First txid that this run committed; 0 when it committed none."""
    committed_txid: int = 0
    """Newest committed txid when the run ended."""
    batches_committed: int = 0
    replays: int = 0
    """Attempts that failed and were replayed."""
    waits: int = 0
    """Attempts that found a source away, so that their batch waited. These are no failures."""
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=100))
    """The newest failures, each naming txid:attempt and reason."""
    batches: deque[BatchReport] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))
    """The newest committed batches, in txid order. While the run goes on, make a copy (`list`)
    before you iterate."""
    input_records: int | None = 0
    """Records that the committed txids read; None once a stream of one of them did not know."""
    input_bytes: int | None = 0
    """Bytes that the committed txids read; None once a stream of one of them did not know."""
    rows_staged: int = 0
    """Rows staged by the committed txids for all tables together."""
    rows_written: int | None = 0
    """Rows in the files that the tables' new versions added (`BatchReport.written`); None once a
    log had no counts."""
    violations: dict[str, dict[str, int]] = field(default_factory=dict)
    """stream -> rule -> rows of committed txids that broke it (`Stream.expect`)."""
    rows_dropped: int = 0
    """Rows of `violations` that went no further."""
    rows_set_aside: int = 0
    """Rows of `violations` that went to the table of bad rows."""
    quarantined: int = 0
    """Txids that were committed empty, by `on_exhausted="quarantine"`."""
    seconds: float = 0.0
    bound_seconds: dict[str, float] = field(default_factory=dict)
    """Bound -> seconds for which it held the run up; see `txn.engine.reporting.bottleneck`."""
    lags: deque[LagPoint] = field(default_factory=lambda: deque(maxlen=4 * KEPT_BATCHES))
    """The lags of the streams, newest last; for `plot`."""
    failed: deque[tuple[int, float, str]] = field(default_factory=lambda: deque(maxlen=100))
    """(txid, when, error) of the newest failures; for `plot`."""
    observers: list[str] = field(default_factory=list)
    """Problems of observers, a sentence each: events dropped, errors, one left behind."""
    ended: str = "running"
    """"caught_up", "until", "stopped", or "running". A standby that was stopped while it waited has
    "stopped" and epoch 0."""

    def __repr__(self) -> str:
        cells = [("table", "version", "rows staged"), *self._table_rows()]
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        lines = [
            f"  {name:{widths[0]}}  {version:>{widths[1]}}  {rows:>{widths[2]}}"
            for name, version, rows in cells
        ]
        summary = [*self._numbers(), *self.observers]
        return "\n".join([self._headline(), *summary, *(lines if len(cells) > 1 else ())])

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        head = "<tr><th>table</th><th>version</th><th>rows staged</th></tr>"
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._table_rows()
        )
        lines = "<br>".join(map(escape, (self._headline(), *self._numbers(), *self.observers)))
        return f"<p>{lines}</p><table>{head}{body}</table>{self._chart()}"

    def plot(self) -> Figure:
        """Throughput, latency by station, lag, and the timeline of the newest txids.

        A notebook shows the figure; `figure.savefig("run.png")` writes it. Needs the extra `plot`.

        Raises:
            SetupError: matplotlib is not installed.
        """
        batches = list(self.batches)
        is_known = all(None not in batch.read.records.values() for batch in batches)
        txids = [batch.facts(records=is_known) for batch in batches]
        unit = "records" if is_known else "rows"
        return draw(self._headline(), txids, unit, list(self.lags), list(self.failed))

    def _chart(self) -> str:
        """Rows staged by the newest txids, a bar each; empty for fewer than two."""
        rows = [sum(batch.rows.values()) for batch in list(self.batches)[-_BARS:]]
        if len(rows) < 2:
            return ""
        most = max(*rows, 1)
        bars = "".join(
            f'<rect x="{4 * at}" y="{40 - 40 * count / most:.1f}" width="3" '
            f'height="{40 * count / most:.1f}"/>'
            for at, count in enumerate(rows)
        )
        caption = f"rows staged by each of the newest {len(rows)} txids, at most {most:,}"
        return (
            f'<svg width="{4 * len(rows)}" height="40" fill="steelblue" role="img">'
            f"<title>{caption}</title>{bars}</svg><p>{caption}</p>"
        )

    def _headline(self) -> str:
        committed = f"{self.batches_committed} txids committed"
        if self.batches_committed:
            committed += f" ({self.first_txid} to {self.committed_txid})"
        line = f"{self.topology}: {self.ended}, {committed} in {self.seconds:.1f} s"
        line += f", {self.replays} replays" if self.replays else ""
        return f"{line}. Last failure: {self.failures[-1]}" if self.failures else f"{line}."

    def _numbers(self) -> list[str]:
        """Lines with the amounts that the committed txids read, staged, wrote and left out."""
        if not self.batches_committed:
            return []
        lines = (self.totals.amounts(), self.totals.left_out())
        return [f"{line[0].upper()}{line[1:]}." for line in lines if line]

    def _table_rows(self) -> list[tuple[str, str, str]]:
        """Table, version and rows of the batches in memory."""
        rows: dict[str, int] = {}
        versions: dict[str, int] = {}
        for batch in list(self.batches):
            versions.update(batch.tables)
            for table, count in batch.rows.items():
                rows[table] = rows.get(table, 0) + count
        partly = "of the newest txids: " if self.batches_committed > len(self.batches) else ""
        return [
            (table, str(version), f"{partly}{rows.get(table, 0):,}")
            for table, version in versions.items()
        ]

    @property
    def bound_shares(self) -> dict[str, float]:
        """Bound -> its share of `bound_seconds`, the largest first; empty before anything ran."""
        total = sum(self.bound_seconds.values())
        if total <= 0:
            return {}
        ranked = sorted(self.bound_seconds.items(), key=lambda entry: -entry[1])
        return {bound: seconds / total for bound, seconds in ranked}

    @property
    def totals(self) -> Totals:
        """The numbers of all committed txids so far."""
        return Totals(**{entry.name: getattr(self, entry.name) for entry in fields(Totals)})

    def add(
        self,
        batch: BatchReport,
        treatments: Mapping[tuple[str, str], Treatment] = MappingProxyType({}),
    ) -> None:
        """Count a committed batch."""
        self.first_txid = self.first_txid or batch.attempt.txid
        self.committed_txid = batch.attempt.txid
        self.batches_committed += 1
        self.input_records = _sum(self.input_records, *batch.read.records.values())
        self.input_bytes = _sum(self.input_bytes, *batch.read.bytes.values())
        self.rows_staged += sum(batch.rows.values())
        self.rows_written = _sum(self.rows_written, *batch.written.values())
        self.quarantined += batch.quarantined
        for stream, rules in batch.violations.items():
            for rule, rows in rules.items():
                treatment = treatments.get((stream, rule), "drop")
                self.rows_set_aside += rows if treatment == "set_aside" else 0
                self.rows_dropped += rows if treatment == "drop" else 0
        self.violations = summed_violations((self.violations, batch.violations))
        self.batches.append(batch)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able summary, with the newest batches."""
        apart = ("batches", "lags", "failed")
        summary = {
            entry.name: getattr(self, entry.name)
            for entry in fields(self)
            if entry.name not in apart
        }
        # Copies, because the run goes on changing its own.
        summary |= {
            "failures": list(self.failures),
            "bound_seconds": dict(self.bound_seconds),
            "observers": list(self.observers),
        }
        summary["batches"] = [
            {
                "txid": b.attempt.txid,
                "attempt": b.attempt.attempt_id,
                "rows": dict(b.rows),
                "input_records": dict(b.read.records),
                "input_bytes": dict(b.read.bytes),
                "rows_written": dict(b.written),
                "quarantined": b.quarantined,
                "tables": dict(b.tables),
                "times": dict(b.times),
                "group": b.group,
                "violations": {stream: dict(rules) for stream, rules in b.violations.items()},
            }
            for b in list(self.batches)
        ]
        return summary


def _sum(*numbers: int | None) -> int | None:
    """The sum; None if one of the numbers is not known."""
    summands = [number for number in numbers if number is not None]
    return sum(summands) if len(summands) == len(numbers) else None


@dataclass(frozen=True)
class InFlight:
    """One open txid, for the live view."""

    txid: int
    attempt_id: int
    phase: str
    failures: int
    since: float
    """Begin of this phase of its current attempt, seconds since the epoch."""
    blocked: str | None = None
    """The error of the source for which the batch waits, also while it checks again."""
    blocked_since: float | None = None
    """Begin of that wait, seconds since the epoch; None if it is not blocked."""
    replay_of: int | None = None
    """The quarantined txid that it replays."""


@dataclass(frozen=True)
class RunStatus:
    """A snapshot of a running topology; cheap to take, safe from any thread."""

    topology: str
    epoch: int
    committed_txid: int
    in_flight: tuple[InFlight, ...]
    batches_committed: int
    replays: int
    last_failure: str | None
    seconds: float
    held_up_by: str = "idle"
    """Its bottleneck at this moment; see `txn.engine.reporting.bottleneck`."""
    waits: tuple[str, ...] = ()
    """The waits of its stages for each other, a sentence each."""
    totals: Totals = Totals()
    """The numbers of the txids that this run has committed so far."""
    lags: Mapping[str, Lag] = field(default_factory=dict)
    """stream -> the uncommitted part of its source: the lag beyond the newest plan (`ReportsLag`),
    and `planned`. A stream is missing if its spout does not know."""
    planned: Mapping[str, Lag] = field(default_factory=dict)
    """stream -> the part of its lag for which txids in flight are planned."""
    published: Mapping[str, int | None] = field(default_factory=dict)
    """published table -> the txid that it shows, 0 if none; None: unknown, for the moment."""


@dataclass(frozen=True)
class Standby:
    """The leader that a standby waits for; see `RunningTopology.standby`."""

    since: float
    """Begin of the wait, seconds since the epoch."""
    leader: Mapping[str, Any] | None
    """The leader's "host", "pid", "started", "epoch". None: ZooKeeper does not answer."""

    def __str__(self) -> str:
        if self.leader is None:
            return "ZooKeeper, which does not answer"
        return "process {pid} on {host} (leader since {started}, epoch {epoch}) to end".format_map(
            self.leader
        )
