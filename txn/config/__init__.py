"""The settings of a topology, and their sources."""

from __future__ import annotations

from txn.config.topology_config import TopologyConfig

__all__ = ["TopologyConfig"]
