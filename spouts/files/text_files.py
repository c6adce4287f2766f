"""The records of JSON files and of text: lines, or whole files, of any encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spouts.files.source_files import ENCODINGS, SourceFiles
from spouts.records.bad_rows import marks
from spouts.records.json_records import JsonRecords
from spouts.records.options import lowered
from txn.errors import TopologyError
from txn.interfaces import NOT_PARSED
from txn.spark.differences import as_utf8, is_utf8
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["TextFiles"]

_FORMS = ("json", "text")
_SHOWN = 200
"""Most characters of a line that an error shows."""
_SAY_ENCODING = "if its file has another encoding, give the spout encoding="
_OF_TEXT = {
    "basepath", "ignorecorruptfiles", "ignoremissingfiles", "linesep", "modifiedafter",
    "modifiedbefore", "pathglobfilter", "recursivefilelookup",
}  # fmt: skip
"""Options, in small letters, for reading files as texts."""
_ENCODINGS = (  # the first bytes of a file, in hexadecimal; the longer ones first
    ("0000FEFF%", "UTF-32"), ("FFFE0000%", "UTF-32"), ("FEFF%", "UTF-16"), ("FFFE%", "UTF-16"),
    ("000000__", "UTF-32"),
    ("00__%", "UTF-16BE"), ("__00%", "UTF-16LE"),
)  # fmt: skip
_DECODED = ENCODINGS | {"", "UTF8"}
"""Encodings that Spark's `decode` accepts."""


class TextFiles:
    """Reads the files of batches as texts.

    Raises:
        TopologyError: files are read by line, and the encoding is UTF-16 or UTF-32 without byte
            order; or text has an encoding that Spark's `decode` does not accept.
    """

    def __init__(self, files: SourceFiles) -> None:
        self._spout, self._form, self._unparsed = files.spout, files.form, files.unparsed
        self._options, self._hadoop = lowered(files.options), files.listing.hadoop
        spout, form = self._spout, self._form
        self._whole = files.are("multiline" if form == "json" else "wholetext")
        self._encoding = encoding = files.encoding
        if form in _FORMS and encoding in ("UTF-16", "UTF-32") and not self._whole:
            raise TopologyError(
                f"{spout} reads lines, and only the first one of a file has the mark that says "
                f"which {encoding} it is. Say encoding='{encoding}LE' or '{encoding}BE'.",
                number="TXN-408",
            )
        if form == "text" and encoding not in _DECODED:
            accepted = ", ".join(sorted(_DECODED - {""}))
            raise TopologyError(
                f"{spout} cannot read text as {encoding}, only as {accepted}.",
                number="TXN-408",
            )

    @property
    def takes(self) -> bool:
        """True if this class reads the files. Spark's own reader takes others."""
        is_known = "singlevariantcolumn" not in self._options and self._encoding in _DECODED
        return self._form in _FORMS and is_known

    def rows(self, spark: SparkSession, paths: Sequence[str], schema: st.StructType) -> DataFrame:
        """Return the records of files, with the marks of the spout."""
        texts, of_path = self._texts(spark, paths, schema)
        if self._form == "text":
            return self._lines(texts)
        fields = st.StructType([field for field in schema if field.name not in of_path])
        records = JsonRecords(self._spout, fields, self._options, self._unparsed, of_files=True)
        beside = {name: name for name in of_path}
        rows = records.rows(texts, sf.col("value"), sf.col("txn_path"), beside)
        names = (*schema.names, *marks(self._unparsed))
        return rows.select(*map(quoted, names)) if of_path else rows

    def _lines(self, texts: DataFrame) -> DataFrame:
        """Return lines of text. One that is not valid in the files' encoding does not parse."""
        value, path, unparsed = sf.col("value"), sf.col("txn_path"), self._unparsed
        bad, shown = ~is_utf8(value), as_utf8(value)
        if unparsed is None:
            message = sf.concat(
                sf.lit(f"{self._spout} has a {NOT_PARSED} as text, as it is not UTF-8, at "), path,
                sf.lit(": "), sf.substring(shown, 1, _SHOWN), sf.lit(f" ({_SAY_ENCODING})"),
            )  # fmt: skip
            return texts.select(
                sf.when(bad, sf.raise_error(message)).otherwise(value).alias("value")
            )
        return texts.select(
            shown.alias("value"), sf.when(bad, shown).alias(unparsed.text),
            path.alias(unparsed.position),
            sf.lit(f"not UTF-8; {_SAY_ENCODING}").alias(unparsed.reason or ""),
        )  # fmt: skip

    def _texts(
        self, spark: SparkSession, paths: Sequence[str], schema: st.StructType
    ) -> tuple[DataFrame, list[str]]:
        """Return lines or whole files as `value`, with `txn_path`, and the columns of folders."""
        encoding, whole = self._encoding, self._whole
        of_text = {name: value for name, value in self._options.items() if name in _OF_TEXT}
        if whole:
            of_text.pop("linesep", None)
        elif encoding.startswith(("UTF-16", "UTF-32")):
            of_text = {"linesep": "\n"} | of_text | {"encoding": encoding}
        reader = spark.read.format("text").options(wholetext=whole, **of_text)
        reader = reader.options(**self._hadoop)
        files = reader.load(list(paths))
        # Columns that Spark makes from folders' names, below a basePath.
        of_path = [f for f in schema if f.name in files.columns and f.name != "value"]
        if of_path:
            value = st.StructField("value", st.StringType())
            files = reader.schema(st.StructType([value, *of_path])).load(list(paths))
        names = [field.name for field in of_path]
        # Hadoop itself skips a mark of UTF-8; anything else like it is the user's text.
        as_it_is = self._form == "text" and not encoding
        text = sf.col("value") if as_it_is else _text(encoding, whole)
        texts = files.select(
            text.alias("value"),
            *(files[quoted(name)] for name in names),
            files["_metadata.file_path"].alias("txn_path"),
        )
        return texts, names


def _text(encoding: str, whole: bool) -> Column:
    """Return the text of a file or line, without an encoding mark at the beginning."""
    text, binary = sf.col("value"), sf.col("value").cast("binary")
    if encoding not in ("", "UTF-8", "UTF8"):
        text = sf.decode(binary, encoding)
    elif whole and not encoding:
        start = sf.hex(sf.substring(binary, 1, 4))
        for pattern, detected in reversed(_ENCODINGS):
            text = sf.when(start.like(pattern), sf.decode(binary, detected)).otherwise(text)
    return sf.when(
        sf.startswith(text, sf.lit("\ufeff")), sf.substring(text, 2, 2**31 - 1)
    ).otherwise(text)
