"""Read CSV files: by line where that is correct, across line ends where fields are quoted."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from spouts._schemas import conformed
from spouts._uris import literal, plain
from spouts.files.columns import header_of
from spouts.files.folder.listing import PACKED
from spouts.files.source_files import SourceFiles
from spouts.records.bad_rows import marks, with_text
from spouts.records.csv_dialect import Dialect
from txn.errors import BatchError
from txn.spark.differences import as_utf8, is_utf8
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["CsvFiles"]

_BY_LINE = ""
_UTF8 = ("UTF-8", "UTF8")
_DECODED = ("ISO-8859-1", "US-ASCII")
"""Encodings besides UTF that Spark's `decode` accepts."""
_HERE = 2**23
"""Most bytes of a batch that are checked here: a Spark job takes longer."""
_SMALL, _LARGEST = 2**26, 2**30
"""Most bytes of a file that Spark checks as a whole at once; and that it checks at all."""
_SHOWN = 3
"""Most files that an error names."""


class CsvFiles:
    """Reads the files of a batch.

    The way to read a file depends on its content alone, so a replay reads the same rows.

    Args:
        tell_replaced: called with the names of files that have bytes that are not UTF-8.
    """

    def __init__(self, files: SourceFiles, tell_replaced: Callable[[Sequence[str]], None]) -> None:
        self._files, self._tell_replaced = files, tell_replaced
        self._spout, self._listing, self._unparsed = files.spout, files.listing, files.unparsed
        self._dialect = Dialect.of(files.options)
        self._encoding = files.encoding or "UTF-8"
        how = ("multiline", "linesep")
        self._options = {n: v for n, v in files.reading.items() if n.lower() not in how}
        is_near = not files.listing.remote and not files.own_codec
        self._looks_here = is_near and self._encoding in _UTF8
        """True if files may be checked without Spark."""

    def rows(
        self, spark: SparkSession, sizes: Mapping[str, int], schema: StructType, attempt: object
    ) -> DataFrame:
        """Return the rows of files, with the marks of those that do not parse.

        Args:
            sizes: name of each file -> its bytes.

        Raises:
            BatchError: the records of a file have no clear end, and bad ones fail the batch; or the
                file is too large to check; or a header has other names than the schema.
        """
        by_columns: dict[StructType, dict[str, int]] = {}
        for name, size in sizes.items():
            by_columns.setdefault(self._columns(name, schema), {})[name] = size
        emitted = with_text(schema, *marks(self._unparsed))
        frames = [
            conformed(self._alike_rows(spark, alike, columns, attempt), emitted)
            for columns, alike in by_columns.items()
        ]
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    def _columns(self, name: str, schema: StructType) -> StructType:
        """Return the columns with which to read a file: its header's, if these may differ."""
        choice = self._files.new_columns
        header = header_of(self._files, name) if choice in ("ignore", "add") else []
        by_name = {field.name.lower(): field for field in schema}
        read = [by_name.get(one.lower(), st.StructField(one, st.StringType())) for one in header]
        present = by_name.keys() & {*_lower(header)}
        is_whole = len(present) == len(by_name) or choice == "add"
        if not present or not is_whole or len({*_lower(header)}) < len(header) or "" in header:
            return schema  # Spark's reader compares the header with it
        return st.StructType(read)

    def _alike_rows(
        self, spark: SparkSession, sizes: Mapping[str, int], schema: StructType, attempt: object
    ) -> DataFrame:
        """Return the rows of files with the same columns."""
        options = self._options_for_headers(spark, [*sizes], schema, attempt)
        by_uri = {self._listing.uri(name): size for name, size in sizes.items()}
        left = by_uri
        if self._looks_here and sum(sizes.values()) <= _HERE:
            left = {u: by_uri[u] for n, u in zip(sizes, by_uri, strict=True) if not self._fits(n)}
        ends = self._ends(spark, left, attempt) if left else {}
        by_end: dict[str | None, list[str]] = {}
        for uri in by_uri:
            by_end.setdefault(ends.get(uri, _BY_LINE), []).append(uri)
        if self._unparsed is None and None in by_end:
            raise self._unclear(by_end[None], attempt)
        frames = [
            self._lines(spark, uris, schema)
            if end is None
            else self._records(spark, uris, schema, options, end)
            for end, uris in by_end.items()
        ]
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    # --- headers -----------------------------------------------------------------------------

    def _options_for_headers(
        self, spark: SparkSession, names: Sequence[str], schema: StructType, attempt: object
    ) -> dict[str, Any]:
        """Compare headers here if Spark would refuse them wrongly. Returns options for reading.

        A header may lack a name, or have one twice: pandas writes its index without a name. Spark's
        inference invents names for these (`_c0`; `a0` and `a2` for two columns `a`), but its reader
        compares the header with the invented names and refuses it.
        """
        schema_names = _lower(schema.fieldNames())
        insists = self._files.are("header") and not self._files.are("enforceschema")
        if not insists or not _may_be_made_up(schema_names):
            return self._options
        reader = spark.read.format("csv").options(**self._files.reading)
        reader = reader.option("inferSchema", False).option("enforceSchema", True)
        for name in names:
            if _lower(header_of(self._files, name)) == schema_names:
                continue
            header = reader.load(literal(self._listing.uri(name))).columns
            if header and _lower(header) != schema_names:
                raise BatchError(
                    f"{self._spout}: the CSV header of {name}, read for {attempt}, does not "
                    f"conform to the schema: it has {', '.join(header)}, and the schema "
                    f"{', '.join(schema.fieldNames())}. Give the spout a schema with the header's "
                    "names; or put a file with the right columns beside it under a new name, and "
                    "let this batch pass (on_exhausted='quarantine').",
                    number="TXN-508",
                )
        left = {k: v for k, v in self._options.items() if k.lower() != "enforceschema"}
        return {**left, "enforceSchema": True}

    # --- how a file is read ------------------------------------------------------------------

    def _fits(self, name: str) -> bool:
        """Return True if a file, read without Spark, is UTF-8 that can be read by line."""
        if name.endswith(PACKED):
            return False
        try:
            with self._listing.opened(name) as file:
                return self._dialect.is_plain(file.read().decode())
        except (OSError, UnicodeDecodeError):
            return False

    def _ends(
        self, spark: SparkSession, sizes: Mapping[str, int], attempt: object
    ) -> dict[str, str | None]:
        """Return URI -> line end of records, if known, for files that cannot be read by line.

        Checks a large file line by line first, in parallel; then, if needed, as a whole.
        """
        weights = {u: n * 8 if u.endswith(PACKED) else n for u, n in sizes.items()}
        small = [uri for uri in sizes if self._is_wide or weights[uri] <= _SMALL]
        by_line = self._dialect.is_by_line(sf.col("value"))
        lines = sf.when(by_line, _BY_LINE)
        large = [uri for uri in sizes if uri not in set(small)]
        odd, replaced = self._seen(spark, large, lines, whole=False)
        if too_large := [uri for uri in [*small, *odd] if weights[uri] > _LARGEST]:
            raise self._too_large(too_large, attempt)
        whole = self._dialect.line_end_of(sf.col("value"))
        whole = whole if self._is_wide else lines.otherwise(whole)
        ends, more = self._seen(spark, [*small, *odd], whole, whole=True)
        if replaced | more:
            names = [unquote(plain(uri)) for uri in sizes if uri in replaced | more]
            self._tell_replaced(names)
        return ends

    def _seen(
        self, spark: SparkSession, uris: Sequence[str], end: Column, *, whole: bool
    ) -> tuple[dict[str, str | None], set[str]]:
        """Return URI -> line end of files not read by line, and URIs of files not in UTF-8."""
        if not uris:
            return {}, set()
        valid = is_utf8("value") if self._encoding in _UTF8 else sf.lit(True)
        texts = self._texts(spark, uris, whole=whole)
        seen = texts.select("path", end.alias("end"), valid.alias("valid"))
        seen = seen.where(sf.col("end").isNull() | (sf.col("end") != _BY_LINE) | ~sf.col("valid"))
        names = {plain(uri): uri for uri in uris}
        rows = (seen if whole else seen.distinct()).collect()
        results = [(names[plain(unquote(row.path))], row.end, row.valid) for row in rows]
        ends = {uri: end for uri, end, _ in results if end != _BY_LINE}
        return ends, {uri for uri, _, is_valid in results if not is_valid}

    @property
    def _is_wide(self) -> bool:
        """True for UTF-16 and UTF-32: Spark's reader of lines takes any byte 10 for a line end."""
        return self._encoding.startswith(("UTF-16", "UTF-32"))

    def _texts(self, spark: SparkSession, uris: Sequence[str], *, whole: bool) -> DataFrame:
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
        self,
        spark: SparkSession,
        uris: Sequence[str],
        schema: StructType,
        options: Mapping[str, Any],
        end: str,
    ) -> DataFrame:
        mark = self._unparsed
        read = schema if mark is None else with_text(schema, mark.text)
        options = {**options, "multiLine": end != _BY_LINE}
        if end or self._dialect.line_end:
            options["lineSep"] = end or self._dialect.line_end
        rows = spark.read.format("csv").schema(read).options(**options)
        loaded = rows.load([literal(uri) for uri in uris])
        # Spark adds columns for folders k=v that the schema lacks, and puts all of them last.
        columns = [loaded[quoted(name)] for name in read.fieldNames()]
        if mark is not None:
            columns.append(loaded["_metadata.file_path"].alias(mark.position))
        # Spark parses only the columns that are used: all are, so that each can make a record bad.
        used = " + ".join(f"int({quoted(name)} IS NULL)" for name in schema.fieldNames())
        return loaded.where(f"{used} >= 0").select(*columns)

    def _lines(self, spark: SparkSession, uris: Sequence[str], schema: StructType) -> DataFrame:
        """Return every line except the schema's header as a record that does not parse."""
        mark, dialect = self._unparsed, self._dialect
        assert mark is not None

        def is_record(line: Column) -> Column:
            blank = (sf.trim(line) == "") & ~sf.contains(line, sf.lit(dialect.sep))
            comment = sf.startswith(line, sf.lit(dialect.comment or "\0\0\0"))
            return ~blank & ~comment

        files = self._texts(spark, uris, whole=True)
        text = files["value"]
        if not self._is_wide and self._encoding in _DECODED:
            text = sf.decode(text.cast("binary"), self._encoding)
        text = sf.regexp_replace(as_utf8(text), "^\ufeff", "")
        lines = sf.filter(sf.split(text, dialect.line_ends), is_record)
        if self._files.are("header"):
            rest = sf.slice(lines, sf.lit(2), sf.greatest(sf.size(lines), sf.lit(1)))
            first = sf.replace(sf.lower(sf.get(lines, sf.lit(0))), sf.lit(dialect.quote or "\0"))
            names = dialect.sep.join(schema.fieldNames()).lower()
            lines = sf.when(first == names, rest).otherwise(lines)
        rows = files.select("path", sf.explode(lines).alias("line"))
        return rows.select(
            *[sf.lit(None).cast(field.dataType).alias(field.name) for field in schema],
            rows["line"].alias(mark.text),
            rows["path"].alias(mark.position),
        )

    # --- errors ------------------------------------------------------------------------------

    def _unclear(self, uris: Sequence[str], attempt: object) -> BatchError:
        return BatchError(
            f"{self._spout} cannot tell where the records end in {_shown(uris)}, for {attempt}: a "
            "quoted field is not closed, line ends of several kinds stand around fields of several "
            "lines, or there are NULs (as in files of UTF-16: say encoding='UTF-16'). Nothing of "
            "the batch is stored. If quotes are plain text in such files, say quote=''; if a "
            "backslash stands before a quote in a field, say escape='\\\\'; to set all lines of "
            "the file aside and go on, give the spout bad_rows='set_aside'.",
            number="TXN-422",
        )

    def _too_large(self, uris: Sequence[str], attempt: object) -> BatchError:
        return BatchError(
            f"{self._spout} cannot read {_shown(uris)} for {attempt}: a quoted field goes over "
            f"several lines, or the text is {self._encoding}, so the file is looked at as a whole, "
            f"and it is larger than {_LARGEST >> 30} GiB (compressed: {_LARGEST >> 23} MiB). "
            "Nothing of the batch is stored. Split the file into smaller ones under new names, "
            "and let this batch pass (on_exhausted='quarantine').",
            number="TXN-422",
        )


def _shown(uris: Sequence[str]) -> str:
    more = f" and {len(uris) - _SHOWN} more" if len(uris) > _SHOWN else ""
    return ", ".join(unquote(plain(uri)) for uri in uris[:_SHOWN]) + more


def _lower(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _may_be_made_up(names: Sequence[str]) -> bool:
    """Return True if Spark may have invented some of these names."""
    numbered = [name.removesuffix(str(i)) for i, name in enumerate(names) if name.endswith(str(i))]
    return "_c" in numbered or any(count > 1 for count in Counter(numbered).values())
