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

from txn.embedded.files import JVM_FLAGS, LOG4J, class_path
from txn.embedded.folder import require_free, serves
from txn.embedded.guard import CREDENTIAL, guard, guard_setting, make_credential
from txn.embedded.trial import TrialServer, make_folder
from txn.machine.java import find_java, in_utf8
from txn.machine.listening import LOOPBACK

__all__ = ["TrialEnsemble", "configure_member", "member_command"]

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_START_SECS = 60.0
_FROM_PEERS, _FOR_ELECTIONS = 707, 1707
"""How far a server's other two ports are above its first one: 2888 and 3888, as usual."""

_ZOO_CFG = """\
# Written by txn at every start.
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
{guard}4lw.commands.whitelist=ruok, srvr, mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
{peers}"""


class TrialEnsemble:
    """Servers of ZooKeeper that find each other; alone, one is a server without an ensemble.

    Args:
        folder: holds a folder for each server, and the credential. What is in it stays.
        port: of the first server, for clients; the others have the next ones.
        servers: how many: 1, 3 or 5.
    """

    def __init__(self, folder: Path, port: int = 2181, servers: int = 3) -> None:
        self.folder = folder.absolute()
        self._ports = [port + number for number in range(servers)]
        self.servers = [
            TrialServer(f"server {number} at {LOOPBACK}:{at}", self.folder / f"server-{number}")
            for number, at in enumerate(self._ports, 1)
        ]

    @property
    def hosts(self) -> str:
        """The connect string."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self._ports)

    @property
    def credential_file(self) -> Path:
        """What `TXN_ZOOKEEPER_AUTH_FILE` has to name."""
        return self.folder / CREDENTIAL

    def start(self) -> None:
        """Start all servers, wait until each serves, and make the nodes the user's own.

        Raises:
            SetupError: no Java, no pyspark, a port is in use, or a server ended while it started.
        """
        command = member_command()
        more = [(port + _FROM_PEERS, port + _FOR_ELECTIONS) for port in self._ports]
        peers = more if len(more) > 1 else []
        for port in (*self._ports, *(port for both in peers for port in both)):
            require_free(port, "a ZooKeeper server for trials", "name another first one: --port")
        make_folder(self.folder)
        credential = make_credential(self.folder)
        for number, (port, server) in enumerate(zip(self._ports, self.servers, strict=True), 1):
            configure_member(server.folder, number, port, peers, credential)
            server.start(command, environ=in_utf8(os.environ))
        for port, server in zip(self._ports, self.servers, strict=True):
            server.wait(partial(serves, port), _START_SECS)
        guard(self.hosts, credential)

    def stop(self) -> None:
        """Stop all servers and wait for their ends."""
        for server in self.servers:
            server.stop()


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
    peers: Sequence[tuple[int, int]],
    credential: str | None = None,
) -> None:
    """Write the configuration of one server into its folder.

    Args:
        folder: of the server; made if necessary.
        number: which one it is, from 1 on.
        port: for clients.
        peers: of each server the port for its peers and that for elections; none: it is alone.
        credential: of the superuser, `user:password`; None: none.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "myid").write_text(f"{number}\n", "ascii")
    text = _ZOO_CFG.format(
        host=LOOPBACK,
        port=port,
        guard=guard_setting(credential) if credential else "",
        peers="".join(
            f"server.{n}={LOOPBACK}:{quorum}:{election}\n"
            for n, (quorum, election) in enumerate(peers, 1)
        ),
    )
    (folder / "zoo.cfg").write_text(text, "ascii")
    (folder / "log4j2.properties").write_text(LOG4J, "ascii")
