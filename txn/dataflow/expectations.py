"""Rules that the rows of a stream have to keep, and the rows that break them.

All rules above one stream are judged in one pass: each becomes a column of verdicts beside the
stream's own columns, and the result is computed once per attempt. The streams below the rules, the
rows that are set aside, and the numbers in the publication all come from that one result, so they
agree for any condition and any plan of Spark.

A verdict is true, or false (NULL conditions included), or NULL: a row that broke an earlier rule is
not judged by this one. A condition may therefore rely on the rules before it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from txn.dataflow.graph import Derived, Node, Sink, Source, explain
from txn.errors import TopologyError
from txn.interfaces import Unparsed
from txn.spark.differences import as_utf8
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "BAD_ROW_COLUMNS",
    "MOST_PARTITIONS",
    "Expectation",
    "Judged",
    "Measured",
    "OnViolation",
    "SetAside",
    "Treatment",
    "check_rule",
    "rules_by_stream",
    "tables_without",
    "treatments",
]

OnViolation = Literal["fail", "drop", "set_aside"]
Treatment = Literal["fail", "drop", "set_aside", "keep"]
"""What becomes of the rows that break a rule; only late ones may be kept."""

MOST_PARTITIONS = 10_000
"""Most partitions of one batch, of a stream whose watermark names a column for them."""
BAD_ROW_COLUMNS = ("stream", "rule", "position", "row", "reason")
"""Columns of a table of bad rows, all strings; the table adds `txid`."""
_EXACT_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timeZone": "UTC",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""Options of Spark's JSON: by default it cuts microseconds and leaves out NULLs. UTC, because the
format has no seconds in offsets, and some zones had them (30 s in Amsterdam before 1937)."""


@dataclass(frozen=True)
class Measured:
    """The event time of a stream, which is measured when its rows are judged."""

    column: str
    by: str | None
    """The column that names a row's partition; None: there are none."""


@dataclass(frozen=True, eq=False)
class Expectation(Derived):
    """A stream's rows that keep a rule (Delta Live Tables: an expectation)."""

    name: str
    condition: Column | str
    on_violation: Treatment
    unparsed: Unparsed | None = None
    """Only in the rule that `parses` makes: how the spout marks the records that do not parse."""

    @classmethod
    def parses(cls, source: Source, unparsed: Unparsed) -> Expectation:
        """Make the rule that every record of a spout must parse."""
        condition = f"{quoted(unparsed.text)} IS NULL"
        return cls(source, "parses", condition, unparsed.on_violation, unparsed)

    @property
    def base(self) -> Node:
        """The stream to whose rows this rule and those before it apply."""
        return self.parent.base if isinstance(self.parent, Expectation) else self.parent

    @property
    def form(self) -> str:
        """The form of its bad rows.

        "raw": a record's text; "own" or "foreign": JSON of the columns of a source, or of a
        computed stream.
        """
        if not isinstance(self.base, Source):
            return "foreign"
        return "own" if self.unparsed is None else "raw"

    @property
    def chain(self) -> tuple[Expectation, ...]:
        """The rules of `base` up to this one, in the order in which they judge."""
        before = self.parent.chain if isinstance(self.parent, Expectation) else ()
        return (*before, self)

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return f"rule '{self.name}'"

    @property
    def method(self) -> str:
        """The method of `Stream` that has made it."""
        return "expect"

    @property
    def measured(self) -> Measured | None:
        """The event time to measure; None for a rule without one."""
        return None

    @property
    def hidden(self) -> tuple[str, ...]:
        """Columns of the judged rows that the rule reads, and no stream below it has."""
        return self.unparsed.columns if self.unparsed is not None else ()

    def require_columns(self, rows: DataFrame) -> None:
        """Refuse rows without the columns that the rule names by itself."""

    def condition_at(self, watermark: int | None) -> Column:
        """The condition in a txid with this watermark."""
        return sf.expr(self.condition) if isinstance(self.condition, str) else self.condition

    def text_at(self, watermark: int | None) -> str:
        """The condition in a txid with this watermark, for messages."""
        return self.condition_text

    def passes(self, verdict: str) -> Column:
        """Whether a row with a verdict goes on."""
        # A row that broke an earlier rule has no verdict.
        return sf.col(verdict).isNotNull() if self.on_violation == "keep" else sf.col(verdict)

    @property
    def condition_text(self) -> str:
        """The condition for messages: the user's SQL, or Spark's text of a Column."""
        if self.unparsed is not None:
            return f"it is {self.unparsed.form}"
        if isinstance(self.condition, str):
            return self.condition
        return str(self.condition).removeprefix("Column<'").removesuffix("'>")


@dataclass(frozen=True, eq=False)
class SetAside(Node):
    """The rows that broke a rule with `on_violation="set_aside"`, of any stream of a topology."""

    rules: tuple[Expectation, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        """The streams whose rules may set rows aside."""
        return self.rules


@dataclass
class Judged:
    """A stream's rows in one attempt, with a verdict on each rule."""

    frame: DataFrame
    columns: tuple[str, ...]
    """The stream's own columns."""
    verdicts: Mapping[Expectation, str]
    """Rule -> column with its verdict."""
    unparsed: Unparsed | None = None
    """The marks of the spout above the rules for records that do not parse."""
    watermark: int | None = None
    """The watermark of the txid."""
    counted: bool = False
    """True if nothing is left to count: it was counted, or there are no rows."""

    @classmethod
    def of(
        cls, frame: DataFrame, rules: Sequence[Expectation], watermark: int | None = None
    ) -> Judged:
        """Judge rows by these rules, each behind its parent rule.

        Raises:
            TopologyError: a condition names a missing column, or is not a boolean.
        """
        unparsed = next((rule.unparsed for rule in rules if rule.unparsed), None)
        hidden = {name for rule in rules for name in rule.hidden}
        columns = tuple(name for name in frame.columns if name not in hidden)
        verdicts = dict[Expectation, str]()
        for number, rule in enumerate(rules):
            name = f"txn_verdict_{number}"
            while name in columns:
                name += "_"
            verdicts[rule] = name
            judge = functools.partial(_add_verdict, frame, rule, verdicts, watermark)
            frame = explain(rule, judge)
        return cls(frame, columns, verdicts, unparsed, watermark)

    def passing(self, rule: Expectation) -> DataFrame:
        """The rows that keep this rule and those before it."""
        kept = self.frame.where(rule.passes(self.verdicts[rule]))
        hidden = (name for one in self.verdicts for name in one.hidden)
        return kept.drop(*self.verdicts.values(), *hidden)

    @property
    def timed(self) -> tuple[Expectation, Measured] | tuple[None, None]:
        """The rule with the stream's event time, if it has one."""
        return next(
            ((rule, rule.measured) for rule in self.verdicts if rule.measured), (None, None)
        )

    def counts(self, number: int) -> DataFrame:
        """How many rows broke each rule, and the newest event times.

        Columns: the caller's `number`, for a union; `broken`, the counts, in one row; `partition`
        and `newest`, its event time without rows that broke an earlier rule. With partitions, each
        of them has a row of its own, without counts: of more than `MOST_PARTITIONS`, some.
        """
        broken = sf.array(*(sf.count_if(~sf.col(name)) for name in self.verdicts.values()))
        newest, nothing = sf.lit(None).cast("bigint"), sf.lit(None).cast("array<bigint>")
        rule, measured = self.timed
        if rule is not None and measured is not None:
            time = sf.unix_micros(sf.col(quoted(measured.column)))
            newest = sf.max(sf.when(sf.col(self.verdicts[rule]).isNotNull(), time))
        if measured is None or measured.by is None:
            return self._counts(self.frame, number, broken, sf.lit(""), newest)
        counts = self._counts(self.frame, number, broken, sf.lit(""), sf.lit(None).cast("bigint"))
        text = sf.coalesce(sf.col(quoted(measured.by)).cast("string"), sf.lit(""))
        by_partition = self.frame.groupBy(text.alias("txn_partition")).agg(
            newest.alias("txn_newest")
        )
        parts = by_partition.where("txn_newest IS NOT NULL").limit(MOST_PARTITIONS + 1)
        name, at = sf.col("txn_partition"), sf.col("txn_newest")
        return counts.unionAll(
            parts.select(sf.lit(number), nothing, name, at).toDF(*counts.columns)
        )

    @staticmethod
    def _counts(
        rows: DataFrame, number: int, broken: Column, partition: Column, newest: Column
    ) -> DataFrame:
        counted = rows.agg(broken.alias("broken"), newest.alias("newest"))
        return counted.select(
            sf.lit(number).alias("number"), "broken", partition.alias("partition"), "newest"
        )

    def set_aside(self, rules: Sequence[Expectation], position: str | None) -> DataFrame:
        """The rows that broke one of these rules, a row per broken rule: `BAD_ROW_COLUMNS`.

        Args:
            rules: at least one of them judges this stream.
            position: the batch's place in the source, if its records have none of their own.
        """
        rules_here = [rule for rule in rules if rule in self.verdicts]
        broken = {rule: ~sf.col(self.verdicts[rule]) for rule in rules_here}
        structs = [
            sf.when(condition, sf.struct(*self._bad_row_columns(rule)))
            for rule, condition in broken.items()
        ]
        rows = self.frame.where(functools.reduce(operator.or_, broken.values()))
        place = _text(position, "position")
        if self.unparsed is not None:
            place = sf.col(quoted(self.unparsed.position)).alias("position")
        exploded = rows.select(
            place, sf.explode(sf.array_compact(sf.array(*structs))).alias("broken")
        )
        stream = _text(rules_here[0].label(), "stream")
        return exploded.select(stream, "broken.rule", "position", "broken.row", "broken.reason")

    def _bad_row_columns(self, rule: Expectation) -> tuple[Column, Column, Column]:
        name = _text(rule.name, "rule")
        values = [sf.col(quoted(column)) for column in self.columns]
        if rule.unparsed is None:
            row = sf.to_json(sf.struct(*values), _EXACT_TIMES).alias("row")
            return name, row, _text(f"not true: {rule.text_at(self.watermark)}", "reason")
        text = as_utf8(sf.col(quoted(rule.unparsed.text))).alias("row")
        # Spark does not report what is wrong with a record, but leaves its values NULL. The last
        # `beside` columns are not from the record.
        from_text = len(values) - rule.unparsed.beside
        read = list(zip(self.columns, values, strict=True))[:from_text]
        missing = [sf.when(c.isNull(), sf.lit(n)) for n, c in read]
        start = sf.lit(f"not {rule.unparsed.form} with the columns of the schema; ")
        names = sf.concat_ws(", ", *missing)
        why = sf.when(names == "", "all have a value, so there is something beside them")
        reason = sf.concat(start, why.otherwise(sf.concat(sf.lit("no value for: "), names)))
        if rule.unparsed.reason is not None:
            reason = sf.coalesce(sf.col(quoted(rule.unparsed.reason)), reason)
        return name, text, reason.alias("reason")


def _add_verdict(
    frame: DataFrame,
    rule: Expectation,
    verdicts: Mapping[Expectation, str],
    watermark: int | None,
) -> DataFrame:
    rule.require_columns(frame)
    condition = rule.condition_at(watermark)
    # True only if neither NULL nor false. Unlike coalesce, it refuses a text instead of parsing it.
    verdict = sf.when(condition, sf.lit(True)).otherwise(sf.lit(False))
    if isinstance(rule.parent, Expectation):
        verdict = sf.when(rule.parent.passes(verdicts[rule.parent]), verdict)
    return frame.select("*", verdict.alias(verdicts[rule]))


def _text(value: str | None, name: str) -> Column:
    return sf.lit(value).cast("string").alias(name)


def rules_by_stream(sinks: Sequence[Sink]) -> dict[Node, tuple[Expectation, ...]]:
    """The rules that lead to tables, by the stream that they judge, in the order of judging."""
    chains: dict[Node, dict[Expectation, None]] = {}  # dicts, to keep the order
    for rule in _rules(sinks):
        for earlier in rule.chain:
            chains.setdefault(rule.base, {}).setdefault(earlier)
    return {base: tuple(rules) for base, rules in chains.items()}


def treatments(sinks: Sequence[Sink]) -> dict[tuple[str, str], Treatment]:
    """(stream, rule) -> what becomes of the rows that break it."""
    return {(rule.label(), rule.name): rule.on_violation for rule in _rules(sinks)}


def tables_without(
    rules: Sequence[Expectation], sinks: Sequence[Sink]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Stream -> rule -> tables that take the stream's rows on a path without the rule."""
    unasked: dict[str, dict[str, tuple[str, ...]]] = {}
    for rule in rules:
        unasked.setdefault(rule.label(), {})[rule.name] = tuple(
            sink.name
            for sink in sinks
            if not isinstance(sink.parent, SetAside) and _bypasses(sink.parent, rule)
        )
    return unasked


def _bypasses(node: Node, rule: Expectation) -> bool:
    """Return whether `node` gets rows of the rule's sources on a path without that rule."""
    if node is rule:
        return False
    if isinstance(node, Source):
        return node in rule.sources()
    return any(_bypasses(parent, rule) for parent in node.parents)


def _rules(sinks: Sequence[Sink]) -> Iterator[Expectation]:
    for sink in sinks:
        for node in sink.parent.ancestors():
            if isinstance(node, Expectation):
                yield node


def check_rule(rule: Expectation, others: Sequence[Expectation]) -> None:
    """Check a rule's name, condition and `on_violation`; a name may be used once.

    Raises:
        TopologyError: one of them is wrong, or the name is used twice.
    """
    where = f"{rule.method}() of stream '{rule.label()}'"
    name: object = rule.name
    if not isinstance(name, str) or not name.strip():
        raise TopologyError(
            f"{where} needs a name, not {name!r}: history and the table of bad rows tell a "
            "rule by it.",
            number="TXN-122",
        )
    if rule.on_violation not in get_args(OnViolation) and rule.measured is None:
        raise TopologyError(
            f"{where}, rule '{rule.name}': on_violation={rule.on_violation!r} is none of 'fail', "
            "'drop' and 'set_aside'.",
            number="TXN-122",
        )
    condition = rule.condition
    if not isinstance(condition, str) and type(condition).__name__ != "Column":
        raise TopologyError(
            f"{where}, rule '{rule.name}' needs a condition as SQL or as a Column, not "
            f"{type(condition).__name__}. Write for example expect('known delay', 'delay IS NOT "
            "NULL').",
            number="TXN-122",
        )
    other = next((o for o in others if o.name == rule.name and o.label() == rule.label()), None)
    if other is not None:
        raise TopologyError(f"{where}: {_taken(rule, other)}", number="TXN-122")


def _taken(rule: Expectation, other: Expectation) -> str:
    if rule.method != other.method:
        return (
            f"there is a rule '{rule.name}' already, and watermark() counts rows under that name. "
            "Give the rule of expect() another one."
        )
    if rule.method == "watermark":
        return (
            "the stream has a watermark already. It has one event time: declare it once, before "
            "the stream goes several ways."
        )
    return (
        f"there is a rule '{rule.name}' already. Violations are counted by stream and rule, so "
        "give this one a name of its own."
    )
