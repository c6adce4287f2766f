"""A ZooKeeper ensemble of three servers, out of the jars that pyspark brings along."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.chaos.processes import Server
from tests.children import LOOPBACK, free_ports
from txn.embedded.ensemble import configure_member, member_command

__all__ = ["SERVERS", "Ensemble"]

SERVERS = 3
START_SECS = 60.0


class Ensemble:
    """Three servers on loopback, with folders and ports that stay the same over restarts."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(3 * SERVERS)
        self.ports = ports[:SERVERS]
        others = ports[SERVERS:]
        peers = list(zip(others[::2], others[1::2], strict=True))
        self.servers = []
        for number, port in enumerate(self.ports, 1):
            own = folder / f"zookeeper-{number}"
            configure_member(own, number, port, peers)
            self.servers.append(Server(f"zookeeper-{number}", member_command, own))

    @property
    def hosts(self) -> str:
        """The connect string, past all links."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self.ports)

    def start(self) -> None:
        """Start all servers."""
        for server in self.servers:
            server.start()

    def wait(self) -> None:
        """Wait until every server serves."""
        deadline = time.monotonic() + START_SECS
        while not all(mode(port) for port in self.ports):
            assert time.monotonic() < deadline, "the ZooKeeper ensemble did not come up"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop all servers."""
        for server in self.servers:
            server.stop()


def mode(port: int) -> str:
    """Which role it has: "leader" or "follower"; the empty string when it does not serve."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.settimeout(1.0)
            connection.sendall(b"srvr")
            answer = connection.makefile("r").read(2000)
    except OSError:
        return ""
    return next((line[6:] for line in answer.splitlines() if line.startswith("Mode: ")), "")
