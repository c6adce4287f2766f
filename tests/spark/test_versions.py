"""The Spark that runs is known by its jars and its Python, whatever pip says."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOW = (
    "from txn.errors import TxnError\n"
    "from txn.spark.versions import running_spark\n"
    "try:\n"
    "    spark = running_spark()\n"
    "except TxnError as error:\n"
    "    print(error.number, error)\n"
    "else:\n"
    "    print(spark.version, spark.delta_package, spark.kafka_package, spark.s3a_package)\n"
)


def spark_at(
    home: Path, python: str | None, *jars: str, zipped: bool = False, show: str = SHOW
) -> str:
    """What a process finds whose SPARK_HOME has this Python and these jars."""
    (home / "jars").mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "spark-submit").touch(0o755)
    for jar in jars:
        (home / "jars" / f"{jar}.jar").touch()
    package = home / "python" / "pyspark"
    package.mkdir(parents=True)
    path = package.parent
    if python is not None:
        (package / "__init__.py").touch()
        (package / "version.py").write_text(f'__version__: str = "{python}"\n')
    else:
        package.rmdir()
    if zipped:
        path = home / "pyspark.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in package.iterdir():
                archive.write(file, f"pyspark/{file.name}")
    without = "" if python is not None else "import sys; sys.modules['pyspark'] = None\n"
    command = [sys.executable, "-c", without + show]
    env = {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return ended.stdout + ended.stderr


DELTA, KAFKA = "io.delta:delta-spark_", "org.apache.spark:spark-sql-kafka-0-10_"
S3A = "org.apache.hadoop:hadoop-aws:"


@pytest.mark.parametrize(
    ("python", "jars", "expected"),
    [
        (
            "4.2.0",
            ["spark-core_2.13-4.2.0", "hadoop-client-api-3.5.0"],
            ["4.2.0", f"{DELTA}4.2_2.13:4.4.0", f"{KAFKA}2.13:4.2.0", f"{S3A}3.5.0"],
        ),
        (
            "4.2.1",
            ["spark-core_2.13-4.2.1", "hadoop-client-api-3.5.0"],
            ["4.2.1", f"{DELTA}4.2_2.13:4.4.0", f"{KAFKA}2.13:4.2.0", f"{S3A}3.5.0"],
        ),
        (
            "4.1.3+amzn.0",
            ["spark-core_2.13-4.1.2-amzn-1", "hadoop-client-api-3.4.2-amzn-0"],
            ["4.1.2-amzn-1", f"{DELTA}4.1_2.13:4.4.0", f"{KAFKA}2.13:4.1.2", f"{S3A}3.4.2"],
        ),
        (
            "4.0.5",
            [],
            ["4.0.5", f"{DELTA}4.0_2.13:4.4.0", f"{KAFKA}2.13:4.0.4", f"{S3A}3.4.1"],
        ),
        (
            "3.5.9",
            ["spark-core_2.12-3.5.9", "hadoop-client-api-3.3.4"],
            ["3.5.9", f"{DELTA}2.12:3.3.3", f"{KAFKA}2.12:3.5.7", f"{S3A}3.3.4"],
        ),
    ],
)
def test_what_goes_with_a_spark(
    tmp_path: Path, python: str, jars: list[str], expected: list[str]
) -> None:
    """Its line decides Delta, its jars Scala and Hadoop; what a vendor adds is not in Maven."""
    assert spark_at(tmp_path, python, *jars).split() == expected


def test_a_pyspark_in_an_archive_is_read(tmp_path: Path) -> None:
    """A driver on YARN has it as a zip."""
    assert spark_at(tmp_path, "4.2.0", zipped=True).startswith("4.2.0 io.delta:")


@pytest.mark.parametrize(
    ("python", "jar", "message"),
    [
        (
            None,
            "spark-core_2.13-4.2.0",
            "There is no pyspark: Python does not find it.",
        ),
        ("4.2.0", "spark-core_2.13-4.1.4", "pyspark 4.2.0 cannot drive Spark 4.1.4 at "),
        (
            "4.3.0",
            "2.13-4.3.0",
            "is not supported: this release was run on Spark 3.5, 4.0, 4.1, 4.2",
        ),
        ("3.4.4", "spark-core_2.12-3.4.4", "Use Spark 4.2: pip install 'txn-spark[spark]'"),
        (
            "3.5.2",
            "spark-core_2.12-3.5.2-amzn-1",
            "is too old: Delta 3.3.3 asks for Spark 3.5.3 or newer. Use a later release",
        ),
    ],
)
def test_a_spark_that_does_not_work_is_refused_by_name(
    tmp_path: Path, python: str | None, jar: str, message: str
) -> None:
    """With both versions, where it is, and what works."""
    said = spark_at(tmp_path, python, jar)
    assert message in said
    assert "TXN-218" in said


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ("raise ImportError('half of it')", "(half of it)"),
        ("", "(No module named 'py4j.java_gateway'; 'py4j' is not a package)"),
    ],
)
def test_a_py4j_that_cannot_be_imported_is_refused(tmp_path: Path, lines: str, cause: str) -> None:
    """The start names the cause and its file: pyspark itself fails at its first use only."""
    file = tmp_path / "python" / "py4j.py"
    file.parent.mkdir()
    file.write_text(lines)
    shadow = f"import sys; sys.path.insert(0, {str(file.parent)!r})\n"
    printed = spark_at(tmp_path / "spark", "4.1.4", "spark-core_2.13-4.1.4", show=shadow + SHOW)
    assert f"TXN-218 pyspark 4.1.4 needs py4j, and Python cannot import it at '{file}'" in printed
    assert cause in printed
    assert "`pip uninstall -y py4j && pip install pyspark==4.1.4`" in printed


def test_a_java_that_is_too_new_for_a_spark_is_refused(tmp_path: Path) -> None:
    """Spark 4.1 starts on Java 25, and dies at its first login: it is not started."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="25.0.2"\n')
    show = SHOW.replace(
        "    spark = running_spark()\n",
        f"    import os; os.environ['JAVA_HOME'] = {str(tmp_path / 'java')!r}\n"
        "    from txn.session import delta_session; spark = delta_session('t')\n",
    )
    printed = spark_at(tmp_path / "spark", "4.1.4", "spark-core_2.13-4.1.4", show=show)
    assert "TXN-201 Java 25.0.2 is too new for Spark 4.1.4" in printed
