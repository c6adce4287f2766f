"""Ask the spouts for facts that are only shown to users: lags, notices, and amounts of a batch.

If a spout raises or hangs, its answer is unknown, and the run goes on.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from txn.dataflow.graph import Source
from txn.engine.base.input import Input
from txn.engine.work.questions import Questions
from txn.interfaces import Lag
from txn.interfaces.spout_capabilities import (
    CountsBytes,
    CountsRows,
    NamesLocations,
    ReportsLag,
    ReportsNotices,
    ReportsPlannedLag,
)
from txn.spark.causes import cause_line

__all__ = ["SpoutFacts", "places_of"]

C = TypeVar("C")
T = TypeVar("T")

log = logging.getLogger("txn")

_Unit = tuple[str, str]
"""A unit of a lag and "", or "" and a partition."""
_ADD_UP = ("records", "bytes", "files", "versions")
"""The units of a lag that are sums over txids."""
NOTICE_LINES, NOTICE_LENGTH = 10, 2_000
"""Most notices of a stream, and most characters of each."""


def places_of(topology: str, sources: Iterable[Source]) -> dict[str, tuple[str, ...]]:
    """Stream -> the places that its source reads, if its spout knows them."""
    facts = SpoutFacts(topology)
    try:
        locations = {source.name: facts.locations(source) for source in sources}
    finally:
        facts.close()
    return {stream: places for stream, places in locations.items() if places}


class SpoutFacts:
    """The answers of one run's spouts that users see."""

    def __init__(self, topology: str, enter: Callable[[], None] = lambda: None) -> None:
        self._topology = topology
        self._reported: set[tuple[str, str]] = set()
        self._questions = Questions(topology, enter)
        self.ahead: Mapping[str, Lag] = {}
        """stream -> the lag of its source beyond the newest plan, if its spout knows. Replaced as a
        whole, so that any thread may read it; so are the next two."""
        self.planned: Mapping[str, Lag] = {}
        """stream -> the part of its lag for which txids in flight are planned."""
        self.lags: Mapping[str, Lag] = {}
        """stream -> the part of its source that is not committed, if its spout knows."""
        self._changing = threading.Lock()
        self._plans: dict[int, dict[str, Counter[_Unit]]] = {}
        """txid in flight -> stream -> the amount of the lag that it has planned."""
        self._sums: defaultdict[str, Counter[_Unit]] = defaultdict(Counter)
        """stream -> the amount that all txids in flight have planned."""
        self._noticed: Mapping[str, tuple[str, ...]] = {}
        """stream -> its spout's notices, if it has any. Replaced as a whole."""
        self._held: Mapping[str, tuple[str, ...]] = {}
        """stream -> the streams that are read before it. Replaced as a whole."""

    def observe(self, source: Source, newest: Any) -> None:
        """Ask a source for its lag and its notices."""
        spout, name = source.spout, source.name
        if not isinstance(spout, (ReportsLag, ReportsNotices)):
            return
        answers = self._questions.ask(
            f"{type(spout).__name__}.lag or notices of stream '{name}'",
            lambda: (
                self._ask(source, ReportsLag, "lag", lambda s: _check_lag(s.lag(newest))),
                self._ask(source, ReportsNotices, "notices", lambda s: _lines(s.notices())),
            ),
        )
        lag, lines = answers or (None, None)
        others = {stream: ahead for stream, ahead in self.ahead.items() if stream != name}
        with self._changing:
            self.ahead = others if lag is None else {**others, name: lag}
            self._add_up()
        if lines is not None and lines != self._noticed.get(name, ()):
            rest = {stream: noticed for stream, noticed in self._noticed.items() if stream != name}
            self._noticed = {**rest, name: lines} if lines else rest

    def hold(self, source: Source, before: Sequence[str]) -> None:
        """Note the streams that must be read before this one; none: it may be read."""
        if tuple(before) != self._held.get(source.name, ()):
            rest = {stream: names for stream, names in self._held.items() if stream != source.name}
            self._held = {**rest, source.name: tuple(before)} if before else rest

    @property
    def notices(self) -> Mapping[str, tuple[str, ...]]:
        """Stream -> lines for the user: the streams that it waits for, and its spout's notices."""
        held = "Nothing of it is read yet: first {} is read until nothing is left (after=)."
        waits = {
            stream: (held.format(" and ".join(f"stream '{name}'" for name in before)),)
            for stream, before in self._held.items()
        }
        noticed = self._noticed
        return {s: (*waits.get(s, ()), *noticed.get(s, ())) for s in {**waits, **noticed}}

    def knows_plan(self, txid: int) -> bool:
        """Return whether `plan` has this txid."""
        return txid in self._plans

    def plan(self, txid: int, read: Iterable[tuple[Source, Any]]) -> None:
        """Learn the plan of a txid: each source with its metadata, None for nothing."""
        streams = {
            source.name: _count_lag(
                Lag() if metadata is None else self._planned_lag(source, metadata)
            )
            for source, metadata in read
        }
        with self._changing:
            plans = self._plans.setdefault(txid, {})
            for stream, amounts in streams.items():
                self._sums[stream].subtract(plans.get(stream, {}))
                self._sums[stream].update(amounts)
            plans |= streams
            self._add_up()

    def committed(self, txid: int) -> None:
        """Take the txids up to this one out of the lags."""
        with self._changing:
            for done in [planned for planned in self._plans if planned <= txid]:
                for stream, amounts in self._plans.pop(done).items():
                    self._sums[stream].subtract(amounts)
            self._add_up()

    def _add_up(self) -> None:
        self.planned = {
            s: _lag_in_units_of(ahead, self._sums[s]) for s, ahead in self.ahead.items()
        }
        self.lags = {
            stream: replace(
                _lag_in_units_of(ahead, self._sums[stream] + _count_lag(ahead)),
                seconds=ahead.seconds,
            )
            for stream, ahead in self.ahead.items()
        }

    def _planned_lag(self, source: Source, metadata: Any) -> Lag:
        if not isinstance(source.spout, ReportsPlannedLag):
            # A question of its own: a commit turn may ask the other one at the same time.
            return Lag(*self._numbers(source, metadata, ", for its lag"))
        answer = self._questions.ask(
            f"{type(source.spout).__name__}.planned_lag of stream '{source.name}'",
            lambda: self._ask(
                source,
                ReportsPlannedLag,
                "planned_lag",
                lambda s: _check_lag(s.planned_lag(metadata)),
            ),
        )
        return answer or Lag()

    def locations(self, source: Source) -> tuple[str, ...]:
        """The places that a source reads; empty if its spout does not know."""
        if not isinstance(source.spout, NamesLocations):
            return ()
        answer = self._questions.ask(
            f"{type(source.spout).__name__}.locations of stream '{source.name}'",
            lambda: self._ask(source, NamesLocations, "locations", lambda s: _texts(s.locations())),
        )
        return answer or ()

    def planned_input(self, read: Iterable[tuple[Source, Any]]) -> Input:
        """The records and bytes that a batch reads, by the spouts.

        If a spout raises or gives no answer in time, they are unknown.
        """
        records: dict[str, int | None] = {}
        size: dict[str, int | None] = {}
        for source, planned in read:
            records[source.name], size[source.name] = self._numbers(source, planned)
        return Input(records, size)

    def planned_rows(self, source: Source, metadata: Any) -> int | None:
        """The rows of a source's part of a batch; unknown if its spout raises."""
        return self._ask(
            source, CountsRows, "planned_rows", lambda s: _count(s.planned_rows(metadata))
        )

    def close(self) -> None:
        """End the threads that ask; one that hangs is left behind."""
        self._questions.close()

    def _numbers(
        self, source: Source, metadata: Any, why: str = ""
    ) -> tuple[int | None, int | None]:
        spout = source.spout
        if not isinstance(spout, (CountsRows, CountsBytes)):
            return None, None
        answer = self._questions.ask(
            f"{type(spout).__name__}.planned_rows or planned_bytes of stream '{source.name}'{why}",
            lambda: (self.planned_rows(source, metadata), self._planned_bytes(source, metadata)),
        )
        return answer or (None, None)

    def _planned_bytes(self, source: Source, metadata: Any) -> int | None:
        return self._ask(
            source, CountsBytes, "planned_bytes", lambda s: _count(s.planned_bytes(metadata))
        )

    def _ask(
        self, source: Source, capability: type[C], what: str, ask: Callable[[C], T]
    ) -> T | None:
        """Ask for a fact that is only shown; None if the spout lacks the capability or raises."""
        if not isinstance(source.spout, capability):
            return None
        try:
            return ask(source.spout)
        except Exception as error:  # noqa: BLE001 - plugins may raise anything
            if (source.name, what) not in self._reported:
                self._reported.add((source.name, what))
                log.warning(
                    "[%s] %s.%s of stream '%s' raised %s. What it would say is shown as not "
                    "known; the run goes on, and this is told once.",
                    self._topology,
                    type(source.spout).__name__,
                    what,
                    source.name,
                    cause_line(error),
                )
            return None


def _lines(notices: Sequence[str]) -> tuple[str, ...]:
    """A plugin's notices, cut to the limits; raises as `_texts`."""
    lines = [" ".join(line.split())[:NOTICE_LENGTH] for line in _texts(notices)]
    more = len(lines) - NOTICE_LINES
    return (*lines[:NOTICE_LINES], *([f"and {more} more"] if more > 0 else []))


def _texts(answer: Sequence[str]) -> tuple[str, ...]:
    """A plugin's texts.

    Raises:
        TypeError: they are not a sequence of texts.
    """
    texts = () if isinstance(answer, str) else tuple(answer)
    if isinstance(answer, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{type(answer).__name__} is not a sequence of str")
    return texts


def _count(answer: object) -> int | None:
    """A plugin's number as an int, so that it can be summed and written as JSON.

    Raises:
        TypeError, ValueError: it is not a number.
    """
    if answer is None:
        return None
    number = operator.index(answer)  # type: ignore[arg-type]
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return number


def _check_lag(lag: Lag | None) -> Lag | None:
    """A plugin's lag, with numbers that can be shown; raises like `_count`."""
    if lag is None:
        return None
    seconds = None if lag.seconds is None else float(lag.seconds)
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} seconds")
    parts = {str(name): _count(left) or 0 for name, left in (lag.partitions or {}).items()}
    return Lag(
        _count(lag.records),
        _count(lag.bytes),
        _count(lag.files),
        _count(lag.versions),
        seconds,
        parts or None,
    )


def _count_lag(lag: Lag) -> Counter[_Unit]:
    """The parts of a lag that can be added up, by unit; records also by partition."""
    amounts = {(unit, ""): getattr(lag, unit) or 0 for unit in _ADD_UP}
    return Counter(amounts | {("", name): n for name, n in (lag.partitions or {}).items()})


def _lag_in_units_of(model: Lag, amounts: Counter[_Unit]) -> Lag:
    """A lag of these amounts, in the units of `model`; its partitions without any count as zero."""
    units: dict[str, Any] = {u: amounts[u, ""] for u in _ADD_UP if getattr(model, u) is not None}
    if model.partitions is None:
        return Lag(**units)
    parts = {name: n for (unit, name), n in amounts.items() if not unit and n}
    return Lag(**units, partitions={**dict.fromkeys(model.partitions, 0), **parts})
