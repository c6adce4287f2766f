"""The submitter's settings, which win over txn's defaults.

Under spark-submit Spark's Java runs already and has them all. Otherwise pyspark starts Java with
PYSPARK_SUBMIT_ARGS, and Java reads `spark-defaults.conf`. That is too late for settings that depend
on them, such as the place of Delta's jars, so this module reads both in Spark's way.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from txn.errors import SetupError
from txn.spark.versions import is_submitted, spark_home

__all__ = [
    "SUBMIT_ARGS",
    "defaults_file",
    "named_jars",
    "runs_here",
    "submitted",
    "with_paths",
]

SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
"""Name of the variable with the arguments that pyspark passes to spark-submit."""

_CLASS_PATH, _JARS = "spark.driver.extraClassPath", "spark.jars"
_OPTIONS = {
    "--master": "spark.master",
    "--driver-class-path": _CLASS_PATH,
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--jars": _JARS,
    "--packages": "spark.jars.packages",
    "--remote": "spark.remote",
}
_PATHS = {_CLASS_PATH: "--driver-class-path", _JARS: "--jars"}


def runs_here(master: str) -> bool:
    """Return whether a master's executors are threads of this process."""
    return master == "local" or master.startswith("local[")


def submitted() -> dict[str, str]:
    """The submitter's settings.

    Raises:
        SetupError: PYSPARK_SUBMIT_ARGS or the properties file cannot be read.
    """
    if is_submitted():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # otherwise Java's system properties are not read
        return dict(SparkConf().getAll())
    arguments = dict[str, str]()
    file, explicit, adds = defaults_file(), False, False
    for option, value in _options(os.environ.get(SUBMIT_ARGS, "")):
        if option in ("--conf", "-c"):
            key, _, setting = value.partition("=")
            arguments[key] = setting
        elif option == "--properties-file":
            file, explicit = Path(value), True
        elif option == "--load-spark-defaults":
            adds = True
        elif option in _OPTIONS:
            arguments[_OPTIONS[option]] = value
    properties = _properties(defaults_file()) if adds and explicit else {}
    if explicit and not file.is_file():
        raise SetupError(
            f"{SUBMIT_ARGS} names the properties file '{file}', which does not exist. Correct "
            "it, or leave it out.",
            number="TXN-212",
        )
    return {**properties, **_properties(file), **arguments}


def defaults_file() -> Path:
    """The path at which Spark expects `spark-defaults.conf`; the file need not exist."""
    folder = os.environ.get("SPARK_CONF_DIR")
    return (Path(folder) if folder is not None else spark_home() / "conf") / "spark-defaults.conf"


def named_jars(conf: Mapping[str, str]) -> str:
    """Return the names of all jars and packages in a session's settings, as one text."""
    return " ".join(conf.get(key, "") for key in (_JARS, "spark.jars.packages", _CLASS_PATH))


def with_paths(arguments: str, settings: Mapping[str, str]) -> str:
    """PYSPARK_SUBMIT_ARGS with the jars and class paths of `settings` added last, so they win.

    Ends with `pyspark-shell`, without which Java would exit at once.
    """
    words = _words(arguments)
    own = [word for key, o in _PATHS.items() if key in settings for word in (o, settings[key])]
    words = words[:-1] if words[-1:] == ["pyspark-shell"] else words
    return shlex.join([*words, *own, "pyspark-shell"])


def _options(arguments: str) -> Iterator[tuple[str, str]]:
    """The options with their values; other words with an empty value."""
    words = iter(_words(arguments))
    for word in words:
        option, equals, value = word.partition("=")
        if option == "--load-spark-defaults" or not option.startswith("-"):
            yield option, ""
        elif equals:
            yield option, value
        elif option in (*_OPTIONS, "--conf", "-c", "--properties-file"):
            yield option, next(words, "")


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise SetupError(
            f"{SUBMIT_ARGS} cannot be split into words: {error}. Correct its quotes.",
            number="TXN-212",
        ) from error


def _properties(file: Path) -> dict[str, str]:
    """Read a file like `spark-defaults.conf`: a key, then a blank, `=` or `:`, then the value."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SetupError(
            f"Spark's settings in '{file}' cannot be read: {error}. Make it a "
            "readable file in UTF-8.",
            number="TXN-212",
        ) from error
    properties = {}
    for line in map(str.strip, lines):
        if line and line[0] not in "#!":
            key, value = [*re.split(r"\s*[=:\s]\s*", line, maxsplit=1), ""][:2]
            properties[key] = value.strip()
    return properties
