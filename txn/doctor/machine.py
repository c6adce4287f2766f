"""The checks of the machine: Java, Python, packages, memory, disk and limits."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from txn.doctor.findings import Finding, error, note, ok, warning
from txn.errors import SetupError
from txn.machine.hidden import advice, hiding
from txn.machine.java import find_java, java_major, java_version, refuse_newer_java
from txn.spark.differences import slower_ways
from txn.spark.jvm import refuse_connect
from txn.spark.versions import running_spark, spark_home

__all__ = ["check_disk", "check_machine", "fits"]

_PACKAGES = ("deltalake", "obstore", "kazoo", "pyarrow", "pydantic")
_DISTRIBUTION = "txn-spark"
_GIB = 1024**3
_LEAST_MEMORY = 4 * _GIB
_LEAST_FILES = 4096
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def check_machine() -> Iterator[Finding]:
    """Check Java, Spark, Python, packages and files that hide them, memory, open files."""
    yield from _java()
    yield from _spark()
    yield _python()
    yield from _packages()
    yield from _hidden()
    yield _memory()
    yield _open_files()


def _java() -> Iterator[Finding]:
    try:
        java = find_java()
    except SetupError as failure:
        needed = "Spark and the embedded ZooKeeper need it."
        yield error("java", "version", str(failure), needed)
        return
    yield ok("java", "version", f"{java_version(java)} at {java}")
    output = subprocess.run(
        [str(java), "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stderr
    properties = dict(re.findall(r"^\s+([a-z.]+) = (.*)$", output, re.M))
    java_arch, machine = properties.get("os.arch", "?"), platform.machine()
    if _ARCHITECTURES.get(java_arch, java_arch) == _ARCHITECTURES.get(machine, machine):
        yield ok("java", "architecture", f"{java_arch}, {properties.get('java.vm.name', '?')}")
    else:
        yield warning(
            "java",
            "architecture",
            f"Java is for {java_arch}, the machine is {machine}",
            "It is emulated: everything takes several times as long.",
            f"Install a Java for {machine}, and point JAVA_HOME at it.",
        )


def _spark() -> Iterator[Finding]:
    """Report the Spark that runs, whether Java and it go together, and where it is slower."""
    try:
        spark = running_spark()
    except SetupError as failure:
        yield error("spark", "version", str(failure), "Topologies cannot run.")
        return
    yield ok(
        "spark",
        "version",
        f"{spark.version} (Scala {spark.scala}) at {spark_home()}, with Delta {spark.line.delta}",
    )
    try:
        refuse_connect(None, None)
    except SetupError as failure:
        yield error("spark", "settings", str(failure), "Topologies cannot run.")
    for name, sentence in slower_ways().items():
        yield note("spark", name, sentence)
    if sys.version_info.minor > spark.line.python:
        yield note(
            "spark",
            "Python",
            f"Python 3.{sys.version_info.minor}, and this release was run on Spark {spark.minor} "
            f"with Python 3.10 to 3.{spark.line.python}",
            "It was not tried.",
            "If your functions fail in Spark's workers, take one of these.",
        )
    try:
        java = find_java()
        major = java_major(java_version(java))
    except SetupError:
        return  # reported with Java
    try:
        refuse_newer_java(java, spark)
    except SetupError as failure:
        yield error("spark", "Java", str(failure), "Topologies cannot run.")
        return
    if major not in spark.line.javas:
        yield warning(
            "spark",
            "Java",
            f"Java {major}, and this release was run on Spark {spark.minor} with Java "
            f"{', '.join(map(str, spark.line.javas))}",
            "Spark may not start, or end in the middle of a job.",
            "Install one of these, and point JAVA_HOME at it.",
        )


def _python() -> Finding:
    version, bits = platform.python_version(), platform.architecture()[0]
    text = f"{version}, {bits}, at {sys.executable}"
    if bits == "64bit":
        return ok("python", "version", text)
    return error(
        "python",
        "version",
        text,
        "Delta's and Arrow's libraries need 64 bits.",
        "Install a Python of 64 bits.",
    )


def _packages() -> Iterator[Finding]:
    try:
        required = _required()
    except metadata.PackageNotFoundError:
        yield note(
            "python",
            "packages",
            f"{_DISTRIBUTION} is not installed: it runs from a folder",
            "The versions that it was checked with are not known.",
        )
        required = {}
    for name in _PACKAGES:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield error(
                "python",
                name,
                "not installed",
                "Topologies cannot run.",
                f"pip install {_DISTRIBUTION}",
            )
            continue
        specifiers = required.get(name, "")
        if fits(version, specifiers):
            yield ok("python", name, version)
        else:
            yield warning(
                "python",
                name,
                f"{version}, and this release was checked with {specifiers}",
                "Delta's log or ZooKeeper's answers may look different.",
                f"pip install '{name}{specifiers}', or run the tests with this version.",
            )


def _hidden() -> Iterator[Finding]:
    """Warn of files that a program in the working folder would import in place of our packages."""
    for name, place in hiding([str(Path.cwd()), *sys.path]).items():
        yield warning(
            "python",
            f"package {name}",
            advice(name, place).partition(". ")[0],
            f"A program beside it imports it in place of txn's: 'No module named' {name}.<module>.",
            "Rename it, or move it to a folder that Python does not search first.",
        )


def _required() -> dict[str, str]:
    """Return name -> version specifiers of the packages that are always needed."""
    requirements = map(Requirement, metadata.requires(_DISTRIBUTION) or ())
    return {
        requirement.name: str(requirement.specifier)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }


def fits(version: str, specifiers: str) -> bool:
    """Return True if a version meets specifiers such as ">=1.6.6,<1.7"; False for other text."""
    try:
        return SpecifierSet(specifiers).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return False


def _memory() -> Finding:
    total = _memory_bytes()
    if total is None:
        return note("machine", "memory", "this system does not report how much there is")
    text = f"{total / _GIB:.1f} GiB"
    if total >= _LEAST_MEMORY:
        return ok("machine", "memory", text)
    return warning(
        "machine",
        "memory",
        text,
        "Spark's driver takes 1 GiB on top of Java's own memory, an embedded ZooKeeper up to 1 "
        "GiB; the system may kill one of them.",
        "Give it 4 GiB, or set spark.driver.memory lower (--conf).",
    )


def _memory_bytes() -> int | None:
    """Return the memory of this process: the machine's, or its container's if that has less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text("ascii")))
        except (OSError, ValueError):
            continue
    return total


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Java raises its own limit to the hard one.
    text = f"{_limit(soft)}, up to {_limit(hard)}"
    if hard == resource.RLIM_INFINITY or hard >= _LEAST_FILES:
        return ok("machine", "open files", text)
    return warning(
        "machine",
        "open files",
        text,
        "A job that reads or writes many files at once fails with 'Too many open files'.",
        f"Raise the hard limit to {_LEAST_FILES} or more (ulimit -Hn, LimitNOFILE= in systemd).",
    )


def _limit(number: int) -> str:
    return "no limit" if number == resource.RLIM_INFINITY else str(number)


def check_disk(folders: Iterable[Path]) -> Iterator[Finding]:
    """Check free space, once per file system."""
    seen: set[int] = set()
    for folder in folders:
        place = folder.absolute()
        while not place.exists():
            place = place.parent
        device = place.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        usage = shutil.disk_usage(place)
        text = f"{usage.free / _GIB:.1f} GiB of {usage.total / _GIB:.1f} GiB free at {place}"
        if usage.free < _GIB // 10:
            yield error(
                "machine",
                "disk",
                text,
                "The next batch or ZooKeeper's next write fails. Nothing is lost: no table has a "
                "half-written file.",
                "Free some space (VACUUM old versions of tables), then run the topology again.",
            )
        elif usage.free < _GIB:
            yield warning(
                "machine", "disk", text, "A full disk stops the topology.", "Free some space soon."
            )
        else:
            yield ok("machine", "disk", text)
