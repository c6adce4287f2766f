"""OpenTelemetry traces: one for each attempt; a sample of successful ones has all stations."""

from __future__ import annotations

from txn.tracing.traces import Traces

__all__ = ["Traces"]
