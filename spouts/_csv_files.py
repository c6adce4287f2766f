"""The records of CSV files: by line where that is right, over line ends where quotes say so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from spouts._bad_rows import with_text
from spouts._csv import Dialect
from spouts._options import encoding_of
from spouts._uris import literal, plain
from txn.errors import BatchError
from txn.interfaces import Unparsed
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["CsvFiles"]

_BY_LINE = ""
_DECODED = ("ISO-8859-1", "US-ASCII")
"""Encodings besides UTF that Spark's `decode` knows."""
_SMALL, _LARGEST = 2**26, 2**30
"""Bytes of a file that is looked at as a whole at once; and of one that is so at all."""
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".snappy", ".deflate")
_SHOWN = 3
"""Most files that an error names."""


class CsvFiles:
    """Reads the files of a batch.

    How a file is read depends on its content alone, so a replay reads the same rows.

    Args:
        whose: the spout, for messages.
        options: of Spark's reader, with the spout's defaults and those of the storage.
        unparsed: how records that do not parse are marked; None: they fail the batch.
        tell_replaced: takes the names of files with bytes that are not UTF-8.
    """

    def __init__(
        self,
        whose: str,
        options: Mapping[str, Any],
        unparsed: Unparsed | None,
        tell_replaced: Callable[[Sequence[str]], None],
    ) -> None:
        """See the class."""
        self._tell_replaced = tell_replaced
        self._whose = whose
        self._unparsed = unparsed
        self._dialect = Dialect.of(options)
        self._encoding = (encoding_of(options) or "UTF-8").upper()
        how = ("multiline", "linesep")
        self._options = {n: v for n, v in options.items() if n.lower() not in how}

    def rows(
        self, spark: SparkSession, sizes: Mapping[str, int], schema: StructType, attempt: object
    ) -> DataFrame:
        """The rows of files, with the marks of those that do not parse.

        Args:
            sizes: URI of each file -> its bytes.
            attempt: for messages.

        Raises:
            BatchError: nobody can say where the records of a file end, and bad ones fail the batch;
                or the file is too large to find out.
        """
        ends = self._ends(spark, sizes, attempt)
        by_end: dict[str | None, list[str]] = {}
        for uri in sizes:
            by_end.setdefault(ends.get(uri, _BY_LINE), []).append(uri)
        if self._unparsed is None and None in by_end:
            raise self._unclear(by_end[None], attempt)
        frames = [
            self._lines(spark, uris, schema)
            if end is None
            else self._records(spark, uris, schema, end)
            for end, uris in by_end.items()
        ]
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    # --- how a file is read ------------------------------------------------------------------

    def _ends(
        self, spark: SparkSession, sizes: Mapping[str, int], attempt: object
    ) -> dict[str, str | None]:
        """URI of each file that is not read by line -> the line end behind its records, if known.

        A large file is looked at line by line first, in parallel; then, if need be, as a whole.
        """
        from pyspark.sql import functions as sf

        names = {plain(uri): uri for uri in sizes}
        weights = {u: n * 8 if u.lower().endswith(_COMPRESSED) else n for u, n in sizes.items()}
        odd = [uri for uri in sizes if self._is_wide or weights[uri] <= _SMALL]
        text, replaced = sf.col("value"), set[str]()
        valid = sf.is_valid_utf8(text) if self._encoding in ("UTF-8", "UTF8") else sf.lit(True)
        if large := [uri for uri in sizes if uri not in set(odd)]:
            lines = self._texts(spark, large, whole=False)
            seen = lines.select(
                "path", self._dialect.is_by_line(text).alias("fits"), valid.alias("valid")
            )
            for path, fits, is_valid in seen.where("NOT (fits AND valid)").distinct().collect():
                odd += [] if fits else [names[plain(unquote(path))]]
                replaced |= set() if is_valid else {names[plain(unquote(path))]}
        if too_large := [uri for uri in odd if weights[uri] > _LARGEST]:
            raise self._too_large(too_large, attempt)
        ends: dict[str, str | None] = {}
        if odd:
            end = self._dialect.line_end_of(text)
            if not self._is_wide:
                end = sf.when(self._dialect.is_by_line(text), _BY_LINE).otherwise(end)
            whole = self._texts(spark, [*dict.fromkeys(odd)], whole=True)
            found = whole.select("path", end.alias("end"), valid.alias("valid"))
            found = found.where(
                sf.col("end").isNull() | (sf.col("end") != _BY_LINE) | ~sf.col("valid")
            )
            for path, known, is_valid in found.collect():
                ends[names[plain(unquote(path))]] = known
                replaced |= set() if is_valid else {names[plain(unquote(path))]}
        if replaced:
            self._tell_replaced([unquote(plain(uri)) for uri in sizes if uri in replaced])
        return ends

    @property
    def _is_wide(self) -> bool:
        """Spark's reader of lines takes any byte 10 for an end of a line."""
        return self._encoding.startswith(("UTF-16", "UTF-32"))

    def _texts(self, spark: SparkSession, uris: Sequence[str], *, whole: bool) -> DataFrame:
        from pyspark.sql import functions as sf

        names = ("encoding", "charset")
        options = {n: v for n, v in self._options.items() if n.lower() not in names}
        if self._dialect.line_end and not whole:
            options["lineSep"] = self._dialect.line_end
        reader = spark.read.format("text").options(**options, wholetext=whole)
        rows = reader.schema("value string").load([literal(uri) for uri in uris])
        text = rows["value"]
        if self._is_wide:
            text = sf.decode(text.cast("binary"), self._encoding)
        return rows.select(text.alias("value"), rows["_metadata.file_path"].alias("path"))

    # --- rows --------------------------------------------------------------------------------

    def _records(
        self, spark: SparkSession, uris: Sequence[str], schema: StructType, end: str
    ) -> DataFrame:
        mark = self._unparsed
        read = schema if mark is None else with_text(schema, mark.text)
        options = self._options | {"multiLine": end != _BY_LINE}
        if end or self._dialect.line_end:
            options["lineSep"] = end or self._dialect.line_end
        rows = spark.read.format("csv").schema(read).options(**options)
        found = rows.load([literal(uri) for uri in uris])
        # Spark adds columns for folders k=v that the schema lacks, and puts all of them last.
        columns = [found[quoted(name)] for name in read.fieldNames()]
        if mark is not None:
            columns.append(found["_metadata.file_path"].alias(mark.position))
        # Spark parses only columns that are used, so that others would not make a record bad.
        used = " + ".join(f"int({quoted(name)} IS NULL)" for name in schema.fieldNames())
        return found.where(f"{used} >= 0").select(*columns)

    def _lines(self, spark: SparkSession, uris: Sequence[str], schema: StructType) -> DataFrame:
        """Every line of files as a record that does not parse, but for the schema's header."""
        from pyspark.sql import functions as sf

        mark, dialect = self._unparsed, self._dialect
        assert mark is not None
        given = {name.lower(): str(value).lower() for name, value in self._options.items()}

        def is_record(line: Column) -> Column:
            blank = (sf.trim(line) == "") & ~sf.contains(line, sf.lit(dialect.sep))
            comment = sf.startswith(line, sf.lit(dialect.comment or "\0\0\0"))
            return ~blank & ~comment

        files = self._texts(spark, uris, whole=True)
        text = files["value"]
        if not self._is_wide and self._encoding in _DECODED:
            text = sf.decode(text.cast("binary"), self._encoding)
        text = sf.regexp_replace(sf.make_valid_utf8(text), "^\ufeff", "")
        lines = sf.filter(sf.split(text, dialect.line_ends), is_record)
        if given.get("header") == "true":
            rest = sf.slice(lines, sf.lit(2), sf.greatest(sf.size(lines), sf.lit(1)))
            first = sf.replace(sf.lower(sf.get(lines, sf.lit(0))), sf.lit(dialect.quote or "\0"))
            names = dialect.sep.join(schema.fieldNames()).lower()
            lines = sf.when(first == names, rest).otherwise(lines)
        rows = files.select("path", sf.explode(lines).alias("line"))
        return rows.select(
            *[sf.lit(None).cast(each.dataType).alias(each.name) for each in schema],
            rows["line"].alias(mark.text),
            rows["path"].alias(mark.position),
        )

    # --- errors ------------------------------------------------------------------------------

    def _unclear(self, uris: Sequence[str], attempt: object) -> BatchError:
        return BatchError(
            f"{self._whose} cannot tell where the records end in {_shown(uris)}, for {attempt}: a "
            "quoted field is not closed, line ends of several kinds stand around fields of several "
            "lines, or there are NULs (as in files of UTF-16: say encoding='UTF-16'). Nothing of "
            "the batch is stored. If quotes are plain text in such files, say quote=''; if a "
            "backslash stands before a quote in a field, say escape='\\\\'; to set all lines of "
            "the file aside and go on, give the spout bad_rows='set_aside'.",
            number="TXN-422",
        )

    def _too_large(self, uris: Sequence[str], attempt: object) -> BatchError:
        return BatchError(
            f"{self._whose} cannot read {_shown(uris)} for {attempt}: a quoted field goes over "
            f"several lines, or the text is {self._encoding}, so the file is looked at as a whole, "
            f"and it is larger than {_LARGEST >> 30} GiB (compressed: {_LARGEST >> 23} MiB). "
            "Nothing of the batch is stored. Split the file into smaller ones under new names, "
            "and let this batch pass (on_exhausted='quarantine').",
            number="TXN-422",
        )


def _shown(uris: Sequence[str]) -> str:
    more = f" and {len(uris) - _SHOWN} more" if len(uris) > _SHOWN else ""
    return ", ".join(unquote(plain(uri)) for uri in uris[:_SHOWN]) + more
