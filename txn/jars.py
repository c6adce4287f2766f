"""Delta's jars: fetched once, then found in a folder; and an archive of loaded classes.

Spark's own `spark.jars.packages` asks a resolver at every start, slowly and loudly. Here the
resolver (Ivy, which pyspark ships) runs once, in a child process, into a folder of its own that
appears under its final name only when it is whole; any number of processes may do so at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from xml.sax.saxutils import quoteattr

from txn.errors import SetupError
from txn.java import find_java, java_version

__all__ = ["cache_folder", "class_archive", "delta_jars", "resolve"]

_SCALA = "2.13"
_RESOLVE_TIMEOUT_SECS = 600.0

# What Spark ships itself; another version of any of these on the class path does harm.
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

_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <resolvers><ibiblio name="central" m2compatible="true"{root}/></resolvers>
</ivysettings>
"""

_MODULE = """<ivy-module version="2.0">
  <info organisation="txn" module="jars"/>
  <dependencies>
    <dependency org="io.delta" name={name} rev={version} conf="default->default"/>
    {excludes}
  </dependencies>
</ivy-module>
"""


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
    wanted = f"{_artifact()}-{_version('delta_spark')}.jar"
    if not (folder / wanted).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise SetupError(
                f"The folder {folder} of Delta's jars has files in it, but no {wanted}. Put that "
                "jar and what it needs there, or delete the folder (or unset TXN_JARS) to have "
                "them fetched."
            )
        resolve(folder, env)
    return sorted(folder.glob("*.jar"))


def resolve(folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Fetch Delta's jars from Maven Central into `folder`, which becomes visible when complete.

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
            f"Delta's jars cannot be kept in {folder}: {error}. Set TXN_JARS to a folder that "
            "can be written."
        ) from error
    try:
        _run_ivy(scratch, env)
        # Another process may have been quicker: its folder is as good as ours.
        with suppress(OSError):
            (scratch / "jars").rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def class_archive(environ: Mapping[str, str] | None = None) -> Path:
    """Where the JVM's archive of Spark's loaded classes lies, or would lie (see `txn.session`).

    An archive fits one JVM and one class path, so it lies in the Python environment whose
    pyspark it is about (and goes away with it), and its name says the JVM and the jars.
    """
    env = os.environ if environ is None else environ
    name = f"java-{java_version(find_java(env))}-{_jar_folder(env).name}.jsa"
    return Path(sys.prefix) / "share" / "txn" / name


def _jar_folder(env: Mapping[str, str]) -> Path:
    given = env.get("TXN_JARS")
    if given:
        return Path(given).expanduser().resolve()
    name = f"delta-{_version('delta_spark')}-spark-{_version('pyspark')}"
    return cache_folder(env) / "jars" / name


def _run_ivy(scratch: Path, env: Mapping[str, str]) -> None:
    settings, module = scratch / "settings.xml", scratch / "ivy.xml"
    repository = env.get("DEFAULT_ARTIFACT_REPOSITORY")
    root = f" root={quoteattr(repository)}" if repository else ""
    settings.write_text(_SETTINGS.format(cache=quoteattr(str(scratch / "cache")), root=root))
    module.write_text(
        _MODULE.format(
            name=quoteattr(_artifact()),
            version=quoteattr(_version("delta_spark")),
            excludes="".join(_exclude(organisation) for organisation in _SHIPPED_BY_SPARK),
        )
    )
    command = [str(find_java(env)), "-cp", str(_ivy()), "org.apache.ivy.Main"]
    command += ["-settings", str(settings), "-ivy", str(module), "-types", "jar"]
    command += ["-retrieve", str(scratch / "jars" / "[artifact]-[revision].[ext]")]
    try:
        said = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RESOLVE_TIMEOUT_SECS,
            check=False,
        )
        failed = said.returncode != 0
        words = said.stdout + said.stderr
    except subprocess.TimeoutExpired:
        failed, words = True, f"no answer within {_RESOLVE_TIMEOUT_SECS:.0f} s"
    if failed:
        raise SetupError(
            f"Delta's jars ({_artifact()} {_version('delta_spark')}) are not on this machine and "
            f"could not be fetched from Maven Central: {_reason(words)}. Connect to the network "
            "once, or name a mirror in DEFAULT_ARTIFACT_REPOSITORY, or put the jars into a folder "
            "and name it in TXN_JARS."
        )


def _exclude(organisation: str) -> str:
    pattern = organisation.replace(".", "[.]").replace("*", ".*")  # Ivy's globs need one more jar
    return f'<exclude org="{pattern}" matcher="regexp"/>'


def _reason(words: str) -> str:
    for mark in ("UnknownHost", "Exception", "not found", "ERROR"):
        for line in words.splitlines():
            if mark in line:
                return " ".join(line.split())[:300]
    return " ".join(words.split())[-300:] or "the resolver said nothing"


def _ivy() -> Path:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    found = sorted(jars.glob("ivy-*.jar"))
    if not found:
        raise SetupError(
            f"pyspark's folder {jars} has no ivy-*.jar, so Delta's jars cannot be fetched. "
            "Install pyspark from PyPI, or put the jars into a folder and name it in TXN_JARS."
        )
    return found[0]


def _artifact() -> str:
    spark = ".".join(_version("pyspark").split(".")[:2])
    return f"delta-spark_{spark}_{_SCALA}"


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
