"""A real HDFS (one NameNode, one DataNode, in one JVM) as a child process, out of published jars.

python -m tests.stores.hdfs     # fetches the jars that pyspark lacks
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.children import LOOPBACK, ChildServer, free_ports, java, wait_until
from txn.errors import SetupError
from txn.machine.ivy import Request, fetch
from txn.machine.jars import cache_folder
from txn.spark.versions import shipped_jars

__all__ = ["HdfsServer", "server_jars"]

VERSION = "3.5.0"
MODULES = (
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}",
    "org.junit.jupiter:junit-jupiter-api:5.11.4",  # its launcher asserts that its folder is there
)
START_SECS = 120.0

JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx512m",
    "-Dlog4j2.configurationFile=log4j2.properties",
    "-Dtest.build.data=data",
)

LOG4J = """\
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=error
rootLogger.appenderRef.out.ref=out
"""


def server_jars() -> list[Path]:
    """The server's jars beside pyspark's, fetched if they are not there yet."""
    folder = cache_folder() / "jars" / f"hdfs-{VERSION}"
    if not folder.is_dir():
        shipped = sorted({re.sub(r"-\d.*", "", jar.name) for jar in shipped_jars()})
        what = f"The jars of an HDFS server {VERSION}"
        fetch(folder, Request(what, MODULES, without_artifacts=shipped))
    return sorted(folder.glob("*.jar"))


class HdfsServer(ChildServer):
    """One file system in a folder, on a port that stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self.url = f"hdfs://{LOOPBACK}:{self._port}"
        self._details = folder / "details.json"

    def start(self) -> None:
        """Start it and wait until both parts of it serve."""
        (self.folder / "log4j2.properties").write_text(LOG4J, "ascii")
        self._details.unlink(missing_ok=True)
        format_it = [] if (self.folder / "data").exists() else ["-format"]
        main = "org.apache.hadoop.test.MiniDFSClusterManager"
        where = ["-datanodes", "1", "-nnport", str(self._port), "-writeDetails", "details.json"]
        jars = (*server_jars(), *shipped_jars())
        self._child.start(java(jars, JVM_FLAGS, main, *format_it, *where))
        wait_until(self._answers, "HDFS answers", START_SECS)

    def _answers(self) -> bool:
        self._child.check()
        return self._details.is_file() and self._details.stat().st_size > 0


if __name__ == "__main__":
    try:
        server_jars()
    except SetupError as error:
        sys.exit(str(error))
