"""Rules for rows: each row is in a table or among the bad rows, once, whatever fails."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout, MemoryTransactionalSpout
from tests.faults.support import Points, observing, rows_of
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.errors import RuleViolatedError, TopologyError
from txn.operations.history import history
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Spout

SCHEMA = "k string, v string"
Row = tuple[str | None, str | None]
BATCHES: list[list[Row]] = [
    [("a", "1"), ("b", "x"), ("b", "-4"), (None, "2"), ("a", "1")],
    [],
    [("c", "3"), ("c", None), ("c", "-7")],
    [(None, "x"), ("a", "5")],
    [("b", "6")],
]
"""Keys may be NULL, values need not be numbers, and numbers may be negative."""
BAD = ("txid", "stream", "rule", "row", "reason")


def judged(rows: Sequence[Row]) -> tuple[list[Row], list[tuple[str, Row]], Counter[str]]:
    """Plain Python's verdict: the good rows, those set aside with their rule, and the counts."""
    good, aside, broken = [], [], Counter({"known key": 0, "a number": 0, "positive": 0})
    for key, value in rows:
        if key is None:
            broken["known key"] += 1
        elif value is None or not value.lstrip("-").isdigit():
            broken["a number"] += 1
            aside.append(("a number", (key, value)))
        elif int(value) < 0:
            broken["positive"] += 1
            aside.append(("positive", (key, value)))
        else:
            good.append((key, value))
    return good, aside, broken


def named(warehouse: Path, spout: Spout[Any], **config: Any) -> Topology:
    """Three rules over one stream, into two tables and a table of bad rows."""
    settings = TopologyConfig(**{"retry_backoff_ms": 1, **config})
    kind = spout.kind.value
    topology = Topology("ruled", settings, bad_rows=AppendTable(warehouse / "bad", kind))
    good = (
        topology.stream("s", spout)
        .expect("known key", sf.col("k").isNotNull(), "drop")
        .expect("a number", "try_cast(v AS INT) IS NOT NULL", "set_aside")
        # Raises for what the rule before it has set aside.
        .expect("positive", "CAST(v AS INT) > 0", "set_aside")
    )
    good.partition_persist(AppendTable(warehouse / "rows", kind))
    numbers = good.transform(lambda df: df.withColumn("v", sf.col("v").cast("int")))
    state = StateTable(warehouse / "totals", kind, buckets=2)
    numbers.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
    return topology


def require_equal(warehouse: Path, batches: Mapping[int, Sequence[Row]], report: Any) -> None:
    """Compare every table, the tables' logs and the report with plain Python's verdict."""
    verdicts = {txid: judged(rows) for txid, rows in batches.items()}
    good = sorted((*row, txid) for txid, (rows, _, _) in verdicts.items() for row in rows)
    assert rows_of(warehouse / "rows", "k", "v", "txid") == good
    totals = [
        (k, sum(r[0] == k for r in good), sum(int(r[1]) for r in good if r[0] == k))
        for k in sorted({row[0] for row in good})
    ]
    assert rows_of(warehouse / "totals", "k", "n", "total") == totals
    reasons = {"a number": "try_cast(v AS INT) IS NOT NULL", "positive": "CAST(v AS INT) > 0"}
    aside = sorted(
        (
            txid,
            "s",
            rule,
            json.dumps({"k": k, "v": v}, separators=(",", ":")),
            f"not true: {reasons[rule]}",
        )
        for txid, (_, rows, _) in verdicts.items()
        for rule, (k, v) in rows
    )
    assert rows_of(warehouse / "bad", *BAD) == aside
    tables = [str(warehouse / name) for name in ("rows", "totals", "bad")]
    told = {entry.txid: entry.violations for entry in history("ruled", tables)}
    assert told == {txid: {"s": dict(broken)} for txid, (_, _, broken) in verdicts.items()}
    if report is not None:
        whole = sum((broken for _, _, broken in verdicts.values()), Counter[str]())
        assert report.violations == {"s": whole}


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_each_row_is_in_a_table_or_set_aside(
    spark: SparkSession, warehouse: Path, kind: str
) -> None:
    """A row that breaks a rule is dropped or set aside once, in the txid that read it, and counted.

    Several txids are staged by one job, and committed as one version.
    """
    script = {(txid, 0): rows for txid, rows in enumerate(BATCHES, 1)}
    spout = (
        MemoryOpaqueSpout(script, SCHEMA)
        if kind == "opaque"
        else MemoryTransactionalSpout(BATCHES, SCHEMA)
    )
    report = run_in_memory(named(warehouse, spout, verify="rows"), spark)
    require_equal(warehouse, dict(enumerate(BATCHES, 1)), report)
    assert (report.replays, list(report.failures)) == (0, [])


def test_a_replay_takes_back_what_a_dead_attempt_set_aside(
    spark: SparkSession, warehouse: Path
) -> None:
    """Rows that a failed opaque attempt set aside are reverted with everything else it wrote."""
    replay = [("a", "8"), ("a", "y"), (None, "1")]
    script = {(1, 0): BATCHES[0], (1, 1): replay, (2, 0): BATCHES[2], (2, 1): BATCHES[2]}

    def fail(attempt: TransactionAttempt) -> None:
        if str(attempt) == "1:0":
            raise FailedException("published, but not committed")

    topology = named(warehouse, MemoryOpaqueSpout(script, SCHEMA), max_group_commit=1)
    with observing(Points(after_publish=fail)):
        report = run_in_memory(topology, spark)
    assert report.replays >= 1
    require_equal(warehouse, {1: replay, 2: BATCHES[2]}, report)


def test_rows_that_must_not_be_fail_the_batch(spark: SparkSession, warehouse: Path) -> None:
    """A row that breaks a rule with on_violation="fail" stops the topology, whatever follows the
    rule.

    What follows would read no row at all. A rule that has changed is no error for the next run.
    """
    nodes = MemoryNodes()

    def run(condition: str) -> Any:
        topology = Topology("strict", TopologyConfig(retry_backoff_ms=1))
        stream = topology.stream("s", MemoryTransactionalSpout(BATCHES[2:4], SCHEMA))
        stream.expect("known value", condition).transform(
            lambda df: df.where(sf.lit(False))
        ).partition_persist(AppendTable(warehouse / "none", "transactional"))
        return run_in_memory(topology, spark, nodes)

    with pytest.raises(RuleViolatedError) as caught:
        run("v <> '-7'")
    assert str(caught.value) == (
        "2 rows of stream 's' in attempt 1:0 break the rule 'known value' (v <> '-7'). Nothing of "
        "the batch was committed. Correct the program or the rule and run again: the batch is "
        "replayed, a quarantined one by `txn quarantine replay`. To see the rows and go on without "
        "them, give the rule on_violation='set_aside'."
    )
    assert run("v IS NULL OR v IS NOT NULL").committed_txid == 2


def test_rules_in_the_commit_turn_and_idle_streams(spark: SparkSession, warehouse: Path) -> None:
    """A rule for new values sets rows aside too. Idle streams hold nothing up and break no rule."""
    from tests.faults.test_unknown_columns import never

    topology = Topology("late", bad_rows=AppendTable(warehouse / "bad"))
    rows = topology.stream("s", MemoryTransactionalSpout([[("a", "1")], [("a", "2")]], SCHEMA))
    counts = (
        rows.expect("not c", "k <> 'c'", "set_aside")
        .group_by("k")
        .persistent_aggregate(StateTable(warehouse / "counts"), n=Count())
    )
    changes = counts.new_values().expect("few", sf.col("n") < 2, "set_aside")
    changes.partition_persist(AppendTable(warehouse / "changes"))
    idle = topology.stream("idle", never()).expect("named", "name IS NOT NULL", "set_aside")
    idle.partition_persist(AppendTable(warehouse / "idle"))
    quiet = topology.stream("quiet", MemoryTransactionalSpout([], SCHEMA)).aggregate(n=Count())
    whole = quiet.expect("some", sf.col("n") > 0, "set_aside").expect("all", "n > 1", "fail")
    whole.partition_persist(AppendTable(warehouse / "quiet"))
    report = run_in_memory(topology, spark)
    assert rows_of(warehouse / "changes", "k", "n", "txid") == [("a", 1, 1)]
    assert rows_of(warehouse / "bad", *BAD) == [
        (2, "s", "few", '{"k":"a","n":2,"prev_n":1}', "not true: <(n, 2)")
    ]
    assert [batch.violations for batch in report.batches] == [
        {"s": {"not c": 0, "few": 0}},
        {"s": {"not c": 0, "few": 1}},
    ]


def test_a_misspelt_column_is_refused_before_the_first_txid(
    spark: SparkSession, warehouse: Path
) -> None:
    """The error names the stream, the rule and the columns; a condition must be a boolean."""
    for condition, expected in (
        ("vv > 0", r"Stream 's' cannot be computed in rule 'typo': \[UNRESOLVED_COLUMN.*`v`"),
        ("v", r"Stream 's' cannot be computed in rule 'typo': \[DATATYPE_MISMATCH"),
        ("v >", r"Stream 's' cannot be computed in rule 'typo': \[PARSE_SYNTAX_ERROR\]"),
    ):
        topology = Topology("misspelt")
        stream = topology.stream("s", MemoryTransactionalSpout(BATCHES, SCHEMA))
        stream.expect("typo", condition).partition_persist(AppendTable(warehouse / "rows"))
        with pytest.raises(TopologyError, match=expected):
            run_in_memory(topology, spark)
    assert not (warehouse / "rows").exists()


def test_records_that_the_program_parses(spark: SparkSession, warehouse: Path) -> None:
    """What docs/bad-rows.md has for records of Kafka: text that is no JSON is set aside."""
    values = [b'{"user":"u","page":1}', b"word", None, b'{"user":"w","page":"x"}']
    batch = [(b"t", 0, offset, value) for offset, value in enumerate(values)]
    schema = "user string, page int, broken string"
    topology = Topology("views", bad_rows=AppendTable(warehouse / "bad"))
    kafka = "topic binary, partition int, offset bigint, value binary"
    views = (
        topology.stream("records", MemoryTransactionalSpout([batch], kafka))
        .transform(lambda df: df.select("offset", sf.col("value").cast("string").alias("value")))
        .transform(
            lambda df: df.withColumn(
                "view", sf.from_json("value", schema, {"columnNameOfCorruptRecord": "broken"})
            )
        )
        .expect("parses", "view IS NOT NULL AND view.broken IS NULL", "set_aside")
        .transform(lambda df: df.select("view.user", "view.page"))
    )
    views.partition_persist(AppendTable(warehouse / "views"))
    run_in_memory(topology, spark)
    assert rows_of(warehouse / "views", "user", "page") == [("u", 1)]
    rows = [json.loads(row) for (row,) in rows_of(warehouse / "bad", "row")]
    assert sorted(row["offset"] for row in rows) == [1, 2, 3]


def test_rules_may_come_and_go_between_runs(spark: SparkSession, warehouse: Path) -> None:
    """A program may begin to set rows aside, stop, and begin again; every row is somewhere once."""
    nodes, batches = MemoryNodes(), [[("a", str(txid)), (None, str(txid))] for txid in range(1, 5)]
    for txid, fate in enumerate(("no table", "set_aside", "drop", "set_aside"), 1):
        table = AppendTable(warehouse / "bad") if txid > 1 else None
        topology = Topology("changing", bad_rows=table)
        rows = topology.stream("s", MemoryTransactionalSpout(batches[:txid], SCHEMA))
        if txid > 1:
            rows = rows.expect("known key", "k IS NOT NULL", fate)  # type: ignore[arg-type]
        rows.partition_persist(AppendTable(warehouse / "rows"))
        assert run_in_memory(topology, spark, nodes).committed_txid == txid
    found = rows_of(warehouse / "rows", "k", "v", "txid", key=str)
    assert found == sorted([("a", str(t), t) for t in range(1, 5)] + [(None, "1", 1)], key=str)
    assert [row[0] for row in rows_of(warehouse / "bad", *BAD)] == [2, 4]
