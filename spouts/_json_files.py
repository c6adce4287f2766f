"""The records of JSON files and of text: lines, or whole files, of any encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spouts._bad_rows import marks
from spouts._json_records import JsonRecords
from spouts._options import encoding_of
from txn.errors import TopologyError
from txn.interfaces import NOT_PARSED, Unparsed
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["check_encoding", "json_files", "takes", "text_files"]

_SHOWN = 200
"""Most characters of a line that an error shows."""
_SAY_ENCODING = "if its file has another encoding, give the spout encoding="
_OF_TEXT = {
    "basepath", "ignorecorruptfiles", "ignoremissingfiles", "linesep", "modifiedafter",
    "modifiedbefore", "pathglobfilter", "recursivefilelookup",
}  # fmt: skip
"""Options, in small letters, that say how files become texts."""
_ENCODINGS = (  # the first bytes of a file, in hexadecimal; the longer ones first
    ("0000FEFF%", "UTF-32"), ("FFFE0000%", "UTF-32"), ("FEFF%", "UTF-16"), ("FFFE%", "UTF-16"),
    ("000000__", "UTF-32"),
    ("00__%", "UTF-16BE"), ("__00%", "UTF-16LE"),
)  # fmt: skip


_DECODED = {
    "", "ISO-8859-1", "US-ASCII", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32", "UTF-8", "UTF8",
}  # fmt: skip
"""Encodings that Spark's `decode` knows."""


def check_encoding(whose: str, form: str, options: Mapping[str, Any]) -> None:
    """Refuse an encoding that lines cannot be read in.

    Raises:
        TopologyError: it is UTF-16 or UTF-32 without an order of bytes, and files are read by line;
            or text has one that Spark's `decode` does not know.
    """
    given = {name.lower(): value for name, value in options.items()}
    whole = given.get("multiline" if form == "json" else "wholetext", False)
    encoding = _encoding(options)
    if encoding in ("UTF-16", "UTF-32") and str(whole).lower() != "true":
        raise TopologyError(
            f"{whose} reads lines, and only the first one of a file has the mark that says which "
            f"{encoding} it is. Say encoding='{encoding}LE' or '{encoding}BE'.",
            number="TXN-408",
        )
    if form == "text" and encoding not in _DECODED:
        known = ", ".join(sorted(_DECODED - {""}))
        raise TopologyError(
            f"{whose} cannot read text as {encoding}, only as {known}.",
            number="TXN-408",
        )


def takes(options: Mapping[str, Any]) -> bool:
    """Whether files with these options are read here. Spark's own reader takes the others."""
    given = {name.lower(): value for name, value in options.items()}
    return "singlevariantcolumn" not in given and _encoding(options) in _DECODED


def json_files(
    spark: SparkSession,
    whose: str,
    paths: Sequence[str],
    schema: StructType,
    options: Mapping[str, Any],
    hadoop: Mapping[str, str],
    unparsed: Unparsed | None,
) -> DataFrame:
    """The records of these files, each with the marks of the spout."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StructType

    texts, of_path = _texts(spark, paths, schema, options, hadoop, whole_by="multiline")
    fields = StructType([field for field in schema if field.name not in of_path])
    records = JsonRecords(whose, fields, options, unparsed, of_files=True)
    beside = {name: name for name in of_path}
    rows = records.rows(texts, sf.col("value"), sf.col("txn_path"), beside)
    return rows.select(*map(quoted, (*schema.names, *marks(unparsed)))) if of_path else rows


def text_files(
    spark: SparkSession,
    whose: str,
    paths: Sequence[str],
    schema: StructType,
    options: Mapping[str, Any],
    hadoop: Mapping[str, str],
    unparsed: Unparsed | None,
) -> DataFrame:
    """The lines of these files. One that is not text of the files' encoding does not parse."""
    from pyspark.sql import functions as sf

    texts, _ = _texts(spark, paths, schema, options, hadoop, whole_by="wholetext")
    value, path = sf.col("value"), sf.col("txn_path")
    bad, shown = ~sf.is_valid_utf8(value), sf.make_valid_utf8(value)
    if unparsed is None:
        told = sf.concat(
            sf.lit(f"{whose} has a {NOT_PARSED} as text, as it is not UTF-8, at "), path,
            sf.lit(": "), sf.substring(shown, 1, _SHOWN), sf.lit(f" ({_SAY_ENCODING})"),
        )  # fmt: skip
        return texts.select(sf.when(bad, sf.raise_error(told)).otherwise(value).alias("value"))
    return texts.select(
        shown.alias("value"), sf.when(bad, shown).alias(unparsed.text),
        path.alias(unparsed.position),
        sf.lit(f"not UTF-8; {_SAY_ENCODING}").alias(unparsed.reason or ""),
    )  # fmt: skip


def _texts(
    spark: SparkSession,
    paths: Sequence[str],
    schema: StructType,
    options: Mapping[str, Any],
    hadoop: Mapping[str, str],
    *,
    whole_by: str,
) -> tuple[DataFrame, list[str]]:
    """Columns `value`, the lines or whole files as text, and `txn_path`; names of folders' columns.

    Args:
        whole_by: the option that makes a text of each file, in small letters.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType, StructField, StructType

    given = {name.lower(): value for name, value in options.items()}
    encoding = _encoding(options)
    wide = encoding.startswith(("UTF-16", "UTF-32"))
    whole = str(given.get(whole_by, False)).lower() == "true"
    of_text = {n: v for n, v in given.items() if n in _OF_TEXT and not (whole and n == "linesep")}
    if wide and not whole:
        of_text = {"linesep": "\n"} | of_text | {"encoding": encoding}
    reader = spark.read.format("text").options(wholetext=whole, **of_text).options(**hadoop)
    files = reader.load(list(paths))
    # Columns that Spark makes of the folders' names, below a basePath.
    of_path = [field for field in schema if field.name in files.columns and field.name != "value"]
    if of_path:
        value = StructField("value", StringType())
        files = reader.schema(StructType([value, *of_path])).load(list(paths))
    names = [field.name for field in of_path]
    # Hadoop passes over a mark of UTF-8 itself; what else looks like one in a line is the user's.
    text = sf.col("value") if whole_by == "wholetext" and not encoding else _text(encoding, whole)
    texts = files.select(
        text.alias("value"),
        *(files[quoted(name)] for name in names),
        files["_metadata.file_path"].alias("txn_path"),
    )
    return texts, names


def _encoding(options: Mapping[str, Any]) -> str:
    return (encoding_of(options) or "").upper()


def _text(encoding: str, whole: bool) -> Column:
    """The text of a file or line, without a mark of its encoding at the beginning."""
    from pyspark.sql import functions as sf

    text, binary = sf.col("value"), sf.col("value").cast("binary")
    if encoding not in ("", "UTF-8", "UTF8"):
        text = sf.decode(binary, encoding)
    elif whole and not encoding:
        start = sf.hex(sf.substring(binary, 1, 4))
        for pattern, found in reversed(_ENCODINGS):
            text = sf.when(start.like(pattern), sf.decode(binary, found)).otherwise(text)
    return sf.when(
        sf.startswith(text, sf.lit("\ufeff")), sf.substring(text, 2, 2**31 - 1)
    ).otherwise(text)
