"""An ensemble of ZooKeeper servers on this machine, from the jars of pyspark: for trials.

Unlike an embedded server it belongs to no topology: standbys can use it, and one of its three
servers may be killed. It listens on the loopback interface only, and its nodes belong to a
credential in its folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from txn.embedded.files import JVM_FLAGS, LOG4J, ZOO_CFG, class_path
from txn.embedded.folder import require_free, serves
from txn.embedded.guard import (
    CREDENTIAL,
    guard,
    guard_setting,
    make_credential,
    require_own_listener,
)
from txn.embedded.trial import Trial, TrialServer
from txn.machine.java import find_java, in_utf8
from txn.machine.listening import LOOPBACK

__all__ = ["TrialEnsemble", "configure_member", "member_command"]

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_SECS = 60.0
_FROM_PEERS, _FOR_ELECTIONS = 707, 1707
"""How far a server's other two ports are above its first one: 2888 and 3888, as usual."""


class TrialEnsemble(Trial):
    """Servers of ZooKeeper that find each other; alone, one is a server without an ensemble.

    Args:
        folder: holds a folder for each server, and the credential. What is in it stays.
        port: of the first server, for clients; the others have the next ones.
        servers: how many: 1, 3 or 5.
    """

    def __init__(self, folder: Path, port: int = 2181, servers: int = 3) -> None:
        self._ports = [port + number for number in range(servers)]
        super().__init__(
            folder,
            f"{servers} ZooKeeper server{'s' if servers > 1 else ''}",
            [
                TrialServer(
                    f"ZooKeeper server {number} at {LOOPBACK}:{client_port}",
                    folder.absolute() / f"server-{number}",
                )
                for number, client_port in enumerate(self._ports, 1)
            ],
        )

    @property
    def hosts(self) -> str:
        """The connect string."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self._ports)

    @property
    def credential_file(self) -> Path:
        """What `TXN_ZOOKEEPER_AUTH_FILE` has to name."""
        return self.folder / CREDENTIAL

    @property
    def peer_ports(self) -> list[tuple[int, int]]:
        """Of each server the port for its peers and that for elections; none if it is alone."""
        ports = [(port + _FROM_PEERS, port + _FOR_ELECTIONS) for port in self._ports]
        return ports if len(ports) > 1 else []

    def prepare(self) -> None:
        """Refuse a port that is in use, and a machine without Java or pyspark."""
        member_command()
        for port in (*self._ports, *(port for pair in self.peer_ports for port in pair)):
            require_free(port, "a ZooKeeper server for trials", "name another first one: --port")

    def launch(self, lock: IO[bytes]) -> None:
        """Start all servers, wait until each serves, and make the nodes the user's own."""
        credential = make_credential(self.folder)
        for number, (port, server) in enumerate(zip(self._ports, self.servers, strict=True), 1):
            configure_member(server.folder, number, port, self.peer_ports, credential)
            server.start(member_command(), in_utf8(os.environ), lock)
        for port, server in zip(self._ports, self.servers, strict=True):
            server.wait(partial(serves, port), _START_SECS)
            require_own_listener(port)
        guard(self.hosts, credential)


def member_command() -> list[str]:
    """Return the command that runs a configured server in its folder.

    Raises:
        SetupError: no Java, or no pyspark.
    """
    return [str(find_java()), *JVM_FLAGS, "-cp", class_path(), _MAIN, "zoo.cfg"]


def configure_member(
    folder: Path,
    number: int,
    port: int,
    peer_ports: Sequence[tuple[int, int]],
    credential: str | None = None,
) -> None:
    """Write the configuration of one server into its folder.

    Args:
        folder: of the server; made if necessary.
        number: which one it is, from 1 on.
        port: for clients.
        peer_ports: of each server the port for its peers and that for elections; none: it is alone.
        credential: of the superuser, `user:password`; None: none.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "myid").write_text(f"{number}\n", "ascii")
    text = ZOO_CFG.format(
        host=LOOPBACK,
        port=port,
        guard=guard_setting(credential) if credential else "",
        peers="".join(
            f"server.{n}={LOOPBACK}:{quorum}:{election}\n"
            for n, (quorum, election) in enumerate(peer_ports, 1)
        ),
    )
    (folder / "zoo.cfg").write_text(text, "ascii")
    (folder / "log4j2.properties").write_text(LOG4J, "ascii")
