"""A real ZooKeeper server of our own, as a child process."""

from __future__ import annotations

from txn.embedded.server import EmbeddedZooKeeper, running_server, zookeeper_service

__all__ = ["EmbeddedZooKeeper", "running_server", "zookeeper_service"]
