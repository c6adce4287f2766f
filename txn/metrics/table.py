"""Every metric, declared once: its name, type, unit, labels and meaning, for all exporters.

Names follow Prometheus' conventions. OpenTelemetry has the same names with `txn.` for `txn_` and
without `_total`, so a collector that exports them to Prometheus restores the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["OTHER_PARTITIONS", "PARTITIONS", "TABLE", "Kind", "Metric", "metric"]

Kind = Literal["counter", "gauge", "histogram"]

PARTITIONS = 50
"""Number of partitions of a stream with a series of their own; the others are added up."""

OTHER_PARTITIONS = "others"
"""The label `partition` of all partitions without a series of their own."""

_BATCH = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_REQUEST = (0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_GROUP = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class Metric:
    """One metric.

    Args:
        unit: as in OpenTelemetry (UCUM): "s", "By", or the counted thing in braces; "1" for a gauge
            that is 0 or 1.
        labels: besides `topology`, which every metric has.
        help: one sentence.
        buckets: upper bounds of a histogram.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()

    @property
    def refreshed(self) -> bool:
        """True if it changes with time, so it is computed at each scrape."""
        return self.name in ("txn_batch_age_seconds", "txn_driver_memory_bytes")

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry."""
        return self.name.removesuffix("_total").replace("txn_", "txn.", 1)


def _counter(name: str, unit: str, labels: str, text: str) -> Metric:
    return Metric(f"txn_{name}_total", "counter", unit, tuple(labels.split()), text)


def _gauge(name: str, unit: str, labels: str, text: str) -> Metric:
    return Metric(f"txn_{name}", "gauge", unit, tuple(labels.split()), text)


def _histogram(name: str, unit: str, labels: str, text: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(f"txn_{name}", "histogram", unit, tuple(labels.split()), text, buckets)


TABLE: tuple[Metric, ...] = (
    # The leader.
    _gauge("leader", "1", "", "1 while this process leads the topology."),
    _gauge("standby", "1", "", "1 while this process waits as a standby."),
    _gauge(
        "leadership_in_doubt",
        "1",
        "",
        "1 while ZooKeeper has not answered for a session's timeout, so another process may lead.",
    ),
    _counter(
        "leadership_doubts",
        "{doubt}",
        "",
        "How often the leader's ZooKeeper session was lost, or had no answer for its timeout.",
    ),
    _gauge("epoch", "{epoch}", "", "The leader's epoch; each new leader has the next one."),
    _gauge(
        "driver_memory_bytes",
        "By",
        "process",
        "Resident memory of the driver: of its process python, and of the jvm that it started.",
    ),
    # Progress.
    _gauge("committed_txid", "{txid}", "", "The newest committed txid."),
    _gauge(
        "last_commit_timestamp_seconds",
        "s",
        "",
        "When the newest txid was committed, or the run began, since 1970.",
    ),
    _counter("batches", "{batch}", "", "Txids committed by this run."),
    _gauge("in_flight", "{batch}", "", "Txids that are started and not committed."),
    _gauge(
        "batch_age_seconds",
        "s",
        "",
        "For how long the oldest txid in flight has been planned; 0 if there is none.",
    ),
    _histogram("batch_seconds", "s", "", "From a txid's first plan to its commit.", _BATCH),
    _histogram(
        "station_seconds",
        "s",
        "station",
        "Time of an attempt or a group at a station; of stage for each table.",
        _BATCH,
    ),
    _counter(
        "table_station_seconds",
        "s",
        "station table",
        "Time that stage, prepare and publish of a table took.",
    ),
    _histogram("group_txids", "{txid}", "", "Txids committed by one commit turn.", _GROUP),
    _counter("groups_dissolved", "{group}", "", "Groups whose turn failed and was split."),
    _gauge(
        "held_up_by",
        "1",
        "bound",
        "1 for what holds the run up now: source, processing, commit, away, replay or idle.",
    ),
    _gauge("back_pressure", "1", "", "1 while max_spout_pending txids are in flight."),
    # Sources.
    _counter("input_records", "{record}", "stream", "Records that committed txids have read."),
    _counter("input_bytes", "By", "stream", "Bytes that committed txids have read."),
    _gauge("lag_records", "{record}", "stream", "Records of the source that are not committed."),
    _gauge("lag_bytes", "By", "stream", "Bytes of the source that are not committed."),
    _gauge("lag_files", "{file}", "stream", "Files of the source that are not committed."),
    _gauge("lag_versions", "{version}", "stream", "Versions of the source that are not committed."),
    _gauge("lag_seconds", "s", "stream", "For how long the next batch has been due."),
    _gauge(
        "lag_partition_records",
        "{record}",
        "stream partition",
        "Records of a partition that are not committed; others: of those without their own.",
    ),
    _gauge("planned_records", "{record}", "stream", "Of txn_lag_records, those with a txid."),
    _gauge("planned_bytes", "By", "stream", "Of txn_lag_bytes, those with a txid."),
    _gauge("planned_files", "{file}", "stream", "Of txn_lag_files, those with a txid."),
    _gauge("planned_versions", "{version}", "stream", "Of txn_lag_versions, those with a txid."),
    _gauge("notices", "{notice}", "stream", "Notices of the spout, as txn status shows them."),
    _gauge(
        "watermark_timestamp_seconds",
        "s",
        "",
        "The watermark of the newest committed txid: rows with an event time up to it were late.",
    ),
    _gauge(
        "newest_event_timestamp_seconds",
        "s",
        "",
        "The newest event time as of the newest committed txid.",
    ),
    # Trouble.
    _counter("attempts", "{attempt}", "", "Attempts that were started."),
    _counter(
        "replays",
        "{attempt}",
        "cause",
        "Attempts that failed and are replayed: failed, timeout, lost_work, conflict, "
        "staged_file, ledger or error.",
    ),
    _counter("waits", "{attempt}", "", "Attempts that found a source or storage away."),
    _gauge("blocked", "{batch}", "", "Txids that wait for a source or storage that is away."),
    _counter("quarantined", "{batch}", "", "Txids that were committed empty."),
    _gauge("in_quarantine", "{batch}", "", "Txids that are committed empty and not replayed yet."),
    _counter(
        "bad_rows",
        "{row}",
        "stream rule action",
        "Rows that broke a rule, and were dropped, set_aside, or (late ones) kept.",
    ),
    # Tables.
    _counter(
        "staged_rows",
        "{row}",
        "table",
        "Rows staged for a table by committed txids; partial aggregates count.",
    ),
    _counter("written_rows", "{row}", "table", "Rows in the files that publications added."),
    _counter("written_files", "{file}", "table", "Files that publications added."),
    _counter("written_bytes", "By", "table", "Bytes of the files that publications added."),
    _gauge("table_files", "{file}", "table", "Files of the whole table, as last published."),
    _gauge("table_bytes", "By", "table", "Bytes of these files."),
    _gauge("published_txid", "{txid}", "table", "The txid that a published table shows."),
    _counter(
        "maintenance",
        "{operation}",
        "table operation outcome",
        "Compactions, OPTIMIZEs, VACUUMs and publications of states: outcome done or failed.",
    ),
    _counter("maintenance_seconds", "s", "table operation", "The time that they took."),
    _counter(
        "maintenance_files", "{file}", "table operation", "Files that they rewrote or deleted."
    ),
    _counter("maintenance_bytes", "By", "table operation", "Bytes of these files."),
    # The driver's requests.
    _histogram(
        "zookeeper_request_seconds",
        "s",
        "operation",
        "Requests to ZooKeeper: get, get_children, get_acls, exists, sync or multi.",
        _REQUEST,
    ),
    _histogram(
        "storage_request_seconds",
        "s",
        "operation",
        "Requests of the driver to storage, such as get, head, walk or put_if_absent.",
        _REQUEST,
    ),
    _counter(
        "request_errors",
        "{request}",
        "service operation",
        "Requests to zookeeper or storage that failed.",
    ),
    _counter("events_dropped", "{event}", "", "Events that these metrics missed."),
)
"""All metrics, in the order of docs/metrics.md."""

_BY_NAME = {entry.name.removeprefix("txn_").removesuffix("_total"): entry for entry in TABLE}


def metric(name: str) -> Metric:
    """Return the metric of a name without `txn_` and `_total`."""
    return _BY_NAME[name]
