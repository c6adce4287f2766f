"""All tables of a topology as of one txid, with Spark and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

import txn
from committers.aggregates import Avg, Count, CountDistinct, Sum
from committers.append_table import AppendTable
from committers.published_table import PublishedTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.cli.app import cli
from txn.errors import TableRefusedError, TopologyError
from txn.interfaces.published import CanPublish
from txn.operations.snapshot import publish_once
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

ROWS = ([("a", 1), ("b", 2)], [("a", 3)], [("c", 4)], [("a", 5)])
OTHERS = ([("x", 1)],)
"""A stream that is caught up after the first txid: its table is not written any more."""


def topology(warehouse: Path) -> Topology:
    """Two states and the rows of one stream, and the rows of another."""
    made = Topology("shop", TopologyConfig(max_spout_pending=1))
    sales = made.stream("sales", MemoryTransactionalSpout(ROWS, "k string, v int"))
    sales.partition_persist(AppendTable(warehouse / "rows"))
    for layout in ("upsert", "log"):
        table = StateTable(warehouse / layout, layout=layout)
        values: dict[str, Any] = {"n": Count(), "total": Sum("v"), "mean": Avg("v")}
        values["different"] = CountDistinct("v")
        sales.group_by("k").persistent_aggregate(table, **values)
    others = made.stream("others", MemoryTransactionalSpout(OTHERS, "k string, v int"))
    others.partition_persist(AppendTable(warehouse / "others"))
    return made


def expected(txid: int) -> list[tuple[Any, ...]]:
    """Key, rows, total, mean and different values as of a txid."""
    values: dict[str, list[int]] = {}
    for key, value in (row for batch in ROWS[:txid] for row in batch):
        values.setdefault(key, []).append(value)
    return sorted(
        (key, len(some), sum(some), sum(some) / len(some), len(set(some)))
        for key, some in values.items()
    )


@pytest.fixture
def shop(spark: SparkSession, warehouse: Path) -> Topology:
    """The topology, caught up."""
    made = topology(warehouse)
    run_in_memory(made, spark, MemoryNodes())
    return made


@pytest.mark.parametrize("txid", ["newest", 2])
@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_all_tables_are_as_of_one_txid(
    spark: SparkSession, shop: Topology, engine: str, txid: Any
) -> None:
    """All tables of a snapshot are as of one committed txid."""
    seen = txn.snapshot(spark if engine == "spark" else None, shop, txid)
    at = 4 if txid == "newest" else txid
    assert (seen.topology, seen.txid, set(seen)) == (
        "shop",
        at,
        {"rows", "upsert", "log", "others"},
    )

    def rows(query: str) -> list[tuple[Any, ...]]:
        result = seen.sql(query)
        found = result.collect() if engine == "spark" else result.fetchall()
        return sorted(tuple(row) for row in found)

    for layout in ("upsert", "log"):
        assert rows(f"SELECT k, n, total, mean, different FROM {layout}") == expected(at)
    told = {(k, v, n) for n, batch in enumerate(ROWS[:at], 1) for k, v in batch}
    assert rows("SELECT k, v, txid FROM rows") == sorted(told)
    assert rows("SELECT k, v FROM others") == [("x", 1)]


def test_a_txid_that_is_not_committed_is_refused(shop: Topology, warehouse: Path) -> None:
    """The error says how far the topology is."""
    for txid in (0, 5):
        with pytest.raises(
            TopologyError, match=f"has not committed txid {txid}: the newest one is 4"
        ):
            txn.snapshot(None, shop, txid)
    with pytest.raises(TopologyError, match="has not committed anything yet"):
        txn.snapshot(None, Topology("empty"))


PROGRAM = """
from pathlib import Path
from tests.operations.test_snapshot import topology
shop = topology(Path({warehouse!r}))
"""
"""As a user has it in a file."""


def test_tables_are_asked_from_the_command_line(
    shop: Topology, warehouse: Path, tmp_path: Path
) -> None:
    """`txn open` and `txn sql` need the program, or ZooKeeper, and no Spark."""
    from click.testing import CliRunner

    program = tmp_path / "shop.py"
    program.write_text(PROGRAM.format(warehouse=str(warehouse)))
    runner = CliRunner()
    target = f"{program}:shop"
    asked = runner.invoke(cli, ["open", target, "SELECT sum(total) AS s FROM upsert"])
    assert asked.exit_code == 0, asked.output
    assert "15" in asked.output
    lines = "SELECT\nmax(v) m FROM rows;\nSELECT 'one;\n', 41 + 1;\n"
    typed = runner.invoke(cli, ["open", target, "--txid", "1"], input=lines)
    assert typed.exit_code == 0, typed.output
    assert "as of txid 1" in typed.output
    assert " 2 " in typed.output
    assert " 42 " in typed.output
    several = runner.invoke(cli, ["open", target, "SELECT 17; SELECT 18"])
    assert "17" in several.output
    assert "18" in several.output
    wrong = runner.invoke(cli, ["open", target, "SELECT x FROM upsert"])
    assert wrong.exit_code == 1
    assert "Referenced column" in wrong.output
    printed = runner.invoke(cli, ["sql", target, "--table", "rows", "--txid", "2"])
    assert printed.exit_code == 0, printed.output
    code = f"import duckdb, sys; print(len(duckdb.sql({printed.output!r}).fetchall()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["3"], done.stderr
    arguments = ["sql", target, "--table", "upsert", "--column", "total", "--dialect"]
    for given, named in (
        (["spark"], f"FROM delta.`file:{warehouse}/upsert` VERSION AS OF 5"),
        (["trino"], 'FROM "delta"."default"."upsert" FOR VERSION AS OF 5'),
        (["trino", "--as", "lake.sales.totals"], '"lake"."sales"."totals" FOR VERSION AS OF 5'),
    ):
        of_engine = runner.invoke(cli, [*arguments, *given])
        assert named in of_engine.output
    by_name = runner.invoke(cli, [*arguments, "duckdb", "--as", "lake.sales.totals"])
    assert by_name.exit_code == 2
    assert "--as goes with --dialect spark or trino" in by_name.output
    absent = runner.invoke(cli, ["sql", target, "--table", "nothing"])
    assert absent.exit_code
    assert "Its tables are log, others, rows, upsert" in absent.output


class Doubled(Sum):
    """Shows another value than it stores."""

    def result(self, stored: Column) -> Column:
        """Twice the sum."""
        return stored * 2


def test_a_table_that_only_spark_reads_is_left_out_by_name(
    spark: SparkSession, warehouse: Path
) -> None:
    """The other tables are there, and the snapshot says which one is not, and why."""
    made = Topology("own", TopologyConfig(max_spout_pending=1))
    sales = made.stream("sales", MemoryTransactionalSpout(ROWS, "k string, v int"))
    sales.partition_persist(AppendTable(warehouse / "rows"))
    table = StateTable(warehouse / "doubled", layout="log")
    sales.group_by("k").persistent_aggregate(table, total=Doubled("v"))
    run_in_memory(made, spark, MemoryNodes())
    seen = txn.snapshot(None, made)
    assert set(seen) == {"rows"}
    assert "this program cannot compute" in seen.left_out[table.path]
    assert table.path in repr(seen)


def test_a_table_is_published_once(shop: Topology, warehouse: Path) -> None:
    """Keys and values as of a txid, which the log names; a ranking; nothing is overwritten."""
    for layout, txid in (("upsert", 4), ("log", 2)):
        path = str(warehouse / f"shown-{layout}")
        assert publish_once(shop, layout, path, "newest" if txid == 4 else txid) == txid
        shown = PublishedTable(path)
        assert shown.txids() == (txid,)
        assert sorted(tuple(row.values()) for row in shown.to_arrow().to_pylist()) == expected(txid)
    best = str(warehouse / "best")
    publish_once(shop, str(warehouse / "log"), best, columns=["total", "k"], top=2, by="total DESC")
    rows = DeltaTable(best).to_pyarrow_table().to_pylist()
    assert rows == [{"total": 9, "k": "a"}, {"total": 4, "k": "c"}]
    with pytest.raises(TableRefusedError, match="a table at .* already"):
        publish_once(shop, "log", best)
    with pytest.raises(TopologyError, match="has no table 'nothing'"):
        publish_once(shop, "nothing", best)
    with pytest.raises(TopologyError, match="needs both, top and by"):
        publish_once(shop, "log", best, top=3)


def test_published_tables_are_shown_as_of_a_txid_that_all_of_them_show(
    spark: SparkSession, warehouse: Path
) -> None:
    """The newest one, or the newest up to another one; without a program the refusal says so."""
    made, nodes = topology(warehouse), MemoryNodes()
    for sink in made.sinks:
        if isinstance(sink.committer, CanPublish):
            asked: Any = dict.fromkeys(("columns", "order_by", "top", "by", "per"))
            path = f"{sink.name}-shown"
            table = sink.committer.published_table(
                path, every=(1, None), deletion_vectors=False, change_feed=False, **asked
            )
            sink.published.append(table)
    run_in_memory(made, spark, nodes)
    for engine in (spark, None):
        seen = txn.snapshot(engine, made, published=True)
        assert (seen.txid, sorted(seen)) == (4, ["log-shown", "upsert-shown"])
        rows = seen["log-shown"].collect() if engine else seen["upsert-shown"].fetchall()
        assert sorted(tuple(row) for row in rows) == expected(4)
    with pytest.raises(TopologyError, match="name it as FILE.py:TOPOLOGY"):
        txn.snapshot(None, topology(warehouse), published=True)
