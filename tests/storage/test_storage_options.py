"""What reads the tables' logs without a run goes where, and as whom, the committers say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.delta.publishing import publish
from txn.cli.app import cli
from txn.doctor.tables import check_storage, check_table
from txn.embedded import EmbeddedZooKeeper
from txn.operations.loading import load_topology

KEY = "known-to-the-committer-alone"
PROGRAM = """
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology

class Remote(AppendTable):
    '''Read by its name and options; a run would write with Spark's and pyarrow's settings.'''
    def __init__(self):
        super().__init__("unused")
        self.name = "s3a://lake/rows"
        self.storage_options = {options}

topology = Topology("orders")
topology.stream("s", MemoryTransactionalSpout([[(1,)]], "n int")).partition_persist(Remote())
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program whose table, at txid 2, only its `storage_options` lead to."""
    (tmp_path / "lake").mkdir()
    for txid in (1, 2):
        publish(tmp_path / "lake" / "rows", txid, topology="orders", spouts={"s": txid})
    command = [sys.executable, str(Path(__file__).with_name("s3_store.py"))]
    server = subprocess.Popen([*command, str(tmp_path / "lake"), KEY], stdout=subprocess.PIPE)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    options = {
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
        "aws_allow_http": "true",
        "aws_access_key_id": KEY,
        "aws_secret_access_key": "secret",
        "aws_region": "us-east-1",
    }
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("{options}", json.dumps(options)))
    monkeypatch.setattr(sys, "path", list(sys.path))
    # Without the committer's options delta-rs is to fail at once, and not to look for a network.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield path
    server.kill()
    server.wait()
    server.stdout.close()


def test_the_doctor_looks_at_a_table_as_its_committer_would(program: Path) -> None:
    """With its credentials and endpoint, which are nowhere else."""
    topology = load_topology(f"{program}:topology")
    ((name, options),) = ((s.name, s.committer.storage_options) for s in topology.sinks)
    found = {f.check: f.level for f in check_table(name, None, topology.config, options)}
    assert found["features"] == found["checkpoints"] == "ok"
    before = set(program.parent.rglob("*.*"))
    (race,) = check_storage("s3a://lake", options)
    assert (race.check, race.level) == ("put-if-absent", "ok"), race
    assert {file for file in program.parent.rglob("*.*") if file.is_file()} <= before


def test_recover_and_history_use_a_committers_storage_options(
    program: Path, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """`txn recover` and `txn history` read a table with its own credentials and endpoint."""
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    arguments = [f"{program}:topology", "--zookeeper", hosts, "--json"]
    told = CliRunner().invoke(cli, ["recover", *arguments, "--yes"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["committed"]["txid"] == 2
    told = CliRunner().invoke(cli, ["history", *arguments])
    assert told.exit_code == 0, told.output
    assert [entry["txid"] for entry in json.loads(told.output)["txids"]] == [2, 1]
