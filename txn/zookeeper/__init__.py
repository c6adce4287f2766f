"""All that knows ZooKeeper: one leader, its durable state, and what others may ask about it.

The public names load kazoo only when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txn.protocol.backend import TopologyStatus
    from txn.zookeeper.progress import ZooKeeperProgress
    from txn.zookeeper.status import list_topologies, read_status

__all__ = ["TopologyStatus", "ZooKeeperProgress", "list_topologies", "read_status"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "progress" if name == "ZooKeeperProgress" else "status"
    return getattr(importlib.import_module(f"txn.zookeeper.{home}"), name)
