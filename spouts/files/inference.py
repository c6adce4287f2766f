"""Infer the schema of files with Spark, for a spout that is given none; it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spouts._uris import literal
from spouts.files.columns import OVER_LINES, beginning, columns_of, goes_over_lines, header_of
from spouts.files.source_files import SourceFiles
from spouts.records.bad_rows import PARSED
from txn.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["INFERRED", "inferred"]

INFERRED = 20
"""Most files that a schema is inferred from."""


def inferred(spark: SparkSession, files: SourceFiles, names: Sequence[str]) -> StructType:
    """Infer the columns of files that are not empty.

    Ignores records that do not parse: reading them fails later, and names them.

    Raises:
        TopologyError: the files have no column, or one without a type in Spark.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    options = {"inferSchema": True, "mergeSchema": True, **files.reading}
    if files.form in PARSED and options.get("mode") == "FAILFAST":
        options["mode"] = "DROPMALFORMED"
    if files.form == "csv":  # a field over several lines must not count as two halves
        options = {n: v for n, v in options.items() if n.lower() != "multiline"} | {
            "multiLine": True
        }
    if files.form == "csv" and files.are("header") and options.get("enforceSchema") is False:
        names = _with_first_header(spark, files, names)
    paths = [literal(files.listing.uri(name)) for name in names]
    reader = spark.read.options(**options).format(files.form)
    try:
        read_schema = reader.load(paths).schema if paths else StructType()
    except AnalysisException as error:
        if (refused := _nanoseconds(files, names)) is None:
            raise
        raise refused from error
    # Spark adds a column if it meets a record that does not parse.
    leave = files.unparsed.text if files.unparsed else None
    schema = StructType([field for field in read_schema if field.name != leave])
    if not schema.fields:
        lack = "there is no file with anything in it"
        if names:
            lack = f"its first files have no record with a column ({', '.join(names)})"
        if names and goes_over_lines(files, beginning(files, names[0])):
            lack += f" ({names[0]} {OVER_LINES})"
        raise TopologyError(
            f"{files.spout} has no schema, and {lack}, so Spark cannot infer one. Give a "
            "schema, or start when a file with records is there.",
            number="TXN-409",
        )
    return schema


def _with_first_header(spark: SparkSession, files: SourceFiles, names: Sequence[str]) -> list[str]:
    """Return the files with the first one's header: Spark would read other headers as records."""
    headers: list[Any] = [header_of(files, name) for name in names]
    if not all(headers):
        reader = spark.read.options(**files.listing.hadoop)
        headers = [reader.text(literal(files.listing.uri(name))).first() for name in names]
    return [name for name, header in zip(names, headers, strict=True) if header == headers[0]]


def _nanoseconds(files: SourceFiles, names: Sequence[str]) -> TopologyError | None:
    """Return the error for the first Parquet column that has no type in Spark; None: none."""
    for name in names if files.form == "parquet" else ():
        for column, kind in (columns_of(files, name) or {}).items():
            if "timestamp[ns" in str(kind):
                return TopologyError(
                    f"{files.spout} has no schema, and Spark infers none: column '{column}' of "
                    f"{name} has timestamps in nanoseconds, which Spark does not have. Give a "
                    "schema with "
                    f"'{column} bigint', which reads them as numbers, and let a transform make "
                    f"timestamp_micros({column} div 1000) of it; or write the files with "
                    'microseconds (pyarrow: coerce_timestamps="us").',
                    number="TXN-409",
                )
    return None
