"""The rows that are appended to a Delta table."""

from __future__ import annotations

from spouts.delta.batch import DeltaBatch
from spouts.delta.spout import DeltaSpout

__all__ = ["DeltaBatch", "DeltaSpout"]
