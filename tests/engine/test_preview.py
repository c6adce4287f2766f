"""A preview shows what a first batch puts into each table, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import txn.session
from committers.aggregates import Avg, Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology
from txn.cli import cli
from txn.engine.preview import preview
from txn.errors import RuleViolatedError, TopologyError
from txn.testing import run_in_memory
from txn.testing.progress import MemoryProgress

LINES = "ann,1\nbob,2\nann,4\nbob,x\nann,100\ncid,0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two files, of which a batch reads one."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(LINES)
    (tmp_path / "in" / "b.csv").write_text("dan,1\n")
    return tmp_path


def everything(folder: Path, layout: str = "log") -> Topology:
    """Rules, a state, what is computed of its new values, and a query of it."""
    topology = Topology("orders", bad_rows=AppendTable(folder / "bad"))
    spout = FileSpout(
        f"{folder}/in/*.csv", format="csv", schema="user string, n int", bad_rows="set_aside"
    )
    orders = topology.stream("orders", spout).expect("plausible", "n < 100", "drop")
    totals = orders.group_by("user").persistent_aggregate(
        StateTable(folder / "totals", layout=layout, remove_where="total = 0"),
        total=Sum("n"),
        orders=Count(),
        mean=Avg("n"),
    )
    totals.new_values().partition_persist(AppendTable(folder / "changes"))
    before = orders.state_query(totals, on="user", as_of="committed")
    before.partition_persist(AppendTable(folder / "orders"))
    whole = StateTable(folder / "greatest", semantics="opaque")
    orders.aggregate(n=Max("n")).persistent_aggregate(whole, n=Max("n"))
    return topology


def rows(frame: DataFrame, *without: str) -> list[str]:
    """The rows of a DataFrame, in order, as JSON."""
    kept = frame.select(sf.to_json(sf.struct(*[c for c in frame.columns if c not in without])))
    return sorted(row[0] for row in kept.collect())


def tree(folder: Path) -> list[str]:
    """Every path below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("layout", ["log", "upsert"])
def test_a_preview_is_what_a_first_batch_writes(
    folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """A preview shows the rows that a first run of one txid would put into each table, and writes
    nothing.
    """
    monkeypatch.chdir(folder)
    before = tree(folder)
    found = preview(everything(folder, layout).definition, spark)
    assert tree(folder) == before
    assert found.violations == {"orders": {"parses": 1, "plausible": 1}}
    run_in_memory(everything(folder, layout), spark, until=1)
    for name in ("changes", "orders", "bad"):
        written = spark.read.format("delta").load(str(folder / name))
        assert rows(found.tables[str(folder / name)]) == rows(written, "txid"), name
    for name in ("totals", "greatest"):
        state = StateTable(folder / name, layout=layout if name == "totals" else "upsert")
        assert rows(found.tables[str(folder / name)]) == rows(state.read(spark)), name
    assert len(rows(found.tables[str(folder / "totals")])) == 2


def test_a_preview_holds_few_rows_and_says_what_it_cannot_know(
    folder: Path, spark: SparkSession
) -> None:
    """At most the rows that are asked for; no rows of an idle stream; unknown columns are told."""
    topology = everything(folder)
    assert {len(rows(frame)) for frame in topology.preview(spark, rows=1).values()} == {1}
    with pytest.raises(TopologyError, match="rows=1 or more, not 0"):
        topology.preview(spark, rows=0)
    idle = Topology("idle")
    known = FileSpout(f"{folder}/none/*.csv", format="csv", schema="user string")
    idle.stream("known", known).partition_persist(AppendTable(folder / "known"))
    found = preview(idle.definition, spark)
    assert (found.read, rows(found.tables[str(folder / "known")])) == ({"known": None}, [])


def test_what_fails_in_a_preview_is_told_as_in_a_run(folder: Path, spark: SparkSession) -> None:
    """A rule, a column, a record: with stream, place and number; nothing is left behind."""
    before = tree(folder)
    for condition, kind, number, told in (
        ("n > 0", RuleViolatedError, "TXN-515", "1 row of stream 'orders'"),
        ("m > 0", TopologyError, "TXN-102", r"`m` cannot be resolved"),
        ("true", TopologyError, "TXN-508", "cannot be previewed: .*a.csv.* Nothing was written"),
    ):
        topology = Topology("orders")
        spout = FileSpout(
            f"{folder}/in/*.csv",
            format="csv",
            schema="user string, n int",
            bad_rows="fail" if condition == "true" else "drop",
        )
        stream = topology.stream("orders", spout).expect("rule", condition)
        stream.partition_persist(AppendTable(folder / "kept"))
        with pytest.raises(kind, match=told) as error:
            topology.preview(spark)
        assert error.value.number == number
    assert tree(folder) == before


PROGRAM = """
from committers.aggregates import Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology

orders = Topology("orders")
spout = FileSpout("in/*.csv", format="csv", schema="user string, n int", bad_rows="drop")
stream = orders.stream("orders", spout)
stream.partition_persist(AppendTable("warehouse/orders"))
stream.group_by("user").persistent_aggregate(StateTable("warehouse/totals"), total=Sum("n"))
"""


@pytest.fixture
def borrowed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command gets the session of the tests, and does not stop it."""
    monkeypatch.setattr(txn.session, "delta_session", lambda *_, **__: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


def test_a_topology_that_runs_is_not_previewed(folder: Path, spark: SparkSession) -> None:
    """Its spouts are in use; once the run has ended they are not."""
    topology = everything(folder)
    running = topology.start(spark, store=MemoryProgress("orders"))
    with pytest.raises(TopologyError, match="'orders' runs: its spouts are in use"):
        topology.preview(spark)
    running.stop()
    assert topology.preview(spark)


@pytest.mark.usefixtures("borrowed")
def test_the_command_prints_what_each_table_would_get(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people and as JSON, all tables or one; no file, no folder and no ZooKeeper is left."""
    monkeypatch.chdir(folder)
    (folder / "app.py").write_text(PROGRAM)
    before = tree(folder)

    def run(*words: str) -> str:
        result = CliRunner().invoke(cli, ["preview", "app.py:orders", *words])
        assert result.exit_code == 0, result.stdout
        return result.stdout

    told = run("--table", "totals").splitlines()
    assert told[:2] == [
        f"stream orders reads a.csv, {len(LINES)} bytes",
        "stream orders: 1 row broke the rule 'parses'",
    ]
    assert "table warehouse/totals: 3 rows" in told
    assert any(line.split() == ["user", "string", "total", "bigint"] for line in told)
    assert not any("warehouse/orders" in line for line in told)
    found = json.loads(run("--json", "--rows", "2"))
    assert found["tables"]["warehouse/orders"] == [{"user": "ann", "n": 1}, {"user": "bob", "n": 2}]
    assert [p for p in tree(folder) if "__pycache__" not in p] == before
    refused = CliRunner().invoke(cli, ["preview", "app.py:orders", "--table", "total"])
    assert "has no table 'total'. Its tables are warehouse/orders" in refused.stderr


@pytest.mark.usefixtures("borrowed")
def test_a_table_of_bad_rows_without_a_rule_is_named_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no columns: no stream of the topology sets rows aside."""
    monkeypatch.chdir(folder)
    ruled = PROGRAM.replace('Topology("orders")', 'Topology("orders", bad_rows=AppendTable("bad"))')
    (folder / "app.py").write_text(ruled)
    told = CliRunner().invoke(cli, ["preview", "app.py:orders", "--table", "bad"]).stdout
    assert told.splitlines()[-1] == "table bad: no stream sets rows aside"


@pytest.mark.usefixtures("borrowed")
def test_plan_checks_the_columns_if_it_may_start_spark(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table's columns, or the one that is misspelt, with those that there are."""
    monkeypatch.chdir(folder)
    before = tree(folder)

    def plan(program: str, *words: str) -> str:
        (folder / "app.py").write_text(program)
        done = CliRunner().invoke(cli, ["plan", "app.py:orders", "--columns", *words])
        return done.stderr if done.exit_code else done.stdout

    assert "    columns: user string, total bigint\n" in plan(PROGRAM)
    totals = json.loads(plan(PROGRAM, "--json"))["columns"]["warehouse/totals"]
    assert totals == {"user": "string", "total": "bigint"}
    later = 'schema="user string, n int", bad_rows="drop"'
    unknown = PROGRAM.replace("FileSpout(", "DeltaSpout(").replace(
        '"in/*.csv", format="csv"', '"no"'
    )
    unknown = unknown.replace(f", {later}", "").replace("spouts.files", "spouts.delta")
    unknown = unknown.replace("import FileSpout", "import DeltaSpout")
    assert "columns: not known before something is read" in plan(unknown)
    for right, wrong in (('Sum("n")', 'Sum("m")'), ('group_by("user")', 'group_by("m")')):
        told = plan(PROGRAM.replace(right, wrong))
        assert "Stream 'orders' has no column 'm'. It has: user, n." in " ".join(told.split())
    (folder / "app.py").unlink()
    assert [p for p in tree(folder) if "__pycache__" not in p] == before
