"""A program whose rows are set aside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.operations.test_row_replays import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper


@pytest.fixture
def world(
    tmp_path: Path,
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """A folder with a program, in which the test works; its source reads `in`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return World(tmp_path, spark, f"{zookeeper.hosts}/{tmp_path.name}", "ruled")
