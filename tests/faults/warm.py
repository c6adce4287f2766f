"""JVMs that outlive the driver processes of tests, so that each of them begins within seconds.

What is killed is the driver: Python, with everything that the product knows. Its JVM, which would
have ended with it, stands by, and the next driver makes a Spark context of its own in there. The
one before it is stopped first: with it end the jobs that nobody waits for any more.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

__all__ = ["WarmJvm", "adopt"]

ROOT = Path(__file__).parents[2]
PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
HOLDER = """
import json, sys
from tests.faults.driver import CONF
from txn.session import delta_session
packages = json.loads(sys.argv[1])
spark = delta_session("txn-faults-jvm", master="local[2]", conf=CONF, packages=packages)
parameters = spark.sparkContext._gateway.java_parameters
print(json.dumps([parameters.port, parameters.auth_token]), flush=True)
sys.stdin.read()
"""


class WarmJvm:
    """A JVM that one living driver at a time may use; it ends with this process."""

    free: ClassVar[list[WarmJvm]] = []
    """Those that no driver uses."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages
        self._holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, json.dumps(packages)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        port, secret = json.loads(self._holder.stdout.readline())
        self.environment = {PORT: str(port), SECRET: secret}
        """What the environment of a driver must say to find it."""
        atexit.register(self._end)

    @classmethod
    def lend(cls, packages: tuple[str, ...] = ()) -> WarmJvm:
        """One with these packages, free or new; `give_back` it when its driver has ended."""
        fit = [jvm for jvm in cls.free if jvm._packages == packages]
        if not fit:
            return cls(packages)
        cls.free.remove(fit[-1])
        return fit[-1]

    def give_back(self) -> None:
        """The next driver may have it."""
        self.free.append(self)

    def _end(self) -> None:
        self._holder.communicate()


def adopt() -> None:
    """In a driver: end the Spark context of the driver before it, where the JVM is a warm one."""
    if PORT not in os.environ:
        return
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    SparkContext._ensure_initialized(gateway=launch_gateway())
    jvm = SparkContext._jvm
    assert jvm is not None
    jvm.org.apache.spark.SparkContext.getOrCreate().stop()
