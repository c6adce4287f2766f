"""A ZooKeeper ensemble of three servers, out of the jars that pyspark brings along."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.chaos.processes import Server
from tests.children import free_ports
from txn.embedded.files import JVM_FLAGS, LOG4J, class_path
from txn.machine.java import find_java

__all__ = ["SERVERS", "Ensemble"]

SERVERS = 3
LOOPBACK = "127.0.0.1"
START_SECS = 60.0
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

ZOO_CFG = """\
dataDir=./data
clientPortAddress={host}
clientPort={port}
tickTime=500
initLimit=20
syncLimit=8
minSessionTimeout=1000
maxSessionTimeout=120000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok, srvr, mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""


class Ensemble:
    """Three servers on loopback, with folders and ports that stay the same over restarts."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(3 * SERVERS)
        self.ports = ports[:SERVERS]
        peers = "".join(
            f"server.{n + 1}={LOOPBACK}:{ports[SERVERS + 2 * n]}:{ports[SERVERS + 2 * n + 1]}\n"
            for n in range(SERVERS)
        )
        self.servers = []
        for number, port in enumerate(self.ports):
            own = folder / f"zookeeper-{number + 1}"
            (own / "data").mkdir(parents=True)
            (own / "data" / "myid").write_text(f"{number + 1}\n")
            (own / "zoo.cfg").write_text(ZOO_CFG.format(host=LOOPBACK, port=port) + peers)
            (own / "log4j2.properties").write_text(LOG4J)
            command = [str(find_java()), *JVM_FLAGS, "-cp", class_path(), MAIN, "zoo.cfg"]
            self.servers.append(Server(f"zookeeper-{number + 1}", lambda c=command: c, own))

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
