"""Infer the schema of a spout's files with Spark, if the user gave none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spouts._uris import literal
from spouts.files.columns import OVER_LINES, beginning, columns_of, goes_over_lines, header_of
from spouts.files.source_files import SourceFiles
from spouts.records.bad_rows import PARSED
from spouts.records.options import lowered, overlaid
from txn.errors import TopologyError
from txn.spark.lazy import st

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MOST_FILES", "inferred"]

MOST_FILES = 20
"""Most files from which a schema is inferred."""


def inferred(spark: SparkSession, files: SourceFiles, names: Sequence[str]) -> st.StructType:
    """Return the columns that Spark finds in these files. The caller leaves out empty ones.

    Records that do not parse are ignored here; the first batch reports them.

    Raises:
        TopologyError: the files have no column, or one without a type in Spark.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException

    options = {"inferSchema": True, "mergeSchema": True, **files.reading}
    changed: dict[str, Any] = {}
    if files.form in PARSED and str(lowered(options).get("mode")).upper() == "FAILFAST":
        changed["mode"] = "DROPMALFORMED"
    if files.form == "csv":  # reads a quoted field over several lines as one, whatever was chosen
        changed["multiLine"] = True
    options = overlaid(options, changed)
    if files.form == "csv" and files.are("header") and not files.are("enforceschema"):
        names = _with_first_header(spark, files, names)
    paths = [literal(files.listing.uri(name)) for name in names]
    reader = spark.read.options(**options).format(files.form)
    try:
        read_schema = reader.load(paths).schema if paths else st.StructType()
    except (AnalysisException, Py4JJavaError) as error:  # in Spark 3.5 the job fails
        if (refused := _nanoseconds(files, names)) is None:
            raise
        raise refused from error
    # Leave out the column in which Spark puts the text of a record that does not parse.
    unparsed = files.unparsed.text if files.unparsed else None
    schema = st.StructType([field for field in read_schema if field.name != unparsed])
    if not schema.fields:
        lack = "no file has any content"
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
    """Return the files whose header equals the first file's.

    Spark takes the first header, and infers from any other header line as if it were a record.
    """
    headers: list[Any] = [header_of(files, name) for name in names]
    if not all(headers):  # some are unknown without Spark
        reader = spark.read.options(**files.listing.hadoop)
        headers = [reader.text(literal(files.listing.uri(name))).first() for name in names]
    return [name for name, header in zip(names, headers, strict=True) if header == headers[0]]


def _nanoseconds(files: SourceFiles, names: Sequence[str]) -> TopologyError | None:
    """Return an error if a Parquet column has nanoseconds, which Spark cannot read; else None."""
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
