"""What a session is given for a topology, before anything is asked over a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from committers.append_table import AppendTable
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.interfaces import Spout
from txn.machine.jars import S3A_PACKAGES
from txn.operations.packages import packages_of

SCHEMA = "k string, v bigint"


def topology(table: str, spout: Spout | None = None) -> Topology:
    """Rows of a spout in one table."""
    made = Topology("t")
    rows = made.stream("s", spout or MemoryTransactionalSpout([[("a", 1)]], SCHEMA))
    rows.partition_persist(AppendTable(table))
    return made


@pytest.mark.parametrize("table", ["s3://lake/rows", "s3a://lake/rows", "S3N://lake/rows"])
def test_a_table_on_s3_brings_sparks_client(table: str) -> None:
    """Under each of its names."""
    assert packages_of(topology(table), {}) == [*S3A_PACKAGES]


@pytest.mark.parametrize(
    "spout",
    [FileSpout("s3://lake/in/*.csv", format="csv", schema=SCHEMA), DeltaSpout("s3a://lake/orders")],
    ids=["files", "delta"],
)
def test_a_source_on_s3_brings_it_too(tmp_path: Path, spout: Spout) -> None:
    """Whatever the tables are."""
    assert packages_of(topology(str(tmp_path / "rows"), spout), {}) == [*S3A_PACKAGES]


def test_elsewhere_there_is_nothing_to_bring(tmp_path: Path) -> None:
    """A folder called s3 is a folder; Azure's client is the user's to name."""
    for table in (str(tmp_path / "s3:" / "rows"), "abfss://c@a.dfs.core.windows.net/rows"):
        assert packages_of(topology(table), {}) == []


class Wanting(MemoryTransactionalSpout):
    """Needs something, and does not know where it reads."""

    packages = ("org.example:reader:1.0",)

    def locations(self) -> tuple[str, ...]:
        """See the class."""
        raise OSError("nobody knows")


def test_what_spouts_need_comes_with_it() -> None:
    """Each once, in order; a spout that does not know its places is taken to read none."""
    wanting = topology("s3://lake/rows", Wanting([[("a", 1)]], SCHEMA))
    assert packages_of(wanting, {}) == [*S3A_PACKAGES, "org.example:reader:1.0"]


@pytest.mark.parametrize(
    "key", ["spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"]
)
def test_a_client_of_the_users_own_stands_alone(
    key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a setting or in spark-defaults.conf: a second version beside it would not get on."""
    client = "/opt/jars/hadoop-aws-3.4.1.jar"
    assert packages_of(topology("s3://lake/rows"), {key: f"mine.jar,{client}"}) == []
    assert packages_of(topology("s3://lake/rows"), {key: "mine.jar"}) == [*S3A_PACKAGES]
    (tmp_path / "spark-defaults.conf").write_text(f"{key} {client}\n", "utf-8")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert packages_of(topology("s3://lake/rows"), {}) == []
