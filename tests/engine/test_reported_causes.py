"""The mistakes of a first hour: what is told, with its place and number, and that the advice works.

Each test follows the advice of the message, or of its entry in txn/errors.md, and gets through.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark.errors.utils
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType

from committers.aggregates import Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology, TopologyConfig, TransactionAttempt
from txn.engine.base.failures import Blame, judged
from txn.engine.loop.ending_errors import given_up, not_previewed, stopped
from txn.errors import BatchError, TopologyError, TransformError, TxnError
from txn.protocol.events import Batch, Phase
from txn.spark.causes import causes
from txn.spark.versions import pyspark_version
from txn.testing import MemoryNodes, run_in_memory

Function = Callable[[DataFrame], DataFrame]


def clean(number: str | None) -> int:
    """A UDF of a user, which fails for what is not a number."""
    return int(number)  # type: ignore[arg-type]


def clean_well(number: str | None) -> int | None:
    """The same, as the advice asks for it."""
    return int(number) if number and number.isdigit() else None


def line_of(function: Callable[..., Any], text: str) -> int:
    """The number of the line of this file that has `text` in `function`."""
    lines, first = inspect.getsourcelines(function)
    return max(first, 1) + next(i for i, line in enumerate(lines) if text in line)


def computed(value: Callable[[], Any]) -> Function:
    """A transform that computes the column n."""
    return lambda df: df.select("k", value().alias("n"))


def reads_a_dict(df: DataFrame) -> DataFrame:
    """A transform that fails before Spark has anything to do."""
    names = {"n": "v"}
    return df.select("k", names["m"])


def app(
    folder: Path, transform: Function, schema: str = "k string, v string", **options: Any
) -> Any:
    """A topology over one file with a row that is not a number."""
    source = folder / "in"
    source.mkdir(exist_ok=True)
    if not (source / "a.csv").exists():
        (source / "a.csv").write_text("a,1\nb,x\n")
    topology = Topology("orders", TopologyConfig(retry_backoff_ms=0))
    spout = FileSpout(f"{source}/*.csv", format="csv", schema=schema, **options)
    topology.stream("orders", spout).transform(transform).partition_persist(
        AppendTable(folder / "out")
    )
    return topology


def udf(function: Callable[..., Any]) -> Any:
    """A UDF that needs no Arrow."""
    return sf.udf(function, LongType(), useArrow=False)


HERE = re.escape(__file__)
CAST = computed(lambda: sf.col("v").cast("bigint"))
# Spark 3.5 notes neither the line that made an expression nor, for a record, the file.
HAS_PLACES = hasattr(pyspark.errors.utils, "is_debugging_enabled")
CALLED_FROM = rf" \(called from {HERE}:{{cast}}\)" if HAS_PLACES else ""
IN_FILE = r"in file file://{in}/a\.csv; " if HAS_PLACES else ""
BATCH = (
    r"Batch 1:0 of topology 'orders' failed in user code or in Spark, in phase processing, with "
    r"the rows of stream 'orders' for table '{out}': "
)
END = (
    r" It read orders: a\.csv, 8 bytes\. Progress is intact: (correct the cause|let the spout .*)"
    r" and run again; the batch is replayed\."
)
IN_BATCH: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "malformed": (
        "TXN-508",
        {"transform": lambda df: df, "schema": "k string, v bigint"},
        (
            r"SparkException \[MALFORMED_RECORD_IN_PARSING\.WITHOUT_SUGGESTION\]: Malformed "
            rf"records are detected in record parsing: \[b,null\]\. \({IN_FILE}"
            r'caused by NumberFormatException: For input string: "x"\)\.'
        ),
        {"transform": lambda df: df, "schema": "k string, v bigint", "mode": "DROPMALFORMED"},
    ),
    "cast": (
        "TXN-506",
        {"transform": CAST},
        (
            r"SparkNumberFormatException \[CAST_INVALID_INPUT\]: The value 'x' of the type "
            r'"STRING" cannot be cast to "BIGINT" because it is malformed\. .* Use `try_cast` .*'
            rf"{CALLED_FROM}\."
        ),
        {"transform": lambda df: df.select("k", sf.expr("try_cast(v AS bigint)").alias("n"))},
    ),
    "division": (
        "TXN-507",
        {"transform": lambda df: df.selectExpr("k", "1 div (ascii(v) - 120) AS n")},
        (
            r"SparkArithmeticException \[DIVIDE_BY_ZERO\]: Division by zero\. Use `try_divide` .* "
            r"\(in SQL: 1 div \(ascii\(v\) - 120\) AS n\)\."
        ),
        {"transform": lambda df: df.selectExpr("k", "1 div nullif(ascii(v) - 120, 0) AS n")},
    ),
    "udf": (
        "TXN-505",
        {"transform": computed(lambda: udf(clean)("v"))},
        (
            r"PythonException \[PYTHON_EXCEPTION\]: ValueError: invalid literal for int\(\) with "
            rf"base 10: 'x' \({HERE}:{line_of(clean, 'return int')}\)\."
        ),
        {"transform": computed(lambda: udf(clean_well)("v"))},
    ),
}


@pytest.mark.parametrize("case", IN_BATCH)
def test_a_batch_that_fails_is_told_by_its_cause_and_place(
    case: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Spark's condition and message, stream, table, file or the user's line; no Java trace and no
    JSON. Who follows the advice gets through.
    """
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    # Decided once per process, by the first expression; tests before this one may have made it.
    monkeypatch.setattr(pyspark.errors.utils, "_enable_debugging_cache", True, raising=False)
    number, wrong, told, advised = IN_BATCH[case]
    nodes = MemoryNodes()
    with pytest.raises(BatchError) as caught:
        run_in_memory(app(tmp_path, **wrong), spark, nodes)
    told = (BATCH + told + END).replace("{cast}", str(line_of(sys.modules[__name__], "CAST = ")))  # type: ignore[arg-type]
    for name in ("in", "out"):
        told = told.replace(f"{{{name}}}", re.escape(str(tmp_path / name)))
    assert re.fullmatch(told, str(caught.value)), str(caught.value)
    assert caught.value.number == number
    assert '"logger"' not in capfd.readouterr().err
    report = run_in_memory(app(tmp_path, **advised), spark, nodes)
    assert report.batches_committed == 1


def misspelt(place: str, name: str, folder: Path) -> Topology:
    """A topology that uses the column `name` where `place` says, and v elsewhere."""

    def column(here: str) -> str:
        return name if here == place else "v"

    topology = app(folder, lambda df: df.where(sf.col(column("transform")) > "0"))
    spout = FileSpout(f"{folder}/in/*.csv", format="csv", schema="k string, v string")
    stream = topology.stream("more", spout).transform(lambda df: df.selectExpr("v", "1 AS n"))
    totals = stream.group_by(column("key")).persistent_aggregate(
        StateTable(folder / "totals"), total=Sum("n" if place != "aggregate" else name)
    )
    asks = FileSpout(f"{folder}/in/*.csv", format="csv", schema=f"k string, {column('on')} string")
    topology.stream("asks", asks).state_query(totals, on=column("key")).partition_persist(
        AppendTable(folder / "answers")
    )
    return topology


NO_COLUMN = "Correct the name, or add the column in a transform before it is used."
MISSPELT = {
    "transform": (
        "TXN-102",
        (
            f"Stream 'orders' cannot be computed in <lambda> ({__file__}:{{line}}): "
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with "
            "name `vv` cannot be resolved. Did you mean one of the following? [`v`, `k`]. Correct "
            "the column or the expression; nothing was run."
        ),
    ),
    "key": ("TXN-101", f"Stream 'more' has no column 'vv'. It has: v, n. {NO_COLUMN}"),
    "aggregate": ("TXN-101", f"Stream 'more' has no column 'vv'. It has: v, n. {NO_COLUMN}"),
    "on": ("TXN-101", f"Stream 'asks' has no column 'v'. It has: k, vv. {NO_COLUMN}"),
}


@pytest.mark.parametrize("place", MISSPELT)
def test_a_misspelt_column_is_told_with_those_that_there_are(
    place: str, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before anything runs, with the columns that the stream has."""
    number, told = MISSPELT[place]
    with pytest.raises(TopologyError) as caught:
        run_in_memory(misspelt(place, "vv", tmp_path), spark)
    # Spark 3.5 has no variables.
    message = str(caught.value).replace("A column or function", "A column, variable, or function")
    assert told.replace("{line}", str(line_of(misspelt, "df.where"))) == message
    assert caught.value.number == number
    assert capfd.readouterr().err == ""


def test_a_column_that_is_spelled_as_told_gets_through(spark: SparkSession, tmp_path: Path) -> None:
    """The names that those messages list are the right ones."""
    assert run_in_memory(misspelt("nowhere", "vv", tmp_path), spark).batches_committed == 1


def test_a_transform_that_raises_is_told_with_the_users_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The stream, the error, and the last line of the user's own file."""
    with pytest.raises(TransformError) as caught:
        run_in_memory(app(tmp_path, reads_a_dict), spark)
    assert str(caught.value) == (
        "A transform of stream 'orders' raised KeyError: 'm' in reads_a_dict "
        f"({__file__}:{line_of(reads_a_dict, 'names[')}). Correct it; nothing was run."
    )
    assert caught.value.number == "TXN-504"


def test_a_start_that_spark_refuses_is_told_by_its_cause(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A schema that cannot be inferred: the file, and no Java trace; a declared one is advised."""
    footer = b"not Parquet at all"
    length = len(footer).to_bytes(4, "little")
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + footer + length + b"PAR1")
    topology = Topology("orders")
    topology.stream(
        "orders", FileSpout(f"{tmp_path}/*.parquet", format="parquet")
    ).partition_persist(AppendTable(tmp_path / "out"))
    with pytest.raises(TopologyError) as caught:
        run_in_memory(topology, spark)
    # Spark before 4.2 does not name the file.
    file = f" (in file file:{tmp_path}/a.parquet)" if pyspark_version() >= "4.2" else ""
    assert str(caught.value) == (
        "Topology 'orders' could not start, opening the spouts: TProtocolException: don't know "
        f"what type: 14{file}. Nothing was run: correct the cause and run again."
    )
    assert caught.value.number == "TXN-508"


# --- without Spark ------------------------------------------------------------------------------


@dataclass
class Java:
    """A Java exception, as Py4J shows it."""

    names: tuple[str, ...]
    message: str
    condition: str = ""
    path: str = ""
    cause: Java | None = None

    def getClass(self) -> Any:  # noqa: N802 - Java's names, here and below
        """Its class."""
        return JavaClass(self.names)

    def getMessage(self) -> str:  # noqa: N802
        """Its text."""
        return self.message

    def getCause(self) -> Java | None:  # noqa: N802
        """What is below."""
        return self.cause

    def getCondition(self) -> str:  # noqa: N802
        """Spark's condition."""
        return self.condition

    def getErrorClass(self) -> str:  # noqa: N802
        """The same in Spark 3.5."""
        return self.condition

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802
        """Spark's parameters."""
        return {"path": self.path}


@dataclass
class JavaClass:
    """Its class and superclasses."""

    names: tuple[str, ...]

    def getName(self) -> str:  # noqa: N802
        """The full name."""
        return self.names[0]

    def getSuperclass(self) -> JavaClass | None:  # noqa: N802
        """The next one."""
        return JavaClass(self.names[1:]) if self.names[1:] else None


@dataclass
class SparkError(Exception):
    """An error of PySpark over such an exception."""

    java_exception: Java
    __module__ = "pyspark.errors"
    calls: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "An error occurred while calling o302.parquet.\n: ..."


def failed(*layers: Java) -> SparkError:
    """An error of Spark with these layers, the outermost first."""
    for outer, inner in pairwise(layers):
        outer.cause = inner
    return SparkError(layers[0])


READING = ("org.apache.spark.SparkException", "java.lang.Exception")


def test_a_file_without_permission_is_told() -> None:
    """The file and that it may not be read; the number's remedy is about permissions."""
    error = failed(
        Java(READING, "Encountered error.", "FAILED_READ_FILE.NO_HINT", "file:///in/a.csv"),
        Java(
            ("java.io.FileNotFoundException", "java.io.IOException"),
            "/in/a.csv (Permission denied)",
        ),
    )
    assert judged(causes(error)) is Blame.WRONG
    batch = Batch(TransactionAttempt(3), Phase.PROCESSING, metadata={"s": {"file": "a.csv"}})
    told = stopped("orders", batch, error)
    assert str(told) == (
        "Batch 3:0 of topology 'orders' failed in user code or in Spark, in phase processing: "
        "FileNotFoundException: /in/a.csv (Permission denied) (in file file:///in/a.csv). It read "
        "s: {file: a.csv}. Progress is intact: correct the cause and run again; the batch "
        "is replayed."
    )
    assert told.number == "TXN-509"


def test_an_encoding_that_spark_refuses_is_told() -> None:
    """The way out names the spout's option and the session's; not for a function of one's own."""
    said = "The value of parameter(s) `charset` in `{}` is invalid, but got cp1252."
    ways = [
        str(
            not_previewed(
                "orders",
                {},
                failed(Java(READING, said.format(where), "INVALID_PARAMETER_VALUE.CHARSET")),
            )
        )
        for where in ("CSVOptions", "encode")
    ]
    assert "encoding=, or give the session spark.sql.legacy.javaCharsets=true" in ways[0]
    assert "Nothing was written: correct the cause and try again." in ways[1]


def test_a_full_disk_is_told() -> None:
    """It is tried again, and at the end the message says that there is no space."""
    error = failed(
        Java(READING, "Task failed.", "TASK_WRITE_FAILED"),
        Java(("java.io.IOException",), "No space left on device"),
    )
    assert judged(causes(error)) is Blame.LOST
    told = given_up("orders", TransactionAttempt(3, 4), "IOException: No space left on device")
    assert str(told) == (
        "Batch 3:4 of topology 'orders' was given up: IOException: No space left on device. "
        "Progress is intact: correct the cause and run again; the batch is replayed."
    )
    assert told.number == "TXN-510"
    assert given_up("orders", TransactionAttempt(3), "BatchTimeoutError").number == "TXN-502"


def test_an_expression_of_ours_is_not_the_users_place() -> None:
    """Spark names the line that made an expression; a line of this project helps nobody."""
    called = '\n== DataFrame ==\n"sum" was called from\n{}:7\n'
    ours = sys.modules["txn"].__file__
    for file, told in (("/home/me/orders.py", " (called from /home/me/orders.py:7)"), (ours, "")):
        cause = causes(
            failed(Java(READING, "Too large." + called.format(file), "ARITHMETIC_OVERFLOW"))
        )
        assert cause[0].line == f"SparkException [ARITHMETIC_OVERFLOW]: Too large.{told}"


def test_the_number_of_an_error_of_the_project_is_kept() -> None:
    """What stopped a batch and has a number keeps it."""
    batch = Batch(TransactionAttempt(3), Phase.PROCESSING)
    assert stopped("orders", batch, TxnError("x", number="TXN-419")).number == "TXN-419"
    assert stopped("orders", batch, ValueError("x")).number == "TXN-500"
