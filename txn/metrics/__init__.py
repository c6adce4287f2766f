"""Metrics of a run, for Prometheus and by OpenTelemetry: observers (`txn.observers`).

    topology.run(spark, observers=[PrometheusMetrics("127.0.0.1:9464")])

`txn.metrics.table` declares every metric once, `readings` changes them by events, and the two
exporters publish the numbers. docs/metrics.md lists them.
"""

from __future__ import annotations

from txn.metrics.opentelemetry import OpenTelemetryMetrics
from txn.metrics.prometheus import PrometheusMetrics

__all__ = ["OpenTelemetryMetrics", "PrometheusMetrics"]
