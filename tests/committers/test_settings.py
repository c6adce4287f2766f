"""What the session says changes nothing that a table stores, or the run is refused by name."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from committers.aggregates import (
    Avg,
    BitXor,
    CollectSet,
    Count,
    CountDistinct,
    First,
    FirstN,
    Fold,
    Max,
    Min,
    Sum,
    Variance,
)
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from tests.committers.conftest import Driver
from txn import Topology
from txn.errors import TableRefusedError, TopologyError
from txn.interfaces import Committer, CommitterContext

OTHER = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.session.timeZone": "Asia/Kathmandu",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
LEGACY = {
    f"spark.sql.legacy.{flag}": "true"
    for flag in (
        "allowHashOnMapType",
        "allowNegativeScaleOfDecimal",
        "castComplexTypesToString.enabled",
        "charVarcharAsString",
        "decimal.retainFractionDigitsOnTruncate",
        "disableMapKeyNormalization",
        "doLooseUpcast",
        "integerGroupingId",
        "interval.enabled",
        "negativeIndexInArrayInsert",
        "parquet.nanosAsLong",
        "statisticalAggregate",
        "typeCoercion.datetimeToString.enabled",
    )
} | {
    "spark.sql.legacy.followThreeValuedLogicInArrayExists": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.legacy.sizeOfNull": "false",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}
ROWS = """SELECT id % 3 AS k, timestamp_micros(id % 2 * 86400000001 - 62135596800000000) AS t,
    id AS l, int(id) AS i, CAST(id AS decimal(38,18)) / 7 AS w, CAST(id AS decimal(9,2)) AS m,
    double(id) / 3 AS d, string(id) AS s, map(id, 'x') AS p FROM range({first}, {end})"""
EXACT = {"n": Count(), "l": Sum("l"), "w": Sum("w"), "mean": Avg("m"), "wide": Avg("w"),
    "low": Min("t"), "high": Max("w"), "bits": BitXor("i"), "spread": Variance("i"),
    "first": First("t", "l"), "rows": FirstN(2, "l", "t", "w"), "set": CollectSet("t", 3),
    "about": CountDistinct("s")}  # fmt: skip
FOLD = Fold("CAST(0 AS decimal(38,10))", "CAST(acc + row.m AS decimal(38,10))", "l", "m")


def committers(folder: Path) -> dict[str, Committer]:
    """One table of each kind."""
    upsert = StateTable(folder / "upsert", "opaque", buckets=2, remove_where="n > 1000")
    return {
        "append": AppendTable(folder / "append"),
        "upsert": upsert.bind(["k", "t"], {**EXACT, "fold": FOLD}),
        "log": StateTable(folder / "log", layout="log").bind(["k", "t"], EXACT),
    }


def stored(session: SparkSession, folder: Path) -> dict[str, Any]:
    """What every table holds after two batches, as Arrow has it: bit for bit."""
    own, found = Driver(session), {}
    for name, committer in committers(folder).items():
        for txid in (1, 2):
            # Columns whose values no setting changes; a literal of the user's is the user's.
            batch = session.sql(ROWS.format(first=(txid - 1) * 20, end=txid * 20))
            batch = batch.withColumn("w", sf.col("l").cast("decimal(38,18)"))
            if txid == 1:
                schema = committer.partials(batch).schema
                committer.open(session, CommitterContext("tests", 1), schema)
                committer.fence()
            own.commit(committer, batch, txid)
        table = DeltaTable(str(folder / name)).to_pyarrow_table()
        columns = sorted(table.column_names)
        types = {column: str(table.schema.field(column).type) for column in columns}
        rows = sorted(repr([row[column] for column in columns]) for row in table.to_pylist())
        found[name] = types, rows
    return found


def test_no_setting_changes_what_is_stored(driver: Any, warehouse: Path) -> None:
    """The same rows give the same tables, bit for bit, whatever the Spark session's settings."""
    spark: SparkSession = driver.spark
    wanted = stored(spark.newSession(), warehouse / "plain")
    for name, settings in (("other", OTHER), ("legacy", LEGACY)):
        session = spark.newSession()
        for key, value in settings.items():
            session.conf.set(key, value)
        assert stored(session, warehouse / name) == wanted


def test_a_table_remembers_the_settings_that_decide_what_a_row_becomes(
    driver: Any, warehouse: Path
) -> None:
    """Another time zone, ANSI mode or legacy flag is refused by name; the ways out work."""
    schema = "k string, v bigint"

    def opened(settings: Mapping[str, str], epoch: int) -> Committer:
        session = driver.spark.newSession()
        for key, value in settings.items():
            session.conf.set(key, value)
        return Driver(session).open(AppendTable(warehouse / "t"), schema, epoch)

    zone, ansi, flag = "spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.legacy"
    flag += ".allowHashOnMapType"
    made = {zone: "UTC", flag: "true"}
    driver.commit(opened(made, 1), driver.frame([("a", 1)], schema), 1)
    opened({zone: "Etc/UTC", flag: "true"}, 2)  # another name of the same
    for setting, value in ((zone, "Asia/Tokyo"), (ansi, "false"), (flag, "default")):
        other = {**made, setting: value}
        if value == "default":
            del other[flag]
        with pytest.raises(TableRefusedError, match=f"{setting} = ") as refused:
            opened(other, 3)
        way_out = re.search(r"ALTER TABLE [^)]*\)", str(refused.value))
        assert way_out is not None
        driver.spark.sql(way_out[0])
        opened(other, 3)
        made = other
    names = ", ".join(
        f"'{key}'"
        for key in DeltaTable(str(warehouse / "t")).metadata().configuration
        if key.startswith("txn.session.")
    )
    # Where nothing is recorded, nothing is refused.
    driver.spark.sql(f"ALTER TABLE delta.`{warehouse / 't'}` UNSET TBLPROPERTIES ({names})")
    opened({zone: "America/New_York"}, 4)


def test_a_topology_under_other_settings_is_refused_and_goes_on_with_the_right_ones(
    driver: Any, zookeeper: Any, warehouse: Path
) -> None:
    """A run is refused if its time zone, ANSI mode or a legacy flag differs from those that its
    tables were created with, and the error names the setting. Settings that change while it runs
    stop it.
    """
    day = 24 * 3600
    batches = [[(0,)], [(day - 1,)], [(day,)]]

    def topology(transform: Any) -> Topology:
        made = Topology("zones")
        stream = made.stream("m", MemoryTransactionalSpout(batches, "s bigint"))
        days = stream.transform(transform)
        days.group_by("day").persistent_aggregate(StateTable(warehouse / "t"), n=Count())
        return made

    def session(zone: str) -> SparkSession:
        found: SparkSession = driver.spark.newSession()
        found.conf.set("spark.sql.session.timeZone", zone)
        found.range(2 * day).withColumnRenamed("id", "s").createOrReplaceTempView("known")
        return found

    def by_day(rows: DataFrame) -> DataFrame:
        # What only the user's session knows is known to a transform.
        ours = rows.sparkSession.table("known")
        return rows.join(ours, "s").selectExpr("string(to_date(timestamp_seconds(s))) AS day")

    def meddling(rows: DataFrame) -> DataFrame:
        rows.sparkSession.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        return by_day(rows)

    hosts, utc = zookeeper.hosts, session("UTC")
    topology(by_day).run(utc, zookeeper=hosts, until=1)
    with pytest.raises(
        TableRefusedError, match="timeZone = UTC, but this session has .*Asia/Tokyo"
    ):
        topology(by_day).run(session("Asia/Tokyo"), zookeeper=hosts, until=2)
    with pytest.raises(TopologyError, match="changed from UTC to Asia/Tokyo in the session"):
        topology(meddling).run(utc, zookeeper=hosts, until="caught_up")
    topology(by_day).run(session("UTC"), zookeeper=hosts, until="caught_up")
    found = StateTable(warehouse / "t").read(driver.spark).collect()
    assert sorted(map(tuple, found)) == [("1970-01-01", 2), ("1970-01-02", 1)]


def test_what_asks_the_thread_finds_the_session_that_the_topology_runs_in(
    spark: SparkSession, warehouse: Path
) -> None:
    """In every thread of a run, types written as text and the active session are the user's.

    The columns are first worked out in the thread that starts the topology, and then in those that
    stage: they must be the same, whatever the first session of the process says.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    session.range(1).createTempView("mine")

    def dated(rows: DataFrame) -> DataFrame:
        mine = SparkSession.active().table("mine").withColumnRenamed("id", "one")
        return rows.withColumn("t", sf.lit("2026-11-22 20:00:00").cast("timestamp")).join(mine)

    topology = Topology("threads")
    batches = [[(dt.datetime(2026, 11, 22),)], [(dt.datetime(2026, 11, 23),)]]
    stream = topology.stream("s", MemoryTransactionalSpout(batches, "at timestamp"))
    for name in ("one", "two"):
        stream.transform(dated).partition_persist(AppendTable(str(warehouse / name)))
    report = topology.run(session, zookeeper=f"embedded:{warehouse}/zk", until="caught_up")
    assert report.committed_txid == 2
    found = spark.read.format("delta").load(str(warehouse / "two")).drop("txid")
    assert found.dtypes == [("at", "timestamp_ntz"), ("t", "timestamp_ntz"), ("one", "bigint")]
    assert sorted(row.at for row in found.collect()) == [row[0] for (row,) in batches]


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_what_a_table_answers_has_the_columns_that_were_known_before(
    spark: SparkSession, zookeeper: Any, warehouse: Path, layout: Any
) -> None:
    """Settings for decimals and joins change neither new values nor the answers of queries."""
    session = spark.newSession()
    session.conf.set("spark.sql.decimalOperations.allowPrecisionLoss", "false")
    session.conf.set("spark.sql.crossJoin.enabled", "false")
    batches = [[("a", Decimal(1))], [("a", Decimal(2)), ("b", Decimal(5))]]
    topology = Topology(f"answers-{layout}")
    stream = topology.stream("s", MemoryTransactionalSpout(batches, "k string, w decimal(38,18)"))
    table = StateTable(warehouse / "means", layout=layout)
    state = stream.group_by("k").persistent_aggregate(table, mean=Avg("w"))
    told = {"changes": state.new_values()}
    told |= {p: stream.state_query(state, ["k"], as_of=p) for p in ("txid-1", "committed")}
    for name, rows in told.items():
        rows.partition_persist(AppendTable(warehouse / name))
    topology.run(session, zookeeper=zookeeper.hosts, until="caught_up")
    found = {name: AppendTable(warehouse / name).read(spark).collect() for name in told}
    one, half, five = Decimal(1), Decimal("1.5"), Decimal(5)
    told = sorted((r.txid, r.k, r.prev_mean, r.mean) for r in found["changes"])
    assert told == [(1, "a", None, one), (2, "a", one, half), (2, "b", None, five)]
    assert sorted((r.txid, r.k, r.mean) for r in found["txid-1"]) == [
        (1, "a", None),
        (2, "a", one),
        (2, "b", None),
    ]
