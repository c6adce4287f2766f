"""The page views of a real topic, held against the counts of the producer's own list."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from committers.state_table import StateTable
from examples import page_views as example
from tests.spouts.kafka_broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).parents[2]
TOPIC = "page-views"


@pytest.fixture
def page_views(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The example's module, as loaded with its folder and its brokers set."""
    monkeypatch.setenv("TXN_DEMO_DIR", str(tmp_path))
    monkeypatch.setenv("TXN_KAFKA", kafka.servers)
    kafka.create(TOPIC, 3)
    yield importlib.reload(example)
    kafka.delete(TOPIC)
    monkeypatch.undo()
    importlib.reload(example)


def test_every_view_is_counted_once(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    kafka: Broker,
    page_views: ModuleType,
    tmp_path: Path,
) -> None:
    """Two runs over a growing topic count each view once; the second is `txn run` by itself."""
    draw = random.Random(7)
    counts: Counter[str] = Counter()
    for run in range(2):
        for partition in range(3):
            pages = [draw.choice(["/", "/a", "/b"]) for _ in range(40)]
            kafka.produce(TOPIC, [json.dumps({"page": p, "user": "u"}) for p in pages], partition)
            counts.update(pages)
        if run == 0:
            page_views.topology.run(spark, zookeeper=zookeeper.hosts, until="caught_up")
        else:
            txn_run(tmp_path, zookeeper.hosts)
        stored = StateTable(f"{page_views.BASE}/tables/page_views").read(spark).collect()
        assert {row["page"]: row["views"] for row in stored} == counts


def txn_run(folder: Path, zookeeper: str) -> None:
    """Run the example as a user does: it gets Spark's Kafka source without being told."""
    what = ["run", f"{example.__file__}:topology", "--until", "caught_up"]
    said = subprocess.run(
        [sys.executable, "-m", "txn", *what, "--zookeeper", zookeeper, "--master", "local[2]"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        timeout=280,
    )
    assert said.returncode == 0, said.stdout + said.stderr


def test_the_example_is_short() -> None:
    """The whole file stays within forty lines, without its docstring."""
    lines = Path(example.__file__).read_text(encoding="utf-8").split('"""', 2)[2].splitlines()
    assert len([line for line in lines if line.strip()]) < 40
