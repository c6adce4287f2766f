"""What Spark 3.5, 4.0, 4.1 and 4.2 do in different ways: one function per difference.

Each function has the same result on all of them. Which way it takes is decided by the version of
pyspark that runs. `slower_ways` tells users where that costs something.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from packaging.version import Version

from txn.spark.jvm import jvm_of
from txn.spark.lazy import sf, st
from txn.spark.versions import pyspark_version, release_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "all_settings",
    "arrow_frame",
    "as_utf8",
    "collect_distinct",
    "condition_of",
    "defaults_for_dates",
    "first_rows",
    "is_utf8",
    "java_exception_of",
    "java_sessions",
    "no_partitions_in_files",
    "option_is_new_in",
    "parse_ddl",
    "reports_pruned_counts",
    "setting",
    "slower_ways",
    "try_cast",
    "unwritten_snapshot",
    "utf8_sql",
    "validated_utf8",
    "verify_schema",
    "without_error_log",
]


@cache
def _is_at_least(version: str) -> bool:
    return Version(release_of(pyspark_version())) >= Version(version)


def slower_ways() -> dict[str, str]:
    """Return what this Spark does at a cost: a name -> a sentence for users."""
    ways: dict[str, str] = {}
    if not _is_at_least("4.2"):
        ways["FirstN, LastN"] = (
            "Spark before 4.2 has no min_by and max_by of several rows: all rows of a key in one "
            "batch are in a task's memory for a moment."
        )
    if not _is_at_least("4.0"):
        ways["rows of the program"] = (
            "Spark before 4.0 takes no Arrow table: jobs over rows of memory and feeder spouts "
            "start Python workers, and take about three times as long."
        )
    return ways


_OPTIONS = {
    "extension": "4.0",
    "singlevariantcolumn": "4.0",
    "sortkeys": "4.2",
    "timeformat": "4.2",
    "useunsaferow": "4.0",
}
"""An option of Spark's readers, in small letters -> the Spark that brought it after 3.5."""


def option_is_new_in(name: str) -> str | None:
    """Return the Spark that brought a reader's option; None if the one that runs has it."""
    version = _OPTIONS.get(name.lower())
    return None if version is None or _is_at_least(version) else version


def parse_ddl(text: str) -> DataType:
    """Parse columns written as DDL. Needs a running session. Raises ParseException."""
    if _is_at_least("4.0"):
        return st.StructType.fromDDL(text)
    return st._parse_datatype_string(text)


def all_settings(session: SparkSession) -> Mapping[str, str]:
    """Return every setting of a session that has a value."""
    if _is_at_least("4.0"):
        return session.conf.getAll
    jvm: Any = jvm_of(session)
    settings = jvm.scala.collection.JavaConverters.mapAsJavaMap(
        session._jsparkSession.conf().getAll()
    )
    return dict(settings)


def setting(session: SparkSession, key: str) -> str | None:
    """Return a setting's value, or Spark's default; None if Spark does not have the setting."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return str(session.conf.get(key))
    except PySparkException:
        return None
    except Py4JJavaError:
        if _is_at_least("4.0"):  # which make the error a PySparkException
            raise
        return None


_DATES = ("avro.datetime", "parquet.datetime", "parquet.int96")


def defaults_for_dates() -> dict[str, str]:
    """Return a session's settings for reading dates before 1582, where Spark's are not those of 4.

    Spark 3.5 refuses such dates in files that do not name their writer: those of `txn optimize`.
    """
    if _is_at_least("4.0"):
        return {}
    return {f"spark.sql.{name}RebaseModeInRead": "CORRECTED" for name in _DATES}


_CONDITIONS_OF_3_5 = {
    "_LEGACY_ERROR_TEMP_2055": "FAILED_READ_FILE.FILE_NOT_EXIST",
    "_LEGACY_ERROR_TEMP_2063": "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH",
    "_LEGACY_ERROR_TEMP_2064": "FAILED_READ_FILE.NO_HINT",
    "_LEGACY_ERROR_TEMP_2235": "STAGE_MATERIALIZATION_MULTIPLE_FAILURES",
    "_LEGACY_ERROR_TEMP_3007": "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
}
"""A condition's name in Spark 3.5 -> its name since 4.0."""
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_RAISING = (f"{_EXPRESSIONS}.GeneratedClass", f"{_EXPRESSIONS}.RaiseError")
"""The classes of Spark 3.5 that throw what SQL's raise_error raises."""
_READING = "org.apache.spark.sql.execution.datasources.FileScanRDD"
"""The class of Spark 3.5 that reads files, and wraps only the error of a file's first row."""


def condition_of(error: Any) -> str | None:
    """Return the condition of Spark's error in Python or Java, such as DATA_SOURCE_NOT_FOUND.

    It has the name of Spark 4.2, also if the error has no condition before.
    """
    condition = None
    with suppress(Exception):  # Java's own exceptions have none
        condition = error.getCondition() if _is_at_least("4.0") else error.getErrorClass()
    is_java = not isinstance(error, BaseException)
    if condition is None and is_java and not _is_at_least("4.2"):
        condition = _condition_before_4_2(error)
    return _CONDITIONS_OF_3_5.get(condition, condition) if condition else None


def _condition_before_4_2(error: Any) -> str | None:
    name, message = error.getClass().getName(), error.getMessage()
    if name == "java.io.IOException" and str(message).startswith("can not read FileMetaData"):
        return "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER"
    if name == "org.apache.spark.SparkException" and re.match(r"Job \d+ cancelled", message or ""):
        return "SPARK_JOB_CANCELLED"
    if name == "org.apache.spark.api.python.PythonException":
        return "PYTHON_EXCEPTION"
    return None if _is_at_least("4.0") else _condition_by_stack(error)


def _condition_by_stack(error: Any) -> str | None:
    """Return the condition of an exception of Spark 3.5 by the classes that threw it."""
    classes = [str(frame.getClassName()) for frame in error.getStackTrace()]
    name = str(error.getClass().getName())
    if name == "java.lang.RuntimeException" and "".join(classes[:1]).startswith(_RAISING):
        return "USER_RAISED_EXCEPTION"
    is_of_value = name.startswith(("java.lang.", "java.time."))  # such as NumberFormatException
    if not is_of_value and any(thrower.startswith(_READING) for thrower in classes):
        return "FAILED_READ_FILE.NO_HINT"
    return None


def java_exception_of(error: BaseException) -> Any:
    """Return the Java exception from which Py4J or PySpark made an error; None if there is none."""
    from pyspark.errors import PythonException

    if isinstance(error, PythonException) and not _is_at_least("4.2"):
        # It lacks the Java exception, but Python notes the error in whose place it was raised.
        error = error.__context__ or error
    # Py4J's error has the Java object; PySpark's error keeps the one from which it was made.
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)


def without_error_log(names: Sequence[str]) -> None:
    """Silence PySpark's loggers of these names, unless the user has set their level."""
    if not _is_at_least("4.0"):
        return  # it has none
    import logging

    from pyspark.logger import PySparkLogger

    for name in names:
        logger = PySparkLogger.getLogger(name)
        if logger.level == logging.WARNING:  # PySpark's default
            logger.setLevel(logging.CRITICAL + 1)


def arrow_frame(spark: SparkSession, rows: Sequence[Any], schema: StructType) -> DataFrame:
    """Make a DataFrame of verified rows, in Arrow's format where PySpark takes it."""
    if not _is_at_least("4.0"):
        return spark.createDataFrame(rows, schema)
    from pyspark.sql.conversion import LocalDataToArrowConversion

    return spark.createDataFrame(LocalDataToArrowConversion.convert(rows, schema, False), schema)


def try_cast(column: Column, kind: DataType) -> Column:
    """Cast a column; NULL where the value does not fit, in every mode of the session."""
    if _is_at_least("4.0"):
        return column.try_cast(kind)
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import SparkSession

    session = cast("SparkSession", SparkSession.getActiveSession())
    jvm: Any = jvm_of(session)
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    to = session._jsparkSession.parseDataType(kind.json())
    zone = jvm.scala.Option.apply(session.conf.get("spark.sql.session.timeZone"))
    expression = catalyst.Cast(cast("Any", column)._jc.expr(), to, zone, catalyst.EvalMode.TRY())
    return cast("Column", cast("Any", SparkColumn)(jvm.org.apache.spark.sql.Column(expression)))


def is_utf8(column: Column | str) -> Column:
    """Return whether a string's bytes are UTF-8; NULL for NULL."""
    if _is_at_least("4.0"):
        return sf.is_valid_utf8(column)
    text = sf.col(column) if isinstance(column, str) else column
    return sf.encode(as_utf8(text), "UTF-8") == text.cast("binary")


def as_utf8(column: Column | str) -> Column:
    """Return a string with U+FFFD for bytes that are not UTF-8."""
    if _is_at_least("4.0"):
        return sf.make_valid_utf8(column)
    text = sf.col(column) if isinstance(column, str) else column
    return sf.decode(text.cast("binary"), "UTF-8")


def utf8_sql(column: str) -> tuple[str, str]:
    """Return SQL for users: to replace bytes that are not UTF-8, and to test for them."""
    if _is_at_least("4.0"):
        return f"make_valid_utf8({column})", f"is_valid_utf8({column})"
    replaced = f"decode(cast({column} AS binary), 'UTF-8')"
    return replaced, f"{replaced} = {column}"


def validated_utf8(column: Column) -> Column:
    """Return the string, or raise an error in the job where its bytes are not UTF-8."""
    if _is_at_least("4.0"):
        return sf.validate_utf8(column)
    error = sf.raise_error(sf.lit("[INVALID_UTF8_STRING] Invalid UTF8 byte sequence in a string"))
    return sf.when(~is_utf8(column), error.cast("string")).otherwise(column)


def collect_distinct(column: Column) -> Column:
    """Aggregate the distinct values of a column into an array; NaN is one value."""
    if _is_at_least("4.2"):
        return sf.collect_set(column)
    return sf.array_distinct(sf.collect_set(column))


def first_rows(rows: Column, number: int, *, descending: bool) -> Column:
    """Aggregate the smallest (or greatest) of `rows` that are not NULL, in order."""
    if _is_at_least("4.2"):
        name = "max_by" if descending else "min_by"
        return sf.call_function(name, rows, rows, sf.lit(number))
    return sf.slice(sf.sort_array(sf.collect_list(rows), asc=not descending), 1, number)


def reports_pruned_counts() -> bool:
    """Return whether Spark reports the counts of an `Observation` that it has pruned.

    It prunes one whose rows reach nothing, such as those of a join without any result.
    """
    return _is_at_least("4.1") or not _is_at_least("4.0")


def verify_schema(utils: Any, reader: Any, columns: Any) -> None:
    """Let Java's `DataSourceUtils` refuse columns that a format cannot hold."""
    if _is_at_least("4.1"):
        utils.verifySchema(reader, columns, True)
    else:
        utils.verifySchema(reader, columns)


def unwritten_snapshot(delta: Any, log: Any, metadata: Any, protocol: Any, nothing: Any) -> Any:
    """Make the snapshot of a Delta table that does not exist, in Java.

    Args:
        delta: the package of Delta's classes.
        protocol: an Option of its protocol.
        nothing: an empty Option.
    """
    if _is_at_least("4.0"):
        return delta.DummySnapshot(log.logPath(), log, metadata, nothing, protocol)
    return delta.DummySnapshot(log.logPath(), log, metadata, protocol)


def no_partitions_in_files() -> dict[str, str]:
    """Return the property of a Delta table whose files have no partition columns.

    Delta 4.4 puts them into files unless a table says otherwise; Delta 3.3 never does, and refuses
    the property.
    """
    return {"delta.writePartitionColumnsToParquet": "false"} if _is_at_least("4.0") else {}


def java_sessions(jvm: Any) -> Any:
    """Return Java's class of sessions, which knows the active one of a thread."""
    sql = jvm.org.apache.spark.sql
    return sql.classic.SparkSession if _is_at_least("4.0") else sql.SparkSession
