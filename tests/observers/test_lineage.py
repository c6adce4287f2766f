"""OpenLineage events of a run, as a receiver gets them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.errors import SetupError
from txn.lineage import Lineage, is_asked_for
from txn.lineage.events import dataset_of
from txn.observers import AttemptBegan, BatchCommitted
from txn.testing import run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What was posted to the API of lineage; the environment names its URL."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/api/v1/lineage"
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield received
        server.shutdown()
        thread.join()


def test_each_committed_txid_is_an_event(
    receiver: list[dict[str, Any]], spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    """Inputs with positions and sizes, outputs with versions, and which txid it is."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number in range(2):
        (inbox / f"{number}.csv").write_text("a,1\nb,2\n"[: 4 * (number + 1)])
    topology = Topology("orders", TopologyConfig(max_spout_pending=1))
    files = FileSpout(f"{inbox}/*.csv", format="csv", schema="k string, v int", files_per_batch=1)
    orders = topology.stream("orders", files)
    memory = topology.stream("memory", MemoryTransactionalSpout([[("c", 3)]], "k string, v int"))
    orders.merge(memory).partition_persist(AppendTable(warehouse / "rows"))
    orders.group_by("k").persistent_aggregate(StateTable(warehouse / "counts"), n=Count())
    report = run_in_memory(topology, spark, observers=[Lineage()])
    assert report.observers == []
    assert [event["run"]["facets"]["txn"]["txid"] for event in receiver] == [1, 2]
    first, second = receiver
    assert first["eventType"] == "COMPLETE"
    assert (first["job"]["namespace"], first["job"]["name"]) == ("shop", "orders")
    assert first["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    about = first["run"]["facets"]["txn"]
    assert (about["attempt"], about["epoch"], about["quarantined"]) == (0, 1, False)
    assert (about["firstTxidOfGroup"], about["lastTxidOfGroup"]) == (1, 1)
    nominal = first["run"]["facets"]["nominalTime"]
    assert nominal["nominalStartTime"] <= nominal["nominalEndTime"] == first["eventTime"]
    assert first["run"]["runId"] != second["run"]["runId"]

    by_name = {each["name"]: each for each in first["inputs"]}
    assert set(by_name) == {str(inbox), "orders.memory"}
    read = by_name[str(inbox)]
    assert read["namespace"] == "file"
    (file,) = read["inputFacets"]["txn_position"]["position"]["files"]
    assert file["path"].endswith("0.csv")
    assert read["inputFacets"]["inputStatistics"]["size"] == 4
    assert by_name["orders.memory"]["inputFacets"]["inputStatistics"]["rowCount"] == 1
    assert [each["name"] for each in second["inputs"]] == [str(inbox)]  # the other has no more

    for event, batch in zip(receiver, report.batches, strict=True):
        versions = {
            each["name"]: int(each["facets"]["version"]["datasetVersion"])
            for each in event["outputs"]
        }
        assert versions == batch.tables
    rows = next(each for each in first["outputs"] if each["name"].endswith("rows"))
    written = rows["outputFacets"]["outputStatistics"]
    assert (written["rowCount"], written["fileCount"] > 0, written["size"] > 0) == (2, True, True)


def test_a_receiver_that_is_away_costs_events_and_no_txid(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run commits everything, and its report says how many events were lost."""
    transport = {"type": "http", "url": "http://127.0.0.1:9", "retry": {"total": 0}}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport))
    topology = Topology("away")
    stream = topology.stream("s", MemoryTransactionalSpout([[("c", 3)]], "k string, v int"))
    stream.partition_persist(AppendTable(warehouse / "rows"))
    report = run_in_memory(topology, spark, observers=[Lineage()])
    assert report.batches_committed == 1
    (told,) = report.observers
    assert told.startswith("Observer Lineage raised for 1 events")


class Sent:
    """A client that keeps what it is to send."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        """Keep it."""
        self.events.append(event)


def test_only_so_many_attempts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that never commit do not fill the memory: of the oldest the plan is forgotten."""
    monkeypatch.setattr("txn.lineage.events._MOST_ENTRIES", 2)
    client = Sent()
    lineage = Lineage(cast("Any", client))
    attempts = [TransactionAttempt(1, number) for number in range(3)]
    for at, attempt in enumerate(attempts):
        lineage.observe(AttemptBegan(at, "t", 1, attempt, at, {}, 0, None, None))
    for attempt in attempts:
        lineage.observe(BatchCommitted(10.0, "t", 1, attempt, (attempt,), {}, {}))
    began = [event.run.facets["nominalTime"].nominalStartTime for event in client.events]
    assert [time[17:19] for time in began] == ["10", "01", "02"]


@pytest.mark.parametrize(
    ("place", "dataset"),
    [
        ("/warehouse/rows", ("file", "/warehouse/rows")),
        ("s3a://lake/warehouse/rows", ("s3://lake", "warehouse/rows")),
        ("kafka://broker:9092/orders", ("kafka://broker:9092", "orders")),
        ("hdfs://name:8020/rows", ("hdfs://name", "rows")),
    ],
)
def test_datasets_are_named_by_openlineages_convention(
    place: str, dataset: tuple[str, str]
) -> None:
    """Namespace and name of a file's folder, a bucket, a topic."""
    assert dataset_of(place) == dataset


def test_spouts_name_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options, which may hold secrets: a folder, a table, topics."""
    monkeypatch.chdir(tmp_path)
    files = FileSpout("in/2026-*/*.csv", format="csv")
    assert files.locations() == (str(tmp_path / "in"),)
    assert DeltaSpout(tmp_path / "t").locations() == (str(tmp_path / "t"),)
    kafka = KafkaSpout("a:9092,b:9092", topics=["x", "y"])
    assert kafka.locations() == ("kafka://a:9092/x", "kafka://a:9092/y")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OPENLINEAGE_URL": "http://marquez:5000"}, True),
        ({"OPENLINEAGE_CONFIG": "lineage.yml"}, True),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, True),
        ({"OPENLINEAGE_URL": "http://a", "OPENLINEAGE_DISABLED": "true"}, False),
        ({"OPENLINEAGE_NAMESPACE": "x"}, False),
    ],
)
def test_when_the_environment_asks_for_lineage(environment: dict[str, str], wanted: bool) -> None:
    """A URL, a file or a transport asks for it."""
    assert is_asked_for(environment) is wanted


def test_the_environment_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenLineage's client writes address and API key into it; a child would find them there."""
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "sesame")
    before = dict(os.environ)
    Lineage()
    assert dict(os.environ) == before


def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lineage is asked for, and not when the run has begun."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps({"type": "carrier-pigeon"}))
    with pytest.raises(SetupError, match="OpenLineage's client cannot be made") as refused:
        Lineage()
    assert refused.value.number == "TXN-214"
