"""The spouts of a run: open them, ask what to read, notify them of the end, and close them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from txn.attempts import TransactionAttempt
from txn.dataflow.columns import StreamColumns
from txn.dataflow.graph import Sink, Source
from txn.engine.base.failures import is_lost_work, is_of_batch
from txn.engine.work.batch_target import BatchTargets
from txn.engine.work.spout_facts import SpoutFacts
from txn.errors import ProgressUnreadableError, TopologyError, TxnError
from txn.interfaces import Keeper, SpoutKind
from txn.interfaces.spout_capabilities import (
    ChecksCommits,
    ChecksReads,
    ChecksReplays,
    ExplainsFailures,
    UsesKeeper,
)
from txn.protocol.events import Metadata, Plan
from txn.protocol.stream_names import rename_keys
from txn.spark.causes import is_of_spark
from txn.storage.asking import in_parallel
from txn.text import placed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Spouts", "parse_metadata"]

MOST_PARSED = 64
"""Most entries of parsed metadata in memory. An entry is used several times before its commit turn;
with 5,000 partitions, parsing takes milliseconds."""


class Spouts:
    """The spouts of one run, and their metadata."""

    def __init__(
        self,
        topology: str,
        sources: Sequence[Source],
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        self._topology = topology
        self.sources = tuple(sources)
        self._renamed = {source.was: source.name for source in sources if source.was is not None}
        self._targets = BatchTargets({source.name: source.spout for source in sources})
        self._parsed: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._parsing = threading.Lock()
        self.facts = SpoutFacts(topology, enter)
        """The lags, notices and amounts that the spouts report."""

    def open(
        self, spark: SparkSession, newest: Metadata, keeper: Keeper, columns: StreamColumns
    ) -> None:
        """Open every spout with its newest durable metadata, and learn the columns they know."""
        for source in self.sources:
            stored = newest.get(source.name)
            previous = None if stored is None else self.parse_copy(source, stored)
            if isinstance(source.spout, UsesKeeper):
                source.spout.keep_with(keeper)
            schema = source.spout.open(spark, previous)
            if schema is not None:
                columns.learn(source.name, schema)

    def plan(self, order: Plan, *, window_full: bool) -> dict[str, Any]:
        """Ask the named spouts what the attempt shall read: stream -> metadata as JSON, or None."""
        answers: dict[str, Any] = {}
        busy: set[str] = set()
        if order.is_new:
            self._targets.apply()
        for source in self.sources:
            if source.name not in order.streams:
                continue
            stored = order.previous.get(source.name)
            # A stream that was read before is never held again.
            first = _streams_to_read_first(source, order, busy) if stored is None else ()
            self.facts.hold(source, first)
            if first:
                busy.add(source.name)
                answers[source.name] = None
                continue
            previous = None if stored is None else self.parse_copy(source, stored)
            answer = source.spout.initialize_transaction(order.attempt, previous)
            answers[source.name] = None if answer is None else answer.model_dump(mode="json")
            self.facts.plan(order.attempt.txid, [(source, answer)])
            if answer is not None:
                busy.add(source.name)
            if order.is_new:
                self.facts.observe(source, previous if answer is None else answer)
        if order.is_new:
            self._targets.learn(answers, window_full=window_full)
        return answers

    def readable(self, attempt: TransactionAttempt, metadata: Metadata) -> dict[str, Any]:
        """Ask what a quarantined txid can still read: stream -> metadata as JSON, or None.

        An error refuses the replay: of a spout, or for a stream that is not in the program.
        """
        metadata = rename_keys(self._renamed, metadata)
        declared = {source.name for source in self.sources}
        for stream, stored in metadata.items():
            if stored is not None and stream not in declared:
                raise TopologyError(
                    f"it is to read stream '{stream}', which the program does not declare",
                    number="TXN-806",
                )
        remaining = dict(metadata)
        for source, stored in self.stored_by_source(metadata):
            with placed(f"the spout of stream '{source.name}'"):
                planned, spout = self.parse_copy(source, stored), source.spout
                if not isinstance(spout, ChecksReplays):
                    continue
                readable = spout.readable(attempt, planned)
            if readable != self.parse(source, stored):
                remaining[source.name] = readable.model_dump(mode="json")
        return remaining

    def planned_parts(
        self, sinks: Iterable[Sink], metadata: Metadata
    ) -> dict[str, dict[str, list[str]]]:
        """Return table -> stream -> names of the parts that START hands to its staging job."""
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

    def commit(self, attempt: TransactionAttempt, metadata: Metadata) -> None:
        """Tell the spouts that the turn of this attempt begins; any of them may fail it."""
        for source, planned in self.parsed_by_source(metadata):
            if isinstance(source.spout, ChecksCommits):
                source.spout.commit(attempt, planned)

    def check_read(self, read: Sequence[tuple[TransactionAttempt, Metadata]]) -> None:
        """Let the spouts check what was read, side by side; any of them may fail the attempt."""
        checks = [
            (source.name, source.spout, attempt, self.parse(source, metadata[source.name]))
            for source in self.sources
            if isinstance(source.spout, ChecksReads)
            for attempt, metadata in read
            if metadata.get(source.name) is not None
        ]
        in_parallel(lambda check: _check_read(*check), checks)

    def explain(
        self, attempt: TransactionAttempt, metadata: Metadata, error: BaseException
    ) -> BaseException:
        """Return the spout's own error for one of Spark about its records; else `error`."""
        if is_of_spark(error) and is_of_batch(error) and not is_lost_work(error):
            try:
                for source, planned in self.parsed_by_source(metadata):
                    if isinstance(source.spout, ExplainsFailures):
                        source.spout.read_failed(attempt, planned)
            except TxnError as explanation:
                explanation.__cause__ = error
                return explanation
        return error

    def succeed(self, attempt: TransactionAttempt) -> None:
        """Tell the spouts that the txid is durable everywhere."""
        for source in self.sources:
            source.spout.success(attempt.txid)

    def close(self) -> None:
        """Close every spout, even if others raise."""
        self.facts.close()
        for source in self.sources:
            with suppress(Exception):
                source.spout.close()

    def parse_copy(self, source: Source, stored: Any) -> Any:
        """Return metadata as the spout's own type: a copy that the spout may change.

        A spout may move a position in place while the stored one is still to be read, and to be
        written as COMMITTED.
        """
        # Validating JSON makes a copy, in a quarter of the time of `deepcopy`.
        return self._validate(source, to_jsonable_python(stored))

    def parse(self, source: Source, stored: Any) -> Any:
        """Return metadata as the spout's own type, read-only; parsed once while it is in use."""
        key = (source.name, id(stored))
        entry = self._parsed.get(key)
        if entry is None:
            # Keep the parsed object too: while it lives, no other object has its id.
            entry = stored, self._validate(source, stored)
            with self._parsing:
                self._parsed[key] = entry
                while len(self._parsed) > MOST_PARSED:
                    del self._parsed[next(iter(self._parsed))]
        return entry[1]

    def stored_by_source(self, metadata: Metadata) -> Iterator[tuple[Source, Any]]:
        """Yield each source that reads something of a batch, with its part of the metadata."""
        for source in self.sources:
            planned = metadata.get(source.name)
            if planned is not None:
                yield source, planned

    def parsed_by_source(self, metadata: Metadata) -> Iterator[tuple[Source, Any]]:
        """Yield the same sources, with their parts as `parse` returns them."""
        for source, planned in self.stored_by_source(metadata):
            yield source, self.parse(source, planned)

    def _validate(self, source: Source, stored: Any) -> Any:
        return parse_metadata(self._topology, source, stored)


def parse_metadata(topology: str, source: Source, stored: Any) -> Any:
    """Return stored metadata as the type of the stream's spout.

    Raises:
        ProgressUnreadableError: another kind of spout wrote it.
    """
    try:
        return source.spout.metadata_type.model_validate(stored)
    except ValidationError as error:
        name = source.name
        raise ProgressUnreadableError(
            f"The stored metadata of stream '{name}' of topology '{topology}' is not what its "
            f"spout ({type(source.spout).__name__}) writes: {error.errors()[0]['msg']} at "
            f"{error.errors()[0]['loc']}. Run the spout that wrote it. To exchange the spout, "
            f"give the stream a new name and set TopologyConfig(dropped_streams=({name!r},)), or "
            f"--set dropped_streams={name}: the new spout begins at its own beginning, and the "
            f"position of '{name}' is kept.",
            number="TXN-416",
        ) from error


def _streams_to_read_first(source: Source, order: Plan, busy: Collection[str]) -> list[str]:
    """List the streams of `after` that this txid may have to read before `source`.

    A replay asks opaque streams only. The others keep what START has for them, which is not known
    here, so an opaque stream waits for them. A transactional stream does not wait for a stream that
    is not asked: it may be asked alone because the batches in flight need its columns.

    Args:
        busy: the streams that were asked and have something to read, or are held themselves.
    """
    is_replay = not order.is_new and source.spout.kind is not SpoutKind.TRANSACTIONAL
    return [
        earlier.name
        for earlier in source.after
        if earlier.name in busy or (is_replay and earlier.name not in order.streams)
    ]


def _check_read(stream: str, spout: ChecksReads, attempt: TransactionAttempt, planned: Any) -> None:
    with placed(f"the spout of stream '{stream}'"):
        spout.check_read(attempt, planned)
