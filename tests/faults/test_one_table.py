"""One table under another name: in the same run, and in the next one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout
from tests.faults.support import rows_of
from txn import Topology
from txn.errors import RecoveryRefusedError, TableRefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper


def run(
    spark: SparkSession, hosts: str, batches: int, rows: str, totals: str, others: tuple[str, ...]
) -> int:
    """A row a batch into `rows`, with what `totals` has committed for its key; the newest txid."""
    topology = Topology("named")
    spout = MemoryOpaqueSpout({(txid, 0): [("a",)] for txid in range(1, batches + 1)}, "k string")
    stream = topology.stream("s", spout)
    state = stream.group_by("k").persistent_aggregate(StateTable(totals), n=Count())
    stream.state_query(state, on="k").partition_persist(AppendTable(rows))
    for other in others:
        stream.partition_persist(AppendTable(other))
    return topology.run(spark, zookeeper=hosts, until=batches).committed_txid


@pytest.fixture
def mounted(warehouse: Path) -> Iterator[tuple[str, str]]:
    """Two folders that are one, as no path tells."""
    one, other = warehouse / "one", warehouse / "other"
    one.mkdir()
    other.mkdir()
    subprocess.run(["mount", "--bind", str(one), str(other)], check=True)
    yield str(one), str(other)
    subprocess.run(["umount", str(other)], check=True)


def test_two_names_of_one_table_are_told_by_its_id(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, warehouse: Path, mounted: tuple[str, str]
) -> None:
    """Two committers of a run never share a table, whatever names they use for it."""
    hosts = f"{zookeeper.hosts}/{warehouse.parent.name}"
    for _ in range(2):  # when the table is made, and when it is there
        with pytest.raises(TableRefusedError, match="/one' and '.*/other' are one table under two"):
            run(spark, hosts, 1, f"{warehouse}/rows", f"{warehouse}/totals", mounted)
    assert rows_of(warehouse / "one", "k") == []


def test_a_table_that_is_named_otherwise_in_the_next_run(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table that is spelled differently or was moved is recognised or refused by name, and never
    becomes a new table.
    """
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    (tmp_path / "W").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(spark, hosts, 1, "W/rows", "W/totals", ()) == 1
    # Other spellings of the same places; a query still knows the version that is committed.
    assert run(spark, hosts, 2, f"{tmp_path}//W/rows", "file:" + f"{tmp_path}/W/totals", ()) == 2
    assert rows_of(tmp_path / "W/rows", "txid", "n", key=str) == [(1, None), (2, 1)]
    # The working directory moved with the names: nothing is there.
    monkeypatch.chdir(tmp_path / "W")
    with pytest.raises(RecoveryRefusedError, match="knows table .*; the program names table"):
        run(spark, hosts, 3, "W/rows", "W/totals", ())
    assert sorted(path.name for path in (tmp_path / "W").iterdir()) == ["rows", "totals"]
    # The tables themselves moved.
    (tmp_path / "W").rename(tmp_path / "V")
    assert run(spark, hosts, 3, f"{tmp_path}/V/rows", f"{tmp_path}/V/totals", ()) == 3
    assert rows_of(tmp_path / "V/rows", "txid", "n", key=str) == [(1, None), (2, 1), (3, 2)]
    # One was deleted, and is written otherwise.
    (tmp_path / "V/rows").rename(tmp_path / "gone")
    with pytest.raises(RecoveryRefusedError, match="holds txid none, but ZooKeeper"):
        run(spark, hosts, 4, f"{tmp_path}/V//rows", f"{tmp_path}/V/totals", ())
    assert not (tmp_path / "V/rows").exists()
