"""A bench for one spout: plays coordinator and processing phase, and checks every answer.

The bench keeps the JSON text that ZooKeeper would keep; nothing else of a spout outlives a crash.
Planning runs on one thread and emission on others, as in `txn.engine.loop.pipeline`. A replay of a
transactional batch keeps its metadata; one of an opaque batch plans it and every later open batch
again (see `txn.protocol.coordinator`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from txn.attempts import TransactionAttempt
from txn.errors import FailedException
from txn.interfaces import Lag, Spout, SpoutKind
from txn.interfaces.spout_capabilities import (
    ChecksCommits,
    CountsBytes,
    CountsRows,
    ReportsLag,
    ReportsPlannedLag,
    SizesBatches,
)
from txn.protocol.encoding import NODE_LIMIT
from txn.testing.capability_check import capabilities

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Self

__all__ = ["ContractError", "OpenBatch", "SpoutBench", "SpoutSource"]

T = TypeVar("T")

TRIES = 10
"""Most FailedExceptions that a spout may raise in a row."""


class ContractError(AssertionError):
    """A spout or a committer broke its contract; the message has the fault and the history."""


class SpoutSource:
    """The half of `SpoutContract` that a plugin's author writes: the spout and its source."""

    id_column = "id"
    """Column with the record's number, or a text that `int` turns into it."""

    def make_source(self, folder: Path) -> None:
        """Make an empty source; called once, before all else. Leave it out if a folder is enough.

        Put the content of an `__init__` here: pytest collects no class that has one.
        """

    def make_spout(self, folder: Path) -> Spout[Any]:
        """A new object over the source in `folder`; called again after every crash."""
        raise ContractError(f"{type(self).__name__} must define make_spout(folder).")

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        """Add one record per number to the source, spread over its partitions if it has any.

        They are readable when it returns. Numbers count from 0 and never repeat.
        """
        raise ContractError(f"{type(self).__name__} must define add_records(folder, ids).")

    def record_id(self, row: Row) -> int:
        """The number of the record that `row` is."""
        return int(row[self.id_column])

    def add_partition(self, folder: Path) -> None:
        """Add a partition to the source, for later records. Leave it out without partitions."""

    def take_partition_away(self, folder: Path) -> None:
        """Make a partition with records unreadable. Leave it out if that is impossible."""

    def bring_partition_back(self, folder: Path) -> None:
        """Undo `take_partition_away`."""


@dataclass
class OpenBatch:
    """A started txid that is not committed yet."""

    attempt: TransactionAttempt
    metadata: str | None
    """JSON; None: planned again with nothing left to read."""
    rows: Counter[str] | None = None
    """The rows of a transactional batch when it was first emitted."""


class SpoutBench:
    """One source, the living spout object, and the durable state.

    Args:
        kind: the kind whose rules replays follow; None: the spout's own kind.
        folder: an empty folder for the source.

    Raises:
        ContractError: the spout breaks its contract; every method may raise it.
    """

    def __init__(
        self, spark: SparkSession, source: SpoutSource, folder: Path, kind: SpoutKind | None = None
    ) -> None:
        self.added = 0
        """Records added so far; they are numbered from 0."""
        self.committed: dict[int, tuple[str | None, list[int]]] = {}
        """txid -> metadata (JSON) and record numbers."""
        self.open: dict[int, OpenBatch] = {}
        self.schema: StructType | None = None
        """The columns, once they are known; they never change."""
        self.story: list[str] = []
        """The history, for messages."""
        self._spark = spark
        self._source = source
        self._folder = folder
        self._away = False
        self._dead: list[Spout[Any]] = []
        self._planner = ThreadPoolExecutor(1, "txn-planner")
        self._processing = ThreadPoolExecutor(3, "txn-processing")
        source.make_source(folder)
        self.spout = self._make()
        self.kind = self.spout.kind if kind is None else kind
        self._open_spout()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for spout in (*self._dead, self.spout):
            self._call_on_planner(spout.close)
        self._planner.shutdown()
        self._processing.shutdown()

    # --- the source --------------------------------------------------------------------------

    def grow(self, count: int = 3) -> None:
        """Add new records."""
        ids = range(self.added, self.added + count)
        self._step(f"records {ids[0]}-{ids[-1]} arrive")
        self._source.add_records(self._folder, list(ids))
        self.added += count

    def add_partition(self) -> None:
        """Add a partition."""
        self._step("a partition is added")
        self._source.add_partition(self._folder)

    def take_partition_away(self) -> None:
        """Make a partition unreadable for now."""
        self._step("a partition goes away")
        self._away = True
        self._source.take_partition_away(self._folder)

    def bring_partition_back(self) -> None:
        """Make the partition readable again."""
        if self._away:
            self._step("the partition is back")
            self._away = False
            self._source.bring_partition_back(self._folder)

    # --- steps of a coordinator --------------------------------------------------------------

    def plan(self) -> bool:
        """Start the next txid; False when the spout has nothing to read."""
        txid = len(self.committed) + len(self.open) + 1
        attempt = TransactionAttempt(txid)
        answer = self._ask(attempt)
        self._step(f"{attempt} is {'planned' if answer else 'asked for: nothing to read'}")
        if answer is not None:
            self.open[txid] = OpenBatch(attempt, answer)
        return answer is not None

    def ask_and_forget(self) -> None:
        """Ask for the next txid, and lose the answer before START (another stream's spout failed).

        The spout is asked again with the same `previous`, and must have something to read again.
        """
        attempt = TransactionAttempt(len(self.committed) + len(self.open) + 1)
        answer = self._ask(attempt)
        self._step(f"{attempt} is asked for, and the answer is lost before START")
        if answer is not None and self._ask(attempt) is None:
            raise self.broken(
                f"asked again for {attempt} with the same `previous`, it has nothing to read: its "
                "first answer is lost. Go on from `previous`, not from what the object remembers"
            )

    def fail(self, txid: int) -> None:
        """Let an attempt of an open txid fail."""
        self._step(f"{self.open[txid].attempt} fails")
        if self.kind is SpoutKind.TRANSACTIONAL:
            self.open[txid].attempt = self.open[txid].attempt.next()
        else:
            self._plan_anew(txid)

    def crash(self, *, planning: bool = False) -> None:
        """Let the process die, and a fresh spout object take over.

        Args:
            planning: die right after the spout planned the next txid, before START is durable.
        """
        if planning:
            self.ask_and_forget()
        self._step("the process dies")
        self._dead.append(self.spout)
        self.spout = self._make()
        self._open_spout()
        if self.kind is SpoutKind.TRANSACTIONAL:
            for batch in self.open.values():
                batch.attempt = batch.attempt.next()
        else:
            self._plan_anew(len(self.committed) + 1)

    def commit(self, *, success: bool = True) -> None:
        """Process and commit the oldest open txid.

        Args:
            success: False: skip `Spout.success`, as a crash would.
        """
        txid = min(self.open)
        rows = self.emit(txid)
        batch = self.open.pop(txid)
        if batch.metadata is not None and isinstance(self.spout, ChecksCommits):
            self.spout.commit(batch.attempt, self.parse(batch.metadata))
        ids = [self._source.record_id(row) for row in rows]
        self.committed[txid] = (batch.metadata, ids)
        self._step(f"{batch.attempt} is committed with records {ids}")
        if success:
            self._call_on_planner(lambda: self.spout.success(txid))

    def commit_all(self) -> None:
        """Plan and commit until nothing is left to read."""
        self.bring_partition_back()
        limit = len(self.committed) + len(self.open) + 2 * self.added + 2
        while self.open or self.plan():
            self.commit()
            if len(self.committed) > limit:
                raise self.broken(
                    f"it has something to read in {len(self.committed)} txids, though the source "
                    f"has only {self.added} records. initialize_transaction must return None "
                    "when there is nothing after `previous`"
                )

    def emit(self, txid: int) -> list[Row]:
        """Emit the rows of an open txid; if the spout fails an attempt, those of a later one."""
        for _ in range(TRIES):
            batch = self.open[txid]
            try:
                return self._processing.submit(self._emit, batch).result()
            except FailedException as error:
                self._step(f"emit_batch of {batch.attempt} raised {type(error).__name__}")
                last = error
                self.bring_partition_back()
                self.fail(txid)
        raise self.broken(f"txid {txid} failed {TRIES} times in a row, at last with: {last}")

    def emit_all(self) -> dict[int, list[Row]]:
        """Emit the rows of every open txid, side by side on several threads."""
        self._step(f"{', '.join(str(b.attempt) for b in self.open.values())} are emitted at once")
        futures = {t: self._processing.submit(self._emit, b) for t, b in self.open.items()}
        return {txid: future.result() for txid, future in futures.items()}

    # --- checks ------------------------------------------------------------------------------

    def check_every_record_once(self) -> None:
        """Check that every added record is in exactly one committed txid."""
        where: dict[int, list[int]] = {}
        for txid, (_, ids) in self.committed.items():
            for number in ids:
                where.setdefault(number, []).append(txid)
        unknown = sorted(set(where) - set(range(self.added)))
        if unknown:
            raise self.broken(f"it emits records {unknown}, which the source never had")
        double = {number: txids for number, txids in where.items() if len(txids) > 1}
        if double:
            places = "; ".join(f"record {n} is in txids {t}" for n, t in sorted(double.items()))
            raise self.broken(f"records are in more than one txid: {places}")
        missing = [number for number in range(self.added) if number not in where]
        if missing:
            ranges = {txid: ids for txid, (_, ids) in self.committed.items()}
            raise self.broken(f"records {missing} are in no txid; the txids have: {ranges}")

    def parse(self, text: str) -> Any:
        """Parse metadata as after reading it from ZooKeeper."""
        try:
            return self.spout.metadata_type.model_validate(json.loads(text))
        except ValidationError as error:
            raise self.broken(
                f"its metadata_type cannot read the JSON that it was stored as, {text}: {error}"
            ) from error

    def broken(self, what: str) -> ContractError:
        """The error for a broken promise."""
        story = "\n  ".join(self.story)
        has = ", ".join(capabilities(self.spout)) or "none"
        return ContractError(
            f"{type(self.spout).__name__}: {what}.\nIts capabilities: {has}.\n"
            f"What happened:\n  {story}"
        )

    # --- helpers -----------------------------------------------------------------------------

    def _make(self) -> Spout[Any]:
        spout = self._source.make_spout(self._folder)
        if not isinstance(spout, Spout):
            raise ContractError(
                f"make_spout returned {type(spout).__name__}, which is not a Spout."
            )
        return spout

    def _open_spout(self) -> None:
        newest = self._previous(len(self.committed) + len(self.open) + 1)
        schema = self._call_on_planner(lambda: self.spout.open(self._spark, newest))
        if schema is not None:
            self._check_schema(schema, "open")

    def _previous(self, txid: int) -> Any:
        for earlier in range(txid - 1, 0, -1):
            batch = self.open.get(earlier)
            text = batch.metadata if batch else self.committed[earlier][0]
            if text is not None:
                return self.parse(text)
        return None

    def _ask(self, attempt: TransactionAttempt) -> str | None:
        previous = self._previous(attempt.txid)
        spout = self.spout
        if isinstance(spout, SizesBatches):
            # Every promise must hold with any target at any time. The target is made from the
            # txid, so that a failed history can be repeated.
            share = Random(attempt.txid).choice((0.0, 0.25, 1.0))
            self._call_on_planner(lambda: spout.set_batch_target(share))
        for _ in range(TRIES):
            try:
                answer = self._call_on_planner(
                    lambda: self.spout.initialize_transaction(attempt, previous)
                )
            except FailedException as error:
                self._step(f"{attempt} cannot be planned: {type(error).__name__}")
                last = error
                self.bring_partition_back()
            else:
                stored = None if answer is None else self._serialize(answer, attempt)
                self.check_lag(previous if answer is None else answer, planned=answer)
                return stored
        raise self.broken(f"{attempt} could not be planned {TRIES} times in a row: {last}")

    def check_caught_up(self) -> None:
        """Check, right after `commit_all`, that the spout reports no lag."""
        self.check_lag(self._previous(len(self.committed) + 1), caught_up=True)

    def check_lag(self, newest: Any, *, caught_up: bool = False, planned: Any = None) -> None:
        """Check that the lag is None, or numbers that can be shown.

        Args:
            newest: the newest metadata.
            caught_up: nothing is left, so the numbers must be zeros.
            planned: `newest`, if it was planned just now: its part of the lag is known.
        """
        spout = self.spout
        if not isinstance(spout, ReportsLag):
            return
        lag = self._call_on_planner(lambda: spout.lag(newest))
        if lag is None:
            return
        if not isinstance(lag, Lag):
            raise self.broken(f"lag() returned {type(lag).__name__}, not a txn.interfaces.Lag")
        partitions = {f"records of {name}": n for name, n in (lag.partitions or {}).items()}
        for unit, number in {**lag.numbers, **partitions}.items():
            if number < 0 or (caught_up and number):
                what = "all was read" if caught_up else "a number cannot be below 0"
                raise self.broken(f"lag() has {number} {unit}, but {what}")
        taken = None if planned is None else self._planned_lag(planned)
        for unit in () if taken is None else lag.numbers:
            if unit not in ("seconds", "bytes") and getattr(taken, unit) is None:
                raise self.broken(
                    f"lag() is in {unit}, but planned_lag() knows no {unit} of a batch: what is in "
                    "flight would not count as lag. Define planned_lag (or planned_rows)"
                )

    def _planned_rows(self, metadata: Any) -> int | None:
        return self.spout.planned_rows(metadata) if isinstance(self.spout, CountsRows) else None

    def _planned_lag(self, metadata: Any) -> Lag:
        spout = self.spout
        if isinstance(spout, ReportsPlannedLag):
            return spout.planned_lag(metadata)
        size = spout.planned_bytes(metadata) if isinstance(spout, CountsBytes) else None
        return Lag(self._planned_rows(metadata), size)

    def _serialize(self, metadata: Any, attempt: TransactionAttempt) -> str:
        """Metadata as JSON, after a check that it may be stored."""
        if not isinstance(metadata, BaseModel):
            raise self.broken(
                f"initialize_transaction({attempt}) returned {type(metadata).__name__}, not its "
                f"metadata_type ({self.spout.metadata_type.__name__})"
            )
        try:
            text = json.dumps(metadata.model_dump(mode="json"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self.broken(f"the metadata of {attempt} is not JSON: {error}") from error
        if len(text) > NODE_LIMIT:
            raise self.broken(
                f"the metadata of {attempt} has {len(text):,} characters for at most {self.added} "
                f"records; more than {NODE_LIMIT:,} do not fit in one znode. Store where to read, "
                "not what was read"
            )
        if self.parse(text) != metadata:
            raise self.broken(
                f"the metadata of {attempt} changes in a round trip through JSON: it was "
                f"{metadata!r} and comes back as {self.parse(text)!r}"
            )
        return text

    def _plan_anew(self, first: int) -> None:
        """Plan an opaque batch and all later ones again, each with its next attempt."""
        for txid in sorted(t for t in self.open if t >= first):
            attempt = self.open[txid].attempt.next()
            self.open[txid] = OpenBatch(attempt, self._ask(attempt))
            self._step(f"{attempt} is planned{'' if self.open[txid].metadata else ': empty'}")

    def _emit(self, batch: OpenBatch) -> list[Row]:
        if batch.metadata is None:
            return []
        metadata = self.parse(batch.metadata)
        try:
            frame = self.spout.emit_batch(self._spark, batch.attempt, metadata)
            rows: list[Row] = frame.collect()
        except FailedException:
            raise
        except Exception as error:
            raise self.broken(
                f"emit_batch({batch.attempt}) raised {type(error).__name__}: {error}"
            ) from error
        self._check_schema(frame.schema, f"the batch of {batch.attempt}")
        self._check_parts(frame, batch, metadata, len(rows))
        planned = self._planned_rows(metadata)
        if planned not in (None, len(rows)):
            raise self.broken(f"{batch.attempt} was planned to have {planned} rows and has {rows}")
        if self.kind is SpoutKind.TRANSACTIONAL:
            self._check_identical(batch, rows)
        return rows

    def _check_identical(self, batch: OpenBatch, rows: list[Row]) -> None:
        emitted = Counter(map(repr, rows))
        batch.rows = batch.rows if batch.rows is not None else emitted
        lost, new = batch.rows - emitted, emitted - batch.rows
        if lost or new:
            raise self.broken(
                f"a replay of txid {batch.attempt.txid} differs from the batch: {batch.attempt} "
                f"lacks {sorted(lost.elements())} and has {sorted(new.elements())} besides"
            )

    def _check_schema(self, schema: StructType, where: str) -> None:
        columns = [(f.name, f.dataType.simpleString()) for f in schema]
        former = [(f.name, f.dataType.simpleString()) for f in self.schema or schema]
        if columns != former:
            raise self.broken(f"its columns were {former}, and {where} has {columns}")
        self.schema = self.schema or schema

    def _check_parts(self, frame: DataFrame, batch: OpenBatch, metadata: Any, rows: int) -> None:
        planned = list(self.spout.planned_parts(metadata))
        if (rows and not planned) or len(set(planned)) < len(planned):
            raise self.broken(
                f"planned_parts of {batch.attempt} must be one or more different names: {planned}"
            )
        read = sorted(self.spout.parts_read(frame, metadata))
        if read != sorted(planned):
            raise self.broken(f"{batch.attempt} planned to read {planned}, and reads {read}")

    def _call_on_planner(self, call: Callable[[], T]) -> T:
        return self._planner.submit(call).result()

    def _step(self, what: str) -> None:
        self.story.append(what)
