"""What a run tells about itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from committers.aggregates import Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryPosition, MemoryTransactionalSpout
from txn import FailedException, Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.engine.reporting.broadcast import Broadcast
from txn.engine.reporting.recorder import Recorder
from txn.engine.reporting.report import NOTHING_READ, BatchReport, Input, RunReport, Timeline
from txn.observers import AttemptFailed, BatchCommitted, ReplayScheduled
from txn.protocol.events import Batch, CoordinatorState, Phase
from txn.testing import MemoryProgress, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ATTEMPT = TransactionAttempt(3, 1)


class Clock:
    """Seconds since the epoch that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def recording(clock: Clock) -> tuple[Recorder, Broadcast]:
    """The recorder of a run with epoch 2, and what it hears from."""
    broadcast = Broadcast("t", clock)
    broadcast.epoch = 2
    return Recorder("t", 0, broadcast, clock), broadcast


def batch(txid: int) -> BatchReport:
    """A report of one committed batch."""
    return BatchReport(TransactionAttempt(txid), {"t": 5}, {"t": txid}, {"committed": 1.0})


def test_a_timeline_keeps_the_first_arrival_at_a_station():
    """A station that is reported twice keeps the time of the first report."""
    timeline = Timeline()
    timeline.mark("started", 1.0)
    timeline.mark("started", 2.0)
    assert timeline.at == {"started": 1.0}


def test_durations_are_between_the_stations_that_were_reached_in_milliseconds():
    """A station that was skipped leaves no gap in the sum of the durations."""
    timeline = Timeline()
    for station, now in (("turn", 12.5), ("started", 10.0), ("staged", 11.0)):
        timeline.mark(station, now)
    assert timeline.durations_ms() == {"staged": 1000.0, "turn": 1500.0}


def test_a_report_counts_batches_and_names_the_first_and_the_last_txid():
    """`first_txid` is the first of this run, not of the topology."""
    report = RunReport("t", epoch=4, committed_txid=6)
    assert (report.first_txid, report.committed_txid) == (0, 6)
    report.add(batch(7))
    report.add(batch(8))
    assert (report.first_txid, report.committed_txid, report.batches_committed) == (7, 8, 2)


def test_a_report_is_printed_as_a_summary_with_one_line_per_table():
    """In a notebook it is a table, in which no name is taken for markup."""
    report = RunReport("t", seconds=2.5, replays=1, ended="caught_up")
    assert repr(report) == "t: caught_up, 0 txids committed in 2.5 s, 1 replays."
    for txid in (7, 8):
        done = BatchReport(TransactionAttempt(txid), {"a<b>": 1500}, {"a<b>": txid + 3}, {})
        read, broken = Input({"s": 15}, {"s": 1050}), {"s": {"r": 2}}
        report.add(replace(done, read=read, violations=broken, written={"a<b>": 6}))
    report.failures.append("8:0: lost")
    assert str(report) == (
        "t: caught_up, 2 txids committed (7 to 8) in 2.5 s, 1 replays. Last failure: 8:0: lost\n"
        "Read 30 records, 2.1 kB; staged 3,000 rows; wrote 12 rows.\n"
        "4 rows dropped.\n"
        "  table  version  rows staged\n"
        "  a<b>        11        3,000"
    )
    assert "<td>a&lt;b&gt;</td><td>11</td><td>3,000</td>" in report._repr_html_()


class Growing(dict[str, int]):
    """Rows of a batch; whoever looks at them lets the run commit another one meanwhile."""

    def __init__(self, report: RunReport) -> None:
        super().__init__({"t": 5})
        self._report = report

    def keys(self):
        self._report.batches.append(batch(9))
        return super().keys()

    def items(self):
        self._report.batches.append(batch(9))
        return super().items()

    def values(self):
        self._report.batches.append(batch(9))
        return super().values()


def test_a_report_can_be_shown_while_the_run_adds_to_it():
    """As text, in a notebook, and as JSON: each shows what there was when it was asked for."""
    report = RunReport("t")
    for txid in (7, 8):
        report.batches.append(replace(batch(txid), rows=Growing(report)))
    assert "t: running" in repr(report)
    assert "<svg" in report._repr_html_()
    assert [told["txid"] for told in report.to_json()["batches"]][:2] == [7, 8]


def test_a_report_as_json_is_of_one_moment():
    """What the run adds later does not come into what was handed out."""
    report = RunReport("t", bound_seconds={"source": 1.0})
    told = report.to_json()
    report.bound_seconds["source"] = 2.0
    report.failures.append("1:0: no")
    report.observers.append("Observer A was too slow.")
    assert (told["bound_seconds"], told["failures"], told["observers"]) == ({"source": 1.0}, [], [])
    assert not {"lags", "failed"} & told.keys()


def test_a_notebook_gets_a_chart_of_the_newest_txids():
    """A bar for each, the tallest as high as the chart; one txid needs none."""
    report = RunReport("t")
    report.add(batch(1))
    assert "<svg" not in report._repr_html_()
    for txid in range(2, 302):
        report.add(replace(batch(txid), rows={"t": 0 if txid < 301 else 10}))
    shown = report._repr_html_()
    assert shown.count("<rect") == 150
    assert shown.count('y="0.0" width="3" height="40.0"') == 1
    assert "<p>rows staged by each of the newest 150 txids, at most 10</p>" in shown


def test_a_long_report_says_that_its_rows_are_those_of_the_newest_txids():
    """Only the newest batches are kept, so older rows are not in the sum."""
    report = RunReport("t")
    for txid in range(1, 502):
        report.add(batch(txid))
    assert repr(report).splitlines()[-1] == "  t          501  of the newest txids: 2,500"


def test_a_report_is_json_with_every_batch_in_txid_order():
    """`txn run --json` prints it as it is."""
    report = RunReport("t", epoch=4)
    report.add(batch(1))
    report.failures.append("2:0: lost")
    found = json.loads(json.dumps(report.to_json()))
    assert {
        "topology": "t",
        "epoch": 4,
        "committed_txid": 1,
        "failures": ["2:0: lost"],
    }.items() <= (found.items())
    expected = {"txid": 1, "attempt": 0, "rows": {"t": 5}, "tables": {"t": 1}}
    assert expected.items() <= found["batches"][0].items()


def test_the_recorder_reports_a_committed_batch_with_its_rows_tables_and_times():
    """Rows per table are those that were staged; times are those of the clock."""
    clock = Clock()
    recorder, broadcast = recording(clock)
    start = broadcast.span("start", [ATTEMPT])
    clock.now += 1
    with start:
        pass
    clock.now += 2
    broadcast.send(BatchCommitted(*broadcast.stamp(), ATTEMPT, (ATTEMPT,), {"t": 7}, {"t": 9}))
    times = {"planned": 1000.0, "started": 1001.0, "committed": 1003.0}
    assert [BatchReport(ATTEMPT, {"t": 7}, {"t": 9}, times)] == list(recorder.report.batches)


def test_what_was_read_and_what_was_staged_are_different_numbers():
    """By stream in a batch, in total in a report; a total is not known if one part is not."""
    recorder, broadcast = recording(Clock())
    first = Input({"a": 100, "b": 20}, {"a": 5000, "b": None})
    second = Input({"a": 1}, {"a": 7})
    about = *broadcast.stamp(), ATTEMPT, (ATTEMPT,), {"t1": 4, "t2": 4}, {}
    for read in (first, second, NOTHING_READ):
        broadcast.send(BatchCommitted(*about, read.records, read.bytes))
    report = recorder.report
    assert (report.input_records, report.input_bytes, report.rows_staged) == (121, None, 24)
    found = json.loads(json.dumps(report.to_json()))
    assert {"input_records": 121, "input_bytes": None, "rows_staged": 24}.items() <= found.items()
    assert found["batches"][0]["input_bytes"] == {"a": 5000, "b": None}
    assert found["batches"][2]["input_records"] == {}


class Unsure(MemoryTransactionalSpout):
    """It knows its rows, fails the first try of its second batch, and cannot say its bytes."""

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of the batch."""
        if (attempt.txid, attempt.attempt_id) == (2, 0):
            raise FailedException("once")
        return super().emit_batch(spark, attempt, metadata)

    def planned_bytes(self, metadata: MemoryPosition) -> int:
        """A number that cannot be had must not end a run."""
        raise OSError("no size")


def test_a_run_counts_what_it_read_once(spark: SparkSession, warehouse: Path):
    """Whatever transforms make of it, for however many tables; a replay does not count again."""
    topology = Topology(warehouse.parent.name, TopologyConfig(retry_backoff_ms=1))
    rows = topology.stream("s", Unsure([[("a", 1), ("b", 2)], [("c", 3)]], "k string, v bigint"))
    few = rows.transform(lambda frame: frame.where("v > 1"))
    few.partition_persist(AppendTable(warehouse / "few"))
    many = rows.transform(lambda frame: frame.selectExpr("explode(array(v, v, v)) as v"))
    many.partition_persist(AppendTable(warehouse / "many"))
    report = run_in_memory(topology, spark)
    assert (report.replays, report.committed_txid) == (1, 2)
    assert [batch.read for batch in report.batches] == [
        Input({"s": 2}, {"s": None}),
        Input({"s": 1}, {"s": None}),
    ]
    assert (report.input_records, report.input_bytes, report.rows_staged) == (3, None, 2 + 9)
    assert report.rows_written == 2 + 9


def test_rows_written_are_those_of_the_files_that_a_version_adds(
    spark: SparkSession, warehouse: Path
):
    """With aggregates also rows that were stored before; txids of one version share them."""
    rows = [[("a", 1), ("b", 2)], [("c", 3)], [("c", 4)]]
    topology = Topology(warehouse.parent.name)
    stream = topology.stream("s", MemoryTransactionalSpout(rows, "k string, v bigint"))
    table = StateTable(warehouse / "sums", buckets=1)
    stream.group_by("k").persistent_aggregate(table, total=Sum("v"))
    report = run_in_memory(topology, spark)
    name = str(warehouse / "sums")
    assert report.rows_staged == 2 + 1 + 1
    by_version: dict[int, int] = {}
    for batch in report.batches:
        assert len(batch.written) <= 1
        written = by_version.setdefault(batch.tables[name], 0)
        by_version[batch.tables[name]] = written + (batch.written.get(name) or 0)
    first, *_, last = [number for _, number in sorted(by_version.items())]
    assert (first in {2, 3}, last) == (True, 3)
    assert report.rows_written == sum(by_version.values())


class Unreadable(MemoryTransactionalSpout):
    """Its second batch cannot be read."""

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: MemoryPosition
    ) -> DataFrame:
        """The rows of the batch."""
        if attempt.txid == 2:
            raise FailedException("never")
        return super().emit_batch(spark, attempt, metadata)


def test_a_run_tells_what_its_tables_have_nothing_of(spark: SparkSession, warehouse: Path):
    """Rows dropped, rows set aside, txids quarantined: three numbers, in report and status."""
    config = TopologyConfig(max_batch_attempts=1, on_exhausted="quarantine")
    bad = AppendTable(warehouse / "bad")
    topology = Topology(warehouse.parent.name, config, bad_rows=bad)
    batches = [[("a", 1), ("b", 2), (None, 3)], [("c", 3)], [("d", -1), (None, 1)]]
    stream = topology.stream("s", Unreadable(batches, "k string, v bigint"))
    kept = stream.expect("a key", "k IS NOT NULL", on_violation="drop")
    kept = kept.expect("more than 1", "v > 1", on_violation="set_aside")
    kept.partition_persist(AppendTable(warehouse / "kept"))
    store = MemoryProgress(topology.name)
    running = topology.start(spark, until="caught_up", store=store)
    report = running.await_termination()
    assert report.totals.left_out() == "2 rows dropped, 2 rows set aside, 1 txid quarantined"
    assert running.status().totals == report.totals
    assert [batch.quarantined for batch in report.batches] == [False, True, False]


def test_the_recorder_counts_failures_and_names_attempt_and_reason():
    """The last attempt of a txid is no replay: the run ends with it, or the txid is emptied."""
    recorder, broadcast = recording(Clock())
    broadcast.send(ReplayScheduled(*broadcast.stamp(), ATTEMPT, 1, 0.1, blocked=True))
    assert recorder.report.replays == 0
    broadcast.send(ReplayScheduled(*broadcast.stamp(), ATTEMPT, 1, 0.1, blocked=False))
    for ends_run in (False, True):
        stamp = broadcast.stamp()
        failed = AttemptFailed(*stamp, ATTEMPT, "failed", "lost", "processing", ends_run)
        broadcast.send(failed)
    assert (recorder.report.replays, list(recorder.report.failures)) == (1, ["3:1: lost"])


def test_the_end_of_a_run_keeps_how_it_went_and_how_long():
    """An end without a name leaves the one that was given before."""
    clock = Clock()
    recorder, _ = recording(clock)
    clock.now += 5
    recorder.ended("caught_up")
    recorder.ended()
    assert (recorder.report.ended, recorder.report.seconds) == ("caught_up", 5.0)


def test_the_status_shows_every_open_txid_with_phase_and_since_when():
    """The coordinator's state with the recorder's times; what waits for Spark is queued."""
    clock = Clock()
    recorder, broadcast = recording(clock)
    with broadcast.span("start", [ATTEMPT]):
        pass
    clock.now += 1
    state = CoordinatorState(
        committed=2,
        positions={},
        opaque_streams=frozenset(),
        streams=("s",),
        max_spout_pending=2,
        max_batch_attempts=5,
        batches={3: Batch(ATTEMPT, Phase.PROCESSING, failures=1)},
    )
    status = recorder.status(state)
    (open_batch,) = status.in_flight
    assert (status.committed_txid, status.epoch, status.seconds) == (2, 2, 1.0)
    found = (open_batch.txid, open_batch.attempt_id, open_batch.phase, open_batch.failures)
    assert found == (3, 1, "queued", 1)
    assert open_batch.since == 1000.0
    with broadcast.span("process", [ATTEMPT]):
        assert recorder.status(state).in_flight[0].phase == "processing"
