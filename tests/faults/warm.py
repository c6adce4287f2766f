"""A JVM that outlives the driver processes of a test, so that each of them begins within seconds.

What is killed is the driver: Python, with everything that the product knows. Its JVM, which would
have ended with it, stands by, and the next driver makes a Spark context of its own in there. The
one before it is stopped first: with it end the jobs that nobody waits for any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["adopt", "warm_jvm"]

ROOT = Path(__file__).parents[2]
PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
HOLDER = """
import json, sys
from tests.faults.driver import CONF
from txn.session import delta_session
spark = delta_session("txn-faults-jvm", master="local[2]", conf=CONF)
parameters = spark.sparkContext._gateway.java_parameters
print(json.dumps([parameters.port, parameters.auth_token]), flush=True)
sys.stdin.read()
"""


@contextmanager
def warm_jvm() -> Iterator[dict[str, str]]:
    """What the environment of a driver must say to find a JVM that is up already."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        port, secret = json.loads(holder.stdout.readline())
        yield {PORT: str(port), SECRET: secret}
        holder.stdin.close()


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
