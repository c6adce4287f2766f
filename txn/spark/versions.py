"""The Spark that runs, and what goes with it: the one place that knows versions.

Spark is what `SPARK_HOME` names, or else the one inside the pyspark package; pip may know neither.
So its version is read from its jars, and that of pyspark from the module that Python would import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from packaging.version import Version

from txn.errors import SetupError

__all__ = [
    "LINES",
    "NEWEST_LINE",
    "Line",
    "Spark",
    "is_submitted",
    "line_of",
    "pyspark_version",
    "release_of",
    "running_spark",
    "shipped_jars",
    "spark_home",
]

_INSTALL = "pip install 'txn-spark[spark]'"
_CORE = re.compile(r"spark-core_(?P<scala>[\d.]+)-(?P<version>\d[\w.\-]*?)\.jar")
_HADOOP = re.compile(r"hadoop-client-api-(?P<version>\d[\w.\-]*?)\.jar")
_PYTHON_OF_SPARK = "PYTHONPATH=$SPARK_HOME/python:$(echo $SPARK_HOME/python/lib/py4j-*.zip)"
_DECLARED = re.compile(r"""^__version__\s*(?::\s*str)?\s*=\s*["']([^"']+)["']""", re.M)


@dataclass(frozen=True)
class Line:
    """A line of Spark releases on which everything here was run."""

    newest: str
    """Its newest release that was run; later releases of the line are taken, too."""
    delta: str
    """The release of Delta that goes with it."""
    named_for_spark: bool
    """True if the name of Delta's jar has the line in it."""
    scala: str
    """Scala's version in the names of jars, if Spark's jars are in no folder that could tell."""
    hadoop: str
    """The version of its Hadoop client, likewise."""
    kafka: str
    """The newest release of the line whose Kafka source is on Maven Central."""
    python: int
    """The newest Python on which it was run: 13 for 3.13."""
    javas: tuple[int, ...]
    """The major versions of Java on which it was run."""
    fails_from_java: int | None = None
    """The major version of Java that took out what its Hadoop calls."""
    oldest: str = ""
    """The oldest release that Delta asks for; empty: all do. (Spark 3.5.0 lacks classes of it.)"""


LINES: Mapping[str, Line] = {
    "3.5": Line(
        "3.5.9",
        delta="3.3.3",
        named_for_spark=False,
        scala="2.12",
        hadoop="3.3.4",
        kafka="3.5.7",
        python=11,
        javas=(17,),
        fails_from_java=24,
        oldest="3.5.3",
    ),
    "4.0": Line(
        "4.0.5",
        delta="4.4.0",
        named_for_spark=True,
        scala="2.13",
        hadoop="3.4.1",
        kafka="4.0.4",
        python=13,
        javas=(17, 21),
        fails_from_java=24,
    ),
    "4.1": Line(
        "4.1.4",
        delta="4.4.0",
        named_for_spark=True,
        scala="2.13",
        hadoop="3.4.2",
        kafka="4.1.3",
        python=13,
        javas=(17, 21),
        fails_from_java=24,
    ),
    "4.2": Line(
        "4.2.0",
        delta="4.4.0",
        named_for_spark=True,
        scala="2.13",
        hadoop="3.5.0",
        kafka="4.2.0",
        python=13,
        javas=(17, 21, 25),
    ),
}
"""Major and minor version of Spark -> what goes with it."""

NEWEST_LINE = list(LINES)[-1]
"""The newest line of Spark: what messages advise, because any of its releases will do."""


@dataclass(frozen=True)
class Spark:
    """A Spark with a line of its own in `LINES`."""

    version: str
    scala: str
    """Scala's version in the names of jars: 2.13."""
    hadoop: str
    """The version of its Hadoop client."""
    line: Line

    @property
    def minor(self) -> str:
        """Its major and minor version: 4.2."""
        return line_of(self.version)

    @property
    def delta_artifact(self) -> str:
        """The name of Delta's jar without its version: delta-spark_4.2_2.13."""
        minor = f"{self.minor}_" if self.line.named_for_spark else ""
        return f"delta-spark_{minor}{self.scala}"

    @property
    def delta_package(self) -> str:
        """Delta's Maven package, as for `--packages`."""
        return f"io.delta:{self.delta_artifact}:{self.line.delta}"

    @property
    def kafka_package(self) -> str:
        """The Maven package of Spark's Kafka source: of this release, or the newest before it."""
        version = min(release_of(self.version), self.line.kafka, key=Version)
        return f"org.apache.spark:spark-sql-kafka-0-10_{self.scala}:{version}"

    @property
    def s3a_package(self) -> str:
        """The Maven package for `s3a://`; Hadoop's other jars must have the same version."""
        return f"org.apache.hadoop:hadoop-aws:{release_of(self.hadoop)}"


def is_submitted() -> bool:
    """Return whether spark-submit started this program, so that Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_home() -> Path:
    """Return the folder of the Spark that runs: `SPARK_HOME`, or else that of pyspark.

    Raises:
        SetupError: there is no pyspark.
    """
    home = os.environ.get("SPARK_HOME")
    return Path(home) if home else Path(str(_pyspark().origin)).parent


def shipped_jars() -> list[Path]:
    """Return Spark's own jars; empty if they are elsewhere (a driver on YARN)."""
    return _jars_of(spark_home())


def _jars_of(home: Path) -> list[Path]:
    return sorted((home / "jars").glob("*.jar"))


@lru_cache(maxsize=1)
def pyspark_version() -> str:
    """Return the version of the pyspark that Python would import, without importing it.

    Raises:
        SetupError: there is no pyspark.
    """
    spec = _pyspark()
    path = str(Path(str(spec.origin)).parent / "version.py")
    text = cast("bytes", spec.loader.get_data(path)).decode()  # type: ignore[union-attr] # also of a zip
    match = _DECLARED.search(text)
    if match is None:
        raise SetupError(
            f"{path} does not name the version of pyspark. Install it anew: {_INSTALL}",
            number="TXN-218",
        )
    return match[1]


def running_spark() -> Spark:
    """Return the Spark that runs, or that would run.

    Raises:
        SetupError: there is no pyspark, or none that can be imported; SPARK_HOME names no Spark;
            pyspark is of another line than Spark's jars; nothing here was ever run on this line,
            or the release lacks classes that Delta needs.
    """
    home = spark_home()
    if "SPARK_HOME" in os.environ and not is_submitted():  # a submitted driver starts no Java
        submit = home / "bin" / "spark-submit"
        if not os.access(submit, os.X_OK):
            raise SetupError(
                f"SPARK_HOME is '{home}', and {submit} cannot be run. Correct SPARK_HOME, or unset "
                "it: pyspark has a Spark of its own.",
                number="TXN-218",
            )
    return _spark_at(home)


@lru_cache(maxsize=4)
def _spark_at(home: Path) -> Spark:
    names = [jar.name for jar in _jars_of(home)]
    core = next(filter(None, map(_CORE.fullmatch, names)), None)
    hadoop = next(filter(None, map(_HADOOP.fullmatch, names)), None)
    driver = pyspark_version()
    version = core["version"] if core else driver
    if line_of(version) != line_of(driver):
        raise SetupError(
            f"pyspark {driver} cannot drive Spark {version} at '{home}'. Put the pyspark "
            f"of that Spark first ({_PYTHON_OF_SPARK}), or unset SPARK_HOME.",
            number="TXN-218",
        )
    line = LINES.get(line_of(version))
    if line is None:
        raise SetupError(
            f"Spark {version} at '{home}' is not supported: this release was run on Spark "
            f"{', '.join(LINES)}, for which Delta has releases. Use Spark {NEWEST_LINE}: "
            f"{_INSTALL} in an environment without another Spark.",
            number="TXN-218",
        )
    if line.oldest and Version(release_of(version)) < Version(line.oldest):
        raise SetupError(
            f"Spark {version} at '{home}' is too old: Delta {line.delta} asks for Spark "
            f"{line.oldest} or newer. Use a later release of Spark {line_of(version)}, such as "
            f"{line.newest}: pip install pyspark=={line.newest}.",
            number="TXN-218",
        )
    _require_py4j(driver)
    scala = core["scala"] if core else line.scala
    return Spark(version, scala, hadoop["version"] if hadoop else line.hadoop, line)


def _require_py4j(driver: str) -> None:
    """Refuse a pyspark whose way to Java cannot be imported: it fails at its first use only."""
    try:
        import_module("py4j.java_gateway")
    except Exception as error:
        spec = find_spec("py4j")
        place = f" at '{spec.origin}'" if spec is not None and spec.origin else ""
        raise SetupError(
            f"pyspark {driver} needs py4j, and Python cannot import it{place} ({error}). Install "
            f"it anew: `pip uninstall -y py4j && pip install pyspark=={driver}`. For a Spark at "
            f"SPARK_HOME, put its Python first ({_PYTHON_OF_SPARK}).",
            number="TXN-218",
        ) from error


def release_of(version: str) -> str:
    """Return the release without what a vendor adds: 4.1.3 of 4.1.3-amzn-1."""
    match = re.match(r"\d+\.\d+\.\d+", version)
    return match[0] if match else version


def line_of(version: str) -> str:
    """Return the line of a release: 4.2 of 4.2.0."""
    return ".".join(version.split(".")[:2])


def _pyspark() -> ModuleSpec:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError(
            f"There is no pyspark: Python does not find it. {_INSTALL} brings a Spark with it; for "
            f"a Spark that is there, put its Python first ({_PYTHON_OF_SPARK}).",
            number="TXN-218",
        )
    return spec
