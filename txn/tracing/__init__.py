"""OpenTelemetry traces: a trace for each attempt, with its stations."""

from __future__ import annotations

from txn.tracing.traces import Traces

__all__ = ["Traces"]
