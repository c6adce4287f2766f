"""JSON texts as rows: one rule for the lines of files, whole files, and values of Kafka records.

Spark's parser reads the first value of a text and ignores anything after it. So a text is parsed as
part of a larger one, `{"<end>": {"r": TEXT, "<end>": null}}`, where `<end>` is a name that no text
has. The object `<end>` has exactly these two entries only if the text is exactly one value: text
after a first value is invalid JSON there, or a further entry, or closes the object before its end.
Spark's own parser decides, so its options (comments, single quotes, numbers such as NaN) keep their
meaning.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spouts.records.bad_rows import permissive
from spouts.records.options import lowered
from txn.interfaces import NOT_PARSED, Unparsed
from txn.spark.differences import as_utf8, is_utf8
from txn.spark.lazy import sf, st
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["JsonRecords"]

_END = f"txn_{secrets.token_hex(8)}"
_BEFORE, _BEHIND = f'{{"{_END}":{{"r":', f'\n,"{_END}":null}}}}'
"""The text around a record. The line break ends a comment of the record."""
_TEXT = "txn_text"
_SHOWN = 200
"""Most characters of a record that an error shows."""
_DEEPEST = 1000
"""Spark's own limit of nesting, which `_BEFORE` must not lower."""


@dataclass(frozen=True)
class JsonRecords:
    """The rules that turn JSON texts into rows, or mark them if they do not parse."""

    spout: str
    """The spout, for errors."""
    fields: StructType
    """The columns, all nullable."""
    given: Mapping[str, Any]
    """The user's options of Spark's parser."""
    unparsed: Unparsed | None
    """The marks for records that do not parse; None: they fail the batch, unless the option `mode`
    is set otherwise."""
    of_files: bool
    """True: a text of blanks is not a record, and an array of objects is as many records if all of
    them fit. False: neither parses, and NULL is a record without values."""

    def rows(
        self, texts: DataFrame, text: Column, place: Column, beside: Mapping[str, str]
    ) -> DataFrame:
        """Return the records of texts: the fields, then further columns, then marks.

        Args:
            text: a column of `texts`.
            place: the place of the text, for people and for marks.
            beside: columns of `texts` to keep -> their new names.
        """
        kept_columns = [sf.col(quoted(name)).alias(f"txn_beside_{name}") for name in beside]
        texts = texts.select(text.alias("txn_record"), place.alias("txn_place"), *kept_columns)
        record, array = sf.col("txn_record"), sf.lit(None)
        one = self._parsed(record, self.fields)
        if self.of_files:
            is_array = sf.startswith(sf.ltrim(record), sf.lit("["))
            array = sf.when(is_array, self._parsed(record, st.ArrayType(self.fields)))
            one = sf.when(~is_array, one)
        parsed = texts.select("*", one.alias("txn_one"), array.alias("txn_array"))
        kept_names = ["txn_place", *(f"txn_beside_{name}" for name in beside)]
        # Spark compiles a projection, but no generator that has a function over arrays in it.
        arrays = parsed.select(self._records().alias("txn_records"), *kept_names)
        # Spark neither moves nor prunes a generator: each text is parsed, and once. For one that
        # is not outer it infers a filter, which parses each text many times more.
        rows = arrays.select(sf.inline_outer("txn_records").alias(*self._names), *kept_names)
        rows = rows.where("txn_is")
        return rows.select(
            *(sf.col(f"txn_field_{n}").alias(f.name) for n, f in enumerate(self.fields)),
            *(sf.col(f"txn_beside_{name}").alias(alias) for name, alias in beside.items()),
            *self._marks(),
        )

    def _parsed(self, record: Column, shape: DataType) -> Column:
        entries = st.MapType(st.StringType(), shape)
        whole = st.StructType(
            [st.StructField(_END, entries), st.StructField(_TEXT, st.StringType())]
        )
        options = {name: str(value) for name, value in lowered(self.given).items()}
        depth = int(options.get("maxnestingdepth", _DEEPEST)) + 2
        options = {n: v for n, v in options.items() if n not in _OF_READERS}
        options = {"enabledatetimeparsingfallback": "false"} | options
        options |= {"maxNestingDepth": str(depth)} | permissive(_TEXT)
        return sf.from_json(sf.concat(sf.lit(_BEFORE), record, sf.lit(_BEHIND)), whole, options)

    @property
    def _names(self) -> list[str]:
        """The generator's names for the columns: a schema's may differ only in case."""
        return [*(f"txn_field_{n}" for n in range(len(self.fields))), _TEXT, "txn_reason", "txn_is"]

    def _records(self) -> Column:
        """Return an array of the records in a text; NULL: it has none."""
        record, value = sf.col("txn_record"), _value("txn_one")
        good = _is_whole("txn_one") & value.isNotNull() & is_utf8(record)
        records = sf.when(good, sf.array(self._record(value)))
        if self.of_files:
            all_fit = _is_whole("txn_array") & sf.forall(
                _value("txn_array"), lambda element: element.isNotNull()
            )
            elements = sf.transform(
                _value("txn_array"), lambda element: self._record(element, None)
            )
            blank = sf.btrim(record, sf.lit(" \t\r\n")) == ""
            records = records.when(all_fit & is_utf8(record), elements).when(blank, None)
        else:
            records = records.when(record.isNull(), sf.array(self._record(value)))
        mode = str(lowered(self.given).get("mode", "")).lower()
        if self.unparsed is None and mode == "dropmalformed":
            return records
        if self.unparsed is None and mode != "permissive":
            return records.otherwise(sf.raise_error(self._error_message()))
        return records.otherwise(sf.array(self._record(value, as_utf8(record), self._reason())))

    def _record(
        self, value: Column, text: Column | None = None, reason: Column | None = None
    ) -> Column:
        """Return one record; with `text`, one that does not parse."""
        none = sf.lit(None).cast("string")
        columns = [value.getField(name) for name in self.fields.fieldNames()]
        if self.unparsed is None and text is not None:
            # A user who sets mode="PERMISSIVE" may have a column for such texts.
            text_column = lowered(self.given).get("columnnameofcorruptrecord") or "_corrupt_record"
            names = self.fields.fieldNames()
            columns = [text if n == text_column else c for n, c in zip(names, columns, strict=True)]
        about = [none if text is None else text, none if reason is None else reason, sf.lit(True)]
        all_of_it = [*columns, *about]
        return sf.struct(*(c.alias(n) for c, n in zip(all_of_it, self._names, strict=True)))

    def _marks(self) -> Sequence[Column]:
        if self.unparsed is None:
            return ()
        assert self.unparsed.reason is not None
        return (
            sf.col(_TEXT).alias(self.unparsed.text),
            sf.col("txn_place").alias(self.unparsed.position),
            sf.col("txn_reason").alias(self.unparsed.reason),
        )

    def _error_message(self) -> Column:
        """Return the error message for a record that does not parse."""
        return sf.concat(
            sf.lit(f"{self.spout} has a {NOT_PARSED} as json with the schema, at "),
            sf.col("txn_place"),
            sf.lit(": "),
            as_utf8(sf.substring("txn_record", 1, _SHOWN)),
            sf.lit(" ("),
            self._reason(),
            sf.lit(")"),
        )

    def _reason(self) -> Column:
        """Explain why a record does not parse; evaluated only for such records."""
        record = sf.col("txn_record")
        members = self._parsed(record, st.MapType(st.StringType(), st.StringType()))

        def problem(whole: Column) -> Column:
            raw, value = _value(whole), _value("txn_one")
            culprits = [
                sf.when(value.getField(n).isNull() & raw[n].isNotNull(), sf.lit(n))
                for n in self.fields.fieldNames()
            ]
            names = sf.concat_ws(", ", *culprits)
            return (
                sf.when(~is_utf8(record), "not UTF-8")
                .when(sf.ltrim(record).startswith("["), _NOT_ONE_ARRAY)
                .when(~(_is_whole(whole) & raw.isNotNull()), _NOT_ONE)
                .when(names == "", _WITHIN)
                .otherwise(sf.concat(sf.lit("no value for: "), names))
            )

        # An array of one, so that the text is parsed once for all columns.
        why = sf.get(sf.transform(sf.array(members), problem), sf.lit(0))
        return sf.concat(
            sf.lit("not json with the columns of the schema; "), sf.coalesce(why, sf.lit(_NOT_ONE))
        )


_NOT_ONE = "it is not one JSON object with nothing behind it"
_NOT_ONE_ARRAY = "it is an array, and not every element is an object that fits"
_WITHIN = "a value within a column does not fit"
_OF_READERS = {"encoding", "charset", "linesep", "multiline", "mode", "maxnestingdepth"} | {
    "columnnameofcorruptrecord", "compression", "basepath",
}  # fmt: skip
"""Options, in small letters, that the parser of a text does not take."""


def _is_whole(parsed: Column | str) -> Column:
    """Return True for a text that is one value of its shape with nothing after it."""
    column = sf.col(parsed) if isinstance(parsed, str) else parsed
    entries = column.getField(_END)
    last = sf.get(sf.map_keys(entries), sf.lit(1))
    whole = column.getField(_TEXT).isNull() & (sf.size(entries) == 2) & (last == _END)
    return sf.coalesce(whole, sf.lit(False))


def _value(parsed: Column | str) -> Column:
    column = sf.col(parsed) if isinstance(parsed, str) else parsed
    return sf.get(sf.map_values(column.getField(_END)), sf.lit(0))
