"""Which event changes which metric; the page of metrics; exporters without a run."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.children import LOOPBACK
from txn import TransactionAttempt
from txn.config.otlp import is_asked_for
from txn.errors import SetupError
from txn.interfaces import Lag
from txn.metrics import OpenTelemetryMetrics, PrometheusMetrics
from txn.metrics.readings import Readings, bounded
from txn.metrics.table import TABLE, Metric
from txn.observers import (
    AttemptBegan,
    AttemptBlocked,
    AttemptFailed,
    BackPressureBegan,
    BackPressureEnded,
    BadRows,
    BatchCommitted,
    BatchUnblocked,
    BoundChanged,
    EventsDropped,
    GroupDissolved,
    LagChanged,
    LeadershipConfirmed,
    LeadershipInDoubt,
    LeadershipLost,
    LeadershipWon,
    MaintenanceDone,
    NoticesChanged,
    Quarantined,
    ReplayScheduled,
    RequestEnded,
    RunEnded,
    RunEvent,
    RunStarted,
    StandingBy,
    StationEnded,
    TablePublished,
)

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
AT = (100.0, "t", 3)
ONE, TWO = TransactionAttempt(8), TransactionAttempt(9)


def began(attempt: TransactionAttempt, planned_at: float) -> AttemptBegan:
    return AttemptBegan(*AT, attempt, planned_at, {}, 0, None, None)


ALL: list[RunEvent] = [
    StandingBy(99.0, "t", 0, None),
    LeadershipWon(*AT),
    RunStarted(*AT, 7, (8,), (3, 5)),
    LeadershipInDoubt(*AT),
    LeadershipConfirmed(*AT),
    BoundChanged(*AT, "source", None, 0.0),
    BoundChanged(*AT, "commit", "source", 2.0),
    began(ONE, 98.0),
    began(TWO, 99.0),
    BackPressureBegan(*AT, 2),
    BackPressureEnded(*AT, 1.0),
    StationEnded(*AT, (ONE,), "process", 98.5),
    StationEnded(*AT, (ONE,), "stage", 99.0, "a"),
    StationEnded(*AT, (ONE, TWO), "publish", 99.75, "a"),
    StationEnded(*AT, (ONE, TWO), "publish", 99.5),
    AttemptFailed(*AT, ONE, "timeout", "late", "processing"),
    ReplayScheduled(*AT, TransactionAttempt(8, 1), 1, 0.5, blocked=False),
    AttemptFailed(*AT, ONE, "error", "no", "processing", ends_run=True),
    AttemptBlocked(*AT, TWO, "away", 0),
    AttemptBlocked(*AT, TWO, "away", 1),
    GroupDissolved(*AT, (ONE, TWO), "no"),
    TablePublished(*AT, (ONE, TWO), "a", 4, 30, 300, 2, False, 12, 9_000),
    TablePublished(*AT, (ONE, TWO), "b", 4, None, 50, 1, False),
    TablePublished(*AT, (ONE, TWO), "b", 4, 5, 50, 1, True),
    BatchCommitted(
        *AT, ONE, (ONE, TWO), {"a": 3}, {}, {"s": 10, "r": None}, {"s": 1000}, replay_of=3
    ),
    BadRows(*AT, ONE, "s", "small", 2, True),
    Quarantined(*AT, ONE, "poison"),
    LagChanged(
        *AT, "s", Lag(records=70, partitions={"p0": 40, "p1": 20, "p2": 10}), Lag(records=60)
    ),
    LagChanged(*AT, "r", Lag(files=3, bytes=5, versions=6, seconds=0.5)),
    NoticesChanged(*AT, "s", ("a", "b")),
    MaintenanceDone(*AT, "a", "compaction", 95.0, None, 6, 600, 1),
    MaintenanceDone(*AT, "a", "vacuum", 99.0, "no"),
    RequestEnded(*AT, "zookeeper", "multi", 0.004),
    RequestEnded(*AT, "storage", "get", 0.3, "TimeoutError"),
    EventsDropped(*AT, 5),
]

EXPECTED = """
txn_attempts_total{topology="t"} 2
txn_back_pressure{topology="t"} 0
txn_bad_rows_total{action="set_aside",rule="small",stream="s",topology="t"} 2
txn_batch_age_seconds{topology="t"} 11
txn_batch_seconds_count{topology="t"} 1
txn_batch_seconds_sum{topology="t"} 0
txn_batches_total{topology="t"} 1
txn_blocked{topology="t"} 1
txn_committed_txid{topology="t"} 8
txn_epoch{topology="t"} 3
txn_events_dropped_total{topology="t"} 5
txn_groups_dissolved_total{topology="t"} 1
txn_held_up_by{bound="away",topology="t"} 0
txn_held_up_by{bound="commit",topology="t"} 1
txn_held_up_by{bound="idle",topology="t"} 0
txn_held_up_by{bound="processing",topology="t"} 0
txn_held_up_by{bound="replay",topology="t"} 0
txn_held_up_by{bound="source",topology="t"} 0
txn_in_flight{topology="t"} 1
txn_in_quarantine{topology="t"} 2
txn_input_bytes_total{stream="s",topology="t"} 1000
txn_input_records_total{stream="s",topology="t"} 10
txn_lag_bytes{stream="r",topology="t"} 5
txn_lag_files{stream="r",topology="t"} 3
txn_lag_partition_records{partition="others",stream="s",topology="t"} 30
txn_lag_partition_records{partition="p0",stream="s",topology="t"} 40
txn_lag_records{stream="s",topology="t"} 70
txn_lag_seconds{stream="r",topology="t"} 0.5
txn_lag_versions{stream="r",topology="t"} 6
txn_last_commit_timestamp_seconds{topology="t"} 100
txn_leadership_doubts_total{topology="t"} 1
txn_leadership_in_doubt{topology="t"} 0
txn_leader{topology="t"} 1
txn_maintenance_bytes_total{operation="compaction",table="a",topology="t"} 600
txn_maintenance_files_total{operation="compaction",table="a",topology="t"} 6
txn_maintenance_seconds_total{operation="compaction",table="a",topology="t"} 5
txn_maintenance_seconds_total{operation="vacuum",table="a",topology="t"} 1
txn_maintenance_total{operation="compaction",outcome="done",table="a",topology="t"} 1
txn_maintenance_total{operation="vacuum",outcome="failed",table="a",topology="t"} 1
txn_notices{stream="s",topology="t"} 2
txn_planned_records{stream="s",topology="t"} 60
txn_quarantined_total{topology="t"} 1
txn_replays_total{cause="conflict",topology="t"} 0
txn_replays_total{cause="error",topology="t"} 0
txn_replays_total{cause="failed",topology="t"} 0
txn_replays_total{cause="ledger",topology="t"} 0
txn_replays_total{cause="lost_work",topology="t"} 0
txn_replays_total{cause="staged_file",topology="t"} 0
txn_replays_total{cause="timeout",topology="t"} 1
txn_request_errors_total{operation="get",service="storage",topology="t"} 1
txn_staged_rows_total{table="a",topology="t"} 3
txn_standby{topology="t"} 0
txn_station_seconds_count{station="process",topology="t"} 1
txn_station_seconds_count{station="publish",topology="t"} 1
txn_station_seconds_count{station="stage",topology="t"} 1
txn_station_seconds_sum{station="process",topology="t"} 1.5
txn_station_seconds_sum{station="publish",topology="t"} 0.5
txn_station_seconds_sum{station="stage",topology="t"} 1
txn_storage_request_seconds_count{operation="get",topology="t"} 1
txn_storage_request_seconds_sum{operation="get",topology="t"} 0.3
txn_table_bytes{table="a",topology="t"} 9000
txn_table_files{table="a",topology="t"} 12
txn_table_station_seconds_total{station="publish",table="a",topology="t"} 0.25
txn_table_station_seconds_total{station="stage",table="a",topology="t"} 1
txn_waits_total{topology="t"} 2
txn_written_bytes_total{table="a",topology="t"} 300
txn_written_bytes_total{table="b",topology="t"} 50
txn_written_files_total{table="a",topology="t"} 2
txn_written_files_total{table="b",topology="t"} 1
txn_written_rows_total{table="a",topology="t"} 30
txn_zookeeper_request_seconds_count{operation="multi",topology="t"} 1
txn_zookeeper_request_seconds_sum{operation="multi",topology="t"} 0.004
"""


class Shown:
    """Meters that keep what is shown of memory."""

    def __init__(self) -> None:
        self.memory: dict[str, float] = {}

    def add(self, what: Metric, by: float, *labels: str) -> None:
        """See `Meters`."""

    def set(self, what: Metric, to: float, *labels: str) -> None:
        """See `Meters`."""
        if what.name == "txn_driver_memory_bytes":
            self.memory[labels[1]] = to

    def forget(self, what: Metric, *labels: str) -> None:
        """See `Meters`."""
        del self.memory[labels[1]]

    def record(self, what: Metric, value: float, *labels: str) -> None:
        """See `Meters`."""


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample, but for memory and the buckets of histograms."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            if "le" not in sample.labels and sample.name != "txn_driver_memory_bytes":
                labels = ",".join(
                    f'{name}="{sample.labels[name]}"' for name in sorted(sample.labels)
                )
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def read(events: list[RunEvent]) -> PrometheusMetrics:
    """Metrics that have taken these events in; it is 110 s now."""
    metrics = PrometheusMetrics(partitions=1, clock=lambda: 110.0)
    for event in events:
        metrics.observe(event)
    return metrics


def test_every_event_changes_its_metrics() -> None:
    """Each number of each event, under its name and labels."""
    expected = dict(line.rsplit(" ", 1) for line in EXPECTED.split("\n") if line)
    numbers = {series: float(value) for series, value in expected.items()}
    assert samples(read(ALL).registry) == numbers


def test_the_first_doubt_is_an_increase() -> None:
    """Doubts are counted from 0 on, as a rule over `increase` needs it."""
    doubts = 'txn_leadership_doubts_total{topology="t"}'
    assert samples(read([LeadershipWon(*AT)]).registry)[doubts] == 0
    assert samples(read([LeadershipWon(*AT), LeadershipInDoubt(*AT)]).registry)[doubts] == 1


def test_an_attempt_that_is_not_replayed_is_no_replay() -> None:
    """The last one allowed is quarantined or ends the run, and a source that is away is a wait."""
    failed = AttemptFailed(*AT, ONE, "error", "poison", "processing")
    away = ReplayScheduled(*AT, ONE.next(), 1, 0.1, blocked=True)
    retry = ReplayScheduled(*AT, ONE.next(), 1, 0.1, blocked=False)
    committed = BatchCommitted(*AT, ONE.next(), (ONE.next(),), {}, {}, quarantined=True)
    replays = 'txn_replays_total{cause="error",topology="t"}'
    begun: list[RunEvent] = [RunStarted(*AT, 7, ())]
    assert samples(read([*begun, failed, committed, retry]).registry)[replays] == 0
    assert samples(read([*begun, away]).registry)[replays] == 0
    assert samples(read([*begun, failed, retry]).registry)[replays] == 1


def test_a_group_is_measured_once() -> None:
    """At its last txid; a txid's time runs from its first plan."""
    group = [began(ONE, 98.0), began(TWO, 99.0), began(TransactionAttempt(9, 1), 99.9)]
    committed = [BatchCommitted(*AT, one, (ONE, TWO), {}, {}) for one in (ONE, TWO)]
    found = samples(read([*group, *committed]).registry)
    assert found['txn_group_txids_count{topology="t"}'] == 1
    assert found['txn_group_txids_sum{topology="t"}'] == 2
    assert found['txn_batch_seconds_sum{topology="t"}'] == 3
    assert found['txn_in_flight{topology="t"}'] == 0
    assert found['txn_batch_age_seconds{topology="t"}'] == 0


def test_what_is_over_is_zero_and_what_is_unknown_is_gone() -> None:
    """At the end nobody leads and nothing waits; a lag that is not known has no number."""
    ended = RunEnded(*AT, "stopped", None, None, 8, 1.0)
    found = samples(read([*ALL, LagChanged(*AT, "s", None), ended]).registry)
    gone = [name for name in found if 'stream="s"' in name and "lag" in name]
    assert gone == []
    for name in ("leader", "standby", "in_flight", "blocked", "batch_age_seconds"):
        assert found[f'txn_{name}{{topology="t"}}'] == 0
    lost = samples(read([*ALL, LeadershipLost(*AT, "another")]).registry)
    assert lost['txn_leader{topology="t"}'] == 0
    back = samples(read([*ALL, BatchUnblocked(*AT, TWO, 1.0)]).registry)
    assert back['txn_blocked{topology="t"}'] == 0


def test_partitions_are_bounded() -> None:
    """The first by name, in the order of people; the others are added up."""
    found = {f"p{number}": number for number in range(12)}
    assert bounded(found, 3) == {"p0": 0, "p1": 1, "p2": 2, "others": 63}
    assert bounded(found, 12) == found
    assert bounded({}, 3) == {}
    assert bounded({"others": 1, "a": 2, "b": 3}, 3) == {"a": 2, "b": 3, "others": 1}
    assert bounded({"others": 1, "abcdefg": 2, "bcdefgh": 3}, 1) == {"others": 6}


def test_events_that_were_missed_leave_nothing_behind() -> None:
    """Txids are committed in order, and one thing at a time holds a run up: whatever was dropped,
    the next commit and the next change put it right.
    """
    three = TransactionAttempt(10)
    missed: list[RunEvent] = [
        AttemptBlocked(*AT, ONE, "away", 0),
        began(three, 109.0),
        BatchCommitted(*AT, TWO, (TWO,), {}, {}),
        BoundChanged(*AT, "idle", "away", 1.0),
    ]
    found = samples(read([*ALL, *missed]).registry)
    assert found['txn_in_flight{topology="t"}'] == 1
    assert found['txn_blocked{topology="t"}'] == 0
    assert found['txn_batch_age_seconds{topology="t"}'] == 1
    held = {name for name, value in found.items() if "held_up_by" in name and value}
    assert held == {'txn_held_up_by{bound="idle",topology="t"}'}


def test_odd_names_do_not_break_the_page() -> None:
    """Half a character in the name of a partition or a rule, quotes, line breaks and markup."""
    odd = '<b>"x\\\n\ud800'
    metrics = read([*ALL, BadRows(*AT, ONE, "s", odd, 2, True)])
    metrics.observe(LagChanged(*AT, "s", Lag(records=1, partitions={odd: 1})))
    page = generate_latest(metrics.registry).decode()
    assert r'rule="<b>\"x\\\n\\ud800"' in page
    assert r'partition="<b>\"x\\\n\\ud800"' in page


def test_memory_of_the_driver_is_measured() -> None:
    """That of this process is some megabytes."""
    registry = read(ALL).registry
    size = registry.get_sample_value(
        "txn_driver_memory_bytes", {"topology": "t", "process": "python"}
    )
    assert size is not None
    assert 10_000_000 < size < 100_000_000_000


def test_memory_of_a_process_that_has_ended_is_not_shown() -> None:
    """A session that was stopped takes its JVM with it."""
    sizes = {"python": 1, "jvm": 2}
    shown = Shown()
    readings = Readings(shown, 1, lambda: 110.0, lambda: sizes)
    readings.read(LeadershipWon(*AT))
    readings.refresh()
    assert shown.memory == {"python": 1, "jvm": 2}
    del sizes["jvm"]
    readings.refresh()
    assert shown.memory == {"python": 1}


def test_the_page_has_the_table_of_metrics() -> None:
    """Every metric in one line: name, type, labels, meaning; and no other one."""
    lines = []
    for each in TABLE:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |")
    text = PAGE.read_text("utf-8")
    assert [line.strip() for line in re.findall(r"^\| `txn_.*$", text, re.M)] == lines
    assert len({each.otel_name for each in TABLE}) == len(TABLE)


def test_a_server_ends_with_the_run() -> None:
    """It answers before the run has begun, and not after its end."""
    metrics = PrometheusMetrics("0")
    url = f"http://{LOOPBACK}:{metrics.port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert "# TYPE txn_committed_txid gauge" in answer.read().decode()
    metrics.observe(RunStarted(*AT, 7, ()))
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert 'txn_committed_txid{topology="t"} 7.0' in answer.read().decode()
    metrics.observe(RunEnded(*AT, "stopped", None, None, 7, 1.0))
    assert metrics.port is None
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)


def test_nobody_waits_for_the_server_to_look_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when it is told to, and not when it looks next whether it was."""
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (3600.0,))
    metrics = PrometheusMetrics("127.0.0.1:0")
    port = metrics.port
    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).close()
    ends = threading.Thread(target=metrics.close, daemon=True)
    ends.start()
    ends.join(30)
    assert not ends.is_alive()
    assert not [one for one in threading.enumerate() if one.name == "txn-metrics-end"]


def test_an_address_in_use_is_named() -> None:
    """By host and port, with the way out."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"served on 127.0.0.1:{port}: .*in use") as refused:
            PrometheusMetrics(f"{LOOPBACK}:{port}")
    assert refused.value.number == "TXN-215"


@pytest.mark.parametrize("text", ["here", "no..name:9464"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """Neither as text nor as the name of a host."""
    with pytest.raises(SetupError, match=r"not an address to listen on|cannot be served on"):
        PrometheusMetrics(text)


def test_opentelemetry_is_on_by_its_own_variables() -> None:
    """An endpoint is enough; the exporter's name or the switch for everything decide."""
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    asked = [
        {},
        endpoint,
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4318/v1/metrics"},
        {"OTEL_METRICS_EXPORTER": "otlp"},
        {**endpoint, "OTEL_METRICS_EXPORTER": " "},
        {"OTEL_METRICS_EXPORTER": "console, otlp"},
        {**endpoint, "OTEL_METRICS_EXPORTER": "none "},
        {**endpoint, "OTEL_METRICS_EXPORTER": "console"},
        {**endpoint, "OTEL_SDK_DISABLED": "true"},
    ]
    found = [is_asked_for("METRICS", each) for each in asked]
    assert found == [False, True, True, True, True, True, False, False, False]


def test_opentelemetry_has_the_same_numbers() -> None:
    """Each counter, gauge and histogram, in a provider of the program's own."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics(provider, partitions=1, clock=lambda: 110.0)
    for event in ALL:
        metrics.observe(event)
    found: dict[str, float] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for each in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in each.data.data_points:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted((point.attributes or {}).items()))
            if hasattr(point, "count"):
                found[f"{each.name}_count{{{labels}}}"] = point.count
                found[f"{each.name}_sum{{{labels}}}"] = point.sum
            else:
                found[f"{each.name}{{{labels}}}"] = point.value
    provider.shutdown()
    expected = {
        name.replace("_total{", "{").replace("txn_", "txn.", 1): value
        for name, value in samples(read(ALL).registry).items()
    }
    memory = {name for name in found if "driver_memory" in name}
    assert memory
    assert {name: value for name, value in found.items() if name not in memory} == expected


def test_a_program_runs_topologies_one_after_the_other() -> None:
    """Every run of a provider has its gauges while it goes on, those of another one beside it; at
    the end the provider sends the last values, and the next run's are the only ones.
    """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader, sent = InMemoryMetricReader(), []

    class Flushed(MeterProvider):
        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            sent.append(leaders(reader))
            return True

    provider = Flushed([reader])
    for epoch in (1, 2):
        first, other = OpenTelemetryMetrics(provider), OpenTelemetryMetrics(provider)
        first.observe(LeadershipWon(100.0, "t", epoch))
        other.observe(LeadershipWon(100.0, "u", epoch))
        assert leaders(reader) == [("t", 1), ("u", 1)]
        first.observe(RunEnded(100.0, "t", epoch, "stopped", None, None, 0, 1.0))
        assert sent == [[("t", 0), ("u", 1)]]
        assert leaders(reader) == [("u", 1)]
        other.close()
        other.close()
        assert (len(sent), leaders(reader)) == (2, [])
        sent.clear()
    provider.shutdown()


def leaders(reader: Any) -> list[tuple[str, float]]:
    """(topology, value) of each point of `txn.leader`."""
    data = reader.get_metrics_data()
    scopes = data.resource_metrics[0].scope_metrics if data else ()
    return sorted(
        (point.attributes["topology"], point.value)
        for scope in scopes
        for metric in scope.metrics
        if metric.name == "txn.leader"
        for point in metric.data.data_points
    )
