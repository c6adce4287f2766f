"""What a run does with its tables before the commit turn: open, check, stage, look things up."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.dataflow.evaluation import Evaluation, Rows, Unknown, empty_frame, stream_called
from txn.dataflow.graph import NewValues, Sink, StateQuery, explain, quoted, require_columns
from txn.engine.row_counts import COUNT_COLUMN, Conservation
from txn.errors import ColumnsUnknownError, StateError, TableAbsentError, TableRefusedError
from txn.interfaces import CommitterContext, SpoutKind, Staged, StoredRows
from txn.spark.own_session import moved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from txn.engine.emission import Emission

__all__ = ["Committed", "Staging", "Tables"]


@dataclass(frozen=True)
class Committed:
    """The newest txid that is durable everywhere, and the table versions that hold it."""

    txid: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Staging:
    """What one job staged for a table and an attempt."""

    staged: Staged
    read: Mapping[str, Sequence[str]]
    """Stream -> the planned parts that the job has read; nothing, where no job ran."""


class Tables:
    """The committers of one run.

    Args:
        own: the session in which rows are written (`txn.spark.own_session`).
        sinks: in the order in which they publish.
        verify_rows: count rows into and out of every staging job (`verify="rows"`).
    """

    def __init__(
        self,
        spark: SparkSession,
        own: SparkSession,
        sinks: Sequence[Sink],
        *,
        verify_rows: bool,
    ) -> None:
        self._spark = spark
        self._own = own
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
            evaluation: of no rows, in the columns that are known.
        """
        self._context = context
        for sink in (*self.early, *self.late):
            if isinstance(self._known_partials(sink, evaluation, opens=True), Unknown):
                sink.committer.open(self._own, context, None)
        self.require_apart()

    def require_apart(self) -> None:
        """Refuse two names of one table, such as a bind mount; looks at those that are open.

        Raises:
            TableRefusedError: naming both.
        """
        names: dict[str, str] = {}
        for sink in (*self.early, *self.late):
            table_id = sink.committer.physical_id()
            if table_id is None:
                continue
            other = names.setdefault(table_id, sink.name)
            if other != sink.name:
                raise TableRefusedError(
                    f"Tables '{other}' and '{sink.name}' are one table under two names, or one is "
                    f"a copy of the other: both have the id {table_id}. A table holds one "
                    "publication per txid: give each committer a table of its own."
                )

    def rehearse(self, evaluation: Evaluation) -> None:
        """Compute every table's partials of no rows, and write them nowhere."""
        for sink in (*self.early, *self.late):
            partials = self._known_partials(sink, evaluation)
            if isinstance(partials, Rows):
                partials.frame.write.format("noop").mode("overwrite").save()

    def columns(self, node: NewValues | StateQuery, evaluation: Evaluation) -> DataFrame | Unknown:
        """No rows, with the columns that `node` takes from a table."""
        if node.sink is None:
            state = self._elsewhere(node)
            return state if isinstance(state, Unknown) else state.rows.limit(0)
        found = self._known_partials(node.sink, evaluation)
        if isinstance(found, Unknown):
            return Unknown(found.waits_for, empty=True)
        schema, committer = found.frame.schema, node.sink.committer
        if isinstance(node, NewValues):
            return empty_frame(self._spark, committer.changes_schema(schema))
        empty = empty_frame(self._spark, committer.values_schema(schema))
        return empty.select(*map(quoted, (*node.on, *(node.aggregates or ()))))

    def _known_partials(
        self, sink: Sink, evaluation: Evaluation, *, opens: bool = False
    ) -> Rows | Unknown:
        """The partials of a table, if all columns that it takes are known.

        Args:
            opens: also open the table for them.
        """

        def compute() -> Rows | Unknown:
            rows = _completed(sink, evaluation.rows(sink.parent))
            if isinstance(rows, Unknown):
                return rows
            return replace(rows, frame=self._partials(sink, rows.frame))

        found = evaluation.fitting(sink.parent, compute)
        return self._opened_with(sink, found, evaluation) if opens else found

    def _elsewhere(self, node: StateQuery) -> StoredRows | Unknown:
        """A state that somebody else keeps, as of its newest version."""
        try:
            return node.state.newest(self._spark, node.aggregates)
        except TableAbsentError:
            return Unknown(frozenset({f"table '{node.state.path}'"}), empty=True)

    # --- of one attempt ----------------------------------------------------------------------

    def queried(
        self, node: StateQuery, evaluation: Evaluation, attempt: TransactionAttempt
    ) -> StoredRows | Unknown:
        """What a state query reads: one txid, whatever is published or rewritten meanwhile."""
        if node.sink is None:
            return self._elsewhere(node)
        while True:
            committed = self.committed
            found = self._as_of(node, evaluation, attempt, committed)
            if committed is self.committed:
                return found
            # A later txid was committed while it was looked up, and may be there in part.

    def _as_of(
        self,
        node: StateQuery,
        evaluation: Evaluation,
        attempt: TransactionAttempt,
        committed: Committed,
    ) -> StoredRows | Unknown:
        exact = node.as_of == "txid-1"
        if exact and committed.txid != attempt.txid - 1:
            raise StateError(
                f"Attempt {attempt} has its commit turn while txid {committed.txid} is the newest "
                "committed one: the state as of txid - 1 cannot be read."
            )
        version = None if node.sink is None else committed.versions.get(node.sink.name)
        if node.sink is None or version is None:
            nothing = self.columns(node, evaluation)
            return nothing if isinstance(nothing, Unknown) else StoredRows(nothing)
        found = node.sink.committer.state_as_of(committed.txid, exact=exact)
        return found or StoredRows(node.state.snapshot(self._spark, version, node.aggregates))

    def require_columns(self, emission: Emission) -> None:
        """Refuse an attempt of which a table that is staged now would have to wait. Runs no job.

        Raises:
            ColumnsUnknownError: columns that nobody knows yet would go into it.
        """
        for sink in self.early:
            self._rows(sink, emission)

    def stage(self, sink: Sink, emissions: Sequence[Emission]) -> list[Staging]:
        """Stage one table's share of some attempts: what each of them staged, and has read.

        An attempt whose streams are all idle for this table needs no Spark job.

        Raises:
            ColumnsUnknownError: columns that nobody knows yet would go into the table.
        """
        read: list[Mapping[str, Sequence[str]] | None] = []
        group: list[tuple[DataFrame, TransactionAttempt]] = []
        counted: list[Conservation] = []
        for emission in emissions:
            rows = self._rows(sink, emission)
            if rows is None:
                read.append(None)
                continue
            if emission.one_task:
                # Several streams of one task each are several tasks.
                rows = replace(rows, frame=rows.frame.coalesce(1))
            counts = Conservation() if self._verify_rows else None
            partials = self._opened_for(sink, rows, emission.evaluation, counts)
            counted += [counts] if counts else []
            group.append((partials, emission.evaluation.attempt))
            read.append({stream: emission.parts[stream] for stream in rows.streams})
        staged = self._stage(sink, group)
        for counts, one in zip(counted, staged, strict=False):
            counts.check(one, sink.name)
        rest = iter(staged)
        return [
            Staging(Staged(emission.evaluation.attempt, ()), {})
            if parts is None
            else Staging(next(rest), parts)
            for emission, parts in zip(emissions, read, strict=True)
        ]

    def _opened_for(
        self, sink: Sink, rows: Rows, evaluation: Evaluation, counts: Conservation | None
    ) -> DataFrame:
        """The partials of rows that are to be staged, for which the table is open."""

        def compute() -> Rows | Unknown:
            return replace(rows, frame=self._partials(sink, rows.frame, counts))

        found = evaluation.fitting(sink.parent, compute)
        found = self._opened_with(sink, found, evaluation)
        if isinstance(found, Unknown):
            raise self._waits(sink, evaluation, found.waits_for)
        return found.frame

    @staticmethod
    def _stage(sink: Sink, group: list[tuple[DataFrame, TransactionAttempt]]) -> list[Staged]:
        if len(group) == 1:
            return [sink.committer.stage(*group[0])]
        return sink.committer.stage_together(group) if group else []

    def _rows(self, sink: Sink, emission: Emission) -> Rows | None:
        """What is to be staged; None: nothing of the attempt is meant for this table.

        Raises:
            ColumnsUnknownError: columns that nobody knows yet would go into it.
        """
        if not any(source.name in emission.parts for source in sink.parent.sources()):
            return None
        evaluation = emission.evaluation
        rows = _completed(sink, evaluation.rows(sink.parent))
        if isinstance(rows, Unknown):
            own = any(source.name in emission.parts for source in sink.parent.sources_read())
            if rows.empty and not own:
                return None
            raise self._waits(sink, evaluation, rows.waits_for)
        return rows

    def _waits(
        self, sink: Sink, evaluation: Evaluation, waits_for: Iterable[str]
    ) -> ColumnsUnknownError:
        names = sorted(waits_for)
        advice = []
        sources = {s.name: s for each in (*self.early, *self.late) for s in each.parent.sources()}
        streams = frozenset(name for name in sources if stream_called(name) in names)
        fixed = [n for n in streams if sources[n].spout.kind is SpoutKind.TRANSACTIONAL]
        kinds = {source.spout.kind for source in sources.values()}
        if fixed and kinds != {SpoutKind.TRANSACTIONAL}:
            advice.append(
                "Another stream is not transactional, so that no later txid is planned meanwhile: "
                "unless the spout learns its columns by itself (find_schema), it waits until they "
                "are declared and the program is started anew."
            )
        else:
            advice.append("It goes on by itself as soon as they are.")
        if streams:
            advice.append(
                "To declare them, return the schema from the spout's open() "
                "(DeltaSpout: schema=...)."
            )
        if any(name.startswith("table ") for name in names):
            advice.append("Run the topology that makes the table, or correct the path.")
        spouts = (repr(sources[name].spout) for name in sorted(streams))
        named = [spout for spout in spouts if not spout.startswith("<")]
        why = f"nothing was read from {', '.join(named) or 'there'} so far."
        doubts = [str(evaluation.doubts[name]) for name in names if name in evaluation.doubts]
        if doubts:
            why = (
                "what earlier runs have read there does not fit the program "
                f"({'; '.join(dict.fromkeys(doubts))}). If that is not for columns that have "
                "changed there, correct the program."
            )
        return ColumnsUnknownError(
            f"Attempt {evaluation.attempt} waits to be staged for table '{sink.name}': the columns "
            f"of {' and of '.join(names)} are not known yet: {why} {' '.join(advice)}",
            streams,
        )

    def _partials(
        self, sink: Sink, rows: DataFrame, counts: Conservation | None = None
    ) -> DataFrame:
        require_columns(rows, sink.committer.required_columns(), sink.parent.label())
        if counts is None:
            return explain(sink.parent, lambda: sink.committer.partials(rows))
        # Spark reports an observation to the session that runs the job, and to no other.
        entering = counts.entering(moved(rows, self._own))
        return counts.leaving(
            explain(sink.parent, lambda: sink.committer.partials(entering, COUNT_COLUMN))
        )

    def _opened_with(
        self, sink: Sink, partials: Rows | Unknown, evaluation: Evaluation
    ) -> Rows | Unknown:
        """`partials`, once the table is open for them; Unknown if they do not fit it for certain.

        Raises:
            TableRefusedError: the table, whatever the columns are; or columns that are certain.
        """
        if isinstance(partials, Unknown):
            return partials
        try:
            self._open(sink, partials.frame.schema)
        except TableRefusedError as refused:
            doubted = evaluation.doubted(sink.parent, refused)
            if doubted is None:
                raise
            # What other columns would not mend is told at once.
            with self._opening:
                sink.committer.open(self._own, self._context, None)
                self.require_apart()
            return doubted
        return partials

    def _open(self, sink: Sink, schema: StructType) -> None:
        with self._opening:
            if sink.name not in self._opened:
                sink.committer.open(self._own, self._context, schema)
                self.require_apart()
                self._opened.add(sink.name)


def _completed(sink: Sink, rows: Rows | Unknown) -> Rows | Unknown:
    """`rows` with all columns that the table takes, where it is known which those are."""
    if isinstance(rows, Unknown) or not rows.lacks:
        return rows
    frame = sink.committer.complete(rows.frame)
    if frame is None:
        return Unknown(rows.lacks, rows.empty, rows.streams)
    return replace(rows, frame=frame, lacks=frozenset())
