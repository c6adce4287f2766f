"""OpenTelemetry traces: one for each attempt; a sample of successful ones has all stations.

    topology.run(spark, observers=[Traces()])

Spans are made at the end of an attempt, from its events. So a killed process leaves no trace of an
attempt in progress, rather than a part of one.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from txn.attempts import TransactionAttempt
from txn.errors import SetupError
from txn.observers import (
    AttemptBegan,
    AttemptBlocked,
    AttemptCancelled,
    AttemptFailed,
    BadRows,
    BatchCommitted,
    EventsDropped,
    GroupDissolved,
    Quarantined,
    ReplayScheduled,
    RunBegan,
    RunEnded,
    RunEvent,
    StationBegan,
    StationEnded,
    TablePublished,
)
from txn.positions import describe
from txn.tracing.provider import missing, of_program, own_provider, processors

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanContext, Tracer

__all__ = ["Traces"]

_WITHIN = {"emit": "process", "stage": "process", "prepare": "turn", "publish": "turn"}
"""station -> the station that contains it."""
_COMMITTED = ("committed", "quarantined")
_AVERAGED_SECS = 10.0
"""After a pause, the attempts of this many seconds may be detailed at once."""

_AttemptEvent: TypeAlias = (
    AttemptBegan | AttemptFailed | AttemptBlocked | AttemptCancelled | BadRows | Quarantined
)

Attributes = dict[str, Any]


class Traces:
    """An observer that makes OpenTelemetry spans. Needs the extra `otel`.

    Args:
        provider: receives the spans; it stays open. None: the provider that the program has set
            with `opentelemetry.trace.set_tracer_provider`, if any; otherwise one for each run,
            which the variables `OTEL_*` configure and which sends by OTLP by default.
        detailed_per_sec: successful attempts a second, on average over ten seconds, that get a span
            for each station; a group gets them as a whole, or not at all. All other attempts have
            all spans. `math.inf`: all attempts have them. A span costs the run a tenth of a
            millisecond of a core.

    Raises:
        SetupError: a package is missing, `detailed_per_sec` is negative or not a number, or a
            variable `OTEL_*` has an invalid value.
    """

    def __init__(
        self, provider: TracerProvider | None = None, *, detailed_per_sec: float = 2.0
    ) -> None:
        try:
            import opentelemetry.sdk.trace  # noqa: F401
        except ImportError as error:
            raise missing(error) from error
        if not detailed_per_sec >= 0:
            raise SetupError(
                f"detailed_per_sec={detailed_per_sec!r} is not a number of attempts. Give a number "
                "from 0, or math.inf for all.",
                number="TXN-119",
            )
        self._program_provider = provider
        self._details = _Allowance(detailed_per_sec)
        # Made here, so that invalid settings raise in the program.
        self._processors = [] if provider or of_program() else processors(os.environ)
        self._provider: TracerProvider | None = None
        self._is_own = False
        self._tracer: Tracer | None = None
        self._open: dict[TransactionAttempt, _Attempt] = {}
        self._failed: dict[int, tuple[int, SpanContext]] = {}
        """txid -> attempt id and span of its newest attempt that ended without a commit."""
        self._failures: Counter[int] = Counter()
        """txid -> number of failed attempts."""
        self._committed_txid = 0
        self._readers: dict[type[RunEvent], Callable[[Any], None]] = {
            RunBegan: self._begin,
            RunEnded: self._end,
            StationBegan: self._station_began,
            StationEnded: self._station_ended,
            TablePublished: self._take_group_event,
            GroupDissolved: self._take_group_event,
            BatchCommitted: self._committed,
            ReplayScheduled: self._replayed,
            EventsDropped: self._missed,
            **dict.fromkeys(get_args(_AttemptEvent), self._take_event),
        }

    def observe(self, event: RunEvent) -> None:
        """Take an event; at an attempt's end, hand its spans to the provider."""
        if (reader := self._readers.get(type(event))) is not None:
            reader(event)

    # --- the run -----------------------------------------------------------------------------

    def _begin(self, event: RunBegan) -> None:
        self._provider = self._program_provider or of_program()
        self._is_own = self._provider is None
        if self._provider is None:
            self._provider = own_provider(event.topology, self._processors)
        self._tracer = self._provider.get_tracer("txn")
        self._open, self._failed, self._committed_txid = {}, {}, 0
        self._failures = Counter()

    def _end(self, event: RunEnded) -> None:
        for attempt in sorted(self._open):
            self._write(attempt, event.at)
        if self._provider is not None:
            self._provider.shutdown() if self._is_own else self._provider.force_flush()

    def _missed(self, event: EventsDropped) -> None:
        for attempt in self._open.values():
            attempt.missing += event.count

    # --- attempts ----------------------------------------------------------------------------

    def _open_attempt(
        self, attempt: TransactionAttempt, event: RunEvent, at: float | None = None
    ) -> _Attempt:
        """Return the open attempt; its span begins with its first event."""
        entry = self._open.get(attempt)
        if entry is None:
            assert self._tracer is not None
            began = event.at if at is None else at
            span = self._tracer.start_span("attempt", _nothing(), start_time=_nanos(began))
            entry = self._open[attempt] = _Attempt(attempt, span, began)
            before = self._failed.get(attempt.txid)
            if before is not None:
                span.add_link(before[1], {"txn.link": "attempt before"})
        entry.topology, entry.epoch = event.topology, event.epoch
        return entry

    def _take_event(self, event: _AttemptEvent) -> None:
        at = event.planned_at if isinstance(event, AttemptBegan) else None
        if self._is_written(event.attempt):
            return
        entry, txid = self._open_attempt(event.attempt, event, at), event.attempt.txid
        entry.take(event)
        if isinstance(event, AttemptBegan):
            # The count of an emptied batch begins anew: use our own if larger.
            entry.attributes["txn.failures"] = max(event.failures, self._failures[txid])
        elif isinstance(event, AttemptFailed):
            self._failures[txid] += 1
        self._write_if_over(event.attempt, event.at)

    def _take_group_event(self, event: TablePublished | GroupDissolved) -> None:
        for attempt in event.attempts:
            if attempt in self._open:
                self._open[attempt].take(event)

    def _is_written(self, attempt: TransactionAttempt) -> bool:
        """True if its spans are written; a thread that hung in it may still send events."""
        if attempt in self._open:
            return False
        last = self._failed.get(attempt.txid)
        is_dead = last is not None and attempt.attempt_id <= last[0]
        return is_dead or attempt.txid <= self._committed_txid

    def _replayed(self, event: ReplayScheduled) -> None:
        """Write earlier attempts of the txid: another follows, even if a thread hangs in them."""
        for attempt in [a for a in self._open if a.txid == event.attempt.txid]:
            if attempt.attempt_id < event.attempt.attempt_id:
                self._write(attempt, event.at)

    def _committed(self, event: BatchCommitted) -> None:
        self._open_attempt(event.attempt, event).take(event)
        self._failed.pop(event.attempt.txid, None)
        self._failures.pop(event.attempt.txid, None)
        self._committed_txid = event.attempt.txid
        # Commits are in order: the end of an earlier txid was among the dropped events.
        for attempt in [a for a in self._open if a.txid < event.attempt.txid]:
            if self._open[attempt].ended is None or self._open[attempt].missing:
                self._write(attempt, event.at)
        if event.rolled_forward:
            self._write(event.attempt, event.at)  # its stations were in another process

    # --- stations ----------------------------------------------------------------------------

    def _station_began(self, event: StationBegan) -> None:
        if self._is_written(event.attempts[0]):
            return
        attempts = [a for a in event.attempts if not self._is_written(a)]
        first, *others = [self._open_attempt(attempt, event) for attempt in attempts]
        first.under_way[(event.station, event.table, event.attempts)] = event
        for other in others:
            first.link(other)
            other.link(first)
            other.first = first

    def _station_ended(self, event: StationEnded) -> None:
        first = self._open.get(event.attempts[0])
        if first is None:
            if event.station != "plan":
                return
            first = self._open_attempt(event.attempts[0], event, event.began)
        first.under_way.pop((event.station, event.table, event.attempts), None)
        first.stations.append(event)
        self._write_if_over(event.attempts[0], event.at)

    # --- spans -------------------------------------------------------------------------------

    def _write_if_over(self, attempt: TransactionAttempt, at: float) -> None:
        entry = self._open.get(attempt)
        if entry is not None and entry.is_over:
            self._write(attempt, at)

    def _write(self, attempt: TransactionAttempt, at: float) -> None:
        """Send the spans of an attempt: first its own, then those of its stations."""
        assert self._tracer is not None
        entry = self._open.pop(attempt)
        if entry.outcome not in _COMMITTED:
            self._failed[attempt.txid] = (attempt.attempt_id, entry.span.get_span_context())
        entry.finish(self._tracer, at, detailed=self._is_detailed(entry, at))
        # Groups overlap: each would keep the one before it in memory for ever.
        entry.linked.clear()
        entry.first = None

    def _is_detailed(self, entry: _Attempt, at: float) -> bool:
        """True if its stations are sent; decided for the first of its group, which has them all."""
        if not entry.stations or not entry.span.is_recording():
            return True  # nothing to leave out
        first = entry.first or entry
        if first.detailed is None:
            is_unusual = any(one.is_unusual for one in (first, *first.linked.values()))
            first.sampled = not is_unusual and self._details.is_left(at)
            first.detailed = is_unusual or first.sampled
        if entry.is_unusual:
            return True
        if first.sampled:
            self._details.take()
        return first.detailed


class _Allowance:
    """A budget per second, on average over ten seconds. `at` is the time of events.

    A group may take more than is left; the difference is missing later.
    """

    def __init__(self, per_sec: float) -> None:
        self._per_sec = per_sec
        # At least one, so that small budgets yield some too.
        self._most = self._left = max(1.0, per_sec * _AVERAGED_SECS) if per_sec else 0.0
        self._at: float | None = None

    def is_left(self, at: float) -> bool:
        """True if at least one is left."""
        if not math.isinf(self._per_sec):
            passed = 0.0 if self._at is None else max(0.0, at - self._at)
            self._left = min(self._most, self._left + passed * self._per_sec)
            self._at = at
        return self._left >= 1

    def take(self) -> None:
        """Take one."""
        self._left -= 1


@dataclass
class _Attempt:
    """The events of one attempt so far."""

    attempt: TransactionAttempt
    span: Span
    began: float
    topology: str = ""
    epoch: int = 0
    outcome: str = "open"
    """committed, quarantined, failed, blocked or cancelled; open: the run ended first."""
    ended: float | None = None
    error: str | None = None
    missing: int = 0
    """Number of events that were dropped while the attempt was open."""
    attributes: Attributes = field(default_factory=dict)
    notes: list[tuple[str, float, Attributes]] = field(default_factory=list)
    """Events of its span: name, time, attributes."""
    stations: list[StationEnded] = field(default_factory=list)
    under_way: dict[tuple[Any, ...], StationBegan] = field(default_factory=dict)
    linked: dict[TransactionAttempt, _Attempt] = field(default_factory=dict)
    first: _Attempt | None = None
    """The first attempt of its group, which has the shared stations; None: itself."""
    detailed: bool | None = None
    """For a group's first attempt: True if all stations are sent; None: undecided."""
    sampled: bool = False
    """For a group's first attempt: True if they are sent because the budget had some left."""
    published: dict[str, TablePublished] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True if no more events of it will come."""
        if self.ended is None or self.under_way:
            return False
        if self.outcome not in _COMMITTED:
            return True
        return {"success", "clean_up"} <= {station.station for station in self.stations}

    @property
    def is_unusual(self) -> bool:
        """True if its stations are always sent; others are sampled."""
        return (
            self.outcome != "committed"
            or bool(self.notes or self.missing or self.under_way)
            or self.attempt.attempt_id > 0
            or "txn.replay_of" in self.attributes
            or any(station.error for station in self.stations)
        )

    def link(self, other: _Attempt) -> None:
        """Link to another attempt of the group, once."""
        if other.attempt not in self.linked:
            self.linked[other.attempt] = other
            about: Attributes = {"txn.link": "group", "txn.txid": other.attempt.txid}
            self.span.add_link(other.span.get_span_context(), about)

    def take(self, event: RunEvent) -> None:
        """Add an event."""
        match event:
            case AttemptBegan():
                self._began(event)
            case AttemptFailed():
                self._finish_as("failed", event.at, event.error)
                self.attributes["txn.cause"] = event.cause
                self.attributes["txn.phase"] = event.phase
                self.notes.append(("exception", event.at, _exception(event.error)))
            case AttemptBlocked():
                self._finish_as("blocked", event.at)
                self.notes.append(("blocked", event.at, {"txn.error": event.error}))
            case AttemptCancelled():
                self._finish_as("cancelled", event.at)
            case GroupDissolved():
                self.notes.append(("group dissolved", event.at, {"txn.error": event.error}))
            case TablePublished():
                self.published[event.table] = event
            case BadRows():
                about = {"txn.stream": event.stream, "txn.rule": event.rule, "txn.rows": event.rows}
                self.notes.append(("bad rows", event.at, about))
            case Quarantined():
                self.outcome = "quarantined"
                self.notes.append(("quarantined", event.at, {"txn.error": event.error}))
            case BatchCommitted():
                self._committed(event)

    def _finish_as(self, outcome: str, at: float, error: str | None = None) -> None:
        if self.ended is None:
            self.outcome, self.ended, self.error = outcome, at, error

    def _began(self, event: AttemptBegan) -> None:
        for stream, metadata in event.metadata.items():
            self.attributes[f"txn.read.{stream}"] = describe(metadata)
        if event.replay_of is not None:
            self.attributes["txn.replay_of"] = event.replay_of

    def _committed(self, event: BatchCommitted) -> None:
        self._finish_as("quarantined" if event.quarantined else "committed", event.at)
        attributes: Attributes = {
            "txn.group.first_txid": event.group[0].txid,
            "txn.group.last_txid": event.group[-1].txid,
            "txn.tables": list(event.tables),
            "txn.versions": list(event.tables.values()),
            "txn.rows_staged": sum(event.rows.values()),
        }
        for stream, records in event.input_records.items():
            if records is not None:
                attributes[f"txn.input_records.{stream}"] = records
        if event.rolled_forward:
            attributes["txn.rolled_forward"] = True
        self.attributes |= attributes

    # --- its spans -----------------------------------------------------------------------------

    def finish(self, tracer: Tracer, at: float, *, detailed: bool) -> None:
        """Make and end its spans; those of its stations only if `detailed`."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        stations = sorted([*self.stations, *self._unfinished(at)], key=_outermost_first)
        left_out, stations = ([], stations) if detailed else (stations, [])
        ids = self._ids()
        self.span.set_attributes(
            {
                **ids,
                **self.attributes,
                "txn.outcome": self.outcome,
                "txn.stations": len(stations),
                **({"txn.stations_left_out": len(left_out)} if left_out else {}),
                **({"txn.events_dropped": self.missing} if self.missing else {}),
            }
        )
        for name, when, attributes in self.notes:
            self.span.add_event(name, attributes, _nanos(when))
        if self.error is not None:
            self.span.set_status(Status(StatusCode.ERROR, self.error))
        elif self.outcome in _COMMITTED:
            self.span.set_status(Status(StatusCode.OK))
        self.span.end(_nanos(at if self.ended is None else self.ended))
        made: dict[tuple[str, str | None], Span] = {}
        for station in stations:
            parent = made.get((station.station, None)) if station.table is not None else None
            parent = parent or made.get((_WITHIN.get(station.station, ""), None)) or self.span
            name = (
                station.station if station.table is None else f"{station.station} {station.table}"
            )
            about, around = ids | self._station_attributes(station), set_span_in_context(parent)
            span = tracer.start_span(
                name, around, attributes=about, start_time=_nanos(station.began)
            )
            if station.error is not None:
                span.add_event("exception", _exception(station.error), _nanos(station.at))
                span.set_status(Status(StatusCode.ERROR, station.error))
            span.end(_nanos(max(station.at, station.began)))
            made.setdefault((station.station, station.table), span)

    def _unfinished(self, at: float) -> Iterator[StationEnded]:
        """Yield the stations without an end, as if they ended at `at`."""
        for start in self.under_way.values():
            fields = (at, start.topology, start.epoch, start.attempts, start.station, start.at)
            yield _Unfinished(*fields, start.table, start.spark_tags)

    def _ids(self) -> Attributes:
        return {
            "txn.topology": self.topology,
            "txn.txid": self.attempt.txid,
            "txn.attempt": self.attempt.attempt_id,
            "txn.epoch": self.epoch,
        }

    def _station_attributes(self, station: StationEnded) -> Attributes:
        attributes: Attributes = {"txn.station": station.station}
        if station.table is not None:
            attributes["txn.table"] = station.table
        if station.spark_tags:
            attributes["txn.spark.job_tags"] = list(station.spark_tags)
        if len(station.attempts) > 1:
            attributes["txn.attempts"] = [str(attempt) for attempt in station.attempts]
        if isinstance(station, _Unfinished):
            attributes["txn.unfinished"] = True
        published = self.published.get(station.table or "")
        if station.station == "publish" and published is not None:
            attributes |= {
                "txn.table.version": published.version,
                "txn.table.bytes": published.bytes,
                "txn.table.files": published.files,
                "txn.table.skipped": published.skipped,
            }
            if published.rows is not None:
                attributes["txn.table.rows"] = published.rows
        return attributes


class _Unfinished(StationEnded):
    """A station without an end: its turn was given up, or its thread hangs."""


def _outermost_first(station: StationEnded) -> tuple[int, int, float]:
    """Sort key: a span is made after the span that contains it."""
    return station.station in _WITHIN, station.table is not None, station.began


def _exception(error: str) -> Attributes:
    kind, _, message = error.partition(": ")
    return {"exception.type": kind, "exception.message": message or kind}


def _nanos(seconds: float) -> int:
    return int(seconds * 1e9)


def _nothing() -> Any:
    """Return an empty context: an attempt is the root of a trace, even in a traced program."""
    from opentelemetry.context import Context

    return Context()
