"""Two tables of one stream agree row for row, whatever becomes of the blocks between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from tests.faults.harness import ROOT, Spec
from tests.faults.shared_rows_driver import RECORDS, marked
from tests.faults.test_executor_loss import CLUSTER, CONF
from txn import Topology, TopologyConfig
from txn.interfaces import SpoutKind

KINDS = ("transactional", "opaque")
ONE_TASK_EACH = {
    **CONF,
    "spark.scheduler.minRegisteredResourcesRatio": "1",
    "spark.shuffle.reduceLocality.enabled": "false",
}
"""Each of the two executors gets one of two tasks."""


@pytest.mark.parametrize(
    ("at", "kind"),
    [("between", "transactional"), ("between", "opaque"), ("within", "opaque")],
)
def test_tables_of_a_txid_agree_after_an_executor_died(
    tmp_path: Path, at: str, kind: str, spark: SparkSession
) -> None:
    """Rows that several tables read are computed once in an attempt; losing a block of them fails
    the attempt.
    """
    one, two = _driven(spark, tmp_path, kind=kind, at=at, master=CLUSTER)
    assert len(one) == RECORDS
    assert one == two
    attempts = (tmp_path / "attempts.log").read_text().split()
    # Between the tables all of the first attempt's rows are there, and one block is lost.
    assert attempts == ["2:0", "2:0", *(["2:1", "2:1"] if at == "between" else [])]


COPIES = """
import json
import sys
from pyspark import StorageLevel
from txn.engine.base.shared_rows import SharedRows, require_one_copy
from txn.errors import FailedException
from txn.session import delta_session

spark = delta_session("copies", sys.argv[1], json.loads(sys.argv[2]))
shared = SharedRows(spark, spark)
rows = shared.keep(spark.range(100), "once")
shared.compute()
require_one_copy([shared], spark)
twice = spark.range(100).localCheckpoint(storageLevel=StorageLevel.DISK_ONLY_2)
shared.kept.append(twice)
try:
    require_one_copy([shared], spark)
except FailedException as error:
    print("refused", error.number)
"""


def test_an_attempt_fails_if_rows_that_tables_share_are_there_twice() -> None:
    """Two copies of shared rows fail the attempt: tables may have read either."""
    ran = subprocess.run(
        [sys.executable, "-c", COPIES, CLUSTER, json.dumps(ONE_TASK_EACH)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.stdout.split() == ["refused", "TXN-522"], ran.stderr[-3000:]


def _driven(spark: SparkSession, folder: Path, **given: Any) -> list[dict[str, str]]:
    """Run the driver; the marks in its two tables."""
    spec = Spec(
        folder=str(folder),
        zookeeper=f"embedded:{folder}/zookeeper",
        conf=ONE_TASK_EACH,
        config={"shared_folders": [str(folder)], "max_spout_pending": 1},
        **given,
    )
    command = [sys.executable, "-m", "tests.faults.shared_rows_driver", spec.model_dump_json()]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        timeout=500,
        check=False,
        start_new_session=True,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    return [_marks(spark, folder / name) for name in ("one", "two")]


def clearing(rows: DataFrame) -> DataFrame:
    """The rows as they are, and nothing cached any more."""
    rows.sparkSession.catalog.clearCache()
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_a_txid_agree_though_a_transform_clears_the_cache(
    spark: SparkSession, zookeeper: Any, tmp_path: Path, kind: Any
) -> None:
    """What the user's code does to Spark's cache does not reach rows that tables share."""
    topology = Topology(f"cleared-{kind}", TopologyConfig())
    stream = topology.stream("m", _spout(kind)).transform(marked)
    stream.partition_persist(AppendTable(tmp_path / "one", semantics=kind))
    stream.transform(clearing).partition_persist(AppendTable(tmp_path / "two", semantics=kind))
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    one, two = (_marks(spark, tmp_path / name) for name in ("one", "two"))
    assert len(one) == 8
    assert one == two


def test_a_rule_and_a_table_agree_on_rows_that_are_made_at_random(
    spark: SparkSession, zookeeper: Any, tmp_path: Path
) -> None:
    """A table behind a rule and one beside it hold the same rows, but those that broke it."""
    topology = Topology("released", TopologyConfig())
    stream = topology.stream("m", _spout("transactional")).transform(marked)
    kept = stream.expect("few", sf.col("v") < 7, on_violation="drop")
    kept.partition_persist(AppendTable(tmp_path / "one"))
    stream.partition_persist(AppendTable(tmp_path / "two"))
    topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    one, two = (_marks(spark, tmp_path / name) for name in ("one", "two"))
    assert one == {key: mark for key, mark in two.items() if key != "k7"}


class OpaqueSpout(MemoryTransactionalSpout):
    """The same batches, of which nobody promises that they are."""

    kind = SpoutKind.OPAQUE


def _spout(kind: str) -> MemoryTransactionalSpout:
    made = MemoryTransactionalSpout if kind == "transactional" else OpaqueSpout
    batches = [[(f"k{n}", n) for n in range(start, start + 4)] for start in (0, 4)]
    return made(batches, "k string, v bigint")


def _marks(spark: SparkSession, table: Path) -> dict[str, str]:
    return {row.k: row.mark for row in AppendTable(table).read(spark).collect()}
