"""OpenTelemetry traces: one for each attempt; of those that go well, a sample has its stations."""

from __future__ import annotations

from txn.tracing.traces import Traces

__all__ = ["Traces"]
