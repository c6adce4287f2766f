"""Flink: a streaming count per word with heap state and exactly-once checkpoints every second.

Its jars come from Maven Central, once, by the resolver of `txn.machine.ivy`; its one source file is
compiled by `javac`, once. It reads the same words as text, one a line, or the same Parquet files as
the others (their column of words alone, by Flink's own vectorized reader). Its counts can be seen
at the end only, when its exactly-once file sink writes them.

Timed, in Java: `execute()`, with the start of the mini-cluster. Not timed: the JVM's start, and the
same job over the warm-up files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pyarrow import parquet

from tests.benchmarks.data import DataSet
from tests.benchmarks.meter import Meter
from tests.benchmarks.task import MEMORY, Answer, Task, answer
from txn.errors import SetupError
from txn.machine.ivy import Request, fetch
from txn.machine.jars import cache_folder
from txn.machine.java import find_java
from txn.spark.versions import shipped_jars

__all__ = ["VERSION", "classpath", "command", "is_right", "output_of", "run"]

VERSION = "2.3.0"
MODULES = (
    f"org.apache.flink:flink-streaming-java:{VERSION}",
    f"org.apache.flink:flink-clients:{VERSION}",
    f"org.apache.flink:flink-connector-files:{VERSION}",
    f"org.apache.flink:flink-parquet:{VERSION}",
    f"org.apache.flink:flink-table-runtime:{VERSION}",
    "org.slf4j:slf4j-nop:1.7.36",
)
SOURCE = Path(__file__).with_name("FlinkCount.java")
INTERVAL_MS = 1000
_OPENED = ("lang", "util", "nio", "net", "io", "time")
_COMPILE_SECS, _RUN_SECS = 120, 900


def run(task: Task) -> Iterator[Answer]:
    """Option `format`: "text" (the default) or "parquet"."""
    folder, size = task.folder.resolve(), task.size
    of = str(task.options.get("format", "text"))
    told = command(task.input, folder, size.warm_secs, size.timed_secs, of)
    with Meter() as meter:
        printed = output_of(told)
    for line in printed.splitlines():
        run = json.loads(line)
        # The meter is around the whole process, warm-up included: good for the noise.
        yield answer(
            run["seconds"],
            meter,
            correct=is_right(task.input, folder / run["folder"]),
            checkpoints=run["checkpoints"],
        )


def command(
    data: DataSet, folder: Path, warm_secs: float, timed_secs: float, of: str = "text"
) -> list[str]:
    """What starts its process.

    Args:
        folder: empty; each timed run writes into a folder below it, the first into "timed-0".
        warm_secs: negative: no warm-up.
        of: what its input is, "text" or "parquet".
    """
    told = [str(find_java()), f"-Xmx{MEMORY}"]
    for package in _OPENED:
        told += ["--add-opens", f"java.base/java.{package}=ALL-UNNAMED"]
    warm = len(list(data.warm.glob("*.parquet")))
    files = data.text if of == "text" else data.rows
    told += ["-cp", classpath(), SOURCE.stem, of, str(files), str(warm), str(folder)]
    return [*told, str(INTERVAL_MS), str(warm_secs), str(timed_secs)]


def output_of(command: Sequence[str]) -> str:
    """What the process prints: a line of JSON for each timed run."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECS)
    if done.returncode != 0:
        raise RuntimeError(f"Flink's process ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def is_right(data: DataSet, folder: Path) -> bool:
    """Whether the counts of a timed run are those of the oracle."""
    return _counts(folder) == _expected(data.expected)


def classpath() -> str:
    """Flink's jars and the compiled job, fetched and made if they are not there yet.

    Raises:
        SetupError: no network and no jars; or no compiler.
    """
    jars = cache_folder() / "bench" / f"flink-{VERSION}"
    if not jars.is_dir():
        fetch(jars, Request(f"Flink's jars ({VERSION})", MODULES))
    content = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    classes = cache_folder() / "bench" / f"flink-{VERSION}-classes-{content}"
    if not classes.is_dir():
        _compile(jars, classes)
    return os.pathsep.join([str(classes), _jars(jars)])


def _jars(fetched: Path) -> str:
    """Flink's, and pyspark's of Hadoop: without these, Flink's reader of Parquet does not load."""
    shipped = [str(jar) for jar in shipped_jars() if jar.name.startswith("hadoop-client-")]
    return os.pathsep.join([f"{fetched}/*", *shipped])


def _compile(jars: Path, classes: Path) -> None:
    compiler = find_java().resolve().with_name("javac")
    if not compiler.is_file():
        raise SetupError(
            f"Flink's job cannot be compiled: there is no {compiler}. Install a JDK, not only a "
            "Java runtime (on Debian or Ubuntu: apt install openjdk-17-jdk-headless), or point "
            "JAVA_HOME at one."
        )
    scratch = Path(tempfile.mkdtemp(prefix=".compiling-", dir=classes.parent))
    try:
        command = [str(compiler), "-cp", _jars(jars), "-d", str(scratch), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECS)
        if done.returncode != 0:
            raise SetupError(f"Flink's job {SOURCE} does not compile: {done.stderr[-2000:]}")
        # Another process may have been quicker.
        with suppress(OSError):
            scratch.rename(classes)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _counts(out: Path) -> dict[str, int] | None:
    """The counts that Flink wrote; None when a word stands there twice."""
    counts: dict[str, int] = {}
    for part in out.rglob("part-*"):
        for line in part.read_text("utf-8").splitlines():
            word, count = line.split("\t")
            if word in counts:
                return None
            counts[word] = int(count)
    return counts


def _expected(path: Path) -> dict[str, int]:
    table = parquet.read_table(path)
    return dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))
