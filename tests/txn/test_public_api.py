"""What the packages promise to their users: names, signatures, cheap imports."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import committers
import spouts
import txn
from tests.for_each import for_each
from txn.acker import Acker, Outcome, RotatingMap, Status
from txn.interfaces import PartitionedSpout, Spout, SpoutKind
from txn.topology import GroupedStream, Stream, TxnState

ROOT = Path(__file__).parents[2]

PUBLIC = {
    "txn": "FailedException Topology TopologyConfig TransactionAttempt history snapshot",
    "txn.acker": "Acker Outcome RotatingMap Status",
    "txn.attempts": "TransactionAttempt",
    "txn.cli": "main",
    "txn.embedded": "EmbeddedZooKeeper",
    "txn.errors": "BatchError FailedException FencedError LeaderExistsError TopologyError TxnError",
    "txn.interfaces": "Aggregate Committer PartitionedSpout Spout SpoutKind State",
    "txn.logs": "BatchFields JsonFormatter",
    "txn.metrics": "OpenTelemetryMetrics PrometheusMetrics",
    "txn.observers": "AttemptBegan BatchCommitted Observer RunEnded RunEvent StationEnded",
    "txn.session": "delta_session",
    "txn.testing": "ManualClock MemoryProgress RecordingCommitter SpoutContract run_in_memory",
    "txn.topology": "GroupedStream Stream Topology TxnState",
    "txn.zookeeper": "TopologyStatus ZooKeeperProgress list_topologies read_status",
    "spouts.delta": "DeltaSpout",
    "spouts.feeder": "FeederSpout",
    "spouts.files": "FileSpout",
    "spouts.kafka": "KafkaSpout",
    "spouts.memory": "MemoryOpaqueSpout MemoryPartitionedSpout MemoryTransactionalSpout",
    "spouts.rate": "RateSpout",
    "spouts.reader": "ReaderSpout",
    "committers.aggregates": "Count Max Min Sum",
    "committers.append_table": "AppendTable",
    "committers.state_table": "StateTable",
}
"""Import path -> names that programs import from there. They stay, whatever moves behind them."""


def module_names() -> list[str]:
    """Every module of the three packages, but for those that are run and not imported."""
    names = []
    for package in (txn, spouts, committers):
        names.append(package.__name__)
        names += [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [name for name in names if not name.endswith("__main__")]


def parameters(function: object) -> list[str]:
    """Names of the parameters, as `inspect` tells them, `self` left out."""
    names = list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    return [name for name in names if name != "self"]


@pytest.mark.parametrize("name", ["txn", "spouts", "committers", "txn.topology", "txn.acker"])
def test_an_import_loads_neither_pyspark_nor_kazoo(name):
    """A program that only looks at a topology pays for neither Spark nor ZooKeeper."""
    code = (
        f"import sys; import {name}; "
        "print([m for m in ('pyspark', 'kazoo', 'py4j', 'pandas') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@for_each(module_names())
def test_all_is_sorted_honest_and_complete(name):
    """`__all__` names what exists, in order, and leaves out no public class of the module."""
    module: ModuleType = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        names = [n for n in vars(module) if not n.startswith("_")]
        assert not [n for n in names if inspect.isclass(getattr(module, n))]
        return
    assert sorted(exported) == sorted(set(exported))
    assert [n for n in exported if not hasattr(module, n)] == []
    classes = {
        n
        for n, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == name and not n.startswith("_")
    }
    assert set() == classes - set(exported)


@pytest.mark.parametrize("path", PUBLIC)
def test_public_import_paths_stay(path):
    """What programs import is where it always was, and is meant to be imported from there."""
    module = importlib.import_module(path)
    names = PUBLIC[path].split()
    assert [name for name in names if not hasattr(module, name)] == []
    assert set(names) <= set(module.__all__)


def test_the_package_exports_the_names_of_the_contract():
    """`from txn import Topology, TopologyConfig, TransactionAttempt, FailedException`."""
    expected = {"FailedException", "Topology", "TopologyConfig", "TransactionAttempt"}
    assert expected <= set(txn.__all__)
    assert str(txn.TransactionAttempt(7, 2)) == "7:2"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (txn.Topology, ["name", "config", "bad_rows"]),
        (txn.Topology.stream, ["name", "spout", "was", "after"]),
        (txn.Topology.run, ["spark", "zookeeper", "until", "standby", "progress", "observers"]),
        (txn.Topology.start, ["spark", "zookeeper", "until", "standby", "store", "observers"]),
        (Stream.transform, ["function"]),
        (Stream.expect, ["name", "condition", "on_violation"]),
        (Stream.group_by, ["keys"]),
        (Stream.aggregate, ["aggregates"]),
        (Stream.persistent_aggregate, ["state", "expire_after", "by", "aggregates"]),
        (Stream.partition_persist, ["table"]),
        (Stream.merge, ["others"]),
        (Stream.join, ["other", "on", "how", "within"]),
        (GroupedStream.aggregate, ["aggregates"]),
        (GroupedStream.persistent_aggregate, ["state", "expire_after", "by", "aggregates"]),
        (Spout.initialize_transaction, ["attempt", "previous"]),
        (Spout.emit_batch, ["spark", "attempt", "metadata"]),
        (Spout.success, ["txid"]),
        (Spout.close, []),
        (PartitionedSpout.get_partitions, []),
        (PartitionedSpout.plan_partition, ["attempt", "partition", "previous"]),
        (PartitionedSpout.emit_partitions, ["spark", "attempt", "positions"]),
        (Acker, ["timeout_ticks", "high_water"]),
        (Acker.init, ["root", "value"]),
        (Acker.ack, ["root", "value"]),
        (Acker.fail, ["root"]),
        (Acker.reset_timeout, ["root"]),
        (Acker.tick, []),
        (RotatingMap, ["buckets"]),
        (RotatingMap.put, ["key", "value"]),
        (RotatingMap.get, ["key"]),
        (RotatingMap.remove, ["key"]),
        (RotatingMap.rotate, []),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_signatures_are_those_of_the_contract(function, expected):
    """The parameters of the public names stay as the design wrote them."""
    assert expected == parameters(function)


def test_enumerations_have_the_members_of_the_contract():
    """Kinds of spouts, ends of a root."""
    assert list(SpoutKind.__members__) == ["TRANSACTIONAL", "OPAQUE", "NON_TRANSACTIONAL"]
    assert list(Status.__members__) == ["ACKED", "FAILED", "TIMED_OUT", "REFUSED"]
    assert Outcome(1, Status.ACKED) == Acker().init(1, 0)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("txn.session.delta_session", {"app_name", "master", "conf"}),
        ("spouts.files.FileSpout", {"format", "schema", "files_per_batch"}),
        ("committers.state_table.StateTable", {"path", "semantics", "layout"}),
        ("committers.append_table.AppendTable", {"path", "semantics"}),
    ],
)
def test_plugins_have_the_parameters_of_the_contract(function, expected):
    """The names in the design's example are parameters."""
    module, _, name = function.rpartition(".")
    assert expected <= set(parameters(getattr(importlib.import_module(module), name)))


def test_the_configuration_has_the_fields_of_the_contract():
    """Storm's names where Storm has the thing."""
    expected = {
        "max_spout_pending",
        "message_timeout_secs",
        "ackers",
        "batch_emit_interval_ms",
        "max_batch_attempts",
        "on_exhausted",
        "verify",
    }
    assert expected <= set(txn.TopologyConfig.model_fields)


def test_a_state_says_its_name():
    """What `persistent_aggregate` returns names the table."""
    assert isinstance(inspect.getattr_static(TxnState, "name"), property)
