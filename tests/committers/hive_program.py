"""A topology whose table has a name in Hive's metastore, in two processes one after the other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from committers.aggregates import Sum
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.session import delta_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SALES = "spark_catalog.sales"
BATCHES = [[("UA", 1), ("AA", 2)], [("UA", 10)], [("B6", 5)]]


def session(folder: Path) -> SparkSession:
    """A session whose metastore is Hive's, in a Derby database of the folder."""
    database = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    return delta_session("hive", "local[2]", conf)


def run(spark: SparkSession, folder: Path, table: str, batches: int) -> list[list[object]]:
    """The totals after so many batches, read by the name of the table."""
    topology = Topology("totals")
    rows = topology.stream(
        "s", MemoryTransactionalSpout(BATCHES[:batches], "carrier string, d int")
    )
    state = StateTable(table, buckets=1)
    rows.group_by("carrier").persistent_aggregate(state, delay=Sum("d"))
    topology.run(spark, zookeeper=f"embedded:{folder}/zookeeper", until="caught_up")
    return sorted(map(list, StateTable(topology.sinks[0].name).read(spark).collect()))


def first(spark: SparkSession, folder: Path) -> None:
    """Make the table, then rename it in the catalog."""
    spark.sql("CREATE SCHEMA sales")
    run(spark, folder, f"{SALES}.delays", 1)
    spark.sql(f"ALTER TABLE {SALES}.delays RENAME TO sales.by_carrier")


def second(spark: SparkSession, folder: Path) -> None:
    """Go on under both names; report what the catalog has."""
    old = run(spark, folder, f"{SALES}.delays", 2)
    new = run(spark, folder, f"{SALES}.by_carrier", 3)
    described = spark.sql(f"DESCRIBE EXTENDED {SALES}.by_carrier").collect()
    report = {
        "tables": [row.tableName for row in spark.sql(f"SHOW TABLES IN {SALES}").collect()],
        "old name": old,
        "new name": new,
        "type": next(row[1] for row in described if row[0] == "Type"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    _, step, place = sys.argv
    {"first": first, "second": second}[step](session(Path(place)), Path(place))
