"""Stage an attempt: compute the partials of its rows, and run the jobs that write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.dataflow.evaluation import Evaluation, Rows, Unknown, stream_called
from txn.dataflow.expectations import SetAside, tables_without
from txn.dataflow.graph import Sink, explain, require_columns
from txn.engine.base.attempt import Emission, Staging
from txn.engine.base.row_counts import COUNT_COLUMN, Conservation
from txn.engine.base.shared_rows import compute_shared, require_one_copy
from txn.engine.work.tables import Tables
from txn.engine.work.violations import count_violations
from txn.errors import ColumnsUnknownError, TableRefusedError
from txn.interfaces import WATERMARK, SpoutKind, Staged
from txn.interfaces.committer_capabilities import CompletesColumns, StagesTogether
from txn.interfaces.publication import Unasked
from txn.spark.lazy import sf
from txn.spark.own_session import moved
from txn.text import placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Stager"]


class Stager:
    """Computes the partials for the committers, and lets them stage these."""

    def __init__(self, own: SparkSession, tables: Tables, *, verify_rows: bool) -> None:
        self._own = own
        self._tables = tables
        self._verify_rows = verify_rows

    # --- before the first batch --------------------------------------------------------------

    def rehearse(self, evaluation: Evaluation) -> None:
        """Compute every table's partials of no rows, and write them nowhere."""
        for sink in self._tables.all:
            partials = self.known_partials(sink, evaluation)
            if isinstance(partials, Rows):
                partials.frame.write.format("noop").mode("overwrite").save()

    def check_and_open(self, evaluation: Evaluation, sinks: Iterable[Sink]) -> None:
        """Refuse wrong columns, shapes and tables, all at once; create missing tables.

        Reads no data.
        """
        refusals: list[TableRefusedError] = []
        for sink in sinks:
            try:
                partials = self.known_partials(sink, evaluation)
                if isinstance(self._open_table(sink, partials, evaluation), Unknown):
                    self._tables.open_without_columns(sink)
            except TableRefusedError as refusal:
                refusals.append(refusal)
        if len(refusals) > 1:
            number = refusals[0].number
            raise TableRefusedError(" ".join(map(str, refusals)), number=number) from refusals[0]
        if refusals:
            raise refusals[0]

    def known_partials(self, sink: Sink, evaluation: Evaluation) -> Rows | Unknown:
        """The partials of a table; Unknown if it takes a column that is not known."""

        def compute() -> Rows | Unknown:
            rows = _complete(sink, evaluation.rows(sink.parent))
            if isinstance(rows, Unknown):
                return rows
            return replace(rows, frame=self._partials(sink, rows.frame, evaluation.watermark))

        return evaluation.fitting(sink.parent, compute)

    def measure(self, emissions: Sequence[Emission]) -> None:
        """Measure the event times of some attempts, also those of rows for the commit turn."""
        for evaluation in (emission.evaluation for emission in emissions):
            for rule in chain.from_iterable(evaluation.rules.values()):
                if rule.measured and evaluation.live(rule):
                    evaluation.rows(rule)
        self._count(emissions)

    # --- of one attempt ----------------------------------------------------------------------

    def require_columns(self, emission: Emission) -> None:
        """Refuse an attempt if a table to be staged now has to wait for columns."""
        for sink in self._tables.early:
            self._rows(sink, emission)

    def stage(self, sink: Sink, emissions: Sequence[Emission]) -> list[Staging]:
        """Stage one table's share of some attempts; return the staged files and parts read of each.

        An attempt whose streams are all idle for this table needs no Spark job.

        Raises:
            ColumnsUnknownError: unknown columns would go into the table.
            RuleViolatedError: rows break a rule with `on_violation="fail"`.
        """
        rows_by_emission = [self._rows(sink, emission) for emission in emissions]
        self._count(emissions)
        read: list[Mapping[str, Sequence[str]] | None] = []
        group: list[tuple[DataFrame, TransactionAttempt]] = []
        counted: list[Conservation] = []
        for emission, rows in zip(emissions, rows_by_emission, strict=True):
            if rows is None:
                read.append(None)
                continue
            if emission.one_task:
                # Several streams of one task each are several tasks.
                rows = replace(rows, frame=rows.frame.coalesce(1))
            counts = Conservation() if self._verify_rows else None
            partials = self._open_and_compute(sink, rows, emission.evaluation, counts)
            counted += [counts] if counts else []
            group.append((partials, emission.evaluation.attempt))
            read.append({stream: emission.parts[stream] for stream in rows.streams})
        with placed(f"the rows of stream '{sink.parent.label()}' for table '{sink.name}'"):
            staged = self._stage(sink, group)
        require_one_copy([emission.shared for emission in emissions], self._own)
        for counts, one in zip(counted, staged, strict=False):
            counts.check(one, sink.name)
        rest = iter(staged)
        aside = sink.parent.rules if isinstance(sink.parent, SetAside) else ()
        unasked = tables_without(aside, self._tables.all)
        forms = {(rule.label(), rule.name): rule.form for rule in aside}
        return [
            Staging(
                _add_counts(Staged(emission.evaluation.attempt, ()), emission, unasked, forms), {}
            )
            if parts is None
            else Staging(_add_counts(next(rest), emission, unasked, forms), parts)
            for emission, parts in zip(emissions, read, strict=True)
        ]

    def _count(self, emissions: Sequence[Emission]) -> None:
        compute_shared([emission.shared for emission in emissions], self._own)
        count_violations(emissions, self._own)

    def _open_and_compute(
        self, sink: Sink, rows: Rows, evaluation: Evaluation, counts: Conservation | None
    ) -> DataFrame:
        """The partials of rows to stage, after opening the table for them."""

        def compute() -> Rows | Unknown:
            frame = self._partials(sink, rows.frame, evaluation.watermark, counts)
            return replace(rows, frame=frame)

        partials = evaluation.fitting(sink.parent, compute)
        partials = self._open_table(sink, partials, evaluation)
        if isinstance(partials, Unknown):
            raise _columns_unknown(self._tables, sink, evaluation, partials.waits_for)
        return partials.frame

    @staticmethod
    def _stage(sink: Sink, group: list[tuple[DataFrame, TransactionAttempt]]) -> list[Staged]:
        if len(group) > 1 and isinstance(sink.committer, StagesTogether):
            return sink.committer.stage_together(group)
        return [sink.committer.stage(*one) for one in group]

    def _rows(self, sink: Sink, emission: Emission) -> Rows | None:
        """The rows to stage; None if the attempt has none for this table.

        Raises:
            ColumnsUnknownError: unknown columns would go into it.
        """
        evaluation = emission.evaluation
        if not evaluation.live(sink.parent):
            return None
        rows = _complete(sink, evaluation.rows(sink.parent))
        if isinstance(rows, Unknown):
            own = any(source.name in emission.parts for source in sink.parent.sources_read())
            if rows.empty and not own:
                return None
            raise _columns_unknown(self._tables, sink, evaluation, rows.waits_for)
        return rows

    def _partials(
        self,
        sink: Sink,
        rows: DataFrame,
        watermark: int | None,
        counts: Conservation | None = None,
    ) -> DataFrame:
        require_columns(rows, sink.committer.required_columns(), sink.parent.label())
        if sink.committer.takes_watermark:
            rows = rows.withColumn(WATERMARK, sf.lit(watermark).cast("bigint"))
        if counts is None:
            return explain(sink.parent, lambda: sink.committer.partials(rows))
        # Spark reports an observation to the session that runs the job, and to no other.
        entering = counts.entering(moved(rows, self._own))
        return counts.leaving(
            explain(sink.parent, lambda: sink.committer.partials(entering, COUNT_COLUMN))
        )

    def _open_table(
        self, sink: Sink, partials: Rows | Unknown, evaluation: Evaluation
    ) -> Rows | Unknown:
        """Open the table; return `partials`, or Unknown if they may be out of date."""
        if isinstance(partials, Unknown):
            return partials
        try:
            self._tables.open(sink, partials.frame.schema)
        except TableRefusedError as refused:
            doubted = evaluation.doubted(sink.parent, refused)
            if doubted is None:
                raise
            # Report at once what other columns would not help.
            self._tables.open_without_columns(sink)
            return doubted
        return partials


def _add_counts(
    staged: Staged, emission: Emission, unasked: Unasked, forms: Mapping[tuple[str, str], str]
) -> Staged:
    """`staged` with the counts so far, the rules that set rows aside, and tables without them."""
    broken = deepcopy(emission.violations)
    taken = {
        stream: {rule: tables for rule, tables in rules.items() if broken[stream].get(rule)}
        for stream, rules in unasked.items()
        if stream in broken
    }
    taken = {stream: rules for stream, rules in taken.items() if rules}
    form = {stream: {rule: forms[stream, rule] for rule in taken[stream]} for stream in taken}
    return replace(staged, violations=broken, unasked=taken, forms=form)


def _complete(sink: Sink, rows: Rows | Unknown) -> Rows | Unknown:
    """`rows` with all columns that the table takes; Unknown if these are not known."""
    if isinstance(rows, Unknown) or not rows.lacks:
        return rows
    committer = sink.committer
    frame = committer.complete(rows.frame) if isinstance(committer, CompletesColumns) else None
    if frame is None:
        return Unknown(rows.lacks, rows.empty, rows.streams)
    return replace(rows, frame=frame, lacks=frozenset())


def _columns_unknown(
    tables: Tables, sink: Sink, evaluation: Evaluation, waits_for: Iterable[str]
) -> ColumnsUnknownError:
    """The error of an attempt that must wait for columns: names them and the way out."""
    names = sorted(waits_for)
    advice = []
    sources = {s.name: s for table in tables.all for s in table.parent.sources()}
    streams = frozenset(name for name in sources if stream_called(name) in names)
    fixed = [n for n in streams if sources[n].spout.kind is SpoutKind.TRANSACTIONAL]
    kinds = {source.spout.kind for source in sources.values()}
    if fixed and kinds != {SpoutKind.TRANSACTIONAL}:
        advice.append(
            "Another stream is not transactional, so no later txid is planned meanwhile: unless "
            "the spout finds its columns by itself (find_schema), declare them and start the "
            "program again."
        )
    else:
        advice.append("It goes on by itself as soon as they are known.")
    if streams:
        advice.append(
            "To declare them, return the schema from the spout's open() (DeltaSpout: schema=...)."
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
            f"({'; '.join(dict.fromkeys(doubts))}). Unless the columns there have changed, "
            "correct the program."
        )
    return ColumnsUnknownError(
        f"Attempt {evaluation.attempt} waits to be staged for table '{sink.name}': the columns "
        f"of {' and of '.join(names)} are not known yet: {why} {' '.join(advice)}",
        streams,
    )
