"""Find the Java for Spark and the embedded ZooKeeper, and check that it is new enough.

Spark 4 needs Java 17. Java is found as by Spark's own launcher: `JAVA_HOME`, else the `PATH`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from txn.errors import SetupError

__all__ = ["OLDEST_JAVA", "find_java", "in_utf8", "java_version"]

OLDEST_JAVA = 17
"""The oldest major version on which Spark 4 starts."""

_INSTALL = (
    f"Install a Java runtime {OLDEST_JAVA} or newer (on Debian or Ubuntu: `apt install "
    "openjdk-17-jre-headless`, on macOS: `brew install openjdk@17`) and put it on the PATH, or "
    "point JAVA_HOME at it."
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
    major = _major(version)
    if major < OLDEST_JAVA:
        home = env.get("JAVA_HOME")
        where = f"{java} (JAVA_HOME is {home})" if home else f"{java} (JAVA_HOME is not set)"
        raise SetupError(
            f"Java {version} at {where} is too old for Spark 4. {_INSTALL}", number="TXN-201"
        )
    return java


def java_version(java: Path) -> str:
    """Return the version of a `java` program, for example "17.0.15".

    Raises:
        SetupError: it does not start, or does not print its version.
    """
    release = java.resolve().parent.parent / "release"
    if release.is_file():  # every JDK since 8 has it, and a read is faster than the start of a JVM
        match = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text("utf-8", "replace"), re.M)
        if match:
            return match[1]
    return _ask_version(java)


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
            raise SetupError(
                f"JAVA_HOME is {home}, but there is no {java}. Correct JAVA_HOME or unset it. "
                f"{_INSTALL}",
                number="TXN-201",
            )
        return java
    path = shutil.which("java", path=env.get("PATH", os.defpath))
    if path is None:
        raise SetupError(
            f"No Java was found: JAVA_HOME is not set and the PATH has no `java`. {_INSTALL}",
            number="TXN-201",
        )
    return Path(path)


def _major(version: str) -> int:
    first, _, rest = version.partition(".")
    digits = re.match(r"\d+", rest if first == "1" else first)  # "1.8.0_392" is Java 8
    return int(digits[0]) if digits else 0
