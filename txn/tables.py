"""What a run does with its tables before the commit turn: open, check, stage, look things up."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.conservation import COUNT_COLUMN, Conservation
from txn.errors import StateError
from txn.evaluation import Evaluation, empty_frame
from txn.graph import NewValues, Sink, StateQuery, explain, require_columns
from txn.interfaces import CommitterContext, Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.emission import Emission

__all__ = ["Committed", "Tables"]


@dataclass(frozen=True)
class Committed:
    """The newest txid that is durable everywhere, and the table versions that hold it."""

    txid: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)


class Tables:
    """The committers of one run.

    Args:
        sinks: in the order in which they publish.
        verify_rows: count rows into and out of every staging job (`verify="rows"`).
    """

    def __init__(self, spark: SparkSession, sinks: Sequence[Sink], *, verify_rows: bool) -> None:
        self._spark = spark
        self.early = tuple(sink for sink in sinks if not sink.in_commit_turn)
        """Staged in the processing phase."""
        self.late = tuple(sink for sink in sinks if sink.in_commit_turn)
        """Staged in the commit turn."""
        self.committed = Committed()
        """Replaced as a whole, so that any thread may read it."""
        self._verify_rows = verify_rows
        self._opened: set[str] = set()
        self._opening = threading.Lock()
        self._context = CommitterContext("", 0)

    # --- before the first batch --------------------------------------------------------------

    def check_and_open(self, context: CommitterContext, evaluation: Evaluation) -> None:
        """Refuse wrong columns, shapes and tables; create what is missing. Reads no data.

        Args:
            evaluation: over empty DataFrames of the streams whose columns are known.
        """
        self._context = context
        for sink in (*self.early, *self.late):
            known = all(source.name in evaluation.inputs for source in sink.parent.sources())
            rows = evaluation.rows(sink.parent) if known else None
            if rows is None:
                sink.committer.open(self._spark, context, None)
            else:
                self._open(sink, self._partials(sink, rows))

    def rehearse(self, evaluation: Evaluation) -> None:
        """Compute every table's partials of no rows, and write them nowhere."""
        for sink in (*self.early, *self.late):
            known = all(source.name in evaluation.inputs for source in sink.parent.sources())
            rows = evaluation.rows(sink.parent) if known else None
            if rows is not None:
                self._partials(sink, rows).write.format("noop").mode("overwrite").save()

    def columns(self, node: NewValues | StateQuery, evaluation: Evaluation) -> DataFrame | None:
        """No rows, with the columns that `node` takes from a table; None: not known yet."""
        if node.sink is None:
            return node.state.snapshot(self._spark, None).limit(0)
        rows = evaluation.rows(node.sink.parent)
        if rows is None:
            return None
        partials, committer = self._partials(node.sink, rows), node.sink.committer
        if isinstance(node, NewValues):
            return empty_frame(self._spark, committer.changes_schema(partials.schema))
        empty = empty_frame(self._spark, committer.values_schema(partials.schema))
        return empty.select(*node.on, *(node.aggregates or ()))

    # --- of one attempt ----------------------------------------------------------------------

    def queried(
        self, node: StateQuery, evaluation: Evaluation, attempt: TransactionAttempt
    ) -> DataFrame | None:
        """What a state query reads: one table version, whatever is published meanwhile."""
        if node.sink is None:
            return node.state.snapshot(self._spark, None, node.aggregates)
        committed = self.committed
        if node.as_of == "txid-1" and committed.txid != attempt.txid - 1:
            raise StateError(
                f"Attempt {attempt} has its commit turn while txid {committed.txid} is the newest "
                "committed one: the state as of txid - 1 cannot be read."
            )
        version = committed.versions.get(node.sink.name)
        if version is None:
            return self.columns(node, evaluation)
        return node.state.snapshot(self._spark, version, node.aggregates)

    def stage(self, sink: Sink, emissions: Sequence[Emission]) -> list[Staged]:
        """Stage one table's share of some attempts: what each of them staged.

        An attempt whose streams are all idle for this table needs no Spark job.
        """
        found: list[Staged | None] = []
        group: list[tuple[DataFrame, TransactionAttempt]] = []
        counted: list[Conservation] = []
        for emission in emissions:
            attempt = emission.evaluation.attempt
            rows = self._rows(sink, emission)
            if rows is None:
                found.append(Staged(attempt, ()))
                continue
            counts = Conservation() if self._verify_rows else None
            partials = self._partials(sink, rows, counts)
            counted += [counts] if counts else []
            self._open(sink, partials)
            group.append((partials, attempt))
            found.append(None)
        staged = self._stage(sink, group)
        for counts, one in zip(counted, staged, strict=False):
            counts.check(one, sink.name)
        rest = iter(staged)
        return [next(rest) if one is None else one for one in found]

    @staticmethod
    def _stage(sink: Sink, group: list[tuple[DataFrame, TransactionAttempt]]) -> list[Staged]:
        if len(group) == 1:
            return [sink.committer.stage(*group[0])]
        return sink.committer.stage_together(group) if group else []

    @staticmethod
    def _rows(sink: Sink, emission: Emission) -> DataFrame | None:
        if not any(source.name in emission.parts for source in sink.parent.sources()):
            return None
        rows = emission.evaluation.rows(sink.parent)
        # Several streams of one task each are several tasks.
        return rows.coalesce(1) if rows is not None and emission.one_task else rows

    def _partials(
        self, sink: Sink, rows: DataFrame, counts: Conservation | None = None
    ) -> DataFrame:
        require_columns(rows, sink.committer.required_columns(), sink.parent.label())
        if counts is None:
            return explain(sink.parent, lambda: sink.committer.partials(rows))
        entering = counts.entering(rows)
        return counts.leaving(
            explain(sink.parent, lambda: sink.committer.partials(entering, COUNT_COLUMN))
        )

    def _open(self, sink: Sink, partials: DataFrame) -> None:
        with self._opening:
            if sink.name not in self._opened:
                sink.committer.open(self._spark, self._context, partials.schema)
                self._opened.add(sink.name)
