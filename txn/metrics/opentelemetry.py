"""Metrics by OpenTelemetry, configured by its own `OTEL_*` variables."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from txn.config.otlp import configured, protocol, sender
from txn.errors import SetupError
from txn.metrics.memory import driver_memory
from txn.metrics.readings import Readings
from txn.metrics.table import PARTITIONS, TABLE, Metric
from txn.observers import RunEnded, RunEvent

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

__all__ = ["OpenTelemetryMetrics"]

_MISSING = (
    "OpenTelemetry metrics need its SDK and an exporter. Install them: pip install "
    "'txn-spark[otel]'. For OTEL_EXPORTER_OTLP_PROTOCOL=grpc also "
    "opentelemetry-exporter-otlp-proto-grpc. Or set OTEL_METRICS_EXPORTER=none."
)


class OpenTelemetryMetrics:
    """An observer (`Topology.start(observers=[...])`) that sends metrics by OpenTelemetry.

    For one run. At its end it sends everything once more, and its gauges lose their values.

    Args:
        provider: your program's, for any number of runs; it is not shut down. None: one that sends
            by OTLP as the `OTEL_*` variables configure it (`OTEL_EXPORTER_OTLP_ENDPOINT`,
            `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and so
            on). The default service name is the topology's name.
        partitions: see `PrometheusMetrics`.
        clock: seconds since the epoch.

    Raises:
        SetupError: a package is missing, or a variable `OTEL_*` has an invalid value.
    """

    def __init__(
        self,
        provider: MeterProvider | None = None,
        *,
        partitions: int = PARTITIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if provider is None:
            # Tried here: once the run has begun, it is too late to raise.
            _provider("").shutdown()
        self._program_provider = provider
        self._partitions = partitions
        self._clock = clock
        self._readings: Readings | None = None
        self._end: Callable[[], Any] = lambda: None

    def observe(self, event: RunEvent) -> None:
        """Count an event; the last one sends everything."""
        if self._readings is None:  # the first event names the topology
            self._readings = self._begin(event.topology)
        self._readings.read(event)
        if isinstance(event, RunEnded):
            self.close()

    def close(self) -> None:
        """Send everything and end; the program's own provider goes on. Idempotent."""
        end, self._end = self._end, lambda: None
        end()

    def _begin(self, topology: str) -> Readings:
        provider = self._program_provider
        if provider is None:
            provider = own = _provider(topology)
            self._end = own.shutdown
        meters = _Meters(_shared_instruments(provider))
        if self._program_provider is not None:
            self._end = lambda: _sent(self._program_provider, meters)
        readings = Readings(meters, self._partitions, self._clock, driver_memory)
        meters.begin(readings.refresh)
        return readings


def _sent(provider: Any, meters: _Meters) -> None:
    """Send the last values of a run by its program's provider, if that can flush."""
    try:
        getattr(provider, "force_flush", lambda: None)()
    finally:
        meters.end()


class _Instruments:
    """A provider's instruments, made once, since it refuses a second one of the same name.

    The provider reads the gauges of all open runs when it needs them.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.made: dict[str, Any] = {}
        """Name of a metric -> its counter or histogram."""
        self.runs: list[_Meters] = []
        self.lock = threading.Lock()
        meter = provider.get_meter("txn")
        for metric in TABLE:
            about = {"unit": metric.unit, "description": metric.help}
            match metric.kind:
                case "counter":
                    self.made[metric.name] = meter.create_counter(metric.otel_name, **about)
                case "histogram":
                    buckets = [*metric.buckets]
                    self.made[metric.name] = meter.create_histogram(
                        metric.otel_name, explicit_bucket_boundaries_advisory=buckets, **about
                    )
                case _:
                    callbacks = [self._reader(metric)]
                    meter.create_observable_gauge(metric.otel_name, callbacks, **about)

    def _reader(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def read(_: CallbackOptions) -> Iterable[Observation]:
            with self.lock:
                runs = [*self.runs]
            return [
                Observation(value, _attributes(metric, labels))
                for run in runs
                for labels, value in run.values(metric)
            ]

        return read


_shared: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_sharing = threading.Lock()


def _shared_instruments(provider: MeterProvider) -> _Instruments:
    with _sharing:
        instruments = _shared.get(provider)
        if instruments is None:
            instruments = _shared[provider] = _Instruments(provider)
        return instruments


class _Meters:
    """`Meters` of one run, over the instruments of a provider."""

    def __init__(self, instruments: _Instruments) -> None:
        self._instruments = instruments
        self._refresh: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {}

    def begin(self, refresh: Callable[[], None]) -> None:
        """Let the provider read the gauges; calls `refresh` before the time-dependent ones."""
        self._refresh = refresh
        with self._instruments.lock:
            self._instruments.runs.append(self)

    def end(self) -> None:
        """Hide the gauges from the provider: another run of the topology may have begun."""
        with self._instruments.lock:
            self._instruments.runs.remove(self)

    def values(self, metric: Metric) -> list[tuple[tuple[str, ...], float]]:
        """Return the (labels, value) pairs of a gauge."""
        if metric.refreshed:
            self._refresh()
        with self._lock:
            return [*self._gauges.get(metric.name, {}).items()]

    def add(self, metric: Metric, by: float, *labels: str) -> None:
        # Always a double: OTLP has another field for ints, and a series must not mix them.
        self._instruments.made[metric.name].add(float(by), _attributes(metric, labels))

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        self._instruments.made[metric.name].record(value, _attributes(metric, labels))

    def set(self, metric: Metric, to: float, *labels: str) -> None:
        with self._lock:
            self._gauges.setdefault(metric.name, {})[labels] = float(to)

    def forget(self, metric: Metric, *labels: str) -> None:
        with self._lock:
            self._gauges.get(metric.name, {}).pop(labels, None)


def _attributes(metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(("topology", *metric.labels), labels, strict=True))


def _provider(topology: str) -> Any:
    """Return a provider that sends by OTLP as the environment configures it, with `sender`."""
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = configured(lambda: PeriodicExportingMetricReader(_exporter()))
        return MeterProvider([reader], resource=sender(topology))
    except ImportError as error:
        raise SetupError(f"{_MISSING} ({error})", number="TXN-211") from None


def _exporter() -> Any:
    if protocol("METRICS", os.environ) == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as by_grpc

        return by_grpc.OTLPMetricExporter()
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as by_http

    return by_http.OTLPMetricExporter()
