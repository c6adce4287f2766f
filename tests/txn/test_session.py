"""A session with Delta: what is configured, what is heard, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from deltalake import DeltaTable

from txn.errors import SetupError
from txn.machine.jars import delta_jars, package_jars
from txn.machine.java import find_java
from txn.machine.packaged import on_disk
from txn.session import delta_session, prepare, session_conf
from txn.spark.submission import submitted
from txn.spark.versions import running_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent


def child(
    code: str, cwd: Path, *arguments: str, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, where a first session can be started.

    Args:
        before: a command that starts it.
    """
    return subprocess.run(
        [*before, sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        timeout=240,
    )


@pytest.fixture
def own_java_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which nobody has said anything to Java."""
    said = ["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"]
    for name in [*said, "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"]:
        monkeypatch.delenv(name, raising=False)


def test_delta_tables_can_be_written_and_read(spark: SparkSession, warehouse: Path) -> None:
    """The session knows the format "delta" and Delta's SQL."""
    path = str(warehouse / "t")
    spark.range(3).write.format("delta").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    assert sorted(r.id for r in spark.read.format("delta").load(path).collect()) == [0, 2]


def test_a_start_says_nothing(tmp_path: Path) -> None:
    """A session that starts, writes and ends leaves both stdout and stderr to the program; so does
    a job that fails, whose error the program gets.
    """
    code = (
        "from txn.session import delta_session\n"
        "from txn.spark.differences import condition_of\n"
        "spark = delta_session('quiet', 'local[2]', {'spark.driver.memory': '1g'})\n"
        f"spark.range(9).write.format('delta').save({str(tmp_path / 't')!r})\n"
        f"print(spark.read.format('delta').load({str(tmp_path / 't')!r}).count())\n"
        "import os; print('SPARK_CONF_DIR' in os.environ)\n"
        "try:\n"
        "    wrong = spark.range(9).selectExpr('1 div (id - 5)')\n"
        "    wrong.write.format('noop').mode('overwrite').save()\n"
        "except Exception as error:\n"
        "    print(condition_of(error))\n"
        "spark.stop()\n"
    )
    said = child(code, tmp_path)
    assert (said.stdout, said.stderr) == ("9\nFalse\nDIVIDE_BY_ZERO\n", "")
    assert said.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["t"]


def test_java_is_heard_but_for_what_spark_asks_of_it() -> None:
    """Of Java's lines only the warnings are dropped that Spark's own options cause: one on every
    Java, and one more from Java 24 on.
    """
    dropped = (
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "WARNING: package sun.security.action not in java.base",
    )
    heard = ("WARNING: package x not in java.base", f"{dropped[1]} either", "Error: no memory")
    script = 'source "$1/spark-env.sh"; shift; printf "%s\\n" "$@" >&2'
    folder = on_disk("txn.machine", "spark_conf")
    said = subprocess.run(
        ["bash", "-c", script, "bash", folder, *heard, *dropped], capture_output=True, text=True
    )
    assert said.stderr.splitlines() == list(heard)


START = (
    "import sys\n"
    "from txn.errors import SetupError\n"
    "from txn.session import delta_session\n"
    "try:\n"
    "    spark = delta_session('start', sys.argv[1])\n"
    "except SetupError as error:\n"
    "    sys.exit(str(error))\n"
    "print(spark.range(3).count())\n"
)
NO_NAME = ("unshare", "-U", "--map-user=12345")
NO_LOOPBACK = ("unshare", "--net")
OWN_HOST = ("unshare", "--uts", "sh", "-c", 'hostname nobody-knows; exec "$@"', "sh")
FEW_FILES = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")


@pytest.mark.parametrize(
    ("fault", "master", "cause"),
    [
        (NO_NAME, "local[1]", "User id 12345 has no entry in /etc/passwd"),
        (NO_LOOPBACK, "local[1]", "Start the loopback interface: `ip link set lo up`"),
        (OWN_HOST, "local-cluster[1,1,512]", "Add the line '127.0.0.1 nobody-knows' to /etc/hosts"),
        (FEW_FILES, "local[1]", "This process may open 64 files (`ulimit -n`)"),
        (("env", "SPARK_HOME=/nowhere"), "local[1]", "SPARK_HOME is '/nowhere', and /nowhere/"),
        (("env", "TXN_JARS={closed}", *NO_NAME), "local[1]", "may not read {closed}"),
        (("env", "PYSPARK_SUBMIT_ARGS=--nosuch x"), "local[1]", "Unrecognized option: --nosuch"),
        (("env", "PYSPARK_SUBMIT_ARGS=--driver-memory 1x"), "local[1]", "1x"),
    ],
    ids=["user", "loopback", "host", "files", "home", "jars", "submit", "memory"],
)
def test_what_keeps_java_from_starting_is_named(
    tmp_path: Path, own_java_options: None, fault: tuple[str, ...], master: str, cause: str
) -> None:
    """A start that fails says why: what the machine lacks, or what Java itself has said."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    command = [word.replace("{closed}", str(closed)) for word in fault]
    said = child(START, tmp_path, master, before=command)
    assert said.returncode == 1
    assert cause.replace("{closed}", str(closed)) in said.stderr.splitlines()[-1]


def test_a_machine_whose_name_nobody_knows_starts_spark(
    tmp_path: Path, own_java_options: None
) -> None:
    """With a local master Java does not look up the machine's name."""
    said = child(START, tmp_path, "local[1]", before=OWN_HOST)
    assert (said.stdout, said.stderr) == ("3\n", "")


def test_no_java_outlives_a_start_that_fails(tmp_path: Path, own_java_options: None) -> None:
    """Java is killed by any exception between its first moment and its port."""
    code = (
        "import ctypes, os, threading, time\n"
        "from pathlib import Path\n"
        "from txn.session import delta_session\n"
        "main = threading.get_ident()\n"
        "children = Path(f'/proc/self/task/{os.getpid()}/children')\n"
        "def java():\n"
        "    found = children.read_text().split()\n"
        "    ran = [Path(f'/proc/{p}/cmdline').read_bytes().split(b'\\0')[0] for p in found]\n"
        "    return any(word.endswith(b'java') for word in ran)\n"
        "def interfere():\n"
        "    while not java():\n"
        "        time.sleep(0.01)\n"
        "    raised = ctypes.py_object(MemoryError)\n"
        "    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), raised)\n"
        "threading.Thread(target=interfere, daemon=True).start()\n"
        "try:\n"
        "    delta_session('start', 'local[1]')\n"
        "except MemoryError:\n"
        "    print(os.WTERMSIG(os.waitpid(-1, 0)[1]))\n"
    )
    assert child(code, tmp_path).stdout == "9\n"


def test_an_archive_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    """A damaged archive of classes costs time, and neither a failure nor a word."""
    (tmp_path / "bad.jsa").write_text("damaged", "utf-8")
    option = f"-XX:SharedArchiveFile={tmp_path / 'bad.jsa'}"
    code = (
        "from txn.session import delta_session\n"
        "conf = {'spark.driver.memory': '1g', 'spark.driver.extraJavaOptions': %r}\n"
        "print(delta_session('archive', 'local[1]', conf).range(3).count())\n"
    )
    said = child(code % option, tmp_path)
    assert (said.stdout, "archive" in said.stderr) == ("3\n", False)


def test_a_java_that_cannot_archive_its_classes_is_enough(tmp_path: Path) -> None:
    """Set-up with a Java that lacks the archive of its own classes says so, and succeeds."""
    theirs = Path(find_java()).resolve().parents[1]
    skipped = shutil.ignore_patterns("*.jsa", "modules", "src.zip", "jmods", "ct.sym", "man")
    shutil.copytree(theirs, tmp_path / "java", symlinks=True, ignore=skipped)
    (tmp_path / "java" / "lib" / "modules").symlink_to(theirs / "lib" / "modules")
    code = (
        "import os, sys\n"
        "os.environ['JAVA_HOME'], sys.prefix = sys.argv[1:]\n"
        "from txn.session import prepare\n"
        "prepare()\n"
    )
    said = child(code, tmp_path, str(tmp_path / "java"), str(tmp_path / "environment"))
    assert said.returncode == 0, said.stderr
    assert "This Java has made no archive of Spark's classes" in said.stderr
    assert "base CDS archive is not loaded" in said.stderr


def test_set_up_waits_so_long_for_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It goes on without one, and says how long it has waited."""
    monkeypatch.setattr("txn.session._ARCHIVE_TIMEOUT_SECS", 0.1)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    prepare()
    assert capsys.readouterr().err.endswith("What it said: nothing in 0.1 seconds\n")
    assert [*tmp_path.rglob("*.jsa")] == []


def test_a_session_without_delta_is_not_taken(tmp_path: Path) -> None:
    """Delta cannot be added to a running session: refused before the first table fails."""
    code = (
        "from pyspark.sql import SparkSession\n"
        "plain = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "from txn.session import delta_session\n"
        "delta_session('late', 'local[1]')\n"
    )
    said = child(code, tmp_path)
    assert "SetupError: A Spark session without Delta is already running" in said.stderr


def test_the_running_session_is_returned(spark: SparkSession) -> None:
    """Asking again gives the same session, as Spark's own builder does."""
    again = delta_session("again", master="local[2]")
    assert again.sparkContext is spark.sparkContext


def test_the_users_settings_win() -> None:
    """Whatever `conf` has replaces the default of the same name."""
    conf = {"spark.ui.enabled": "true", "spark.sql.shuffle.partitions": "7", "spark.x": "y"}
    settings = session_conf("local[2]", conf)
    assert {key: settings[key] for key in conf} == conf


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", "2"), ("local[1]", "2"), ("local[6]", "6"), ("local[5, 3]", "5")],
)
def test_local_masters_get_local_sizes(master: str, partitions: str) -> None:
    """A laptop does not get two hundred shuffle partitions, and opens no port to the network."""
    settings = session_conf(master, {})
    assert settings["spark.sql.shuffle.partitions"] == partitions
    assert settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] == partitions
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_cluster_masters_keep_sparks_sizes_and_get_the_jars(master: str) -> None:
    """On a cluster Spark ships the jars, and sizes and addresses are the cluster's."""
    settings = session_conf(master, {"spark.jars": "mine.jar"})
    assert settings["spark.jars"] == ",".join([*(str(j) for j in delta_jars()), "mine.jar"])
    local = {"spark.sql.shuffle.partitions", "spark.driver.bindAddress", "spark.ui.enabled"}
    assert local & set(settings) == set()


PARALLEL = "-XX:+UseParallelGC"


def test_local_masters_collect_garbage_for_throughput(own_java_options: None) -> None:
    """Batches that are computed in the driver's JVM get the collector that costs them least."""
    key = "spark.driver.defaultJavaOptions"
    assert PARALLEL in session_conf("local[2]", {})[key].split()
    mine = {"spark.driver.extraJavaOptions": "-Xss4m -XX:+UseStringDeduplication -Dat=a@b"}
    assert PARALLEL in session_conf("local[2]", mine)[key].split()
    assert PARALLEL not in session_conf("yarn", {})[key]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("spark.driver.extraJavaOptions", "-Xss4m -XX:+UseG1GC"),
        ("spark.driver.extraJavaOptions", "-XX:VMOptionsFile=/etc/java"),
        ("JAVA_TOOL_OPTIONS", "-XX:+UseZGC"),
        ("_JAVA_OPTIONS", "-XX:-UseParallelGC"),
        ("JDK_JAVA_OPTIONS", "-Xss4m @/etc/java"),
        ("SPARK_SUBMIT_OPTS", "-XX:+UseShenandoahGC"),
        ("PYSPARK_SUBMIT_ARGS", "--driver-java-options -XX:+UseSerialGC pyspark-shell"),
        ("SPARK_CONF_DIR", "/etc/spark"),
        ("SPARK_HOME", str(Path(pyspark.__file__).parent)),
    ],
)
def test_a_collector_of_the_users_own_stands_alone(
    name: str, said: str, own_java_options: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the user may have named a collector, none is named beside it."""
    conf = {name: said} if name.startswith("spark.") else {}
    if not conf:
        monkeypatch.setenv(name, said)
    assert PARALLEL not in session_conf("local[2]", conf)["spark.driver.defaultJavaOptions"]


def test_a_session_starts_with_the_users_collector(tmp_path: Path) -> None:
    """Java, which refuses two collectors, comes up with the one that the user has named."""
    code = (
        "from txn.session import delta_session\n"
        "conf = {'spark.driver.extraJavaOptions': '-XX:+UseSerialGC'}\n"
        "print(delta_session('mine', 'local[1]', conf).range(3).count())\n"
    )
    said = child(code, tmp_path)
    assert (said.stdout, said.returncode) == ("3\n", 0), said.stderr


def test_class_paths_are_added_to_ours() -> None:
    """A user's class path stands behind Delta's jars, not in their place."""
    settings = session_conf("local", {"spark.driver.extraClassPath": "/mine"})
    paths = settings["spark.driver.extraClassPath"].split(os.pathsep)
    assert paths == [*(str(jar) for jar in delta_jars()), "/mine"]


def test_packages_stand_behind_the_class_path() -> None:
    """A package's jars come as `spark.jars`: the class path, and the archive, stay as they are."""
    from spouts.kafka import KafkaSpout

    with_kafka = session_conf("local", {"spark.jars": "mine.jar"}, KafkaSpout.packages)
    jars = with_kafka.pop("spark.jars").split(",")
    assert jars == [*(str(jar) for jar in package_jars(KafkaSpout.packages)), "mine.jar"]
    assert any("spark-sql-kafka" in jar for jar in jars)
    assert with_kafka == session_conf("local", {})
    on_cluster = session_conf("yarn", {}, KafkaSpout.packages)["spark.jars"].split(",")
    assert on_cluster == [str(jar) for jar in delta_jars()] + jars[:-1]


def test_under_spark_submit_the_jars_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that spark-submit has started can no longer be given a class path."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    settings = session_conf("yarn", {})
    assert "spark.jars" not in settings


PROGRAM = """
from txn import Topology
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout

def said(df):
    context = df.sparkSession.sparkContext
    spark = df.sparkSession
    print("MASTER", context.master, spark.conf.get("spark.sql.shuffle.partitions"),
          spark.conf.get("spark.sql.extensions"), flush=True)
    return df

topology = Topology("submitted")
rows = topology.stream("rows", MemoryTransactionalSpout([[(1,)], [(2,)]], "v int"))
rows.transform(said).partition_persist(AppendTable("table"))
"""
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def submit(folder: Path, *options: str, **variables: str) -> tuple[int, str]:
    """A real spark-submit of PROGRAM, on three local cores: how it ended, and what it printed."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "start.py").write_text(
        "import txn\nfrom txn.cli import main\nprint('FROM', txn.__file__, flush=True)\nmain()\n"
    )
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[3]", *options),
        *("--conf", "spark.sql.shuffle.partitions=5", "--conf", "spark.driver.memory=1g"),
        *("start.py", "run", "program.py:topology", "--until", "caught_up", "--json"),
    ]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **variables},
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    return ended.returncode, ended.stdout + ended.stderr


def archived(file: Path) -> Path:
    """The packages in an archive, as a wheel has them."""
    with zipfile.ZipFile(file, "w") as archive:
        for package in ("txn", "spouts", "committers"):
            for path in (ROOT / package).rglob("*"):
                if "__pycache__" not in path.parts and path.is_file():
                    archive.write(path, str(path.relative_to(ROOT)))
    return file


@pytest.mark.parametrize("given", ["--jars", "nothing", "txn.zip", "txn.whl"])
def test_what_spark_submit_says_wins(tmp_path: Path, given: str) -> None:
    """Master and settings of a real spark-submit win over defaults; the program's own over them.
    Delta's jars may be given or not, and the packages may be in a zip or a wheel.
    """
    options, variables = (), {"PYTHONPATH": str(ROOT)}
    if given == "--jars":
        options = ("--jars", ",".join(map(str, delta_jars())))
    elif given != "nothing":
        options, variables = ("--py-files", str(archived(tmp_path / given))), {}
    code, output = submit(tmp_path, *options, **variables)
    assert code == 0, output
    assert f"MASTER local[3] 5 {EXTENSION}" in output
    assert given in ("--jars", "nothing") or f"{given}/txn/__init__.py" in output
    written = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["v"].to_pylist()
    assert sorted(written) == [1, 2]


def test_a_driver_that_can_get_no_jars_is_told_what_to_give(tmp_path: Path) -> None:
    """The error has the coordinates for the Spark that runs, and nothing was run."""
    code, output = submit(
        tmp_path,
        PYTHONPATH=str(ROOT),
        TXN_JARS="",
        XDG_CACHE_HOME=str(tmp_path),
        DEFAULT_ARTIFACT_REPOSITORY="file:/nowhere/",
    )
    assert code == 1
    assert "TXN-203" in output
    assert f"--packages {running_spark().delta_package}" in " ".join(output.split())
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("master", "conf", "variable"),
    [
        ("sc://host:15002", {}, None),
        (None, {"spark.remote": "sc://host"}, None),
        (None, {"spark.api.mode": "Connect"}, None),
        (None, {}, "SPARK_REMOTE=sc://host"),
        (None, {}, "SPARK_REMOTE="),
        (None, {}, "SPARK_API_MODE=connect"),
        (None, {}, "SPARK_CONNECT_MODE_ENABLED=1"),
        (None, {}, "PYSPARK_SUBMIT_ARGS=--remote sc://host pyspark-shell"),
        (None, {}, "PYSPARK_SUBMIT_ARGS=--conf spark.api.mode=connect pyspark-shell"),
    ],
)
def test_spark_connect_is_refused_before_anything_is_started(
    master: str | None, conf: dict[str, str], variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for it: the call, a setting, the submitter, the environment."""
    if variable is not None:
        monkeypatch.setenv(*variable.split("=", 1))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SetupError, match="Spark Connect is not supported") as refused:
        delta_session("t", master, conf)
    assert refused.value.number == "TXN-219"


def test_a_machine_that_does_not_know_localhost_is_told_what_to_add(tmp_path: Path) -> None:
    """An empty machine without /etc/hosts: pyspark's own error names neither name nor file."""
    code = (
        "import socket, socketserver\n"
        "from txn.session import delta_session\n"
        "def bind(server):\n"
        "    assert server.server_address[0] == 'localhost'\n"
        "    raise socket.gaierror(-2, 'Name or service not known')\n"
        "socketserver.TCPServer.server_bind = bind\n"
        "delta_session('t')\n"
    )
    done = child(code, tmp_path)
    assert done.returncode == 1
    assert "'localhost', a name that this machine does not know (Name or service" in done.stderr
    assert "Add the line `127.0.0.1 localhost` to /etc/hosts." in done.stderr


def test_what_the_environment_says_to_spark_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of defaults and PYSPARK_SUBMIT_ARGS win over ours, and Delta's jars stay in place."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# ours\nspark.master local[3]\nspark.sql.shuffle.partitions = 7\n"
        "spark.driver.memory 1g\nspark.ui.retainedJobs=9\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        "--conf spark.sql.shuffle.partitions=6 --driver-class-path /mine pyspark-shell",
    )
    code = (
        "from txn.session import delta_session\n"
        "spark = delta_session('said')\n"
        f"spark.range(9).write.format('delta').save({str(tmp_path / 't')!r})\n"
        "conf = spark.sparkContext.getConf()\n"
        "print(conf.get('spark.master'), conf.get('spark.sql.shuffle.partitions'),\n"
        "      conf.get('spark.ui.retainedJobs'),\n"
        "      conf.get('spark.driver.extraClassPath').rpartition(':')[2])\n"
        "import os; print(os.environ['PYSPARK_SUBMIT_ARGS'][-19:])\n"
    )
    said = child(code, tmp_path)
    assert said.stdout == "local[3] 6 9 /mine\n/mine pyspark-shell\n", said.stderr


HOST = {"spark.ui.enabled": "a", "spark.driver.host": "b c"}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("", {}),
        ("--master=yarn --name x pyspark-shell", {"spark.master": "yarn"}),
        ("-c spark.ui.enabled=a --conf 'spark.driver.host=b c'", HOST),
        ("--jars a.jar --conf spark.other=1", {"spark.jars": "a.jar", "spark.other": "1"}),
        ("--properties-file {file}", {"spark.master": "local[9]", "spark.unknown": ""}),
    ],
)
def test_submit_arguments_are_read_as_spark_reads_them(
    arguments: str,
    found: dict[str, str],
    own_java_options: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Options with their values in either spelling, and a file of properties."""
    (tmp_path / "p").write_text("spark.master: local[9]\n\n! no\nspark.unknown\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments.format(file=tmp_path / "p"))
    assert submitted() == found


def test_submit_arguments_that_cannot_be_read_are_refused(
    own_java_options: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What Spark could not read either is refused by the name of the variable."""
    for arguments in ("--conf 'a", f"--properties-file {tmp_path}/none"):
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
        with pytest.raises(SetupError, match="PYSPARK_SUBMIT_ARGS"):
            submitted()


def test_who_says_what_wins_in_order() -> None:
    """The program's settings over the submitter's, and these over defaults; extensions add up."""
    said = {
        "spark.sql.shuffle.partitions": "5",
        "spark.ui.enabled": "true",
        "spark.sql.extensions": "their.Extension",
        "spark.driver.extraClassPath": "/theirs",
        "spark.driver.memory": "8g",
    }
    settings = session_conf("local[2]", {"spark.ui.enabled": "false"}, submitter=said)
    assert settings["spark.sql.shuffle.partitions"] == "5"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.extensions"] == f"{EXTENSION},their.Extension"
    assert settings["spark.driver.extraClassPath"].endswith(":/theirs")
    assert "spark.driver.memory" not in settings
    again = session_conf("local", {"spark.sql.extensions": f"a.B, {EXTENSION}"}, submitter=said)
    assert again["spark.sql.extensions"] == f"a.B,{EXTENSION}"


def test_an_unusable_java_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started, the Java that Spark would use is looked at."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="JAVA_HOME"):
        delta_session("no-java")


def test_a_start_suits_paths_and_workers(tmp_path: Path) -> None:
    """Under LC_ALL=C files with any letters are read; UDFs run in the program's own Python.

    Submit arguments need no last word. Nothing of this is left in the environment.
    """
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    folder = tmp_path / "wäh rüng"
    folder.mkdir()
    (folder / "日.csv").write_text("1\n")
    code = (
        "import os, sys\n"
        "before = dict(os.environ)\n"
        "from txn.session import delta_session\n"
        "from pyspark.sql import functions as sf\n"
        "spark = delta_session('c', master='local[1]')\n"
        "changed = {k for k in {*before, *os.environ} if before.get(k) != os.environ.get(k)}\n"
        "double = sf.udf(lambda value: value * 2, 'int')\n"
        "rows = spark.read.csv(sys.argv[1], schema='v int').select(double('v').alias('v'))\n"
        "rows.write.format('delta').save(sys.argv[1] + '/tä')\n"
        "print(rows.collect()[0].v, sorted(changed & {'LC_ALL', 'LANG', 'PYSPARK_PYTHON'}))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("PYSPARK_PYTHON", "LANG")}
    environment |= {
        "LC_ALL": "C",
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.showConsoleProgress=false",
    }
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
    )
    assert ran.stdout == "2 []\n", ran.stderr
    assert (folder / "tä" / "_delta_log").is_dir()
