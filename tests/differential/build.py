"""A declaration as a topology of the product."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from committers import aggregates as agg
from committers.append_table import AppendTable
from committers.state_table import StateTable
from tests.differential.changes import OF_TABLES
from tests.differential.declaration import Program, Step
from tests.differential.oracle import WINDOW_LIMITS
from tests.differential.rules import BAD_ROWS, bad_rows_of
from tests.differential.spouts import EPOCH, spout_of
from tests.differential.values import decode
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.interfaces import Aggregate
from txn.spark.names import quoted
from txn.topology import Stream, TxnState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["build", "state_table"]

FOLD = "concat(acc, '|', coalesce(CAST(row.{} AS string), '-'))"


def build(program: Program, name: str, folder: Path) -> Topology:
    """The topology.

    Raises:
        TxnError: it is refused.
    """
    bad = AppendTable(folder / BAD_ROWS, "opaque") if bad_rows_of(program) else None
    paths = {key: _paths(program.config.get(key, ()), folder) for key in OF_TABLES}
    topology = Topology(name, TopologyConfig(**{**program.config, **paths}), bad_rows=bad)
    streams: dict[str, Stream] = {}
    states: dict[str, TxnState] = {}
    for source in program.sources:
        *former, name_now = source.called or (source.name,)
        was = former[-1] if former else None
        streams[source.name] = topology.stream(name_now, spout_of(source), was=was)
    for step in program.steps:
        if step.op == "append":
            were = step.args.get("columns_were")
            table = AppendTable(folder / step.id, step.args["semantics"], columns_were=were)
            streams[step.of[0]].partition_persist(table)
        elif step.op == "state":
            states[step.id] = _persist(step, streams[step.of[0]], folder)
        else:
            streams[step.id] = _stream(step, streams, states)
    return topology


def _paths(names: Iterable[str], folder: Path) -> tuple[str, ...]:
    """Tables, or columns of tables, as the settings name them."""
    return tuple(str(folder / name) for name in names)


def state_table(step: Step, folder: Path) -> StateTable:
    """The table of a step."""
    args = step.args
    where = args.get("remove_where")
    options: dict[str, Any] = {}
    if args["layout"] == "log":
        options = {"compact_files": args.get("compact_files"), "compact_share": 1.0}
    return StateTable(
        folder / step.id,
        args["semantics"],
        layout=args["layout"],
        buckets=args.get("buckets", 2),
        remove_where=None if where is None else _sql(where),
        columns_were=args.get("columns_were"),
        **options,
    )


def _persist(step: Step, stream: Stream, folder: Path) -> TxnState:
    keys, aggregates = step.args["keys"], _aggregates(step)
    grouped: Any = stream.group_by(*keys) if keys else stream
    ends: dict[str, Any] = {}
    if (after := step.args.get("expire_after")) is not None:
        ends = {"expire_after": timedelta(microseconds=after), "by": step.args["by"]}
    table = state_table(step, folder)
    state: TxnState = grouped.persistent_aggregate(table, **ends, **aggregates)
    if is_published(step):
        has_feed = zlib.crc32(step.id.encode()) % 2 == 0
        state.publish(shown_beside(step, folder), every="1 txid", change_feed=has_feed)
    return state


def is_published(step: Step) -> bool:
    """Whether a state is published, as every third one is."""
    return zlib.crc32(step.id.encode()) % 3 == 0


def shown_beside(step: Step, folder: Path) -> Path:
    """The folder of the table that publishes a state."""
    return folder / f"{step.id}_shown"


def _aggregates(step: Step) -> dict[str, Aggregate]:
    return {name: _aggregate(spec) for name, spec in step.args["aggregates"].items()}


def _aggregate(spec: list[Any]) -> Aggregate:
    match spec:
        case ["FirstN" | "LastN" as name, n, order, value]:
            found = getattr(agg, name)(n, order, value)
        case ["First" | "Last" as name, value, order]:
            found = getattr(agg, name)(value, order_by=order)
        case ["Fold", order, value]:
            found = agg.Fold("CAST('' AS string)", FOLD.format(quoted(value)), order, value)
        case [name, *arguments]:
            found = getattr(agg, name)(*arguments)
    assert isinstance(found, Aggregate)
    return found


def _stream(step: Step, streams: dict[str, Stream], states: dict[str, TxnState]) -> Stream:
    args = step.args
    match step.op:
        case "new_values":
            return states[step.of[0]].new_values()
        case "query":
            stream = streams[step.of[0]]
            return stream.state_query(states[step.of[1]], on=args["on"], as_of=args["as_of"])
        case "join":
            return streams[step.of[0]].join(streams[step.of[1]], on=args["on"], how=args["how"])
        case "join_in_time":
            return _join_in_time(args, *(streams[one] for one in step.of))
        case "session_windows":
            gap = timedelta(microseconds=args["gap"])
            return streams[step.of[0]].session_windows(args["keys"], gap)
        case "expect":
            return streams[step.of[0]].expect(
                args["name"], _sql(args["where"]), args["on_violation"]
            )
        case "watermark":
            return streams[step.of[0]].watermark(
                args["column"],
                timedelta(microseconds=args["delay"]),
                late=args["on_violation"],
                by=args["by"],
                idle_after=args["idle_after"],
            )
        case "drop_duplicates":
            stream, within = streams[step.of[0]], args["within"]
            if args["sorted"]:
                stream = stream.transform(_sorted)
            ends = None if within is None else timedelta(microseconds=within)
            return stream.drop_duplicates(args["keys"], ends)
        case "merge":
            first, *others = (streams[one] for one in step.of)
            return first.merge(*others)
        case "aggregate":
            stream = streams[step.of[0]]
            grouped: Any = stream.group_by(*args["keys"]) if args["keys"] else stream
            made: Stream = grouped.aggregate(**_aggregates(step))
            return made
    return streams[step.of[0]].transform(_Transform(step))


def _join_in_time(args: dict[str, Any], left: Stream, right: Stream) -> Stream:
    within = timedelta(microseconds=args["within"])
    if args["how"] != "as_of":
        return left.join(right, args["on"], args["how"], within=within)
    right = right.transform(_sorted) if args["sorted"] else right
    return left.join_as_of(right, args["on"], within=within)


def _sorted(df: DataFrame) -> DataFrame:
    return df.select(*map(quoted, sorted(df.columns)))


class _Transform:
    """What a user's function would do."""

    def __init__(self, step: Step) -> None:
        self._op, self._args = step.op, step.args

    def __call__(self, df: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        from pyspark.sql import functions as sf

        args = self._args
        match self._op:
            case "select":
                return df.select(*(sf.col(quoted(o)).alias(n) for o, n in args["columns"]))
            case "derive":
                made = _expression(args["expression"], attempt)
                return df.select("*", made.alias(args["name"]))
            case "cast":
                name, kind = args["name"], args["kind"]
                columns = (sf.col(quoted(column)) for column in df.columns)
                return df.select(
                    *(
                        column.cast(kind).alias(name) if same == name else column
                        for same, column in zip(df.columns, columns, strict=True)
                    )
                )
            case "filter":
                return df.where(_sql(args["where"]))
            case "double":
                return df.unionAll(df)
            case "scatter":
                return df.select("*", sf.rand().alias("chance"))
            case "half":
                if args.get("clear"):  # what is cached by now is lost
                    df.sparkSession.catalog.clearCache()
                low = sf.col("chance") < 0.5
                return df.where(low if args["low"] else ~low).drop("chance")
            case "window":
                micros = sf.unix_micros(sf.col(quoted(args["column"])))
                inside = (micros > WINDOW_LIMITS[0]) & (micros < WINDOW_LIMITS[1])
                window = sf.window(sf.col(quoted(args["column"])), "1 hour")
                return df.where(inside).select("*", window.alias(args["name"]))
        fails = attempt.txid == args["txid"] and attempt.attempt_id < args["attempts"]
        if fails and attempt.attempt_id >= args.get("passes_empty", 99):
            fails = not df.isEmpty()  # after that many attempts the batch is set aside
        if fails:
            raise FailedException(f"{attempt} fails, as it was declared")
        return df


def _expression(expression: list[Any], attempt: TransactionAttempt) -> Column:
    from pyspark.sql import functions as sf

    def col(name: str) -> Column:
        return sf.col(quoted(name))

    match expression:
        case ["literal", kind, value]:
            return sf.expr(_literal(kind, value))
        case ["copy", name]:
            return col(name)
        case ["text", name]:
            return col(name).cast("string")
        case ["length", name]:
            return sf.char_length(col(name))
        case ["is_null", name]:
            return col(name).isNull()
        case ["pair", left, right]:
            return sf.struct(col(left).alias("x"), col(right).alias("y"))
        case ["list", name]:
            return sf.array(col(name))
        case ["mod", name, divisor]:
            number = sf.lit(divisor).cast("bigint")
            return sf.pmod(col(name).cast("bigint"), number)
    return sf.lit(attempt.txid).cast("bigint")


def _sql(where: list[Any]) -> str:
    match where:
        case ["never"]:
            return "false"
        case ["not_null", name]:
            return f"{quoted(name)} IS NOT NULL"
        case ["null", name]:
            return f"{quoted(name)} IS NULL"
    operator, name, kind, literal = where
    return f"{quoted(name)} {'<' if operator == 'less' else '='} {_literal(kind, literal)}"


def _literal(kind: str, encoded: Any) -> str:
    """SQL for a value of a simple type; without a word that a session's settings could change."""
    value = decode(encoded, kind)
    if value is None:
        return f"CAST(NULL AS {kind})"
    if kind == "string":
        return f"CAST(unhex('{value.encode().hex()}') AS string)"
    if kind == "binary":
        return f"unhex('{value.hex()}')"
    if kind == "date":
        return f"date_from_unix_date({value})"
    if kind == "timestamp":
        return f"timestamp_micros({value}L)"
    if kind == "timestamp_ntz":
        time = EPOCH + dt.timedelta(microseconds=value)
        return f"TIMESTAMP_NTZ'{time.isoformat(sep=' ', timespec='microseconds')}'"
    return f"CAST('{value}' AS {kind})"
