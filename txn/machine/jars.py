"""The jars that Spark needs besides its own: Delta's, and those of a spout (Kafka's).

Spark's own `spark.jars.packages` runs a resolver at every start, slowly and loudly. Here the
resolver (`txn.machine.ivy`) runs once, into a folder of the user's cache, where later starts find
the jars.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from txn.errors import SetupError
from txn.machine.ivy import Request, fetch
from txn.machine.java import find_java, java_version
from txn.spark.versions import Spark, release_of, running_spark, shipped_jars

__all__ = ["S3A_PACKAGES", "cache_folder", "class_archive", "delta_jars", "package_jars"]

S3A_PACKAGES: tuple[str, ...]
"""The packages for S3 by `s3a://`: `delta_session(..., packages=S3A_PACKAGES)`. Hadoop's version is
that of the Spark that runs, so it is looked up when it is asked for."""

_S3A = "org.apache.hadoop:hadoop-aws:"

# Jars that Spark ships itself; a second version on the class path would break Spark.
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

# hadoop-aws depends on Amazon's whole SDK, one jar of 686 MB, which each executor would fetch. It
# uses only these parts of the same version: 13 MB with their dependencies. (Hadoop 3.3 has the
# first SDK, and one of 3.4.1's parts was never published: their one jar stays.)
_SDK_BUNDLE = "bundle"
_SDK_OF = {"3.4.2": "2.29.52", "3.5.0": "2.35.4"}
_SDK_PARTS = ("apache-client", "netty-nio-client", "s3-transfer-manager", "sts")

# A part of Spark's Kafka source that repositories may lack for a version of Spark: take the newest
# one of its line that there is.
_TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10"  # noqa: S105 - a module


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of fetched files: `$XDG_CACHE_HOME/txn`, by default `~/.cache/txn`."""
    env = os.environ if environ is None else environ
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "txn"


def delta_jars(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the jars that Delta needs besides Spark's own; fetches them if missing.

    They are in `$TXN_JARS`, or else in a folder of the cache named after both versions.

    Raises:
        SetupError: they are missing and could not be fetched.
    """
    env = os.environ if environ is None else environ
    folder = _jar_folder(env)
    spark = running_spark()
    artifact, version = spark.delta_artifact, spark.line.delta
    jar = f"{artifact}-{version}.jar"
    _require_readable(folder)
    if not (folder / jar).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise SetupError(
                f"The folder {folder} of Delta's jars has files in it, but no {jar}. Put that "
                "jar and what it needs there, or delete the folder (or unset TXN_JARS) to have "
                "them fetched.",
                number="TXN-204",
            )
        request = Request(
            f"Delta's jars ({artifact} {version})",
            [spark.delta_package],
            without_groups=_SHIPPED_BY_SPARK,
            otherwise=", or put the jars into a folder and name it in TXN_JARS",
        )
        fetch(folder, request, env)
    return sorted(folder.glob("*.jar"))


def _require_readable(folder: Path) -> None:
    """Refuse a folder or a jar in it that this user may not read: Java would ignore it."""
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
    """Return the jars of Maven packages and their dependencies besides Spark's; fetched once.

    Each package has its own folder in the cache. A package whose jar is in `$TXN_JARS` is left out:
    that folder is already on the class path, with Delta's jars.

    Args:
        packages: coordinates, as for `spark.jars.packages`, optionally with a classifier.

    Raises:
        SetupError: the coordinates are invalid, or the jars could not be fetched.
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
        user_folder = env.get("TXN_JARS")
        if user_folder and (Path(user_folder).expanduser() / jar).is_file():
            continue
        folder = cache_folder(env) / "jars" / f"{name}-spark-{running_spark().version}"
        if not (folder / jar).is_file():
            fetch(folder, _package_request(package), env)
        jars |= {path.name: path for path in sorted(folder.glob("*.jar"))}
    return list(jars.values())


def class_archive() -> Path:
    """Return the path of the JVM's archive of Spark's loaded classes (see `txn.session`).

    An archive fits one JVM and one class path, so it is in the Python environment of its pyspark
    (and is removed with it), and its name has the versions of the JVM and the jars.
    """
    name = f"java-{java_version(find_java())}-{_jar_folder(os.environ).name}.jsa"
    return Path(sys.prefix) / "share" / "txn" / name


def _jar_folder(env: Mapping[str, str]) -> Path:
    user_folder = env.get("TXN_JARS")
    if user_folder:
        return Path(user_folder).expanduser().resolve()
    spark = running_spark()
    return cache_folder(env) / "jars" / f"delta-{spark.line.delta}-spark-{spark.version}"


def __getattr__(name: str) -> tuple[str, ...]:
    if name == "S3A_PACKAGES":
        return (running_spark().s3a_package,)
    raise AttributeError(name)


def _package_request(package: str) -> Request:
    spark = running_spark()
    modules, bundle = [package], []
    sdk = _SDK_OF.get(package.removeprefix(_S3A))
    if package.startswith(_S3A) and sdk is not None:
        modules += [f"software.amazon.awssdk:{part}:{sdk}" for part in _SDK_PARTS]
        bundle = [_SDK_BUNDLE]
    # By name, not by group: parts of Spark that pyspark lacks must be fetched.
    shipped = {re.sub(r"-\d.*", "", jar.name) for jar in shipped_jars()}
    return Request(
        f"The jars of {package}",
        modules,
        without_artifacts=sorted({*shipped, *bundle}),
        instead=_token_provider(spark),
        otherwise=", or put them and what they need into a folder together with Delta's jars and "
        "name it in TXN_JARS",
    )


def _token_provider(spark: Spark) -> dict[str, str]:
    versions = f"[{spark.minor}.0-preview1,{release_of(spark.version)}]"
    return {f"{_TOKEN_PROVIDER}_{spark.scala}": versions}
