"""A real Prometheus server over runs of real topologies; OTLP to a real receiver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.feeder import FeederSpout
from spouts.memory import MemoryTransactionalSpout
from tests.children import LOOPBACK, free_ports, wait_until
from tests.metrics.server import PrometheusServer, promtool
from txn import FailedException, Topology, TopologyConfig
from txn.errors import SourceUnavailableError
from txn.metrics import OpenTelemetryMetrics, PrometheusMetrics
from txn.metrics.table import TABLE
from txn.testing import MemoryProgress, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.engine.running import RunningTopology

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
PROGRAM = """
from committers.append_table import AppendTable
from spouts.rate import RateSpout
from txn import Topology

topology = Topology("scraped")
topology.stream("rows", RateSpout(5)).partition_persist(AppendTable("table"))
"""
SWIFT = {"> 600": "> 4", "[15m]": "[6s]", "[1h]": "[1m]", r"for: \d+m": "for: 1s"}
"""The times of the rules, for a test."""
NOT_HERE = (
    *("lag_files", "lag_versions", "planned_files", "planned_versions", "lag_partition"),
    "input_bytes",
    *("bad_rows", "maintenance", "zookeeper", "request_errors"),
)
"""What a run in memory without such a source and without trouble has no numbers of."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For a server."""
    made = tmp_path / "prometheus"
    made.mkdir()
    return made


def swift_rules(tmp_path: Path) -> Path:
    """The rules that ship, with shorter times."""
    text = (DEPLOY / "alerts.yml").read_text("utf-8")
    for time, short in SWIFT.items():
        pattern = time if time.startswith("for") else re.escape(time)
        assert re.search(pattern, text), time
        text = re.sub(pattern, short, text)
    rules = tmp_path / "alerts.yml"
    rules.write_text(text, "utf-8")
    return rules


class Faults:
    """What goes wrong in a transform, while it does."""

    def __init__(self) -> None:
        self.raises: Callable[[], Exception] | None = None
        self.slow = threading.Event()
        self.slow.set()

    def __call__(self, df: DataFrame) -> DataFrame:
        """Nothing, or the fault."""
        self.slow.wait(60)
        if self.raises is not None:
            raise self.raises()
        return df


@contextmanager
def running(
    spark: SparkSession, warehouse: Path, faults: Faults, metrics: PrometheusMetrics
) -> Iterator[FeederSpout]:
    """A topology that runs until the end of the block, and what it is fed by."""
    settings = {"retry_backoff_ms": 10, "max_spout_pending": 1, "max_batch_attempts": 1_000}
    made = Topology("guarded", TopologyConfig(**settings))
    feeder = FeederSpout("k string, v bigint")
    rows = made.stream("s", feeder).transform(faults)
    rows.partition_persist(AppendTable(warehouse / "rows"))
    rows.group_by("k").persistent_aggregate(StateTable(warehouse / "counts"), n=Count())
    store = MemoryProgress("guarded")
    handle: RunningTopology = made.start(spark, store=store, observers=[metrics])
    try:
        yield feeder
    finally:
        faults.raises = None
        faults.slow.set()
        handle.stop(60)


def feed(feeder: FeederSpout, batches: int) -> None:
    """So many batches of a row, none of which is waited for."""
    for _ in range(batches):
        feeder.feed([("a", 1)], timeout=0)


def test_alerts_fire_while_their_fault_lasts(
    spark: SparkSession, warehouse: Path, tmp_path: Path, folder: Path
) -> None:
    """None while all is well; each of them when its fault is injected; and none of them after."""
    faults, metrics = Faults(), PrometheusMetrics("0")
    assert metrics.port is not None
    server = PrometheusServer(folder, [metrics.port], [swift_rules(tmp_path)])
    with server, running(spark, warehouse, faults, metrics) as feeder:
        for _ in range(8):
            assert feeder.feed([("a", 1), ("b", 2)], timeout=60)
        wait_until(server.evaluated, "every rule is evaluated")
        scraped = 'min_over_time(txn_committed_txid{topology="guarded"}[2s])'
        wait_until(lambda: server.value(scraped) == 8, "it is scraped for a while, and idle")
        assert server.firing() == set()

        faults.raises = lambda: FailedException("a fault")
        feed(feeder, 1)
        wait_until(lambda: {"TxnReplays", "TxnNoCommit"} <= server.firing(), "replays are told")
        faults.raises = lambda: SourceUnavailableError("away")
        wait_until(lambda: "TxnBlocked" in server.firing(), "the absence is told")
        faults.raises = None
        wait_until(lambda: server.firing() == set(), "all is well again")

        # One after the other, and slower than they come.
        stop = threading.Event()
        pushing = threading.Thread(target=_push, args=(feeder, stop))
        pushing.start()
        try:
            wait_until(lambda: "TxnLagGrows" in server.firing(), "the lag is told")
        finally:
            stop.set()
            pushing.join()
        faults.slow.clear()
        wait_until(lambda: "TxnNoCommit" in server.firing(), "it is told that nothing is committed")
        faults.slow.set()
        wait_until(lambda: not {"TxnNoCommit", "TxnLagGrows"} & server.firing(), "it goes on", 120)
        assert "TxnNoLeader" not in server.firing()

        metrics.close()  # as if the driver were gone
        wait_until(lambda: "TxnNoLeader" in server.firing(), "nobody leads")


def _push(feeder: FeederSpout, stop: threading.Event) -> None:
    while not stop.wait(0.1):
        feed(feeder, 2)


def test_the_rules_at_their_own_times(tmp_path: Path) -> None:
    """Prometheus' own test of rules, over made-up series: what fires when, and what does not."""
    text = (ROOT / "tests" / "metrics" / "alerts.yml").read_text("utf-8")
    cases = tmp_path / "cases.yml"
    cases.write_text(text.replace("RULES", str(DEPLOY / "alerts.yml")), "utf-8")
    done = subprocess.run([promtool(), "test", "rules", str(cases)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip().endswith("SUCCESS")) == (0, True), done.stdout


def test_the_dashboard_asks_what_the_server_can_answer(
    spark: SparkSession, warehouse: Path, folder: Path
) -> None:
    """Each query of each panel is valid and names metrics that exist; most of them find data."""
    metrics = PrometheusMetrics("0")
    assert metrics.port is not None
    with (
        PrometheusServer(folder, [metrics.port]) as server,
        running(spark, warehouse, Faults(), metrics) as feeder,
    ):
        queries = dashboard_queries("guarded")
        assert len(queries) > 30
        names = {name for each in queries for name in re.findall(r"\btxn_\w+", each)}
        parts = "_(bucket|sum|count)$"
        known = {each.name for each in TABLE}
        assert {n if n in known else re.sub(parts, "", n) for n in names} <= known
        for query in queries:
            server.query(query)
        left = [query for query in queries if not any(part in query for part in NOT_HERE)]
        assert len(left) > 25

        def asked() -> bool:
            feed(feeder, 1)
            left[:] = [query for query in queries if query in left and not server.query(query)]
            return not left

        try:
            wait_until(asked, "the panels have data")
        finally:
            assert left == []


def dashboard_queries(topology: str) -> list[str]:
    """The queries of all panels, with Grafana's variables filled in."""
    board = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
    return [
        target["expr"].replace("$__rate_interval", "5s").replace("$topology", topology)
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]


def test_a_run_of_the_command_line_is_scraped(tmp_path: Path, folder: Path) -> None:
    """`txn run --metrics`: from before Spark is up to the end, requests to ZooKeeper included."""
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    command = [sys.executable, "-m", "txn", "run", "program.py:topology", "--master", "local[1]"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with PrometheusServer(folder, [port]) as server:
        driver = subprocess.Popen(
            [*command, "--metrics", address],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            committed = 'txn_committed_txid{topology="scraped"}'
            wait_until(lambda: (server.value(committed) or 0) >= 3, "commits are scraped", 180)
            found = {
                name: server.value(f"sum({name})")
                for name in (
                    *("txn_leader", "txn_input_records_total", "txn_written_rows_total"),
                    *("txn_table_files", "txn_table_bytes", "txn_storage_request_seconds_count"),
                    'txn_zookeeper_request_seconds_count{operation="multi"}',
                    *('txn_driver_memory_bytes{process="jvm"}', "txn_station_seconds_count"),
                )
            }
            assert [name for name, value in found.items() if not value] == []
            second = subprocess.run(
                [*command, "--metrics", address],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
            )
            assert f"Metrics cannot be served on {address}" in second.stderr
            assert second.returncode != 0
        finally:
            driver.terminate()
            _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
        wait_until(lambda: server.query("up")[0]["value"][1] == "0", "the port ends with the run")


class Receiver:
    """Takes OTLP over HTTP, as a collector does, and keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/metrics"
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                request = ExportMetricsServiceRequest()
                request.ParseFromString(body)
                receiver.requests.append(request)
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._server.server_port}"

    def __enter__(self) -> Receiver:  # noqa: PYI034 - typing.Self is Python 3.11
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_metrics_go_to_a_receiver_of_otlp(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By OpenTelemetry's variables; at the end everything has arrived, with names and units."""
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        made = Topology("sent", TopologyConfig(max_spout_pending=1))
        stream = made.stream("s", MemoryTransactionalSpout([[("a", 1)]] * 3, "k string, v bigint"))
        stream.partition_persist(AppendTable(warehouse / "rows"))
        report = run_in_memory(made, spark, observers=[OpenTelemetryMetrics()])
    assert (report.committed_txid, report.observers) == (3, [])
    (resource,) = receiver.requests[-1].resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "sent"
    found = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    (committed,) = found["txn.committed_txid"].gauge.data_points
    assert (committed.as_double, committed.attributes[0].value.string_value) == (3, "sent")
    records = found["txn.input_records"]
    assert (records.unit, records.sum.is_monotonic) == ("{record}", True)
    assert records.sum.data_points[0].as_double == 3
    assert sum(point.count for point in found["txn.station_seconds"].histogram.data_points) > 9
