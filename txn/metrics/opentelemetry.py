"""Metrics by OpenTelemetry, configured by its own `OTEL_*` variables."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from txn.errors import SetupError
from txn.metrics.memory import driver_memory
from txn.metrics.readings import Readings
from txn.metrics.table import PARTITIONS, TABLE, Metric
from txn.observers import RunEnded, RunEvent
from txn.otlp import configured, protocol, sender

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

    Of one run. At its end everything is sent once more, and its gauges have no value any more.

    Args:
        provider: your program's, for any number of runs; it is not shut down. None: one that sends
            by OTLP to where the `OTEL_*` variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`,
            `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and so
            on). Without a name of the service it is the topology's.
        partitions: as of `PrometheusMetrics`.
        clock: seconds since the epoch.

    Raises:
        SetupError: a package is missing, or a variable `OTEL_*` has a value that it cannot have.
    """

    def __init__(
        self,
        provider: MeterProvider | None = None,
        *,
        partitions: int = PARTITIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if provider is None:
            # Tried here: when the run has begun, nobody can be told any more.
            _provider("").shutdown()
        self._given = provider
        self._partitions = partitions
        self._clock = clock
        self._readings: Readings | None = None
        self._end: Callable[[], Any] = lambda: None

    def observe(self, event: RunEvent) -> None:
        """Take an event in; the last one sends everything."""
        if self._readings is None:  # the first one says whose metrics they are
            self._readings = self._begin(event.topology)
        self._readings.read(event)
        if isinstance(event, RunEnded):
            self.close()

    def close(self) -> None:
        """Send everything and end; a provider of the program's goes on. May be called again."""
        end, self._end = self._end, lambda: None
        end()

    def _begin(self, topology: str) -> Readings:
        provider = self._given
        if provider is None:
            provider = own = _provider(topology)
            self._end = own.shutdown
        meters = _Meters(_instruments_of(provider))
        if self._given is not None:
            self._end = lambda: _sent(self._given, meters)
        readings = Readings(meters, self._partitions, self._clock, driver_memory)
        meters.begin(readings.refresh)
        return readings


def _sent(provider: Any, meters: _Meters) -> None:
    """Send the last values of a run by its program's provider. Not every one can be told to."""
    try:
        getattr(provider, "force_flush", lambda: None)()
    finally:
        meters.end()


class _Instruments:
    """What a provider has of each metric: made once, as it takes no second one of the same name.

    Gauges are read when the provider asks for them, those of all runs that go on.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.made: dict[str, Any] = {}
        """Metric -> its counter or histogram."""
        self.runs: list[_Meters] = []
        self.lock = threading.Lock()
        meter = provider.get_meter("txn")
        for each in TABLE:
            about = {"unit": each.unit, "description": each.help}
            match each.kind:
                case "counter":
                    self.made[each.name] = meter.create_counter(each.otel_name, **about)
                case "histogram":
                    buckets = [*each.buckets]
                    self.made[each.name] = meter.create_histogram(
                        each.otel_name, explicit_bucket_boundaries_advisory=buckets, **about
                    )
                case _:
                    asked = [self._reader(each)]
                    meter.create_observable_gauge(each.otel_name, asked, **about)

    def _reader(self, what: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def read(_: CallbackOptions) -> Iterable[Observation]:
            with self.lock:
                runs = [*self.runs]
            return [
                Observation(value, _attributes(what, labels))
                for run in runs
                for labels, value in run.values(what)
            ]

        return read


_shared: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_sharing = threading.Lock()


def _instruments_of(provider: MeterProvider) -> _Instruments:
    with _sharing:
        found = _shared.get(provider)
        if found is None:
            found = _shared[provider] = _Instruments(provider)
        return found


class _Meters:
    """The metrics of one run, by the instruments of a provider."""

    def __init__(self, instruments: _Instruments) -> None:
        self._instruments = instruments
        self._refresh: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._gauges: dict[str, dict[tuple[str, ...], float]] = {}

    def begin(self, refresh: Callable[[], None]) -> None:
        """Let the provider read the gauges, after `refresh` for those that change by themselves."""
        self._refresh = refresh
        with self._instruments.lock:
            self._instruments.runs.append(self)

    def end(self) -> None:
        """Let it read them no more: another run of the topology may have begun."""
        with self._instruments.lock:
            self._instruments.runs.remove(self)

    def values(self, what: Metric) -> list[tuple[tuple[str, ...], float]]:
        """(labels, value) of a gauge."""
        if what.refreshed:
            self._refresh()
        with self._lock:
            return [*self._gauges.get(what.name, {}).items()]

    def add(self, what: Metric, by: float, *labels: str) -> None:
        """See `Meters`."""
        # Always a double: OTLP has another field for ints, and a series should not change between.
        self._instruments.made[what.name].add(float(by), _attributes(what, labels))

    def record(self, what: Metric, value: float, *labels: str) -> None:
        """See `Meters`."""
        self._instruments.made[what.name].record(value, _attributes(what, labels))

    def set(self, what: Metric, to: float, *labels: str) -> None:
        """See `Meters`."""
        with self._lock:
            self._gauges.setdefault(what.name, {})[labels] = float(to)

    def forget(self, what: Metric, *labels: str) -> None:
        """See `Meters`."""
        with self._lock:
            self._gauges.get(what.name, {}).pop(labels, None)


def _attributes(what: Metric, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(("topology", *what.labels), labels, strict=True))


def _provider(topology: str) -> Any:
    """A provider that sends by OTLP, as the environment says, in the name of `sender`."""
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
