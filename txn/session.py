"""A Spark session with Delta: fast to start, and quiet.

Fast: Delta's jars come from a folder (`txn.machine.jars`), never through a resolver. In local mode
they are on Java's own class path, which allows an archive of loaded classes. A spout's own jars
come as `spark.jars`, after that class path, so the archive still fits.
`python -m txn.session` fetches the jars and makes that archive, once per machine.

Quiet: Spark's log goes to stderr from level ERROR on, and Java's warnings without a switch are
filtered out (`txn/machine/spark_conf/`).
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from txn.errors import SetupError
from txn.machine.jars import class_archive, delta_jars, package_jars
from txn.machine.java import find_java, in_utf8, java_for_spark, refuse_newer_java
from txn.machine.packaged import on_disk
from txn.spark.causes import cause_line, is_of_spark, without_copies
from txn.spark.differences import defaults_for_dates
from txn.spark.gateway import start_shielded
from txn.spark.jvm import add_to_driver, has_class, refuse_connect
from txn.spark.submission import (
    SUBMIT_ARGS,
    defaults_file,
    named_jars,
    submitted,
    with_paths,
)
from txn.spark.versions import is_submitted, running_spark
from txn.text import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["delta_session", "prepare", "session_conf"]

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_ARCHIVE_TIMEOUT_SECS = 300.0
_OUTPUT_CHARACTERS = 300
# Variables with options for the JVM that pyspark starts.
_JAVA_OPTION_VARIABLES = (
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
    SUBMIT_ARGS,
)
# An option that names a collector, or a file of options, which may name one.
_COLLECTOR = re.compile(r"-XX:[+-]Use\w+GC|-XX:(?:Flags|VMOptionsFile)=|(?:^|\s)@")


def delta_session(
    app_name: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    packages: Sequence[str] = (),
) -> SparkSession:
    """Return the running Spark session, or a new one, with Delta configured.

    Args:
        app_name: shown in Spark's UI and logs.
        master: as Spark's `--master`; it wins over the submitter's, as with Spark's own builder.
            None: the submitter's (spark-submit, PYSPARK_SUBMIT_ARGS, spark-defaults.conf), or
            `local[*]` without any. With a master other than `local...`, Delta's jars are shipped
            to executors.
        conf: Spark settings; they win over the submitter's, and those over the defaults of
            `session_conf`. Jars, class paths and SQL extensions are added to Delta's.
        packages: Maven packages to add to Delta's, such as `KafkaSpout.packages`; fetched once.
            They cannot be added to a running session.

    Raises:
        SetupError: no Java 17, no jars and no network, Java did not start, a session without Delta
            is running in this process, or Spark Connect is asked for.
    """
    refuse_connect(master, conf)
    # Otherwise Spark would end later, at its first login.
    refuse_newer_java(find_java(), running_spark())
    program_conf = dict(conf or {})
    submitter_conf = submitted()
    master = (
        program_conf.get("spark.master")
        or master
        or submitter_conf.get("spark.master")
        or "local[*]"
    )
    settings = session_conf(master, program_conf, packages, submitter_conf)
    if is_submitted():
        settings |= _jars_for_driver({**submitter_conf, **program_conf}, packages)
    _import_pyspark_quietly()
    from pyspark.sql import SparkSession

    # `conf` comes last and wins, also for `spark.app.name` and `spark.master`.
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _spark_env(settings, local=_cores(master) is not None):
        start_shielded({"spark.app.name": app_name, "spark.master": master, **settings})
        session = _started(builder)
    _check_delta(session)
    without_copies()
    return session


def _started(builder: SparkSession.Builder) -> SparkSession:
    """Start Spark, or refuse a setting that it cannot use."""
    try:
        return builder.getOrCreate()
    except socket.gaierror as error:
        raise SetupError(
            "Spark did not start: it listens on 'localhost', a name that this machine does not "
            f"know ({error.strerror}). Add the line `127.0.0.1 localhost` to /etc/hosts.",
            number="TXN-202",
        ) from error
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise SetupError(
            f"Spark did not start: {cause_line(error)}. Correct what it names: a setting in "
            "`conf`, PYSPARK_SUBMIT_ARGS or spark-defaults.conf.",
            number="TXN-202",
        ) from error


def session_conf(
    master: str,
    conf: Mapping[str, str],
    packages: Sequence[str] = (),
    submitter: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return every setting of a session: Delta's, ours for speed and quiet, and `conf`, which wins.

    Args:
        submitter: the submitter's settings; they win over defaults, and `conf` over them.

    With a local master Java uses the parallel garbage collector, unless the user's options,
    Spark's folder or the environment may name another.
    """
    submitter = submitter or {}
    theirs = {**submitter, **conf}
    defaults = {
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Batches in flight share the executors instead of a queue behind the oldest job.
        "spark.scheduler.mode": "FAIR",
        # Only the driver reads it. Without a scheme, Hadoop would read it from the default file
        # system of a cluster.
        "spark.scheduler.allocation.file": (_spark_conf() / "fairscheduler.xml").as_uri(),
        "spark.ui.showConsoleProgress": "false",
        # Equal stages of a plan get equal classes. A job of several batches has the same stages
        # for each batch; with numbers in the names, Java would compile each of them separately.
        "spark.sql.codegen.useIdInClassName": "false",
        # Half of the code of an aggregation is a second hash table before the first. To compile it
        # takes longer than a batch saves by it, and with few groups it is not faster.
        "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
        "spark.driver.defaultJavaOptions": _java_options(theirs, local=_cores(master) is not None),
        **defaults_for_dates(),
        **_local_defaults(master),
    }
    # The submitter's other settings reach Spark by themselves.
    merged = {**defaults, **{key: submitter[key] for key in submitter if key in defaults}, **conf}
    merged["spark.sql.extensions"] = _with_delta(theirs.get("spark.sql.extensions", ""))
    if is_submitted():  # spark-submit has placed the jars
        return merged
    jars = [str(jar) for jar in delta_jars()]
    more = [str(jar) for jar in package_jars(packages)]
    if _cores(master) is not None:
        merged |= _joined("spark.driver.extraClassPath", os.pathsep, jars, theirs)
        return merged | (_joined("spark.jars", ",", more, theirs) if more else {})
    return merged | _joined("spark.jars", ",", [*jars, *more], theirs)


def prepare() -> None:
    """Fetch the jars and archive Spark's loaded classes, so later starts are fast.

    The archive holds the classes that a small Delta job loads; with it, a start takes about a
    third less time. Everything works without it too, so a Java that makes none (some lack the
    archive of their own classes on which ours is built) only causes a note on stderr.

    Raises:
        SetupError: there is no suitable Java, or the jars could not be fetched.
    """
    find_java()
    delta_jars()
    archive = class_archive()
    if archive.is_file():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".archiving-", dir=archive.parent) as scratch:
        made = Path(scratch) / archive.name
        output = _train(made, Path(scratch))
        if made.is_file():
            made.replace(archive)
        else:
            sys.stderr.write(
                "This Java has made no archive of Spark's classes, so each start of Spark takes "
                f"about a third longer; nothing else changes. What it said: {output}\n"
            )


def _train(archive: Path, scratch: Path) -> str:
    """Run a small Delta job in a child process that archives classes; return its first words."""
    code = (
        "import sys\n"
        "from txn.session import delta_session\n"
        "options = {'spark.driver.extraJavaOptions': '-XX:ArchiveClassesAtExit=' + sys.argv[1]}\n"
        "spark = delta_session('archive', master='local[2]', conf=options)\n"
        "rows = spark.range(100).selectExpr('id % 7 AS k', 'id AS v')\n"
        "sums = rows.groupBy('k').sum('v').withColumnRenamed('sum(v)', 's')\n"
        "sums.write.format('delta').save(sys.argv[2] + '/table')\n"
        "sums.write.parquet(sys.argv[2] + '/files')\n"
        "rows.write.option('header', True).csv(sys.argv[2] + '/csv')\n"
        "spark.read.csv(sys.argv[2] + '/csv', header=True, schema='k int, v int').count()\n"
        "left = spark.read.format('delta').load(sys.argv[2] + '/table')\n"
        "left.join(spark.read.parquet(sys.argv[2] + '/files'), 'k', 'full').collect()\n"
        "gateway = spark.sparkContext._gateway\n"
        "spark.stop()\n"
        "gateway.shutdown()\n"
        "gateway.proc.stdin.close()\n"
        "gateway.proc.wait(240)\n"
    )
    command = [sys.executable, "-c", code, f'"{archive}"', str(scratch)]
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=scratch,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
            timeout=_ARCHIVE_TIMEOUT_SECS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"nothing in {error.timeout:g} seconds"
    return printable((ended.stdout + ended.stderr).strip()[:_OUTPUT_CHARACTERS])


def _spark_conf() -> Path:
    return on_disk("txn.machine", "spark_conf")


def _java_options(conf: Mapping[str, str], *, local: bool) -> str:
    log = (_spark_conf() / "log4j2.properties").as_uri()
    options = [f"-Dlog4j2.configurationFile={log}"]
    if local and not _may_choose_collector(conf):
        # Batches are computed here: throughput counts, and nothing waits for a pause of this JVM
        # (the ZooKeeper session is in Python). It saves a twentieth over Java's own choice.
        options.append("-XX:+UseParallelGC")
    archive = class_archive()
    if local and archive.is_file():
        # If the archive does not fit, Java ignores it; no message is necessary.
        options += [f'-XX:SharedArchiveFile="{archive}"', "-Xlog:disable", "-Xlog:all=error:stderr"]
    return " ".join(options)


def _may_choose_collector(conf: Mapping[str, str]) -> bool:
    """True if the user's options may name a garbage collector: Java refuses a second one."""
    options = [conf.get("spark.driver.extraJavaOptions", "")]
    options += [os.environ.get(name, "") for name in _JAVA_OPTION_VARIABLES]
    return _own_spark_conf() or any(_COLLECTOR.search(text) for text in options)


def _local_defaults(master: str) -> dict[str, str]:
    cores = _cores(master)
    if cores is None:
        return {}
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark's 200 and Delta's 50 are for clusters: here each is another task in the queue.
        "spark.sql.shuffle.partitions": str(max(2, cores)),
        # Spark would sort all of a state to join it with a batch, also where each task could have
        # the batch's keys in a hash table: with this it hashes what is that small (measured: 0.7).
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "16m",
        "spark.databricks.delta.snapshotPartitions": "2",
        # VACUUM lists a table's folder in this many tasks; the default is 10,000.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(max(2, cores)),
        # For its UI, which is off, Spark keeps a thousand jobs, and as many queries with their
        # plans. They would fill a driver that commits ten batches a second.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.sql.ui.retainedExecutions": "5",
    }


def _cores(master: str) -> int | None:
    """Return the number of threads of a local master, or None for a cluster."""
    if master == "local":
        return 1
    match = re.fullmatch(r"local\[(\*|\d+)(?:,\s*\d+)?\]", master)
    if match is None:
        return None
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])


def _joined(key: str, separator: str, ours: list[str], conf: Mapping[str, str]) -> dict[str, str]:
    theirs = [conf[key]] if conf.get(key) else []
    return {key: separator.join([*ours, *theirs])}


def _with_delta(extensions: str) -> str:
    named = [name.strip() for name in extensions.split(",") if name.strip()]
    return ",".join(named if _EXTENSION in named else [_EXTENSION, *named])


@contextmanager
def _spark_env(settings: Mapping[str, str], *, local: bool) -> Iterator[None]:
    """Set the variables for Spark's launcher: UTF-8, and our `spark-env.sh` if there is no other.

    Jars and class paths in PYSPARK_SUBMIT_ARGS would replace ours, so lists that include ours are
    added after them.

    Args:
        local: True if tasks run in this process: then Python workers use this program's Python,
            with its packages, and Spark's address is loopback, unless the user names others.
    """
    utf8 = in_utf8(os.environ)
    ours = {name: utf8.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG")}
    if local and not _names_python(settings):
        ours["PYSPARK_PYTHON"] = sys.executable
    if local and not (os.environ.keys() & {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"}):
        # Otherwise Java looks up this machine's name, which may be unknown.
        ours["SPARK_LOCAL_IP"] = "127.0.0.1"
    if not _own_spark_conf():
        ours["SPARK_CONF_DIR"] = str(_spark_conf())
    ours |= java_for_spark(os.environ)
    if SUBMIT_ARGS in os.environ:
        ours[SUBMIT_ARGS] = with_paths(os.environ[SUBMIT_ARGS], settings)
    before = {name: os.environ.get(name) for name in ours}
    _set_variables(ours)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _names_python(settings: Mapping[str, str]) -> bool:
    variables = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    submit_args = os.environ.get(SUBMIT_ARGS, "")
    named = "spark.pyspark.python" in settings or "spark.pyspark.python" in submit_args
    return named or any(os.environ.get(name) for name in variables)


def _own_spark_conf() -> bool:
    if "SPARK_CONF_DIR" in os.environ or "SPARK_HOME" in os.environ:
        return True
    return defaults_file().is_file()


def _import_pyspark_quietly() -> None:
    """Import the module that pyspark imports at its first call, without its warnings of pandas.

    This project uses neither pyspark's pandas support nor pandas itself.
    """
    with warnings.catch_warnings(), suppress(Exception):  # in Spark 3.5 nothing else needs it
        warnings.filterwarnings("ignore", message=".*(pandas|PYARROW_IGNORE_TIMEZONE)")
        import pyspark.testing.utils  # noqa: F401


def _jars_for_driver(conf: Mapping[str, str], packages: Sequence[str]) -> dict[str, str]:
    """Give a driver of spark-submit the jars that it was not given; its Java runs already.

    Returns:
        The setting that sends them to executors.
    """
    named = named_jars(conf)
    lacking = [package for package in packages if package.split(":")[1] not in named]
    delta = [] if has_class(_EXTENSION) else [running_spark().delta_package]
    if not delta and not lacking:
        return {}
    needed = [*delta, *lacking]
    advice = (
        f"spark-submit has started Java without {' and '.join(needed)}, and the jars cannot be "
        f"added now ({{}}). Start it with --packages {','.join(needed)}"
    )
    try:
        jars = [*(delta_jars() if delta else ()), *package_jars(lacking)]
    except SetupError as error:
        raise SetupError(advice.format(error), number="TXN-203") from error
    if not add_to_driver(jars):
        raise SetupError(advice.format("its class loader takes none"), number="TXN-203")
    return _joined("spark.jars", ",", [str(jar) for jar in jars], conf)


def _check_delta(session: SparkSession) -> None:
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    if _EXTENSION in extensions and not has_class(_EXTENSION):
        raise SetupError(
            "The Spark session of this process names Delta's extension, but Java does not have its "
            f"classes. Start Spark with --packages {running_spark().delta_package}, or without a "
            "session of your own: delta_session brings them.",
            number="TXN-203",
        )
    if _EXTENSION not in extensions:
        raise SetupError(
            "A Spark session without Delta is already running in this process, and Delta cannot "
            f"be added to it (spark.sql.extensions is {extensions!r}). Stop it first, or start it "
            "with delta_session.",
            number="TXN-203",
        )


def _main() -> int:
    try:
        prepare()
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
