"""Read files of a batch with Spark, by the reader that their format needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spouts._schemas import as_nullable, as_wide
from spouts._uris import literal
from spouts.files.batch import PlannedFile
from spouts.files.csv_files import CsvFiles
from spouts.files.source_files import SourceFiles
from spouts.files.text_files import TextFiles
from spouts.records.bad_rows import PARSED, marks, with_text
from spouts.records.csv_dialect import reader_options
from spouts.records.options import is_set, lowered, overlaid
from txn.attempts import TransactionAttempt
from txn.spark.file_reader import KnownFile, known_parquet
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FileReader", "reader_defaults"]


class FileReader:
    """Reads the files of a spout, with the marks for records that do not parse.

    Args:
        tell_replaced: is called with the names of files that have bytes of another encoding.
    """

    def __init__(self, files: SourceFiles, tell_replaced: Callable[[Iterable[str]], None]) -> None:
        self._form, self._options = files.form, files.options
        self._listing, self._unparsed = files.listing, files.unparsed
        self._texts = TextFiles(files)
        self._csv = CsvFiles(files, tell_replaced)

    def rows(
        self,
        spark: SparkSession,
        attempt: TransactionAttempt,
        files: Sequence[PlannedFile],
        schema: StructType,
    ) -> DataFrame:
        """Return the rows of these files, lazily."""
        return self._marked(self._read(spark, attempt, files, schema))

    def _marked(self, rows: DataFrame) -> DataFrame:
        """Add the marks for records that do not parse to rows that lack them."""
        for name in marks(self._unparsed):
            if name not in rows.columns:
                of_file = self._unparsed is not None and name == self._unparsed.position
                mark = rows["_metadata.file_path"] if of_file else sf.lit(None).cast("string")
                rows = rows.select("*", mark.alias(name))
        return rows

    def _read(
        self,
        spark: SparkSession,
        attempt: TransactionAttempt,
        files: Sequence[PlannedFile],
        schema: StructType,
    ) -> DataFrame:
        wide, plain_schema = as_wide(schema), as_nullable(schema)
        if self._form == "parquet" and wide != plain_schema:
            # `to` refuses a number that does not fit, whatever the session says.
            return self._read(spark, attempt, files, wide).to(plain_schema)
        if (rows := self._read_with_stats(spark, files, schema)) is not None:
            return rows
        paths = [literal(self._listing.uri(file.path)) for file in files]
        if self._texts.takes:
            return self._texts.rows(spark, paths, schema)
        if self._form == "csv":
            return self._csv.rows(spark, {file.path: file.size for file in files}, schema, attempt)
        parsed = self._unparsed is not None and self._form in PARSED
        read_schema = with_text(schema, marks(self._unparsed)[0]) if parsed else schema
        options = {**self._options, **self._listing.hadoop}
        reader = spark.read.format(self._form).schema(read_schema).options(**options)
        rows = reader.load(paths)
        if "basepath" not in lowered(self._options):
            return rows
        # Spark adds columns for folders k=v that the schema lacks, and puts all of them last.
        return rows.select(*(rows[quoted(name)] for name in read_schema.fieldNames()))

    def _read_with_stats(
        self, spark: SparkSession, files: Sequence[PlannedFile], schema: StructType
    ) -> DataFrame | None:
        """Return the rows if Spark can use the planned stats, without a request; else None."""
        options = {name: str(value) for name, value in lowered(self._options).items()}
        if not self._listing.remote or self._form != "parquet" or "basepath" in options:
            return None
        with_stats = [
            KnownFile(self._listing.uri(file.path), file.size, (file.mtime_ns or 0) // 1_000_000)
            for file in files
        ]
        return known_parquet(spark, schema, with_stats, {**options, **self._listing.hadoop})


def reader_defaults(format_: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the user's options over defaults that fail loudly (Spark's names ignore case)."""
    defaults: dict[str, Any] = {"ignoreMissingFiles": False, "ignoreCorruptFiles": False}
    if format_ in PARSED:
        defaults["mode"] = "FAILFAST"
    if format_ == "csv" and is_set(options, "header"):
        defaults["enforceSchema"] = False
    if format_ == "csv":
        defaults |= reader_options(options)
    return overlaid(defaults, options)
