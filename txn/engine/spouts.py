"""The spouts of a run: open them, ask what to read, notify them of the end, and close them."""

from __future__ import annotations

import logging
import math
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from txn.attempts import TransactionAttempt
from txn.dataflow.columns import StreamColumns
from txn.dataflow.graph import Sink, Source
from txn.engine.batch_target import BatchTargets
from txn.engine.questions import Questions
from txn.engine.report import Input
from txn.errors import ProgressUnreadableError
from txn.interfaces import Keeper, Lag, Spout
from txn.protocol.events import Metadata, Plan
from txn.spark.causes import cause_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Spouts"]

T = TypeVar("T")

log = logging.getLogger("txn")

KEPT = 64
"""Metadata kept as parsed. It is asked for at planning, processing and in the commit turn; with
5,000 partitions, parsing takes milliseconds."""

NOTICE_LINES, NOTICE_LENGTH = 10, 2_000
"""Most notices of a stream that are kept, and most characters of each."""


class Spouts:
    """The spouts of one run, and the metadata that is theirs.

    Args:
        sources: the topology's streams.
        enter: prepares a thread for the user's code.
    """

    def __init__(
        self,
        topology: str,
        sources: Sequence[Source],
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        self._topology = topology
        self.sources = tuple(sources)
        self._targets = BatchTargets({source.name: source.spout for source in sources})
        self._parsed: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._parsing = threading.Lock()
        self._told: set[tuple[str, str]] = set()
        self._questions = Questions(topology, enter)
        self.lags: Mapping[str, Lag] = {}
        """stream -> what its source has beyond the newest plan, where its spout knows. Replaced as
        a whole, so that any thread may read it."""
        self.notices: Mapping[str, tuple[str, ...]] = {}
        """stream -> what its spout has for the user, if anything. Replaced as a whole."""

    def open(
        self, spark: SparkSession, newest: Metadata, keeper: Keeper, columns: StreamColumns
    ) -> None:
        """Open every spout with its newest durable metadata, and learn the columns they know."""
        for source in self.sources:
            previous = newest.get(source.name)
            parsed = None if previous is None else self.parse(source, previous)
            source.spout.keep_with(keeper)
            schema = source.spout.open(spark, parsed)
            if schema is not None:
                columns.learn(source.name, schema)

    def plan(self, order: Plan, *, window_full: bool) -> dict[str, Any]:
        """Ask the named spouts what the attempt shall read: stream -> metadata as JSON, or None.

        Args:
            window_full: with this txid, as many are in flight as may be.
        """
        answers: dict[str, Any] = {}
        if order.is_new:
            self._targets.tell()
        for source in self.sources:
            if source.name not in order.streams:
                continue
            previous = order.previous.get(source.name)
            parsed = None if previous is None else self.parse(source, previous)
            answer = source.spout.initialize_transaction(order.attempt, parsed)
            answers[source.name] = None if answer is None else answer.model_dump(mode="json")
            if order.is_new:
                self._look_at(source, parsed if answer is None else answer)
        if order.is_new:
            self._targets.learn(answers, window_full=window_full)
        return answers

    def planned_parts(
        self, sinks: Iterable[Sink], metadata: Metadata
    ) -> dict[str, dict[str, list[str]]]:
        """Table -> stream -> names of the parts that START hands to its staging job."""
        read = {sink.name: tuple(sink.parent.sources_read()) for sink in sinks}
        parts = {
            source.name: list(source.spout.planned_parts(self.parse(source, planned)))
            for source in {source for sources in read.values() for source in sources}
            if (planned := metadata.get(source.name)) is not None
        }
        return {
            table: {source.name: parts[source.name] for source in sources if source.name in parts}
            for table, sources in read.items()
        }

    def planned_input(self, metadata: Metadata) -> Input:
        """What a batch reads, as the spouts know it.

        A spout that raises or gives no answer in time does not know.
        """
        records: dict[str, int | None] = {}
        size: dict[str, int | None] = {}
        for source in self.sources:
            planned = metadata.get(source.name)
            if planned is not None:
                name = source.name
                records[name], size[name] = self._numbers(source, self.parse(source, planned))
        return Input(records, size)

    def _numbers(self, source: Source, metadata: Any) -> tuple[int | None, int | None]:
        spout = source.spout
        counts, weighs = _has(spout, "planned_rows"), _has(spout, "planned_bytes")
        if not counts and not weighs:
            return None, None
        what = f"{type(spout).__name__}.planned_rows or planned_bytes of stream '{source.name}'"
        found = self._questions.ask(
            what,
            lambda: (
                self.planned_rows(source, metadata) if counts else None,
                self._planned_bytes(source, metadata) if weighs else None,
            ),
        )
        return found or (None, None)

    def planned_rows(self, source: Source, metadata: Any) -> int | None:
        """The rows of a source's part of a batch; a spout that raises does not know.

        Args:
            metadata: as `parse` returns it.
        """
        spout = source.spout
        return self._known(source, "planned_rows", lambda: _count(spout.planned_rows(metadata)))

    def _planned_bytes(self, source: Source, metadata: Any) -> int | None:
        spout = source.spout
        return self._known(source, "planned_bytes", lambda: _count(spout.planned_bytes(metadata)))

    def _look_at(self, source: Source, newest: Any) -> None:
        """Learn what a source lags by, and what its spout has noticed."""
        spout, name = source.spout, source.name
        lags, notices = _has(spout, "lag"), _has(spout, "notices")
        if not lags and not notices:
            return
        found = self._questions.ask(
            f"{type(spout).__name__}.lag or notices of stream '{name}'",
            lambda: (
                self._known(source, "lag", lambda: _checked(spout.lag(newest))) if lags else None,
                self._known(source, "notices", lambda: _lines(spout.notices())) if notices else (),
            ),
        )
        lag, said = found or (None, None)
        others = {stream: known for stream, known in self.lags.items() if stream != name}
        self.lags = others if lag is None else {**others, name: lag}
        if said is not None and said != self.notices.get(name, ()):
            rest = {stream: known for stream, known in self.notices.items() if stream != name}
            self.notices = {**rest, name: said} if said else rest

    def _known(self, source: Source, what: str, ask: Callable[[], T]) -> T | None:
        """The answer to a question whose answer people see and nothing depends on."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - plugins raise what they like
            if (source.name, what) not in self._told:
                self._told.add((source.name, what))
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

    def commit(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        """Tell the spouts that the turn of this attempt begins; any of them may fail it."""
        for source in self.sources:
            planned = metadata.get(source.name)
            if planned is not None:
                source.spout.commit(attempt, self.parse(source, planned))

    def succeed(self, attempt: TransactionAttempt) -> None:
        """Tell the spouts that the txid is durable everywhere."""
        for source in self.sources:
            source.spout.success(attempt.txid)

    def close(self) -> None:
        """Close every spout, whatever the others do."""
        self._questions.close()
        for source in self.sources:
            with suppress(Exception):
                source.spout.close()

    def parse(self, source: Source, stored: Any) -> Any:
        """Metadata as the spout's own type; the same object is parsed once while it is in use.

        Raises:
            ProgressUnreadableError: it is not what this spout writes.
        """
        key = (source.name, id(stored))
        known = self._parsed.get(key)
        if known is None:
            # Keep the parsed object too: while it lives, no other object has its id.
            known = stored, self._validated(source, stored)
            with self._parsing:
                self._parsed[key] = known
                while len(self._parsed) > KEPT:
                    del self._parsed[next(iter(self._parsed))]
        return known[1]

    def _validated(self, source: Source, stored: Any) -> Any:
        try:
            return source.spout.metadata_type.model_validate(stored)
        except ValidationError as error:
            raise ProgressUnreadableError(
                f"The stored metadata of stream '{source.name}' of topology '{self._topology}' is "
                f"not what its spout ({type(source.spout).__name__}) writes: "
                f"{error.errors()[0]['msg']} at {error.errors()[0]['loc']}. Run the spout that "
                "wrote it, or give the stream a new name.",
                number="TXN-416",
            ) from error


def _has(spout: Spout[Any], question: str) -> bool:
    """Return whether a spout has an answer of its own, and not that of its base class."""
    own = getattr(spout, question)
    return getattr(own, "__func__", own) is not getattr(Spout, question)


def _lines(said: Sequence[str]) -> tuple[str, ...]:
    """A plugin's notices, as many and as much of them as are kept.

    Raises:
        TypeError: they are no sequence of texts.
    """
    if isinstance(said, str) or not all(isinstance(line, str) for line in said):
        raise TypeError(f"{type(said).__name__} is not a sequence of str")
    lines = [" ".join(line.split())[:NOTICE_LENGTH] for line in said]
    more = len(lines) - NOTICE_LINES
    return (*lines[:NOTICE_LINES], *([f"and {more} more"] if more > 0 else []))


def _count(answer: object) -> int | None:
    """A plugin's number as an int, so that it can be summed and written as JSON.

    Raises:
        TypeError, ValueError: it is none.
    """
    if answer is None:
        return None
    number = operator.index(answer)  # type: ignore[arg-type]
    if number < 0:
        raise ValueError(f"{number} is below 0")
    return number


def _checked(lag: Lag | None) -> Lag | None:
    """A plugin's answer, once it can be shown; raises as `_count`."""
    if lag is None:
        return None
    seconds = None if lag.seconds is None else float(lag.seconds)
    if seconds is not None and not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds} seconds")
    return Lag(
        _count(lag.records), _count(lag.bytes), _count(lag.files), _count(lag.versions), seconds
    )
