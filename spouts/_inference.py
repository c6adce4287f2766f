"""The schema of files whose spout is given none: Spark infers it, and it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spouts._bad_rows import PARSED
from spouts._file_columns import OVER_LINES, beginning, columns_of, goes_over_lines, header_of
from spouts._source_files import SourceFiles
from spouts._uris import literal
from txn.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["INFERRED", "inferred"]

INFERRED = 20
"""How many files a schema is inferred from at most."""


def inferred(spark: SparkSession, files: SourceFiles, names: Sequence[str]) -> StructType:
    """The columns of files that are not empty.

    A record that does not parse has no say: reading it is what fails, and names it.

    Raises:
        TopologyError: the files have no column, or one that Spark has no type for.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    given = {"inferSchema": True, "mergeSchema": True, **files.reading}
    if files.form in PARSED and given.get("mode") == "FAILFAST":
        given["mode"] = "DROPMALFORMED"
    if files.form == "csv":  # no half of a field over several lines has a say
        given = {n: v for n, v in given.items() if n.lower() != "multiline"} | {"multiLine": True}
    if files.form == "csv" and files.are("header") and given.get("enforceSchema") is False:
        names = _of_one_header(spark, files, names)
    paths = [literal(files.listing.uri(name)) for name in names]
    reader = spark.read.options(**given).format(files.form)
    try:
        found = reader.load(paths).schema if paths else StructType()
    except AnalysisException as error:
        if (refused := _nanoseconds(files, names)) is None:
            raise
        raise refused from error
    # Spark adds a column if it meets a record that does not parse.
    leave = files.unparsed.text if files.unparsed else None
    schema = StructType([field for field in found if field.name != leave])
    if not schema.fields:
        lack = "there is no file with anything in it"
        if names:
            lack = f"its first files have no record with a column ({', '.join(names)})"
        if names and goes_over_lines(files, beginning(files, names[0])):
            lack += f" ({names[0]} {OVER_LINES})"
        raise TopologyError(
            f"{files.whose} has no schema, and {lack}, so Spark cannot infer one. Give a "
            "schema, or start when a file with records is there.",
            number="TXN-409",
        )
    return schema


def _of_one_header(spark: SparkSession, files: SourceFiles, names: Sequence[str]) -> list[str]:
    """The files with the first one's header: of the others, Spark would take it for a record."""
    headers: list[Any] = [header_of(files, name) for name in names]
    if not all(headers):
        reader = spark.read.options(**files.listing.hadoop)
        headers = [reader.text(literal(files.listing.uri(name))).first() for name in names]
    return [name for name, header in zip(names, headers, strict=True) if header == headers[0]]


def _nanoseconds(files: SourceFiles, names: Sequence[str]) -> TopologyError | None:
    """Why Spark infers no schema of Parquet: the first column that it has no type for."""
    for name in names if files.form == "parquet" else ():
        for column, kind in (columns_of(files, name) or {}).items():
            if "timestamp[ns" in str(kind):
                return TopologyError(
                    f"{files.whose} has no schema, and Spark infers none: column '{column}' of "
                    f"{name} has timestamps in nanoseconds, which Spark does not have. Give a "
                    "schema with "
                    f"'{column} bigint', which reads them as numbers, and let a transform make "
                    f"timestamp_micros({column} div 1000) of it; or write the files with "
                    'microseconds (pyarrow: coerce_timestamps="us").',
                    number="TXN-409",
                )
    return None
