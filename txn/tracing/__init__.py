"""OpenTelemetry traces: a trace for each attempt, with its stations."""

from __future__ import annotations

from txn.tracing.traces import DETAILED_PER_SEC, Traces

__all__ = ["DETAILED_PER_SEC", "Traces"]
