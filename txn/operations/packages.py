"""Name the packages that a topology's Spark session needs: its sources', and S3's client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

from txn.engine.work.spout_facts import places_of
from txn.spark.submission import named_jars, submitted
from txn.spark.versions import running_spark, shipped_jars
from txn.storage.locations import is_on_s3

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["packages_of"]

_CLIENT = re.compile(r"\bhadoop-aws\b")


def packages_of(topology: Topology, conf: Mapping[str, str]) -> list[str]:
    """Return the Maven packages that a session needs beside Delta's (`delta_session(packages=)`).

    Adds Spark's S3 client if a table or a source is on S3 and neither Spark nor the user's
    settings bring one: two clients on one class path conflict.

    Args:
        conf: the session's settings, as given to `delta_session`.
    """
    packages = {package for source in topology.sources for package in source.spout.packages}
    if _lies_on_s3(topology) and not _has_client(conf):
        packages.add(running_spark().s3a_package)
    return sorted(packages)


def _lies_on_s3(topology: Topology) -> bool:
    read = places_of(topology.name, topology.sources)
    return any(map(is_on_s3, chain((sink.name for sink in topology.sinks), *read.values())))


def _has_client(conf: Mapping[str, str]) -> bool:
    named = named_jars({**submitted(), **conf})
    return any(_CLIENT.search(text) for text in [named, *(jar.name for jar in shipped_jars())])
