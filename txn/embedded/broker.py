"""A real Kafka broker (KRaft mode, one node), from its published jars: for trials and tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from txn.embedded.child import OUTPUT
from txn.embedded.files import LOG4J
from txn.embedded.folder import require_free
from txn.embedded.trial import Trial, TrialServer
from txn.errors import SetupError
from txn.machine.ivy import Request, fetch
from txn.machine.jars import cache_folder
from txn.machine.java import find_java, in_utf8
from txn.machine.listening import LOOPBACK, listens

__all__ = ["TrialBroker", "broker_jars", "configure_broker", "format_data", "java_command"]

VERSION = "4.1.0"
_MODULES = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",  # or the broker would have no log at all
)
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
_CONTROLLER = "CONTROLLER"
_START_SECS = 90.0

_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xms128m",
    "-Xmx512m",
    "-Djava.awt.headless=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
)

# One node, which has nobody to wait for; small caches.
_PROPERTIES = """\
# Written by txn at every start.
process.roles=broker,controller
node.id=1
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map={protocols}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={controller}
log.dirs=data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=2097152
controlled.shutdown.enable=false
"""

_LOG4J = LOG4J.replace("rootLogger.level=info", "rootLogger.level=warn")


class TrialBroker(Trial):
    """A broker on loopback that makes a topic when somebody first writes to it or asks for it.

    Args:
        folder: holds its data, which stay, its configuration and its log.
        port: for clients; the next one is its controller's.
        partitions: of a topic that it makes.
    """

    def __init__(self, folder: Path, port: int = 9092, partitions: int = 4) -> None:
        self.hosts = f"{LOOPBACK}:{port}"
        """What clients call `bootstrap.servers`."""
        self._port = port
        self._partitions = partitions
        broker = TrialServer(f"Kafka broker at {self.hosts}", folder.absolute() / "broker")
        super().__init__(folder, "a Kafka broker", [broker])

    def prepare(self) -> None:
        """Refuse a port that is in use and a machine without Java; fetch the jars."""
        for port in (self._port, self._port + 1):
            require_free(port, "a Kafka broker for trials", "name another one: --port")
        java_command("kafka.Kafka")

    def launch(self, lock: IO[bytes]) -> None:
        """Start it and wait until it serves."""
        (broker,) = self.servers
        properties = {
            "auto.create.topics.enable": "true",
            "num.partitions": str(self._partitions),
        }
        listeners = {"PLAINTEXT": self._port}
        configure_broker(broker.folder, LOOPBACK, listeners, self._port + 1, properties)
        format_data(broker.folder)
        broker.start(java_command("kafka.Kafka"), in_utf8(os.environ), lock)
        broker.wait(partial(listens, self._port), _START_SECS)


def broker_jars() -> list[Path]:
    """Return the broker's jars, fetched if they are not there yet.

    Raises:
        SetupError: no network, or their folder cannot be written.
    """
    folder = cache_folder() / "jars" / f"kafka-broker-{VERSION}"
    if not folder.is_dir():
        fetch(folder, Request(f"The jars of Kafka's broker {VERSION}", _MODULES))
    return sorted(folder.glob("*.jar"))


def configure_broker(
    folder: Path,
    host: str,
    listeners: Mapping[str, int],
    controller: int,
    properties: Mapping[str, str],
    protocols: Mapping[str, str] | None = None,
) -> None:
    """Write the configuration of a broker into its folder.

    Args:
        folder: made if necessary.
        host: where it listens, and what it tells clients.
        listeners: name of a listener -> port.
        controller: port of the controller's listener.
        properties: further ones.
        protocols: name of a listener -> its security protocol; None: all are PLAINTEXT.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for_clients = ",".join(f"{name}://{host}:{port}" for name, port in listeners.items())
    kinds = dict.fromkeys((*listeners, _CONTROLLER), "PLAINTEXT") | {**(protocols or {})}
    text = _PROPERTIES.format(
        listeners=f"{for_clients},{_CONTROLLER}://{host}:{controller}",
        advertised=for_clients,
        protocols=",".join(f"{name}:{kind}" for name, kind in kinds.items()),
        controller=f"{host}:{controller}",
    )
    text += "".join(f"{name}={value}\n" for name, value in properties.items())
    (folder / "server.properties").write_text(text, "ascii")
    (folder / "log4j2.properties").write_text(_LOG4J, "ascii")


def format_data(folder: Path) -> None:
    """Prepare a configured broker's data folder, if that was not done yet.

    Raises:
        SetupError: the broker's own tool failed; with its output.
    """
    if (folder / "data" / "meta.properties").exists():
        return
    tool = ("kafka.tools.StorageTool", "format", "--standalone", "-t", _CLUSTER_ID, "-c")
    with (folder / OUTPUT).open("wb") as out:
        done = subprocess.run(
            java_command(*tool), cwd=folder, check=False, stdout=out, stderr=out, umask=0o077
        )
    if done.returncode:
        raise SetupError(
            f"The data of the Kafka broker in '{folder}' cannot be prepared: "
            f"{(folder / OUTPUT).read_text('utf-8', 'replace').strip()}",
            number="TXN-208",
        )


def java_command(main: str, *arguments: str) -> Sequence[str]:
    """Return the command that runs a class of the broker's jars on `server.properties`."""
    classpath = os.pathsep.join(map(str, broker_jars()))
    java = str(find_java())
    return [java, *_JVM_FLAGS, "-cp", classpath, main, *arguments, "server.properties"]
