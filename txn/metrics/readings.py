"""Turn events into changes of metrics, without an exporter, a clock or a thread.

`read` is called in the observer's thread and `refresh` in an exporter's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, get_args

from txn.interfaces import Lag
from txn.metrics.table import OTHER_PARTITIONS, Metric, metric
from txn.observers import (
    AttemptBegan,
    AttemptBlocked,
    AttemptFailed,
    BackPressureBegan,
    BackPressureEnded,
    BadRows,
    BatchCommitted,
    BatchUnblocked,
    Bound,
    BoundChanged,
    EventsDropped,
    FailureCause,
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
from txn.text import printable

__all__ = ["Meters", "Readings"]

E = TypeVar("E", bound=RunEvent)

_UNITS = ("records", "bytes", "files", "versions", "seconds")


class Meters(Protocol):
    """The operations of an exporter. `labels` are the values of the labels, `topology` first."""

    def add(self, metric: Metric, by: float, *labels: str) -> None:
        """Increase a counter."""

    def set(self, metric: Metric, to: float, *labels: str) -> None:
        """Set a gauge."""

    def forget(self, metric: Metric, *labels: str) -> None:
        """Remove the value of a gauge, if it has one."""

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram."""


class Readings:
    """The metrics of one run.

    Args:
        meters: receives the numbers.
        partitions: number of partitions of a stream with a series of their own.
        clock: seconds since the epoch.
        memory: returns process -> bytes.
    """

    def __init__(
        self,
        meters: Meters,
        partitions: int,
        clock: Callable[[], float],
        memory: Callable[[], Mapping[str, int]],
    ) -> None:
        self._meters = meters
        self._most = partitions
        self._clock = clock
        self._memory = memory
        self._lock = threading.Lock()
        self._topology: str | None = None
        self._open: dict[int, float] = {}
        """Txid in flight -> time of its first plan."""
        self._blocked: set[int] = set()
        self._causes: dict[int, FailureCause] = {}
        """Txid -> the cause of its newest failure, until the next event shows its replay."""
        self._aside: set[int] = set()
        """Txids in quarantine."""
        self._shown_bound: str | None = None
        """The bound that `held_up_by` shows."""
        self._processes: set[str] = set()
        """Processes whose memory is shown."""
        self._partitions: dict[str, set[str]] = {}
        """Stream -> partitions with a series."""
        self._readers: dict[type[RunEvent], Callable[[Any], None]] = {
            StandingBy: self._stands_by,
            LeadershipWon: self._won,
            LeadershipInDoubt: self._doubted,
            LeadershipConfirmed: self._confirmed,
            LeadershipLost: self._lost,
            RunStarted: self._started,
            RunEnded: self._ended,
            BoundChanged: self._bound,
            BackPressureBegan: lambda event: self._gauge(event, "back_pressure", 1),
            BackPressureEnded: lambda event: self._gauge(event, "back_pressure", 0),
            StationEnded: self._left,
            AttemptBegan: self._began,
            AttemptFailed: self._failed,
            ReplayScheduled: self._replayed,
            AttemptBlocked: self._was_blocked,
            BatchUnblocked: self._unblocked,
            GroupDissolved: lambda event: self._count(event, "groups_dissolved"),
            TablePublished: self._published,
            BatchCommitted: self._committed,
            BadRows: self._bad_rows,
            Quarantined: self._quarantined,
            LagChanged: self._lag,
            NoticesChanged: self._notices,
            MaintenanceDone: self._maintained,
            RequestEnded: self._asked,
            EventsDropped: lambda event: self._count(event, "events_dropped", event.count),
        }

    def read(self, event: RunEvent) -> None:
        """Count an event."""
        self._topology = event.topology
        if (reader := self._readers.get(type(event))) is not None:
            reader(event)

    def refresh(self) -> None:
        """Set the time-dependent gauges: ages and memory. Called in any thread."""
        if (topology := self._topology) is None:
            return
        with self._lock:
            oldest = min(self._open.values(), default=None)
        age = 0.0 if oldest is None else max(0.0, self._clock() - oldest)
        self._meters.set(metric("batch_age_seconds"), age, topology)
        sizes = self._memory()
        for gone in self._processes - sizes.keys():
            self._meters.forget(metric("driver_memory_bytes"), topology, gone)
        self._processes = {*sizes}
        for process, size in sizes.items():
            self._meters.set(metric("driver_memory_bytes"), size, topology, process)

    # --- short forms -------------------------------------------------------------------------

    def _gauge(self, event: RunEvent, name: str, value: float, *labels: str) -> None:
        self._meters.set(metric(name), value, event.topology, *labels)

    def _count(self, event: RunEvent, name: str, by: float = 1, *labels: str) -> None:
        self._meters.add(metric(name), by, event.topology, *labels)

    def _count_known(self, event: RunEvent, name: str, by: float | None, *labels: str) -> None:
        if by is not None:
            self._count(event, name, by, *labels)

    def _measure(self, event: RunEvent, name: str, value: float, *labels: str) -> None:
        self._meters.record(metric(name), value, event.topology, *labels)

    # --- the leader --------------------------------------------------------------------------

    def _stands_by(self, event: StandingBy) -> None:
        self._gauge(event, "standby", 1)
        self._gauge(event, "leader", 0)

    def _won(self, event: LeadershipWon) -> None:
        self._gauge(event, "standby", 0)
        self._gauge(event, "leader", 1)
        self._gauge(event, "epoch", event.epoch)
        self._gauge(event, "leadership_in_doubt", 0)
        self._count(event, "leadership_doubts", 0)  # present from the first scrape on

    def _doubted(self, event: LeadershipInDoubt) -> None:
        self._gauge(event, "leadership_in_doubt", 1)
        self._count(event, "leadership_doubts")

    def _confirmed(self, event: LeadershipConfirmed) -> None:
        self._gauge(event, "leadership_in_doubt", 0)

    def _lost(self, event: LeadershipLost) -> None:
        self._gauge(event, "leader", 0)

    def _started(self, event: RunStarted) -> None:
        self._gauge(event, "committed_txid", event.committed_txid)
        self._gauge(event, "last_commit_timestamp_seconds", event.at)
        self._gauge(event, "back_pressure", 0)
        # Present from the first scrape on: `increase` misses a series that begins with 1.
        for name in ("batches", "attempts", "waits", "quarantined", "groups_dissolved"):
            self._count(event, name, 0)
        self._count(event, "events_dropped", 0)
        for cause in get_args(FailureCause):
            self._count(event, "replays", 0, cause)
        for bound in get_args(Bound):
            self._gauge(event, "held_up_by", int(bound == self._shown_bound), bound)
        with self._lock:
            self._open = dict.fromkeys(event.open_txids, event.at)
        self._set_in_flight(event)
        self._aside = set(event.quarantined_txids)
        self._gauge(event, "in_quarantine", len(self._aside))

    def _ended(self, event: RunEnded) -> None:
        for name in ("leader", "standby", "leadership_in_doubt", "back_pressure"):
            self._gauge(event, name, 0)
        with self._lock:
            self._open = {}
        self._blocked.clear()
        self._set_in_flight(event)

    def _bound(self, event: BoundChanged) -> None:
        # Not `event.before`: these metrics may have missed that event.
        if self._shown_bound is not None:
            self._gauge(event, "held_up_by", 0, self._shown_bound)
        self._shown_bound = None if event.bound == "ended" else event.bound
        if self._shown_bound is not None:
            self._gauge(event, "held_up_by", 1, self._shown_bound)

    # --- batches -----------------------------------------------------------------------------

    def _left(self, event: StationEnded) -> None:
        if event.table is None or event.station == "stage":
            self._measure(event, "station_seconds", event.seconds, event.station)
        if event.table is not None:
            labels = event.station, event.table
            self._count(event, "table_station_seconds", event.seconds, *labels)

    def _began(self, event: AttemptBegan) -> None:
        self._count(event, "attempts")
        with self._lock:
            self._open.setdefault(event.attempt.txid, event.planned_at)
        self._set_in_flight(event)

    def _failed(self, event: AttemptFailed) -> None:
        self._causes[event.attempt.txid] = event.cause

    def _replayed(self, event: ReplayScheduled) -> None:
        cause = self._causes.pop(event.attempt.txid, None)
        if cause is not None and not event.blocked:
            self._count(event, "replays", 1, cause)

    def _was_blocked(self, event: AttemptBlocked) -> None:
        self._count(event, "waits")
        self._blocked.add(event.attempt.txid)
        self._set_in_flight(event)

    def _unblocked(self, event: BatchUnblocked) -> None:
        self._blocked.discard(event.attempt.txid)
        self._set_in_flight(event)

    def _set_in_flight(self, event: RunEvent) -> None:
        self._gauge(event, "in_flight", len(self._open))
        self._gauge(event, "blocked", len(self._blocked))

    def _committed(self, event: BatchCommitted) -> None:
        txid = event.attempt.txid
        with self._lock:
            planned = self._open.get(txid)
            # Commits are in order: these metrics missed the end of an earlier txid.
            self._open = {other: at for other, at in self._open.items() if other > txid}
        if planned is not None:
            self._measure(event, "batch_seconds", max(0.0, event.at - planned))
        self._causes.pop(txid, None)
        self._blocked = {other for other in self._blocked if other > txid}
        self._set_in_flight(event)
        self._count(event, "batches")
        self._gauge(event, "committed_txid", txid)
        self._gauge(event, "last_commit_timestamp_seconds", event.at)
        for name, at in {"watermark": event.watermark, "newest_event": event.newest_event}.items():
            if at is not None:
                self._gauge(event, f"{name}_timestamp_seconds", at / 1_000_000)
        if event.attempt == event.group[-1]:
            self._measure(event, "group_txids", len(event.group))
        for stream, records in event.input_records.items():
            self._count_known(event, "input_records", records, stream)
        for stream, size in event.input_bytes.items():
            self._count_known(event, "input_bytes", size, stream)
        for table, rows in event.rows.items():
            self._count(event, "staged_rows", rows, table)
        if event.replay_of is not None:
            self._aside.discard(event.replay_of)
            self._gauge(event, "in_quarantine", len(self._aside))

    def _quarantined(self, event: Quarantined) -> None:
        self._count(event, "quarantined")
        self._aside.add(event.attempt.txid)
        self._gauge(event, "in_quarantine", len(self._aside))

    def _bad_rows(self, event: BadRows) -> None:
        action = "set_aside" if event.set_aside else "kept" if event.kept else "dropped"
        self._count(event, "bad_rows", event.rows, event.stream, printable(event.rule), action)

    # --- sources -----------------------------------------------------------------------------

    def _lag(self, event: LagChanged) -> None:
        lag, planned = event.lag or Lag(), event.planned or Lag()
        numbers = {f"lag_{unit}": getattr(lag, unit) for unit in _UNITS}
        numbers |= {f"planned_{u}": getattr(planned, u) for u in _UNITS if u != "seconds"}
        for name, value in numbers.items():
            if value is None:
                self._meters.forget(metric(name), event.topology, event.stream)
            else:
                self._gauge(event, name, value, event.stream)
        shown = bounded(lag.partitions or {}, self._most)
        for gone in self._partitions.get(event.stream, set()) - shown.keys():
            gauge = metric("lag_partition_records")
            self._meters.forget(gauge, event.topology, event.stream, gone)
        for partition, records in shown.items():
            self._gauge(event, "lag_partition_records", records, event.stream, partition)
        self._partitions[event.stream] = {*shown}

    def _notices(self, event: NoticesChanged) -> None:
        self._gauge(event, "notices", len(event.notices), event.stream)

    # --- tables and requests -----------------------------------------------------------------

    def _published(self, event: TablePublished) -> None:
        if event.table_files is not None:
            self._gauge(event, "table_files", event.table_files, event.table)
        if event.table_bytes is not None:
            self._gauge(event, "table_bytes", event.table_bytes, event.table)
        if not event.skipped:
            self._count_known(event, "written_rows", event.rows, event.table)
            self._count(event, "written_files", event.files, event.table)
            self._count(event, "written_bytes", event.bytes, event.table)

    def _maintained(self, event: MaintenanceDone) -> None:
        outcome = "done" if event.error is None else "failed"
        labels = event.table, event.operation
        self._count(event, "maintenance", 1, *labels, outcome)
        self._count(event, "maintenance_seconds", max(0.0, event.at - event.began), *labels)
        self._count_known(event, "maintenance_files", event.files, *labels)
        self._count_known(event, "maintenance_bytes", event.bytes, *labels)
        if event.txid is not None:
            self._gauge(event, "published_txid", event.txid, event.table)

    def _asked(self, event: RequestEnded) -> None:
        self._measure(event, f"{event.service}_request_seconds", event.seconds, event.operation)
        if event.error is not None:
            self._count(event, "request_errors", 1, event.service, event.operation)


def bounded(partitions: Mapping[str, int], most: int) -> dict[str, int]:
    """Return partition -> records for the first `most` by name; the others are added up.

    By name and not by size, so a series does not come and go with the sizes.
    """
    shown: dict[str, int] = {}
    for at, name in enumerate(sorted(partitions, key=lambda name: (len(name), name))):
        # A partition may have this name itself.
        label = printable(name) if at < most else OTHER_PARTITIONS
        shown[label] = shown.get(label, 0) + partitions[name]
    return shown
