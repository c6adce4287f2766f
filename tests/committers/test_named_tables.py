"""Tables by their names in Spark's own catalog, wherever a path may stand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig
from txn.errors import TableRefusedError, TopologyError
from txn.operations.recover import read_tables
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Committer, Spout

COLUMNS = "carrier string COMMENT 'IATA code', delay int"
BATCHES = [[("UA", 1), ("AA", 2)], [("UA", 10)], [("B6", 5)]]
TOTALS = [("AA", 2), ("B6", 5), ("UA", 11)]


@pytest.fixture
def schema(spark: SparkSession, warehouse: Path) -> Iterator[str]:
    """A schema of one test in Spark's own catalog, as `catalog.schema`."""
    spark.sql(f"CREATE SCHEMA sales LOCATION '{warehouse}'")
    yield "spark_catalog.sales"
    spark.sql("DROP SCHEMA IF EXISTS sales CASCADE")


def source(batches: int = 3) -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout(BATCHES[:batches], COLUMNS)


def totals(table: str | Path, spout: Spout[Any] | None = None, **config: Any) -> Topology:
    """Total delays by carrier in a state table."""
    topology = Topology("totals", TopologyConfig(**config))
    rows = topology.stream("s", spout or source()).group_by("carrier")
    rows.persistent_aggregate(StateTable(table, buckets=1), delay=Sum("delay"))
    return topology


def rows(*tables: Committer) -> Topology:
    """The rows in each of some tables."""
    topology = Topology("rows")
    stream = topology.stream("s", source())
    for table in tables:
        stream.partition_persist(table)
    return topology


def shown(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    """Keys and values of a state."""
    return sorted(map(tuple, StateTable(table).read(spark).collect()))


def names_in(spark: SparkSession, schema: str) -> list[str]:
    """The tables that the catalog has."""
    return sorted(row.tableName for row in spark.sql(f"SHOW TABLES IN {schema}").collect())


def places(nodes: MemoryNodes, topology: str) -> list[str]:
    """The tables that the progress names."""
    return list(nodes.status(topology).progress.committed.tables)


def test_a_new_table_is_registered_with_comments_and_properties(
    spark: SparkSession, schema: str, warehouse: Path
) -> None:
    """Spark's catalog shows the table, its topology, and what each column is."""
    name = f"{schema}.delays"
    run_in_memory(totals(name), spark)
    assert shown(spark, name) == TOTALS
    assert sorted(map(tuple, StateTable(name).get(spark, ["UA"]).collect())) == [("UA", 11)]
    described = {row[0]: row for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect()}
    assert described["Location"][1] == f"file:{warehouse}/delays"
    assert described["Comment"][1] == "Kept by topology 'totals'"
    comments = {column: described[column][2] for column in ("carrier", "delay", "txid")}
    assert comments == {
        "carrier": "IATA code",
        "delay": "Sum(delay)",
        "txid": "internal to txn: the newest transaction that wrote the row",
    }
    properties = dict(map(tuple, spark.sql(f"SHOW TBLPROPERTIES {name}").collect()))
    assert properties["txn.topology"] == "totals"


def test_progress_has_the_folder(spark: SparkSession, schema: str, warehouse: Path) -> None:
    """What needs no Spark finds the table: the folder is durable, not the name."""
    nodes = MemoryNodes()
    run_in_memory(totals(f"{schema}.delays"), spark, nodes)
    assert places(nodes, "totals") == [str(warehouse / "delays")]
    assert len(StateTable(warehouse / "delays").to_pandas()) == 3


def test_a_rename_in_the_catalog_does_no_harm(
    spark: SparkSession, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The program goes on under the old name, which is not taken back, and under the new one."""
    nodes = MemoryNodes()
    run_in_memory(totals(f"{schema}.delays", source(1)), spark, nodes)
    spark.sql(f"ALTER TABLE {schema}.delays RENAME TO sales.delays_by_carrier")
    run_in_memory(totals(f"{schema}.delays", source(2)), spark, nodes)
    assert f"'{schema}.delays' is called '{schema}.delays_by_carrier'" in caplog.text
    assert names_in(spark, schema) == ["delays_by_carrier"]
    run_in_memory(totals(f"{schema}.delays_by_carrier"), spark, nodes)
    assert shown(spark, f"{schema}.delays_by_carrier") == TOTALS


def test_a_table_that_moves_with_its_new_name_is_found_by_its_id(
    spark: SparkSession, schema: str, warehouse: Path
) -> None:
    """A rename of a managed table moves its folder; its id tells that it is the same."""
    nodes = MemoryNodes()
    run_in_memory(totals(f"{schema}.delays", source(1)), spark, nodes)
    spark.sql(f"ALTER TABLE {schema}.delays RENAME TO sales.moved")
    spark.sql(f"DROP TABLE {schema}.moved")
    (warehouse / "delays").rename(warehouse / "moved")
    run_in_memory(totals(f"{schema}.moved"), spark, nodes)
    assert shown(spark, f"{schema}.moved") == TOTALS
    assert places(nodes, "totals") == [str(warehouse / "moved")]


def test_another_table_under_the_old_name_is_refused(
    spark: SparkSession, schema: str, warehouse: Path
) -> None:
    """A name that belongs to another table by now is not taken for the topology's."""
    nodes = MemoryNodes()
    run_in_memory(totals(f"{schema}.delays", source(1)), spark, nodes)
    spark.sql(f"DROP TABLE {schema}.delays")
    spark.sql(f"CREATE TABLE {schema}.delays (a INT) USING delta LOCATION '{warehouse}/other'")
    with pytest.raises(TableRefusedError, match="no topology has made") as refused:
        run_in_memory(totals(f"{schema}.delays"), spark, nodes)
    assert refused.value.number == "TXN-301"


def test_a_start_that_cannot_register_leaves_that_to_the_next(
    spark: SparkSession, schema: str, warehouse: Path
) -> None:
    """The schema is dropped while the table is made: refused; then the next start registers it."""
    nodes, name = MemoryNodes(), f"{schema}.rows"
    topology = Topology("rows")
    dropped = topology.stream("s", source()).transform(
        lambda df: spark.sql("DROP SCHEMA IF EXISTS sales") and df
    )
    dropped.partition_persist(AppendTable(name))
    with pytest.raises(TopologyError, match=r"SCHEMA_NOT_FOUND.*the schema must exist") as refused:
        run_in_memory(topology, spark, nodes)
    assert refused.value.number == "TXN-127"
    assert DeltaTable(warehouse / "rows").version() == 0
    spark.sql(f"CREATE SCHEMA sales LOCATION '{warehouse}'")
    run_in_memory(rows(AppendTable(name)), spark, nodes)
    assert names_in(spark, schema) == ["rows"]
    assert spark.table(name).count() == 4


def test_a_dropped_name_is_given_again(spark: SparkSession, schema: str) -> None:
    """DROP TABLE takes the name only; the topology goes on, and registers its table again."""
    nodes, name = MemoryNodes(), f"{schema}.delays"
    run_in_memory(totals(name, source(1)), spark, nodes)
    spark.sql(f"DROP TABLE {name}")
    run_in_memory(totals(name), spark, nodes)
    assert shown(spark, name) == TOTALS
    assert names_in(spark, schema) == ["delays"]


@pytest.mark.parametrize("other", ["spark_catalog.sales.again", "SPARK_CATALOG.Sales.A", "path"])
def test_two_names_of_one_table_are_refused(
    spark: SparkSession, schema: str, warehouse: Path, other: str
) -> None:
    """A second name, another case, or the folder: one table takes one committer."""
    write_deltalake(warehouse / "a", pa.table({"x": [1]}))
    for name in ("a", "again"):
        spark.sql(f"CREATE TABLE {schema}.{name} USING delta LOCATION '{warehouse}/a'")
    path = str(warehouse / "a") if other == "path" else other
    with pytest.raises(TopologyError) as refused:
        run_in_memory(rows(AppendTable(f"{schema}.a"), AppendTable(path)), spark)
    assert refused.value.number == "TXN-110"
    assert f"'{schema}.a'" in str(refused.value)
    assert f"'{path}'" in str(refused.value)


def test_sources_and_lookups_take_names(spark: SparkSession, schema: str) -> None:
    """A spout, a lookup and a query of another topology's state, each by name."""
    run_in_memory(rows(AppendTable(f"{schema}.rows")), spark)
    run_in_memory(totals(f"{schema}.delays"), spark)
    spark.sql(f"CREATE TABLE {schema}.carriers USING delta AS SELECT 'UA' carrier, 'United' name")
    topology = Topology("all")
    stream = topology.stream("s", DeltaSpout(f"{schema}.rows"))
    stream = stream.transform(lambda df: df.drop("txid", "delay"))
    stream = stream.lookup(f"{schema}.carriers", on="carrier")
    stream = stream.state_query(StateTable(f"{schema}.delays"), on="carrier")
    stream.partition_persist(AppendTable(f"{schema}.out"))
    run_in_memory(topology, spark)
    found = AppendTable(f"{schema}.out").read(spark).drop("txid").distinct().collect()
    assert sorted(map(tuple, found)) == [
        ("AA", None, 2),
        ("B6", None, 5),
        ("UA", "United", 11),
    ]


def test_a_lookup_in_an_own_table_by_its_name_is_refused(
    spark: SparkSession, schema: str, warehouse: Path
) -> None:
    """A name does not hide that a lookup reads a table of the topology."""
    topology = Topology("own")
    stream = topology.stream("s", source())
    stream.partition_persist(AppendTable(warehouse / "rows"))
    stream.lookup(f"{schema}.rows", on="carrier").partition_persist(AppendTable(f"{schema}.more"))
    with pytest.raises(TopologyError, match="a table of this topology") as refused:
        run_in_memory(topology, spark)
    assert refused.value.number == "TXN-108"


def test_tables_beside_a_named_one_have_names(spark: SparkSession, schema: str) -> None:
    """What `drop_duplicates` keeps is in the same schema, under a name of plain characters."""
    topology = Topology("once-only")
    stream = topology.stream("s", source()).drop_duplicates("carrier")
    stream.partition_persist(AppendTable(f"{schema}.firsts"))
    run_in_memory(topology, spark)
    assert spark.table(f"{schema}.firsts").count() == 3
    assert names_in(spark, schema) == ["firsts", "once_only_s_keys_carrier"]


def test_settings_name_tables_as_the_program_does(spark: SparkSession, schema: str) -> None:
    """A column is dropped, and a table is new, by names of the catalog."""
    nodes = MemoryNodes()
    run_in_memory(rows(AppendTable(f"{schema}.rows")), spark, nodes)
    settings = {
        "new_tables": (f"{schema}.counts",),
        "dropped_columns": (f"{schema}.rows:delay",),
    }
    topology = Topology("rows", TopologyConfig(**settings))
    stream = topology.stream("s", MemoryTransactionalSpout([*BATCHES, [("AA", 7)]], COLUMNS))
    stream.transform(lambda df: df.drop("delay")).partition_persist(AppendTable(f"{schema}.rows"))
    counts = StateTable(f"{schema}.counts", buckets=1)
    stream.group_by("carrier").persistent_aggregate(counts, n=Count())
    run_in_memory(topology, spark, nodes)
    assert shown(spark, f"{schema}.counts") == [("AA", 1)]


@pytest.mark.parametrize(
    ("statement", "name", "message"),
    [
        ("CREATE VIEW {0}.v AS SELECT 1", "spark_catalog.sales.v", r"no Delta table \(view\)"),
        ("CREATE TABLE {0}.p (a INT) USING parquet", "spark_catalog.sales.p", r"\(parquet\)"),
        ("SELECT 1", "spark_catalog.nowhere.t", "SCHEMA_NOT_FOUND"),
        ("SELECT 1", "nowhere.sales.t", r"write \./nowhere\.sales\.t"),
    ],
)
def test_names_that_cannot_be_tables_are_refused(
    spark: SparkSession, schema: str, statement: str, name: str, message: str
) -> None:
    """A view, another format, a schema and a catalog that are not there: nothing is written."""
    spark.sql(statement.format(schema))
    with pytest.raises(TopologyError, match=message) as refused:
        run_in_memory(totals(name), spark)
    assert refused.value.number == "TXN-127"


def test_a_registered_table_without_a_folder_is_refused(
    spark: SparkSession, schema: str, warehouse: Path
) -> None:
    """The catalog has the name, and its folder is gone: no new table is made in its place."""
    spark.sql(f"CREATE TABLE {schema}.t (a INT) USING delta LOCATION '{warehouse}/t'")
    (warehouse / "t").rename(warehouse / "away")
    with pytest.raises(TopologyError, match="DELTA_PATH_DOES_NOT_EXIST"):
        run_in_memory(totals(f"{schema}.t"), spark)


def test_a_folder_called_like_a_name_stays_a_path(
    spark: SparkSession, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one unless the catalog has that name as well: then the program has to say which."""
    monkeypatch.chdir(tmp_path)
    run_in_memory(totals(f"./{schema}.delays"), spark)
    assert (tmp_path / f"{schema}.delays" / "_delta_log").is_dir()
    assert len(StateTable(f"{schema}.delays").to_pandas()) == 3
    assert shown(spark, f"{schema}.delays") == TOTALS
    run_in_memory(totals(tmp_path / "warehouse" / "delays"), spark)
    place = f"'{tmp_path}/warehouse/delays'"
    spark.sql(f"CREATE TABLE {schema}.delays USING delta LOCATION {place}")
    with pytest.raises(TopologyError, match="could be two tables") as refused:
        shown(spark, f"{schema}.delays")
    assert refused.value.number == "TXN-127"


def test_a_name_taken_meanwhile_is_not_published_into(
    spark: SparkSession, schema: str, warehouse: Path
) -> None:
    """Another table gets the name between the start and the first batch: refused."""
    other = f"CREATE TABLE IF NOT EXISTS {schema}.rows (a INT) USING delta LOCATION"
    topology = Topology("rows")
    taken = topology.stream("s", source()).transform(
        lambda df: spark.sql(f"{other} '{warehouse}/other'") and df
    )
    taken.partition_persist(AppendTable(f"{schema}.rows"))
    with pytest.raises(TableRefusedError, match="has another table as") as refused:
        run_in_memory(topology, spark)
    assert refused.value.number == "TXN-317"


def test_hive_metastore_keeps_names_between_processes(tmp_path: Path) -> None:
    """Hive's metastore in Derby: made and renamed in one process, found in the next by both."""
    for step in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.committers.hive_program", step, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "tables": ["by_carrier"],
        "old name": [["AA", 2], ["UA", 11]],
        "new name": [["AA", 2], ["B6", 5], ["UA", 11]],
        "type": "EXTERNAL",
    }


PROGRAM = """
from txn import Topology
from spouts.memory import MemoryTransactionalSpout
from committers.append_table import AppendTable
t = Topology("t")
rows = t.stream("s", MemoryTransactionalSpout([[("a",)]], "k string"))
rows.partition_persist(AppendTable("spark_catalog.default.letters"))
"""


def test_the_command_line_runs_a_program_with_names(tmp_path: Path) -> None:
    """`txn run` finds the folder once Spark is there; `txn plan` says that it needs Spark."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def txn(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "txn", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    planned = txn("plan", "program.py:t")
    assert (planned.returncode, planned.stdout) == (1, "")
    assert "spark_catalog.default.letters" in planned.stderr
    assert "--columns" in planned.stderr
    ran = txn("run", "program.py:t", "--until", "caught_up", "--master", "local[2]")
    assert ran.returncode == 0, ran.stderr[-3000:]
    folder = str(tmp_path / "spark-warehouse" / "letters")
    assert AppendTable(folder).to_arrow().to_pylist() == [{"k": "a", "txid": 1}]
    planned = txn("plan", "program.py:t", "--columns", "--master", "local[2]", "--json")
    (table,) = json.loads(planned.stdout)["tables"]
    assert (table["name"], planned.returncode) == (folder, 0)


def test_without_spark_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says how to find the folder, and makes none of that name."""
    monkeypatch.chdir(tmp_path)
    for table in (StateTable("lake.sales.delays"), AppendTable("lake.sales.delays")):
        with pytest.raises(
            TopologyError, match=r"DESCRIBE EXTENDED lake\.sales\.delays"
        ) as refused:
            table.to_pandas()
        assert refused.value.number == "TXN-127"
    topology = rows(AppendTable("lake.sales.delays"))
    with pytest.raises(TopologyError, match="its folder is unknown without Spark"):
        read_tables(topology)
    assert [*tmp_path.iterdir()] == []


def test_a_path_object_is_never_a_name() -> None:
    """`Path` names a folder, whatever it looks like."""
    assert StateTable(Path("lake.sales.delays")).path == "./lake.sales.delays"
