"""OpenTelemetry traces: a trace for each attempt, with its stations."""

from __future__ import annotations

from txn.tracing.traces import Traces, traces_wanted

__all__ = ["Traces", "traces_wanted"]
