"""Traces of a run, as a receiver of OTLP gets them."""

from __future__ import annotations

import gc
import math
import os
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from tests.observers.otlp import Received, attributes, name_of, over_grpc, over_http
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.config.otlp import is_asked_for
from txn.errors import BatchError, SetupError
from txn.observers import (
    AttemptBegan,
    AttemptFailed,
    BadRows,
    BatchCommitted,
    EventsDropped,
    RunBegan,
    RunEnded,
    StationBegan,
    StationEnded,
)
from txn.testing import run_in_memory
from txn.tracing import Traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from pyspark.sql import DataFrame, SparkSession

    from txn.engine.reporting.report import RunReport

ROWS: list[Any] = [[("a", 1), ("b", 2)], [("c", 3)], [("a", 4)], [("a", 5)]]
OK, ERROR = 1, 2


@pytest.fixture(autouse=True)
def no_otel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


class FailsOnce(MemoryTransactionalSpout):
    """Fails the first attempt of txid 2."""

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of the batch."""
        if attempt == TransactionAttempt(2):
            raise FailedException("the source lost its connection")
        return super().emit_batch(spark, attempt, metadata)


def traced(
    spark: SparkSession, warehouse: Path, rows: list[Any] = ROWS, pending: int = 1
) -> RunReport:
    """A run into an append table and a state."""
    config = TopologyConfig(max_spout_pending=pending, retry_backoff_ms=1)
    topology = Topology("traced", config)
    stream = topology.stream("s", FailsOnce(rows, "k string, v bigint"))
    stream.partition_persist(AppendTable(warehouse / "rows"))
    stream.group_by("k").persistent_aggregate(StateTable(warehouse / "counts"), n=Count())
    return run_in_memory(topology, spark, observers=[Traces()])


@pytest.mark.parametrize(
    ("protocol", "receiver"), [("http/protobuf", over_http), ("grpc", over_grpc)]
)
def test_a_trace_for_each_attempt(
    protocol: str, receiver: Any, spark: SparkSession, warehouse: Path, monkeypatch: Any
) -> None:
    """Over OTLP: attempts as roots, their stations with tables as children, tags, versions."""
    received: Received
    context: AbstractContextManager[Received] = receiver()
    with context as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        report = traced(spark, warehouse)
    assert report.observers == []
    assert received.service() == "traced"
    assert set(received.attempts) == {"1:0", "2:0", "2:1", "3:0", "4:0"}
    root = received.attempts["1:0"]
    about = attributes(root)
    tables = [str(warehouse / "rows"), str(warehouse / "counts")]
    assert (root.status.code, about["txn.outcome"], root.parent_span_id) == (OK, "committed", b"")
    assert about["txn.tables"] == tables
    assert about["txn.versions"] == list(report.batches[0].tables.values())
    assert (about["txn.topology"], about["txn.epoch"], about["txn.input_records.s"]) == (
        "traced",
        1,
        2,
    )
    stations = received.stations("1:0")
    assert about["txn.stations"] == len(stations)
    by_name = {span.name: span for span in stations}
    alone = {"plan", "start", "process", "emit", "ack", "turn", "commit", "success", "clean_up"}
    both = {f"{name} {table}" for name in ("stage", "prepare", "publish") for table in tables}
    assert set(by_name) == alone | both | {"prepare", "publish"}
    assert {span.trace_id for span in stations} == {root.trace_id}
    within = {"emit": "process", f"stage {tables[0]}": "process", "prepare": "turn"}
    within |= {f"prepare {tables[1]}": "prepare", f"publish {tables[0]}": "publish"}
    for child, parent in within.items():
        assert by_name[child].parent_span_id == by_name[parent].span_id
    assert by_name["process"].parent_span_id == root.span_id
    published = attributes(by_name[f"publish {tables[0]}"])
    assert published["txn.table"] == tables[0]
    assert published["txn.table.version"] == report.batches[0].tables[tables[0]]
    assert published["txn.table.rows"] == 2
    (tag,) = attributes(by_name["process"])["txn.spark.job_tags"]
    assert tag.endswith("-1-0")
    for span in stations:
        assert span.start_time_unix_nano >= root.start_time_unix_nano
        assert span.end_time_unix_nano >= span.start_time_unix_nano


def test_a_failed_attempt_is_an_error_that_its_replay_links_to(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status and exception at the attempt and at the station; the replay's trace names it."""
    with over_http() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{received.url}/v1/traces")
        traced(spark, warehouse)
    failed, replay = received.attempts["2:0"], received.attempts["2:1"]
    message = "FailedException: the source lost its connection"
    assert (failed.status.code, failed.status.message) == (ERROR, message)
    (event,) = failed.events
    assert (event.name, attributes(event)["exception.type"]) == ("exception", "FailedException")
    assert attributes(failed)["txn.cause"] == "failed"
    in_error = {s.name for s in received.stations("2:0") if s.status.code == ERROR}
    assert in_error == {"emit", "process"}
    (link,) = replay.links
    assert (link.trace_id, link.span_id) == (failed.trace_id, failed.span_id)
    assert attributes(link) == {"txn.link": "attempt before"}
    assert replay.status.code == OK


def test_what_a_group_shares_is_linked(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Txids that are committed together: one turn, in the trace of the first, linked both ways."""
    with over_http() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        report = traced(spark, warehouse, [[(str(at), at)] for at in range(40)], pending=8)
    grouped = [each for each in report.batches if each.group > 1]
    assert grouped
    roots = {name_of(root): root for root in received.attempts.values()}
    spans = {(root.trace_id, root.span_id): name for name, root in roots.items()}
    shared = [s for s in received.spans if s.name == "turn" and "txn.attempts" in attributes(s)]
    assert shared
    for turn in shared:
        first, *others = attributes(turn)["txn.attempts"]
        assert turn.trace_id == roots[first].trace_id
        linked = {spans[link.trace_id, link.span_id] for link in roots[first].links}
        assert set(others) <= linked
        for other in others:
            back = {spans[link.trace_id, link.span_id] for link in roots[other].links}
            assert first in back


def test_the_end_with_an_error_is_traced(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that ended the run is sent before the run is over."""
    with over_http() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        with pytest.raises(BatchError):
            traced(spark, warehouse, [[ValueError("no")]])
    (root,) = received.attempts.values()
    assert (root.status.code, attributes(root)["txn.outcome"]) == (ERROR, "failed")


def test_no_receiver_costs_the_run_nothing(
    spark: SparkSession, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is committed, and the end is not held up by more than observers may."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    assert traced(spark, warehouse).batches_committed == len(ROWS)


def in_memory(**more: float) -> tuple[InMemorySpanExporter, Traces]:
    """Traces, and where their spans are when they have ended."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, Traces(provider, **more)


def test_a_txid_that_was_rolled_forward_is_a_trace_without_stations() -> None:
    """It is handed over at once, for nothing more will be told of it."""
    exporter, traces = in_memory()
    one = TransactionAttempt(1)
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    traces.observe(
        BatchCommitted(
            2.0, "t", 2, one, (one,), {"rows": 1}, {"rows": 3}, {"s": None}, rolled_forward=True
        )
    )
    (span,) = exporter.get_finished_spans()
    told = span.attributes or {}
    assert (told["txn.outcome"], told["txn.stations"]) == ("committed", 0)
    assert (told["txn.rolled_forward"], told["txn.versions"]) == (True, (3,))


def test_attempts_without_an_end_are_marked() -> None:
    """Events were dropped, a station hangs, the run ends: each span says what it lacks."""
    exporter, traces = in_memory()
    one, two = TransactionAttempt(1), TransactionAttempt(2)
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    for at, attempt in ((2.0, one), (3.0, two)):
        traces.observe(StationEnded(at, "t", 1, (attempt,), "plan", at - 0.5))
        traces.observe(AttemptBegan(at, "t", 1, attempt, at, {"s": {"at": 1}}, 0, None, None))
    traces.observe(EventsDropped(3.5, "t", 1, 7))
    traces.observe(BatchCommitted(4.0, "t", 1, two, (two,), {"rows": 1}, {"rows": 3}))
    traces.observe(StationBegan(4.5, "t", 1, (two,), "success"))
    traces.observe(RunEnded(5.0, "t", 1, "stopped", None, None, 2, 4.0))
    roots = {
        span.attributes["txn.txid"]: span
        for span in exporter.get_finished_spans()
        if span.attributes is not None and span.name == "attempt"
    }
    assert [dict(roots[txid].attributes or {})["txn.outcome"] for txid in (1, 2)] == [
        "open",
        "committed",
    ]
    assert [(roots[t].attributes or {})["txn.events_dropped"] for t in (1, 2)] == [7, 7]
    assert roots[1].start_time == 1_500_000_000
    assert roots[2].end_time == 4_000_000_000
    (success,) = [span for span in exporter.get_finished_spans() if span.name == "success"]
    assert (success.attributes or {})["txn.unfinished"] is True
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["attempt", "plan", "attempt", "plan", "success"]


def test_an_emptied_attempt_has_the_failures_before_it() -> None:
    """Also those for which the batch was emptied, though its own attempts are counted anew."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider)
    zero, one, two = (TransactionAttempt(1, number) for number in range(3))
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    for failures, attempt in enumerate((zero, one)):
        traces.observe(AttemptBegan(2.0, "t", 1, attempt, 2.0, {}, failures, None, None))
        traces.observe(AttemptFailed(3.0, "t", 1, attempt, "error", "no", "processing"))
    traces.observe(AttemptBegan(4.0, "t", 1, two, 4.0, {}, 0, None, "no"))
    traces.observe(BatchCommitted(5.0, "t", 1, two, (two,), {}, {}, quarantined=True))
    traces.observe(RunEnded(6.0, "t", 1, "stopped", None, None, 1, 5.0))
    told = {
        about["txn.attempt"]: about["txn.failures"]
        for span in exporter.get_finished_spans()
        if (about := dict(span.attributes or {})) and span.name == "attempt"
    }
    assert told == {0: 0, 1: 1, 2: 2}


def told_of(traces: Traces, txid: int, at: float, *before: Any, attempt_id: int = 0) -> None:
    """An attempt with two stations, committed at a time; `before`: what is told of it first."""
    attempt = TransactionAttempt(txid, attempt_id)
    for event in before:
        traces.observe(event)
    traces.observe(BatchCommitted(at, "t", 1, attempt, (attempt,), {}, {}))
    for station in ("success", "clean_up"):
        traces.observe(StationEnded(at, "t", 1, (attempt,), station, at, None, ()))


def test_of_what_goes_well_a_sample_has_its_stations() -> None:
    """Ten seconds' worth at once, then so many a second; each attempt has its own span, which
    says what was left out; one with bad rows, or after failures, has its stations in any case.
    """
    exporter, traces = in_memory(detailed_per_sec=0.5)
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    for txid in range(1, 9):
        told_of(traces, txid, 100.0)
    told_of(traces, 9, 104.0)
    told_of(traces, 10, 104.0)
    told_of(traces, 11, 104.0)
    bad = BadRows(104.0, "t", 1, TransactionAttempt(12), "s", "rule", 1, set_aside=True)
    told_of(traces, 12, 104.0, bad)
    told_of(traces, 13, 104.0, attempt_id=1)
    spans = exporter.get_finished_spans()
    attempts = {span.context.trace_id: span for span in spans if span.name == "attempt"}
    below: dict[int, list[str]] = {}
    for span in spans:
        if span.name != "attempt":
            below.setdefault(span.context.trace_id, []).append(span.name)
    detailed: list[Any] = []
    told: list[Any] = []
    for trace, span in attempts.items():
        found = span.attributes or {}
        assert found["txn.stations"] == len(below.get(trace, []))
        if trace in below:
            detailed.append(found["txn.txid"])
        told.append((found["txn.txid"], found.get("txn.stations_left_out")))
    assert sorted(detailed) == [1, 2, 3, 4, 5, 9, 10, 12, 13]
    assert sorted(told) == [(txid, 2 if txid in (6, 7, 8, 11) else None) for txid in range(1, 14)]


def test_a_group_is_detailed_as_a_whole() -> None:
    """What it shares stands with its first, which has it also for the sake of another one."""
    exporter, traces = in_memory(detailed_per_sec=0)
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    for first, unusual in ((1, False), (3, True)):
        group = (TransactionAttempt(first), TransactionAttempt(first + 1))
        traces.observe(StationBegan(2.0, "t", 1, group, "process"))
        traces.observe(StationEnded(2.5, "t", 1, group, "process", 2.0))
        if unusual:
            traces.observe(BadRows(3.0, "t", 1, group[1], "s", "rule", 1, set_aside=True))
        for attempt in group:
            traces.observe(BatchCommitted(3.0, "t", 1, attempt, group, {}, {}))
        for attempt in group:
            for station in ("success", "clean_up"):
                traces.observe(StationEnded(4.0, "t", 1, (attempt,), station, 3.5))
    spans = exporter.get_finished_spans()
    below = [(span.attributes or {}) for span in spans if span.name != "attempt"]
    assert sorted((str(one["txn.txid"]), str(one["txn.station"])) for one in below) == [
        (txid, name)
        for txid, names in (
            ("3", ["clean_up", "process", "success"]),
            ("4", ["clean_up", "success"]),
        )
        for name in names
    ]


def test_each_of_a_group_counts() -> None:
    """Groups are detailed as a whole, but not more attempts a second than there are to be."""
    exporter, traces = in_memory(detailed_per_sec=0.5)
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    for first, at in ((1, 100.0), (5, 100.0), (9, 100.0), (13, 107.0), (17, 111.0)):
        group = tuple(TransactionAttempt(txid) for txid in range(first, first + 4))
        traces.observe(StationBegan(at, "t", 1, group, "process"))
        traces.observe(StationEnded(at, "t", 1, group, "process", at))
        for attempt in group:
            traces.observe(BatchCommitted(at, "t", 1, attempt, group, {}, {}))
        for attempt in group:
            for station in ("success", "clean_up"):
                traces.observe(StationEnded(at, "t", 1, (attempt,), station, at))
    spans = exporter.get_finished_spans()
    found = {int(str((s.attributes or {})["txn.txid"])) for s in spans if s.name == "success"}
    # Five are left, then one, then -3, and after eleven seconds 2.5.
    assert found == {*range(1, 9), *range(17, 21)}
    # What is unusual takes none of what is left, nor does what goes well beside it: half a one.
    for first in range(21, 121, 2):
        group = (TransactionAttempt(first), TransactionAttempt(first + 1))
        traces.observe(StationBegan(114.0, "t", 1, group, "process"))
        traces.observe(BadRows(114.0, "t", 1, group[1], "s", "rule", 1, set_aside=True))
        told_of(traces, first, 114.0)
        told_of(traces, first + 1, 114.0)
    told_of(traces, 200, 120.0)
    *_, last = exporter.get_finished_spans()
    assert ((last.attributes or {})["txn.txid"], last.name) == (200, "clean_up")


def test_groups_that_overlap_keep_nothing_of_those_before() -> None:
    """One attempt is of a group that is processed, and of another one that is committed."""
    _, traces = in_memory()
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    kept: list[weakref.ref[Any]] = []
    for txid in range(1, 9):
        one, next_one = TransactionAttempt(txid), TransactionAttempt(txid + 1)
        traces.observe(StationBegan(2.0, "t", 1, (one, next_one), "process"))
        traces.observe(StationEnded(2.5, "t", 1, (one, next_one), "process", 2.0))
        kept.append(weakref.ref(traces._open[one]))
        told_of(traces, txid, 3.0)
    gc.collect()
    assert [each() for each in kept[:6]] == [None] * 6


@pytest.mark.parametrize(("per_sec", "detailed"), [(0.0, 0), (0.05, 1), (0.5, 5), (math.inf, 40)])
def test_any_number_of_attempts_can_be_detailed(per_sec: float, detailed: int) -> None:
    """Below one in ten seconds it is one after a while, and none only if none are wanted."""
    exporter, traces = in_memory(detailed_per_sec=per_sec)
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    for txid in range(1, 41):
        told_of(traces, txid, 100.0)
    stations = [span for span in exporter.get_finished_spans() if span.name != "attempt"]
    assert len(stations) == 2 * detailed


@pytest.mark.parametrize("number", [-1.0, math.nan])
def test_a_number_that_is_none_is_refused(number: float) -> None:
    """Where it is given."""
    with pytest.raises(SetupError, match="is not a number of attempts"):
        in_memory(detailed_per_sec=number)


def test_an_attempt_whose_last_events_were_dropped_is_handed_over() -> None:
    """A later commit ends its trace: nothing else would, before the run does."""
    exporter, traces = in_memory()
    one, two = TransactionAttempt(1), TransactionAttempt(2)
    traces.observe(RunBegan(1.0, "t", 0, "forever", ("s",), ("rows",), standby=False))
    traces.observe(BatchCommitted(2.0, "t", 1, one, (one,), {}, {}))
    traces.observe(StationBegan(2.5, "t", 1, (one,), "clean_up"))
    traces.observe(EventsDropped(3.0, "t", 1, 7))
    assert exporter.get_finished_spans() == ()
    traces.observe(BatchCommitted(4.0, "t", 1, two, (two,), {}, {}))
    attempts = [span for span in exporter.get_finished_spans() if span.name == "attempt"]
    assert [(span.attributes or {})["txn.txid"] for span in attempts] == [1]


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, False),
        ({"OTEL_TRACES_EXPORTER": "none ", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, False),
        ({"OTEL_TRACES_EXPORTER": " ", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, True),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_when_the_environment_asks_for_traces(environment: dict[str, str], wanted: bool) -> None:
    """An exporter or an endpoint asks for them; `none` and a disabled SDK do not."""
    assert is_asked_for("TRACES", environment) is wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")],
)
def test_a_setting_that_cannot_be_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, where traces are asked for and not when the run has begun."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=f"{name} is '{value}'") as refused:
        Traces()
    assert refused.value.number == "TXN-214"
