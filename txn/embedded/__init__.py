"""A real ZooKeeper server of our own, as a child process."""

from __future__ import annotations

from txn.embedded.server import EmbeddedZooKeeper
from txn.embedded.service import running_server, zookeeper_service

__all__ = ["EmbeddedZooKeeper", "running_server", "zookeeper_service"]
