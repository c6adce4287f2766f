"""Fetch jars from a Maven repository with Ivy, which pyspark ships, in a child process.

The folder appears under its final name only when it is complete; any number of processes may fetch
into it at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring
from xml.sax.saxutils import quoteattr

from txn.errors import SetupError
from txn.machine.java import find_java
from txn.spark.versions import shipped_jars, spark_home

__all__ = ["Request", "fetch"]

_RESOLVE_TIMEOUT_SECS = 600.0

_EXTRA = "http://ant.apache.org/ivy/maven"
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <resolvers><ibiblio name="central" m2compatible="true"{root}/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Request:
    """A request to fetch Maven modules and their dependencies."""

    what: str
    """The subject of a message: "Delta's jars (delta-spark_4.2_2.13 4.4.0)"."""
    modules: Sequence[str]
    """Maven coordinates: `group:artifact:version`; with a classifier (`:shaded`), a jar with its
    dependencies inside."""
    without_groups: Sequence[str] = ()
    """Groups to leave out, with `*`."""
    without_artifacts: Sequence[str] = ()
    """Artifacts to leave out, by name."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """`group:artifact` -> version, or Ivy's range of versions, that overrides all others."""
    otherwise: str = ""
    """Advice for a machine without a network; the end of a message."""


def fetch(folder: Path, request: Request, environ: Mapping[str, str] | None = None) -> None:
    """Fetch jars from Maven Central into `folder`, which becomes visible when it is complete.

    `DEFAULT_ARTIFACT_REPOSITORY` names another repository, as it does for Spark's own resolver.

    Raises:
        SetupError: no network, or the folder cannot be written.
    """
    env = os.environ if environ is None else environ
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".resolving-", dir=folder.parent))
    except OSError as error:
        raise SetupError(
            f"{request.what} cannot be kept in {folder}: {error}. Set XDG_CACHE_HOME to a "
            "folder that can be written.",
            number="TXN-204",
        ) from error
    try:
        _resolve(scratch, request, env)
        # Another process may have been faster: use its folder.
        with suppress(OSError):
            (scratch / "jars").rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _resolve(scratch: Path, request: Request, env: Mapping[str, str]) -> None:
    settings, module = scratch / "settings.xml", scratch / "ivy.xml"
    repository = env.get("DEFAULT_ARTIFACT_REPOSITORY")
    root = f" root={quoteattr(repository)}" if repository else ""
    settings.write_text(_SETTINGS.format(cache=quoteattr(str(scratch / "cache")), root=root))
    module.write_text(_module(request))
    command = [str(find_java(env)), "-cp", str(_ivy()), "org.apache.ivy.Main"]
    command += ["-settings", str(settings), "-ivy", str(module), "-types", "jar", "bundle"]
    command += ["-retrieve", str(scratch / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
    try:
        process = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RESOLVE_TIMEOUT_SECS,
            check=False,
        )
        failed = process.returncode != 0
        output = process.stdout + process.stderr
    except subprocess.TimeoutExpired:
        failed, output = True, f"no answer within {_RESOLVE_TIMEOUT_SECS:.0f} s"
    if failed:
        raise SetupError(
            f"{request.what} are not on this machine and could not be fetched from Maven Central: "
            f"{_reason(output)}. Connect to the network once, or name a mirror in "
            f"DEFAULT_ARTIFACT_REPOSITORY{request.otherwise}.",
            number="TXN-204",
        )


def _module(request: Request) -> str:
    root = Element("ivy-module", {"version": "2.0", "xmlns:m": _EXTRA})
    SubElement(root, "info", organisation="txn", module="jars")
    modules = SubElement(root, "dependencies")
    for coordinates in request.modules:
        group, artifact, version, *classifier = coordinates.split(":")
        names = {"org": group, "name": artifact, "rev": version, "conf": "default->default"}
        transitive = str(not classifier).lower()
        dependency = SubElement(modules, "dependency", names, transitive=transitive)
        for kind in classifier:
            jar = {"name": artifact, "type": "jar", "ext": "jar", "m:classifier": kind}
            SubElement(dependency, "artifact", jar)
    for group in request.without_groups:
        pattern = group.replace(".", "[.]").replace("*", ".*")  # Ivy's globs need another jar
        SubElement(modules, "exclude", org=pattern, matcher="regexp")
    for name in request.without_artifacts:
        SubElement(modules, "exclude", module=name)
    for name, version in request.instead.items():
        group, artifact = name.split(":")
        SubElement(modules, "override", org=group, module=artifact, matcher="exact", rev=version)
    return tostring(root, "unicode")


def _reason(output: str) -> str:
    for mark in ("UnknownHost", "Exception", "not found", "ERROR"):
        for line in output.splitlines():
            if mark in line:
                return " ".join(line.split())[:300]
    return " ".join(output.split())[-300:] or "the resolver printed nothing"


def _ivy() -> Path:
    for jar in shipped_jars():
        if jar.name.startswith("ivy-"):
            return jar
    raise SetupError(
        f"Spark's folder {spark_home() / 'jars'} has no ivy-*.jar, so no jars can be fetched. "
        "Install pyspark from PyPI, or put the jars into a folder and name it in TXN_JARS.",
        number="TXN-204",
    )
