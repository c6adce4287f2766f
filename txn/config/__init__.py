"""The settings of a topology, and where they come from."""

from __future__ import annotations

from txn.config.topology_config import TopologyConfig

__all__ = ["TopologyConfig"]
