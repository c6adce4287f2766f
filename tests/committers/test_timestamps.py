"""Timestamps in every table: microseconds in UTC, whatever the session says, for every reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from committers.aggregates import Avg, CollectSet, First, FirstN, Last, Max, Min, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from tests.committers.conftest import Driver
from txn.interfaces import Committer, CommitterContext
from txn.interfaces.committer_capabilities import MaintainsTable

EDGES = [
    "0001-01-01 00:00:00",
    "1582-10-04 23:59:59.999999",
    "1582-10-10 12:00:00",
    "1582-10-15 00:00:00",
    "1883-11-18 12:03:57",
    "1969-12-31 23:59:59.999999",
    "2262-04-11 23:47:16.854776",
    "9999-12-31 23:59:59.999999",
]
MOST = 2**63 - 1
"""The latest moment of timestamp_ntz, in microseconds; Parquet holds it, and so does Delta."""
WRONG = {
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.session.timeZone": "America/New_York",
}

MICROS = (
    "unix_micros(t) t",
    "unix_micros(to_timestamp_ltz(string(z) || ' UTC')) z",
    "unix_date(d) d",
)


def times(spark: SparkSession) -> DataFrame:
    """A row per edge, made of microseconds so that no time zone has a say, and the outer limits."""
    ntz = ", ".join(f"({number}, TIMESTAMP_NTZ'{edge}')" for number, edge in enumerate(EDGES))
    micros = "unix_micros(to_timestamp_ltz(string(z) || ' UTC'))"
    rows = spark.sql(
        f"SELECT bigint(k) k, timestamp_micros({micros}) t, z, date(z) d, decimal(k) / 4 w "
        f"FROM VALUES {ntz} AS v(k, z)"
    ).selectExpr("k", "t", "z", "d", "CAST(w AS decimal(9,2)) w")
    return rows.selectExpr("*", "named_struct('t', t, 'a', array(t, NULL)) s")


def committers(folder: Path) -> dict[str, Committer]:
    """Every kind of table, with timestamps as keys, values and inside of structs."""
    values = {
        "low": Min("t"), "high": Max("z"), "first": First("s", "t"), "last": Last("t", "z"),
        "rows": FirstN(2, "t", "z"), "set": CollectSet("t", 5), "sum": Sum("w"), "mean": Avg("w"),
    }  # fmt: skip
    made: dict[str, Committer] = {"append": AppendTable(folder / "append")}
    for layout in ("upsert", "log"):
        state = StateTable(
            folder / layout, layout=layout, buckets=2, compact_files=2, compact_share=1
        )
        made[layout] = state.bind(["t", "z", "d"], values)
    return made


def physical_types(folder: Path) -> dict[str, set[str]]:
    """Physical types of all Parquet columns below a folder, staged files included, by file kind."""
    found: dict[str, set[str]] = {}
    for file in folder.rglob("*.parquet"):
        schema = parquet.ParquetFile(file).schema
        kinds = found.setdefault(file.relative_to(folder).parts[0], set())
        for index in range(len(schema)):
            column = schema.column(index)
            kinds.add(column.physical_type)
            if column.logical_type.type == "TIMESTAMP":
                assert "timeUnit=microseconds" in str(column.logical_type)
    return found


@pytest.mark.parametrize("session", ["default", "wrong"])
def test_timestamps_are_microseconds_in_utc_everywhere(
    driver: Any, warehouse: Path, session: str
) -> None:
    """Every file of every table stores timestamps as microseconds in UTC, and every reader reads
    the same. No INT96, no Julian dates.
    """
    spark = driver.spark.newSession()
    for key, value in WRONG.items() if session == "wrong" else ():
        spark.conf.set(key, value)
    own = Driver(spark)
    rows = times(spark)
    for name, committer in committers(warehouse).items():
        committer.open(spark, CommitterContext("tests", 1), committer.partials(rows).schema)
        committer.fence()
        staged = [own.stage(committer, rows, txid) for txid in (1, 2)]
        kinds = physical_types(warehouse / name)
        for one in staged:
            own.turn(committer, one)
        publish = committer.maintain(2) if isinstance(committer, MaintainsTable) else None
        assert (publish is not None) == (name == "log")
        if publish is not None:
            publish()
        kinds |= physical_types(warehouse / name)
        assert kinds
        assert all("INT96" not in found for found in kinds.values())
    wanted = [tuple(row) for row in rows.selectExpr(*MICROS).orderBy("d", "t").collect()]
    assert wanted[0][0] == -62135596800000000
    assert wanted[-1][0] == 253402300799999999
    for name in ("append", "upsert", "log"):
        path = str(warehouse / name)
        found = spark.read.format("delta").load(path).selectExpr(*MICROS).distinct()
        assert [tuple(row) for row in found.orderBy("d", "t").collect()] == wanted
        plain = DeltaTable(path).to_pyarrow_table(columns=["t", "z"])
        assert str(plain.schema.field("t").type) == "timestamp[us, tz=UTC]"
        assert str(plain.schema.field("z").type) == "timestamp[us]"
        raw = [plain[column].cast("int64").to_pylist() for column in "tz"]
        assert set(zip(*raw, strict=True)) == {row[:2] for row in wanted}


def test_the_outer_limits_of_timestamps_are_kept(driver: Any, warehouse: Path) -> None:
    """The first and last microsecond of 64 bits come back as they were, in both types."""
    both = "timestamp_micros(m) t, timestamp_micros(m)::timestamp_ntz z"
    spark = driver.spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = spark.sql(f"SELECT {both} FROM VALUES (-{MOST}L - 1L), ({MOST}L) AS v(m)")
    own, table = Driver(spark), AppendTable(warehouse / "t")
    table.open(spark, CommitterContext("tests", 1), rows.schema)
    table.fence()
    own.commit(table, rows, 1)
    files = [parquet.read_table(file) for file in (warehouse / "t" / "data").rglob("*.parquet")]
    for column in "tz":
        held = [value for file in files for value in file[column].cast("int64").to_pylist()]
        assert sorted(held) == [-MOST - 1, MOST]
    back = table.read(spark).selectExpr("unix_micros(t) t").collect()
    assert sorted(row["t"] for row in back) == [-MOST - 1, MOST]


def test_a_table_with_int96_files_goes_on(driver: Any, warehouse: Path) -> None:
    """Files that others have written as INT96 are read, rewritten and compacted as before."""
    for name, committer in committers(warehouse).items():
        spark = driver.spark.newSession()
        rows = times(spark)
        committer.open(spark, CommitterContext("tests", 1), committer.partials(rows).schema)
        committer.fence()
        first = driver.stage(committer, rows, 1)
        for file in first.files:
            _as_int96(spark, warehouse / name / file.path)
        sizes = [(warehouse / name / f.path).stat().st_size for f in first.files]
        files = tuple(replace(f, size=s) for f, s in zip(first.files, sizes, strict=True))
        driver.turn(committer, replace(first, files=files))
        driver.turn(committer, driver.stage(committer, rows, 2))
        if isinstance(committer, MaintainsTable) and (publish := committer.maintain(2)):
            publish()
        found = spark.read.format("delta").load(str(warehouse / name)).selectExpr(*MICROS)
        wanted = [tuple(row) for row in rows.selectExpr(*MICROS).orderBy("d", "t").collect()]
        assert [tuple(r) for r in found.distinct().orderBy("d", "t").collect()] == wanted


def _as_int96(spark: SparkSession, file: Path) -> None:
    """Rewrite a file as Spark does by default."""
    out = file.parent / f".{file.name}.int96"
    spark.read.parquet(str(file)).coalesce(1).write.option("compression", "none").parquet(str(out))
    (made,) = out.glob("*.parquet")
    assert any(
        parquet.ParquetFile(made).schema.column(i).physical_type == "INT96"
        for i in range(len(parquet.ParquetFile(made).schema))
    )
    made.replace(file)
