"""The JVM that pyspark starts: deaf to the signals that are meant for this process.

Ctrl-C in a shell script and `kill -TERM -GROUP` reach every process of a group, `systemctl stop`
every process of a service. A run ends cleanly only if Spark outlives it. So the JVM ignores SIGTERM
(pyspark lets it ignore SIGINT). It ends with its standard input, a pipe whose other end only this
process has: at its end, SIGKILL included. It stays in this process's group, so that SIGKILL,
SIGSTOP and Ctrl-Z for the group are for both.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["start_shielded"]


def start_shielded(settings: Mapping[str, str]) -> None:
    """Start the JVM for the session to come, unless there is one already.

    One that spark-submit has started is our parent, and takes signals itself.

    Args:
        settings: every Spark setting; some count only when the JVM starts.

    Raises:
        PySparkRuntimeError: Java ended before it was up.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf().setAll(list(settings.items()))
    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
    if gateway.proc is not None:
        signals = gateway.jvm.sun.misc
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
    SparkContext._ensure_initialized(gateway=gateway)
