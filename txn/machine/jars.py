"""The jars that Spark is given beside its own: Delta's, and those of a spout (Kafka's).

Spark's own `spark.jars.packages` asks a resolver at every start, slowly and loudly. Here the
resolver (`txn.machine.ivy`) runs once, into a folder of the user's cache, where every later start
finds the jars.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from txn.errors import SetupError
from txn.machine.ivy import Request, fetch, shipped_jars
from txn.machine.java import find_java, java_version

__all__ = ["S3A_PACKAGES", "cache_folder", "class_archive", "delta_jars", "package_jars"]

S3A_PACKAGES = ("org.apache.hadoop:hadoop-aws:3.5.0",)
"""What Spark needs to reach S3 by `s3a://`: `delta_session(..., packages=S3A_PACKAGES)`."""

_SCALA = "2.13"

# Jars that Spark ships itself; a second version on the class path would break it.
_SHIPPED_BY_SPARK = (
    "com.fasterxml.*",
    "com.github.luben",
    "com.google.*",
    "commons-*",
    "io.airlift",
    "io.netty",
    "org.antlr",
    "org.apache.*",
    "org.json4s",
    "org.roaringbitmap",
    "org.scala-lang*",
    "org.slf4j",
    "org.xerial.*",
)

# hadoop-aws asks for the whole of Amazon's SDK, in one jar of 686 MB, which each executor would
# fetch. These parts of the same version are what it uses: with what they need, 13 MB.
_SDK_BUNDLE = "bundle"
_SDK_VERSION = "2.35.4"
_SDK_PARTS = ("apache-client", "netty-nio-client", "s3-transfer-manager", "sts")

# A part of Spark's Kafka source that repositories may lack for a version of Spark: the newest one
# that is there will do. The lower end is the first that was built for the same logging classes.
_TOKEN_PROVIDER = f"org.apache.spark:spark-token-provider-kafka-0-10_{_SCALA}"
_TOKEN_PROVIDER_SINCE = "4.1.0-preview1"  # noqa: S105 - a version, no password


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where fetched things are kept: `$XDG_CACHE_HOME/txn`, by default `~/.cache/txn`."""
    env = os.environ if environ is None else environ
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "txn"


def delta_jars(environ: Mapping[str, str] | None = None) -> list[Path]:
    """The jars that Delta needs beside Spark's own, fetched if they are not there yet.

    They lie in `$TXN_JARS`, or else in a folder of the cache named after both versions.

    Raises:
        SetupError: they are not there and could not be fetched.
    """
    env = os.environ if environ is None else environ
    folder = _jar_folder(env)
    artifact, version = _artifact(), _version("delta_spark")
    wanted = f"{artifact}-{version}.jar"
    _require_readable(folder)
    if not (folder / wanted).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise SetupError(
                f"The folder {folder} of Delta's jars has files in it, but no {wanted}. Put that "
                "jar and what it needs there, or delete the folder (or unset TXN_JARS) to have "
                "them fetched.",
                number="TXN-204",
            )
        request = Request(
            f"Delta's jars ({artifact} {version})",
            [f"io.delta:{artifact}:{version}"],
            without_groups=_SHIPPED_BY_SPARK,
            otherwise=", or put the jars into a folder and name it in TXN_JARS",
        )
        fetch(folder, request, env)
    return sorted(folder.glob("*.jar"))


def _require_readable(folder: Path) -> None:
    """Refuse a folder or a jar in it that this user may not read: Java would pass it over.

    Raises:
        SetupError: naming it.
    """
    try:
        closed = next((p for p in folder.glob("*.jar") if not os.access(p, os.R_OK)), None)
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            closed = folder
    except PermissionError as error:
        closed = Path(error.filename)
    if closed is not None:
        raise SetupError(
            f"User id {os.getuid()} may not read {closed}, which Delta's jars are read from. "
            "Correct its permissions, or name another folder in TXN_JARS.",
            number="TXN-204",
        )


def package_jars(packages: Sequence[str], environ: Mapping[str, str] | None = None) -> list[Path]:
    """The jars of Maven packages and what they need beside Spark's own; fetched once.

    Each package has a folder of its own in the cache. One whose jar lies in `$TXN_JARS` gives
    nothing here: whatever is in that folder is on the class path already, with Delta's.

    Args:
        packages: coordinates, as for `spark.jars.packages`, or with a classifier behind them.

    Raises:
        SetupError: these are no coordinates, or the jars could not be fetched.
    """
    env = os.environ if environ is None else environ
    jars: dict[str, Path] = {}
    for package in packages:
        parts = package.split(":")
        if not 3 <= len(parts) <= 4 or not all(parts):
            raise SetupError(
                f"{package!r} is not a Maven package. Write it as group:artifact:version, such "
                "as 'org.apache.spark:spark-avro_2.13:4.2.0', with ':shaded' behind it for a jar "
                "of that kind.",
                number="TXN-204",
            )
        name = "-".join(parts[1:])
        jar = f"{name}.jar"
        given = env.get("TXN_JARS")
        if given and (Path(given).expanduser() / jar).is_file():
            continue
        folder = cache_folder(env) / "jars" / f"{name}-spark-{_version('pyspark')}"
        if not (folder / jar).is_file():
            fetch(folder, _package_request(package), env)
        jars |= {path.name: path for path in sorted(folder.glob("*.jar"))}
    return list(jars.values())


def class_archive() -> Path:
    """Where the JVM's archive of Spark's loaded classes lies, or would lie (see `txn.session`).

    An archive fits one JVM and one class path, so it lies in the Python environment whose
    pyspark it is about (and goes away with it), and its name says the JVM and the jars.
    """
    name = f"java-{java_version(find_java())}-{_jar_folder(os.environ).name}.jsa"
    return Path(sys.prefix) / "share" / "txn" / name


def _jar_folder(env: Mapping[str, str]) -> Path:
    given = env.get("TXN_JARS")
    if given:
        return Path(given).expanduser().resolve()
    name = f"delta-{_version('delta_spark')}-spark-{_version('pyspark')}"
    return cache_folder(env) / "jars" / name


def _package_request(package: str) -> Request:
    spark = _version("pyspark")
    modules, bundle = [package], []
    if package in S3A_PACKAGES:
        modules += [f"software.amazon.awssdk:{part}:{_SDK_VERSION}" for part in _SDK_PARTS]
        bundle = [_SDK_BUNDLE]
    # By name, not by group: a part of Spark that pyspark lacks is just what is wanted.
    shipped = {re.sub(r"-\d.*", "", jar.name) for jar in shipped_jars()}
    return Request(
        f"The jars of {package}",
        modules,
        without_artifacts=sorted({*shipped, *bundle}),
        instead={_TOKEN_PROVIDER: f"[{_TOKEN_PROVIDER_SINCE},{spark}]"},
        otherwise=", or put them and what they need into a folder together with Delta's jars and "
        "name it in TXN_JARS",
    )


def _artifact() -> str:
    spark = Version(_version("pyspark"))
    return f"delta-spark_{spark.major}.{spark.minor}_{_SCALA}"


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
