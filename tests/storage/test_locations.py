"""Where a table lies, however it is written: one identity, or a refusal by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
from txn.errors import TopologyError
from txn.storage.locations import identity, is_local, local_path, parent
from txn.storage.storage import Storage


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a table's folder `W/al` and a link `link` to `W`."""
    (tmp_path / "W" / "al").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "W", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SPELLINGS = [
    "W//al",
    "W/al/",
    "./W/al",
    "W/../W/al",
    "link/al",
    "{}/W/al",
    "{}//W/al",
    "file:{}/W/al",
    "file://{}/W/al",
    "FILE://localhost{}/W/al/",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_table_under_two_spellings_is_refused(folder: Path, spelling: str) -> None:
    """Building a topology fails if two spellings name one table, and the error names both."""
    other = spelling.format(folder)
    topology = Topology("t")
    stream = topology.stream("s", MemoryTransactionalSpout([[("a", 1)]], "k string, v int"))
    stream.partition_persist(AppendTable("W/al"))
    with pytest.raises(TopologyError, match="already, written 'W/al': both are") as error:
        stream.partition_persist(AppendTable(other))
    assert f"'{other}'" in str(error.value)
    with pytest.raises(TopologyError, match="already, written 'W/al': both are"):
        stream.group_by("k").persistent_aggregate(StateTable(other), n=Count())
    stream.partition_persist(AppendTable("W/al2"))
    assert [sink.name for sink in topology.sinks] == ["W/al", "W/al2"]
    # A query of the topology's own table is told from one of somebody else's in the same way.
    stream.state_query(StateTable(other)).partition_persist(AppendTable("W/al3"))
    with pytest.raises(TopologyError, match="a table of this topology"):
        topology.check_complete("caught_up")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://lake/a/t", "s3a://lake/a/t"),
        ("s3://lake/a/t", "S3://Lake//a/./t/"),
        ("s3n://lake/t", "s3://lake/a/../t"),
        ("abfs://c@account.dfs.core.windows.net/t", "abfss://c@Account.dfs.core.windows.net/t/"),
        ("gs://lake/t", "gcs://lake/t"),
        ("hdfs://name:8020/t", "hdfs://NAME/t"),
    ],
)
def test_spellings_of_other_storages(one: str, other: str) -> None:
    """Connectors of one storage, cases of scheme and host, slashes and dots; without a network."""
    assert identity(one) == identity(other)
    assert identity(one) != identity(one + "x")
    assert not is_local(one)


def test_places_that_differ() -> None:
    """What only looks alike stays apart."""
    places = ["s3://a/t", "s3://a/T", "s3://b/t", "gs://a/t", "hdfs://n:9000/t", "hdfs://n/t", "t"]
    assert len({identity(place) for place in places}) == len(places)


@pytest.mark.parametrize("location", ["dbfs:/x", "s3:/bucket/x", "file:x", "file://other/x"])
def test_a_scheme_that_is_no_uri_is_refused(folder: Path, location: str) -> None:
    """It does not become a folder of that name below the working directory."""
    with pytest.raises(TopologyError, match="Write ") as error:
        AppendTable(location)
    assert f"'{location}'" in str(error.value)
    assert identity(location) == location
    assert sorted(path.name for path in folder.iterdir()) == ["W", "link"]


@pytest.mark.parametrize("location", ["file:{}/W/al", "file://{}/W/al", "file://localhost{}/W/al"])
def test_files_by_their_uri(folder: Path, location: str) -> None:
    """`file:/x` and `file:///x` are the local path."""
    storage = Storage(location.format(folder))
    assert (storage.uri, storage.url("a")) == (f"{folder}/W/al", f"file:{folder}/W/al/a")
    assert local_path(location.format(folder)) == f"{folder}/W/al"
    assert parent(location.format(folder)) == f"{folder}/W"


def test_a_folder_may_have_a_colon(folder: Path) -> None:
    """Only what looks like a scheme before a slash is taken for one."""
    assert Storage("a:b/c").uri == f"{folder}/a:b/c"
    assert Storage("./dbfs:/x").uri == f"{folder}/dbfs:/x"
    assert parent("s3://lake/a/t") == "s3://lake/a"
