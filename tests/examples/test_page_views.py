"""The page views of a real topic, held against the counts of the producer's own list."""

from __future__ import annotations

import json
import os
import random
import runpy
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spouts.kafka_broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "page_views.py"


@pytest.fixture
def topic(kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The example's topic, in an empty folder with the brokers set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXN_KAFKA", kafka.servers)
    kafka.create("page-views", 3)
    yield "page-views"
    kafka.delete("page-views")


def test_every_view_is_counted_once(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    kafka: Broker,
    topic: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two runs over a growing topic count each view once, and the docstring shows the totals.

    The second run is `txn run` by itself.
    """
    draw = random.Random(7)
    page_views = runpy.run_path(str(EXAMPLE))
    counts: Counter[str] = Counter()
    for run in range(2):
        for partition in range(3):
            pages = [draw.choice(["/", "/a", "/b"]) for _ in range(40)]
            kafka.produce(topic, [json.dumps({"page": p, "user": "u"}) for p in pages], partition)
            counts.update(pages)
        if run == 0:
            page_views["topology"].run(spark, zookeeper=zookeeper.hosts, until="caught_up")
        else:
            txn_run(zookeeper.hosts)
        stored = page_views["counts"].read(spark).collect()
        assert {row["page"]: row["views"] for row in stored} == counts
    capsys.readouterr()
    page_views["counts"].read(spark).orderBy("page").show()
    assert textwrap.indent(capsys.readouterr().out.strip(), "    ") in page_views["__doc__"]


def txn_run(zookeeper: str) -> None:
    """Run the example as a user does: it gets Spark's Kafka source by itself."""
    what = ["run", f"{EXAMPLE}:topology", "--until", "caught_up"]
    ended = subprocess.run(
        [sys.executable, "-m", "txn", *what, "--zookeeper", zookeeper, "--master", "local[2]"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
