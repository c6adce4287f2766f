"""Whose fault an error of Spark is, and what a failure line says: real errors of real jobs."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread

import pyspark.errors.utils
import pytest
from packaging.version import Version
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType

from txn.engine.base.failures import Blame, is_lost_work, judged
from txn.spark.causes import Cause, cause_line
from txn.spark.versions import pyspark_version

SCHEMA = "k string, v bigint"
FEW = ("plain", "aggregate", "broadcast join")
"""The plans that every poison is put through; two poisons are put through all."""
Rows = Callable[[], DataFrame]


def poisons(spark: SparkSession, folder: Path) -> dict[str, tuple[Rows, str]]:
    """Name -> rows (k, v) of which one is poison, and what the failure line has to say."""
    (folder / "a.csv").write_text("a,1\nb,x\n")
    (folder / "a.json").write_text('{"k":"a","v":1}\n{"k":"b","v":"x"}\n')
    (folder / "cut.csv.gz").write_bytes(gzip.compress(b"a,1\n" * 5000)[:60])
    reader = spark.read.schema(SCHEMA).option("mode", "FAILFAST")
    words = "SELECT * FROM VALUES ('a', '1'), ('b', 'x') AS t(k, v)"

    def words_as(column: Callable[[], object]) -> Rows:
        return lambda: spark.sql(words).repartition(1).withColumn("v", column())  # type: ignore[arg-type]

    udf = sf.udf(lambda v: int(f"poison {v}"), LongType(), useArrow=False)
    return {
        "csv": (lambda: reader.csv(f"{folder}/a.csv"), "MALFORMED_RECORD_IN_PARSING"),
        "json": (lambda: reader.json(f"{folder}/a.json"), "field name 'v' and the value x"),
        "gzip": (lambda: reader.csv(f"{folder}/cut.csv.gz"), "Unexpected end of input stream"),
        "cast": (words_as(lambda: sf.col("v").cast("bigint")), "[CAST_INVALID_INPUT]"),
        "udf": (
            words_as(lambda: udf("v")),
            "ValueError: invalid literal for int() with base 10: 'poison",
        ),
        "division": (
            words_as(lambda: (sf.lit(1) / sf.length("k").cast("int").bitwiseXOR(1)).cast("bigint")),
            "[DIVIDE_BY_ZERO]",
        ),
        "raise_error": (words_as(lambda: sf.raise_error(sf.col("v")).cast("bigint")), "x"),
    }


def shapes(spark: SparkSession) -> dict[str, Callable[[DataFrame], DataFrame]]:
    """Name -> what a program may put around the poisoned rows."""
    other = spark.sql("SELECT * FROM VALUES ('a'), ('b') AS t(k)")
    return {
        "plain": lambda rows: rows,
        "aggregate": lambda rows: rows.groupBy("k").agg(sf.sum("v").alias("v")),
        "broadcast join": lambda rows: other.join(sf.broadcast(rows), "k"),
        "sort-merge join": lambda rows: rows.hint("merge").join(other, "k"),
        "persist": lambda rows: rows.persist().groupBy("k").agg(sf.sum("v").alias("v")),
        "local checkpoint": lambda rows: rows.localCheckpoint(eager=False),
        "union": lambda rows: rows.union(rows.repartition(2)),
    }


def error_of(job: Callable[[], object]) -> Exception:
    """What a job raises."""
    with pytest.raises(Exception) as error:  # noqa: PT011 - its kind is what is judged
        job()
    return error.value


def write(rows: Rows, around: Callable[[DataFrame], DataFrame], folder: Path) -> None:
    """Write rows in some plan, as staging does."""
    around(rows()).write.mode("overwrite").parquet(f"{folder}/out")


def test_the_same_poison_has_the_same_verdict_in_every_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that Spark cannot digest is never lost work, whatever plan it comes through, and its
    failure line names the cause.
    """
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    # pyspark notes down where an expression was made only in a thread with an active session, and
    # only in a process whose first expression was made in such a thread. Tests before this one may
    # have ended that session, or made that expression.
    spark.createDataFrame([], "v string")
    monkeypatch.setattr(pyspark.errors.utils, "_enable_debugging_cache", True, raising=False)
    lost: list[tuple[str, str]] = []
    silent: list[tuple[str, str, str]] = []
    lines: dict[tuple[str, str], str] = {}
    for poison, (rows, told) in poisons(spark, tmp_path).items():
        for shape, around in shapes(spark).items():
            if poison not in ("csv", "udf") and shape not in FEW:
                continue
            error = error_of(partial(write, rows, around, tmp_path))
            line = lines[poison, shape] = cause_line(error)
            if is_lost_work(error):
                lost.append((poison, shape))
            if told not in line or "An error occurred" in line or "\n" in line:
                silent.append((poison, shape, line))
    spark.catalog.clearCache()
    assert lost == []
    assert silent == []
    # What Spark says of the place; before 4.0 it names neither files nor lines.
    is_named = Version(pyspark_version()) >= Version("4.0")
    assert (f"{tmp_path}/a.csv" in lines["csv", "aggregate"]) == is_named
    assert (f"{tmp_path}/cut.csv.gz" in lines["gzip", "aggregate"]) == is_named
    assert "[b,null]" in lines["csv", "plain"]
    assert 'For input string: "x"' in lines["csv", "broadcast join"]
    assert "test_failures.py" in lines["udf", "plain"]
    assert ("test_failures.py" in lines["division", "aggregate"]) == is_named


def test_a_cancelled_job_is_lost_work(spark: SparkSession) -> None:
    """A job of ours that was cancelled says nothing of the user's code."""
    context, errors = spark.sparkContext, []
    sleep = "java_method('java.lang.Thread', 'sleep', 600000L)"

    def run() -> None:
        context.addJobTag("doomed")
        slow = spark.range(2).where(f"isnull({sleep}) OR {sleep} IS NOT NULL").groupBy().count()
        errors.append(error_of(lambda: slow.write.format("noop").mode("overwrite").save()))

    thread = Thread(target=run)
    thread.start()
    while thread.is_alive():  # until the job is there to be cancelled
        context.cancelJobsWithTag("doomed")
        thread.join(0.1)
    assert is_lost_work(errors[0])
    assert "SPARK_JOB_CANCELLED" in cause_line(errors[0])


TASK = "Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage 3.0 (TID 9)"


@pytest.mark.parametrize(
    ("line", "is_lost"),
    [
        (f"{TASK} (host executor 2): ExecutorLostFailure (executor 2 exited) Reason: x", True),
        (f"{TASK} (host executor 2): FetchFailed(BlockManagerId(1), shuffleId=0, message=", True),
        (f"{TASK} (host executor 2): TaskResultLost (result lost from block manager)", True),
        ("ShuffleMapStage 1 (save) has failed the maximum allowable number of times: 4.", True),
        ("Master removed our application: KILLED", True),
        (f"{TASK} (host executor 2): java.lang.RuntimeException: ExecutorLostFailure", False),
        (f"{TASK} (h): com.x.Oops: FetchFailed\n\tat org.apache.spark.shuffle.X", False),
        ("Task not serializable: java.io.NotSerializableException: x", False),
    ],
)
def test_a_stage_that_was_given_up_is_judged_by_its_reason(line: str, is_lost: bool) -> None:
    """Where Spark gives a stage no exception, the reason at the beginning of its line decides, and
    no word behind it.
    """
    message = f"Job aborted due to stage failure: {line}"
    chain = (Cause(("org.apache.spark.SparkException", "java.lang.Exception"), message),)
    assert judged(chain) is (Blame.LOST if is_lost else Blame.WRONG)


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        (Cause(("java.net.ConnectException", "java.net.SocketException")), "AWAY"),
        (Cause(("org.apache.hadoop.fs.s3a.AWSServiceThrottledException",)), "AWAY"),
        (Cause(("a.AbfsRestOperationException", "java.io.IOException"), status=503), "AWAY"),
        (Cause(("a.AbfsRestOperationException", "java.io.IOException"), status=403), "WRONG"),
        (Cause(("java.io.IOException",), "Input/output error"), "AWAY"),
        (Cause(("java.io.IOException",), "No space left on device"), "LOST"),
        (Cause(("java.io.IOException",), "not a gzip file"), "WRONG"),
        (Cause(("java.io.FileNotFoundException",), "File file:/in/a.csv does not exist"), "WRONG"),
        (Cause(("java.io.FileNotFoundException",), "File s3a://t/_temporary/0 is gone"), "LOST"),
        (Cause(("java.io.EOFException", "java.io.IOException"), "Unexpected end"), "WRONG"),
        (Cause(("org.apache.spark.SparkException",), "x: No space left on device"), "WRONG"),
        (Cause(("org.apache.kafka.common.errors.TimeoutException",)), "LOST"),
    ],
)
def test_a_cause_is_judged_by_its_type(cause: Cause, verdict: str) -> None:
    """What lies at the bottom decides: the network and a disk are away, a format is wrong."""
    outer = Cause(("org.apache.spark.SparkException",), "read", "FAILED_READ_FILE.NO_HINT", "/x")
    assert judged((outer, cause)) is Blame[verdict]


def test_what_no_waiting_mends_is_not_waited_for() -> None:
    """Storage that refuses us is told at once, though a client wraps it as if it were away."""
    refused = Cause(("java.nio.file.AccessDeniedException", "java.io.IOException"), "s3a://b/k")
    wrapper = Cause(("org.apache.hadoop.fs.s3a.AWSClientIOException",), "HeadObject on k")
    assert judged((wrapper, refused)) is Blame.WRONG
    assert judged((wrapper,)) is Blame.AWAY
