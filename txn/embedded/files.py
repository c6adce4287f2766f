"""Jars, Java and configuration of an embedded ZooKeeper server."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from txn.errors import SetupError

__all__ = ["JVM_FLAGS", "LOG4J", "ZOO_CFG", "class_path"]

# The jars of pyspark that the server needs: it starts half a second faster than with all 300.
_JARS = (
    "zookeeper-3",
    "zookeeper-jute-",
    "audience-annotations-",
    "commons-cli-",
    "log4j-api-",
    "log4j-core-",
    "log4j-slf4j2-impl-",
    "metrics-core-",
    "netty-buffer-",
    "netty-codec-base-",
    "netty-codec-4",
    "netty-common-",
    "netty-handler-4",
    "netty-transport-4",
    "slf4j-api-",
    "snappy-java-",
)

# Serial GC and the fast compiler: this server handles some hundred requests a second.
JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xms32m",
    # The worst case: it keeps the last 500 transactions in memory, each up to half a megabyte with
    # large metadata.
    "-Xmx1g",
    "-Dzookeeper.maxResponseCacheSize=0",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
    "-Dlog4j2.disable.jmx=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-XX:-UsePerfData",  # no file of it in /tmp
    "-Dzookeeper.preAllocSize=1024",  # KiB: the transaction log grows by this, not by 64 MiB
    "-Dzookeeper.snapCount=10000",
    "-Dzookeeper.snapSizeLimitInKb=32768",
)

# Relative to the server's working directory, its folder, so no path has to be escaped.
ZOO_CFG = """\
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

LOG4J = """\
# Written by txn at every start.
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=server.log
appender.file.filePattern=server.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %c{1} %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=1MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=1
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""


def class_path() -> str:
    """Return the jars of pyspark that the server needs, for Java's `-cp`.

    Raises:
        SetupError: pyspark is not installed.
    """
    package = importlib.util.find_spec("pyspark")  # without an import
    if package is None or not package.submodule_search_locations:
        raise SetupError(
            "The embedded ZooKeeper server is part of pyspark, which is not installed. "
            "Install it (`pip install 'txn-spark[spark]'`), or name the ZooKeeper that you have: "
            '"host:2181".',
            number="TXN-211",
        )
    home = Path(package.submodule_search_locations[0])
    if not (home / "jars").is_dir():
        # Under spark-submit, pyspark is imported from an archive, and Spark has the jars.
        home = Path(os.environ.get("SPARK_HOME", home))
    folder = home / "jars"
    jars = sorted(str(jar) for jar in folder.glob("*.jar") if jar.name.startswith(_JARS))
    needed = {next((p for p in _JARS if Path(jar).name.startswith(p)), "") for jar in jars}
    if len(needed) < len(_JARS):
        return str(folder / "*")  # another pyspark names them differently: use all of them
    return os.pathsep.join(jars)
