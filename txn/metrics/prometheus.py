"""Metrics for Prometheus, served on a port of this process during the run."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from txn.errors import SetupError
from txn.machine.listening import Address, parse_address, refusal
from txn.metrics.memory import driver_memory
from txn.metrics.readings import Readings
from txn.metrics.table import PARTITIONS, TABLE, Metric
from txn.observers import RunEnded, RunEvent

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import Metric as Family

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics:
    """An observer (`Topology.start(observers=[...])`) that Prometheus can scrape.

        topology.run(spark, observers=[PrometheusMetrics("127.0.0.1:9464")])

    For one run: its numbers begin at zero. The server answers as soon as this object exists, for a
    waiting standby too, and ends with the run.

    Args:
        address: "HOST:PORT" or "PORT" on loopback; port 0: any free one (see `port`). None: no
            server; your program publishes `registry` itself.
        partitions: the number of partitions of a stream with a series of their own, the first ones
            by name. The others are one series, `partition="others"`.
        clock: seconds since the epoch.

    Raises:
        SetupError: prometheus-client is not installed, or the address is invalid or in use.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        partitions: int = PARTITIONS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise SetupError(
                "Metrics need prometheus-client. Install it: pip install 'txn-spark[metrics]'.",
                number="TXN-211",
            ) from None
        self.registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
        """Only these metrics, without the process's default registry."""
        meters = _Meters()
        self._readings = Readings(meters, partitions, clock, driver_memory)
        meters.refresh = self._readings.refresh
        self.registry.register(meters)
        self.port: int | None = None
        """The server's port; None without a server."""
        self._stop: Callable[[], None] = lambda: None
        if address is not None:
            self.port, self._stop = _serve(self.registry, parse_address(address, example=9464))

    def observe(self, event: RunEvent) -> None:
        """Count an event; the last one ends the server."""
        self._readings.read(event)
        if isinstance(event, RunEnded):
            self.close()

    def close(self) -> None:
        """End the server, if there is one. Idempotent."""
        stop, self._stop, self.port = self._stop, lambda: None, None
        stop()


class _Meters:
    """`Meters` over the instruments of prometheus-client: the collector of the registry."""

    def __init__(self) -> None:
        self.refresh: Callable[[], None] = lambda: None
        """Sets the time-dependent gauges."""
        self._instruments: dict[Metric, Any] = {metric: _instrument(metric) for metric in TABLE}
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}
        """A cache of children: prometheus-client locks and copies at each lookup."""
        self._changing = threading.Lock()
        """Without it, a gauge that is forgotten while another thread binds it would be lost."""

    def add(self, metric: Metric, by: float, *labels: str) -> None:
        self._child(metric, labels).inc(by)

    def record(self, metric: Metric, value: float, *labels: str) -> None:
        self._child(metric, labels).observe(value)

    def set(self, metric: Metric, to: float, *labels: str) -> None:
        self._child(metric, labels).set(to)

    def forget(self, metric: Metric, *labels: str) -> None:
        with self._changing, contextlib.suppress(KeyError):
            del self._children[metric.name, labels]
            self._instruments[metric].remove(*labels)

    def collect(self) -> Iterable[Family]:
        """Return all families that have a value, up to date."""
        self.refresh()
        for instrument in self._instruments.values():
            for family in instrument.collect():
                # Leave out creation times: they double the samples, and Prometheus ignores them.
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                yield family

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        key = metric.name, labels
        if (child := self._children.get(key)) is None:
            with self._changing:
                child = self._children[key] = self._instruments[metric].labels(*labels)
        return child


def _instrument(metric: Metric) -> Counter | Gauge | Histogram:
    from prometheus_client import Counter, Gauge, Histogram

    labels = ("topology", *metric.labels)
    # No registry of their own: the registry collects from `_Meters`.
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, labels, registry=None, buckets=metric.buckets)
    kind = Counter if metric.kind == "counter" else Gauge
    return kind(metric.name, metric.help, labels, registry=None)


def _serve(registry: CollectorRegistry, address: Address) -> tuple[int, Callable[[], None]]:
    """Start a server; return its port and the function that ends it."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except (OSError, UnicodeError) as error:
        raise SetupError(
            f"Metrics cannot be served on {address}: "
            + refusal(
                error,
                "Another process may have that port: give a free one (--metrics HOST:PORT, or the "
                "address of PrometheusMetrics).",
            )
            + " Nothing was started.",
            number="TXN-215",
        ) from error

    def stop() -> None:
        ending = threading.Thread(target=server.shutdown, name="txn-metrics-end", daemon=True)
        ending.start()
        # A connection makes the server check at once for its end, otherwise every half second.
        with contextlib.suppress(OSError):
            socket.create_connection((address.host, server.server_port), 1.0).close()
        ending.join(5.0)
        server.server_close()
        thread.join(5.0)

    return server.server_port, stop
