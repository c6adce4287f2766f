"""The schema of files whose spout is given none: Spark infers it, and it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spouts._bad_rows import PARSED
from spouts._file_columns import columns_of
from spouts._listing import Listing
from spouts._uris import literal
from txn.errors import TopologyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["INFERRED", "inferred"]

INFERRED = 20
"""How many files a schema is inferred from at most."""


def inferred(
    spark: SparkSession,
    whose: str,
    listing: Listing,
    names: Sequence[str],
    form: str,
    options: Mapping[str, Any],
    *,
    leave: str | None,
) -> StructType:
    """The columns of files that are not empty.

    A record that does not parse has no say: reading it is what fails, and names it.

    Args:
        whose: the spout, for messages.
        options: of Spark's reader.
        leave: a column that is not one of the files.

    Raises:
        TopologyError: the files have no column, or one that Spark has no type for.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    paths = [literal(listing.uri(name)) for name in names]
    given = {"inferSchema": True, "mergeSchema": True, **options}
    if form in PARSED and given.get("mode") == "FAILFAST":
        given["mode"] = "DROPMALFORMED"
    if form == "csv":  # no half of a field over several lines has a say
        given = {n: v for n, v in given.items() if n.lower() != "multiline"} | {"multiLine": True}
    if form == "csv" and given.get("enforceSchema") is False:
        paths = _of_one_header(spark, paths, listing.hadoop)
    reader = spark.read.options(**given, **listing.hadoop).format(form)
    try:
        found = reader.load(paths).schema if paths else StructType()
    except AnalysisException as error:
        if (refused := _nanoseconds(whose, listing, names, form)) is None:
            raise
        raise refused from error
    schema = StructType([field for field in found if field.name != leave])
    if not schema.fields:
        lack = "there is no file with anything in it"
        if names:
            lack = f"its first files have no record with a column ({', '.join(names)})"
        raise TopologyError(
            f"{whose} has no schema, and {lack}, so Spark cannot infer one. Give a "
            "schema, or start when a file with records is there.",
            number="TXN-409",
        )
    return schema


def _of_one_header(
    spark: SparkSession, paths: Sequence[str], hadoop: Mapping[str, str]
) -> list[str]:
    """The files with the first one's header: of the others, Spark would take it for a record."""
    reader = spark.read.options(**hadoop)
    headers = [reader.text(path).first() for path in paths]
    return [path for path, header in zip(paths, headers, strict=True) if header == headers[0]]


def _nanoseconds(
    whose: str, listing: Listing, names: Sequence[str], form: str
) -> TopologyError | None:
    """Why Spark infers no schema of Parquet: the first column that it has no type for."""
    for name in names if form == "parquet" else ():
        for column, kind in (columns_of(listing, name, form, {}) or {}).items():
            if "timestamp[ns" in str(kind):
                return TopologyError(
                    f"{whose} has no schema, and Spark infers none: column '{column}' of {name} "
                    "has timestamps in nanoseconds, which Spark does not have. Give a schema with "
                    f"'{column} bigint', which reads them as numbers, and let a transform make "
                    f"timestamp_micros({column} div 1000) of it; or write the files with "
                    'microseconds (pyarrow: coerce_timestamps="us").',
                    number="TXN-409",
                )
    return None
