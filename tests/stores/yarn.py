"""A real YARN (a ResourceManager and NodeManagers, a process each) out of published jars."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tests.children import LOOPBACK, Child, free_ports, java, listens, wait_until
from tests.stores.hdfs import LOG4J, server_jars
from tests.thorough import SHORT_LIVED
from txn.machine.ivy import Request, fetch
from txn.machine.jars import cache_folder
from txn.machine.java import find_java
from txn.spark.versions import shipped_jars
from txn.storage.opening import open_store

__all__ = ["Yarn"]

MODULES = ("org.bouncycastle:bcpkix-jdk18on:1.82",)
"""What a ResourceManager needs beside the jars of `tests.stores.hdfs`."""
START_SECS = 120.0
_JARS = "spark"
"""The folder of Spark's own jars, in the file system."""
JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx512m",
    "-Dlog4j2.configurationFile=log4j2.properties",
    # Hadoop's own proxies of records, in Java 17.
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
SERVER = "org.apache.hadoop.yarn.server"
ADDRESSES = (
    "address",
    "scheduler.address",
    "resource-tracker.address",
    "admin.address",
    "webapp.address",
)
MANAGER = f"{SERVER}.resourcemanager.ResourceManager"
NODE = f"{SERVER}.nodemanager.NodeManager"


def more_jars() -> list[Path]:
    """The server's jars beside those of HDFS, fetched if they are not there yet."""
    folder = cache_folder() / "jars" / "yarn"
    if not folder.is_dir():
        fetch(folder, Request("The jars of a YARN server", MODULES))
    return sorted(folder.glob("*.jar"))


class Yarn:
    """One cluster in a folder; addresses stay the same over restarts.

    Args:
        folder: of its configuration, its data and what its processes say.
        file_system: the default one, `hdfs://...`: Spark hands out its jars by way of it.
        nodes: how many NodeManagers.
        cores, megabytes: of each node.
    """

    def __init__(
        self,
        folder: Path,
        file_system: str,
        *,
        nodes: int = 2,
        cores: int = 3,
        megabytes: int = 4096,
    ) -> None:
        self._folder = folder
        self._ports = dict(zip(ADDRESSES, free_ports(len(ADDRESSES)), strict=True))
        self._conf_folder = folder / "conf"
        self.manager = Child(folder / "manager")
        self.nodes = [Child(folder / f"node-{number + 1}") for number in range(nodes)]
        for child in (self.manager, *self.nodes):
            child.folder.mkdir()
        self._node_ports = [free_ports(3) for _ in self.nodes]
        self.file_system = file_system
        self._node = {
            "yarn.nodemanager.resource.memory-mb": str(megabytes),
            "yarn.nodemanager.resource.cpu-vcores": str(cores),
        }

    def __enter__(self) -> Yarn:  # noqa: PYI034 - typing.Self is Python 3.11
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def environ(self) -> Mapping[str, str]:
        """Variables by which a client finds it."""
        return dict.fromkeys(("HADOOP_CONF_DIR", "YARN_CONF_DIR"), str(self._conf_folder))

    @property
    def conf(self) -> Mapping[str, str]:
        """Settings of a session there: small executors, and Spark's jars out of the file system."""
        return {
            "spark.yarn.jars": f"{self.file_system}/{_JARS}/*.jar",
            "spark.yarn.am.memory": "512m",
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.ui.enabled": "false",
        }

    def start(self) -> None:
        """Start everything and wait until all nodes are there."""
        self._write(self._conf_folder, {})
        self.start_manager()
        for number in range(len(self.nodes)):
            self.start_node(number)
        wait_until(self._is_up, "YARN is up", START_SECS)
        store, _ = open_store(f"{self.file_system}/{_JARS}", {})
        for jar in shipped_jars():
            store.put(jar.name, jar.read_bytes())

    def start_manager(self) -> None:
        """Start the ResourceManager; does not wait."""
        self._begin(self.manager, MANAGER, {})

    def start_node(self, number: int) -> None:
        """Start a NodeManager; does not wait."""
        node = self.nodes[number]
        own, localizer, webapp = (f"{LOOPBACK}:{port}" for port in self._node_ports[number])
        self._begin(
            node,
            NODE,
            {
                "yarn.nodemanager.address": own,
                "yarn.nodemanager.localizer.address": localizer,
                "yarn.nodemanager.webapp.address": webapp,
                "yarn.nodemanager.local-dirs": str(node.folder / "local"),
                "yarn.nodemanager.log-dirs": str(node.folder / "logs"),
            },
        )

    def stop(self) -> None:
        """Stop everything."""
        for child in (*self.nodes, self.manager):
            child.stop()

    def _begin(self, child: Child, main: str, settings: Mapping[str, str]) -> None:
        conf = child.folder / "conf"
        self._write(conf, settings)
        (child.folder / "log4j2.properties").write_text(LOG4J, "ascii")
        home = find_java().resolve().parent.parent
        jars = (conf, *server_jars(), *more_jars(), *shipped_jars())
        child.start(java(jars, JVM_FLAGS, main), {"JAVA_HOME": str(home)})

    def _write(self, conf: Path, settings: Mapping[str, str]) -> None:
        conf.mkdir(parents=True, exist_ok=True)
        manager = {
            f"yarn.resourcemanager.{name}": f"{LOOPBACK}:{port}"
            for name, port in self._ports.items()
        }
        scheduler = "resourcemanager.scheduler.fifo.FifoScheduler"
        yarn = {
            **manager,
            **self._node,
            "yarn.resourcemanager.hostname": LOOPBACK,
            "yarn.resourcemanager.scheduler.class": f"{SERVER}.{scheduler}",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,PATH",
            **settings,
        }
        (conf / "yarn-site.xml").write_text(_xml(yarn), "utf-8")
        core = {"fs.defaultFS": self.file_system, "hadoop.tmp.dir": str(self._folder / "tmp")}
        (conf / "core-site.xml").write_text(_xml(core), "utf-8")

    def _is_up(self) -> bool:
        for child in (self.manager, *self.nodes):
            child.check()
        ports = [*self._ports.values(), *(ports[0] for ports in self._node_ports)]
        return all(listens(port) for port in ports)


def _xml(settings: Mapping[str, str]) -> str:
    entries = (
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    )
    return f"<configuration>\n{os.linesep.join(entries)}\n</configuration>\n"
