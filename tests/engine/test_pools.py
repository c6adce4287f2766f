"""The pools in which the stations of a topology run their Spark jobs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from urllib.request import url2pathname
from xml.etree import ElementTree as ET

import pytest

from txn.engine.work.jobs import COMMIT_POOL, MAINTENANCE_POOL, PROCESSING_POOL
from txn.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = "spark.scheduler.allocation.file"
TASK_MS = 25
PROCESSING_TASKS = 160
COMMIT_TASKS = 12


def pools(settings: dict[str, str]) -> dict[str, dict[str, int]]:
    """Pool -> weight and minShare, out of the file that the settings name."""
    path = Path(url2pathname(urlparse(settings[FILE]).path))
    found = {}
    for pool in ET.fromstring(path.read_text("utf-8")).iter("pool"):
        found[pool.attrib["name"]] = {
            name: int(pool.findtext(name) or 0) for name in ("weight", "minShare")
        }
    return found


def run_tasks(spark: SparkSession, tasks: int, pool: str, folder: Path) -> None:
    """Run a job of so many tasks of a few milliseconds each in a pool; each notes when it ended."""
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", pool)
    try:
        spark.range(0, tasks, 1, tasks).selectExpr(
            f"reflect('java.lang.Thread', 'sleep', id * 0 + {TASK_MS}L) AS slept",
            "reflect('java.lang.System', 'nanoTime') AS at",
        ).write.parquet(str(folder))
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]


def ends(spark: SparkSession, folder: Path) -> list[int]:
    """When the tasks of such a job ended, in nanoseconds."""
    return sorted(int(row.at) for row in spark.read.parquet(str(folder)).select("at").collect())


@pytest.mark.parametrize("master", ["local[2]", "yarn", "spark://host:7077"])
def test_every_session_is_given_the_pools(master: str) -> None:
    """A file of the driver's, on any master: commits first, maintenance last."""
    found = pools(session_conf(master, {}))
    commit, processing = found[COMMIT_POOL], found[PROCESSING_POOL]
    maintenance = found[MAINTENANCE_POOL]
    assert commit["weight"] > processing["weight"] > maintenance["weight"] == 1
    assert commit["minShare"] > processing["minShare"] == maintenance["minShare"]
    assert session_conf(master, {})[FILE].startswith("file:///")


def test_a_users_own_pools_win() -> None:
    """Whoever has an allocation file of their own keeps it."""
    assert session_conf("local[2]", {FILE: "/mine.xml"})[FILE] == "/mine.xml"


def test_a_commit_is_not_starved_by_processing(spark: SparkSession, tmp_path: Path) -> None:
    """Every core that gets free serves the commit's tasks first, however many others wait.

    With pools of equal weight the two would take turns: as many tasks of processing would end
    meanwhile as the commit has.
    """
    run_tasks(spark, 1, COMMIT_POOL, tmp_path / "warm")
    processing = threading.Thread(
        target=run_tasks, args=(spark, PROCESSING_TASKS, PROCESSING_POOL, tmp_path / "processing")
    )
    processing.start()
    while not list((tmp_path / "processing").rglob("part-*")):
        time.sleep(0.005)
    run_tasks(spark, COMMIT_TASKS, COMMIT_POOL, tmp_path / "commit")
    processing.join()
    first, *_, last = ends(spark, tmp_path / "commit")
    others = ends(spark, tmp_path / "processing")
    assert others[-1] > last, "the commit came too late to tell"
    # Those that ran already when its first task was begun, and none besides.
    assert sum(first < other < last for other in others) <= 2
