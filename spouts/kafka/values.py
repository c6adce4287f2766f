"""Parse the values of Kafka records, JSON or CSV, into columns with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from spouts._schemas import as_nullable, as_struct
from spouts.records.bad_rows import marks_of, permissive, with_text
from spouts.records.csv_dialect import Dialect, reader_options
from spouts.records.json_records import JsonRecords
from spouts.records.options import check_options
from txn.errors import TopologyError
from txn.interfaces import NOT_PARSED
from txn.spark.differences import as_utf8, is_utf8
from txn.spark.lazy import sf
from txn.spark.names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["ValueFormat", "Values"]

ValueFormat = Literal["csv", "json"]

_TEXT = "txn_text"
_SHOWN = 200
"""Most characters of a record that an error shows."""


class Values:
    """The parser of a spout's values.

    A record without a value (a tombstone) has NULL in every column of the schema. An empty value
    does not parse, nor does one with several records.

    Args:
        options: options of Spark's parser.
        beside: the number of columns that a record has beside its value.
        fails_for_new: True: a JSON object with fields that the schema lacks is an error.

    Raises:
        TopologyError: an unknown format, a misspelt option, or settings that contradict each other.
    """

    def __init__(
        self,
        spout: str,
        form: str,
        schema: str | StructType,
        bad_rows: str,
        options: Mapping[str, Any],
        beside: int,
        fails_for_new: bool = False,
    ) -> None:
        if form not in get_args(ValueFormat):
            raise TopologyError(
                f"{spout} cannot parse values of format {form!r}. Formats are: "
                f"{', '.join(get_args(ValueFormat))}.",
                number="TXN-404",
            )
        check_options(form, options, spout)
        for name in options:
            if name.lower() in ("mode", "columnnameofcorruptrecord", "header"):
                raise TopologyError(
                    f"{spout} has a value option {name!r}, which you must not set: bad_rows says "
                    "what becomes of values that do not parse, and a value has no header.",
                    number="TXN-404",
                )
        self.unparsed = marks_of(
            spout, bad_rows, form, options, position="txn_position", beside=beside
        )
        self._fails_for_new = fails_for_new
        self._spout = spout
        self._form = form
        self._schema = schema
        self._given = options
        all_options = {**options, **(reader_options(options) if form == "csv" else {})}
        self._options = {name: str(value) for name, value in all_options.items()} | permissive(
            _TEXT
        )

    def parsed(self, records: DataFrame, *, as_json: bool = False) -> DataFrame:
        """Return Spark's records with the columns of the schema in place of `value`.

        Args:
            as_json: parse the values as JSON without options, whatever the topics' format is.
        """
        fields = as_nullable(as_struct(self._schema, self._spout))
        value = sf.col("value").cast("string")
        place = sf.format_string("%s-%d:%d", "topic", "partition", "offset")
        if self._form == "json" or as_json:
            names = _named([name for name in records.columns if name != "value"], fields)
            if self._fails_for_new and not as_json:
                value = self._without_new(value, place, fields)
            parser_options = {} if as_json else self._given
            marks = self.unparsed and replace(self.unparsed, reason="txn_reason")
            rows = JsonRecords(self._spout, fields, parser_options, marks, of_files=False)
            parsed = rows.rows(records, value, place, names)
            return parsed if self._form == "json" else parsed.drop("txn_reason")
        struct = sf.from_csv(_one_line(value), _ddl(with_text(fields, _TEXT)), self._options)
        rest = [name for name in records.columns if name != "value"]
        beside = [sf.col(name).alias(alias) for name, alias in _named(rest, fields).items()]
        whole = records.select(struct.alias("txn_value"), value.alias("txn_record"), *rest)
        bad = self._is_bad()
        if self.unparsed is None:
            message = sf.concat(
                sf.lit(f"{self._spout} has a {NOT_PARSED} as {self._form} with the schema, at "),
                place,
                sf.lit(": "),
                as_utf8(sf.substring("txn_record", 1, _SHOWN)),
            )
            checked = sf.when(bad, sf.raise_error(message)).otherwise(sf.col("txn_value"))
            whole = whole.select(checked.alias("txn_value"), *rest)
            return whole.select(*_columns(fields), *beside)
        return whole.select(
            *_columns(fields),
            *beside,
            sf.when(bad, as_utf8("txn_record")).alias(self.unparsed.text),
            place.alias(self.unparsed.position),
        )

    def _without_new(self, value: Column, place: Column, fields: StructType) -> Column:
        """Return the value; an error for one that has fields which the schema lacks."""
        keys = sf.json_object_keys(value)
        new = sf.array_except(keys, sf.array(*map(sf.lit, fields.fieldNames())))
        message = sf.concat(
            sf.lit(f"{self._spout} has a record with fields that the schema lacks, at "),
            place,
            sf.lit(": "),
            sf.array_join(new, ", "),
            sf.lit(
                ". Nothing of the batch is stored. Add them to schema and start the run again, or "
                "say new_columns='ignore'."
            ),
        )
        return sf.when(sf.size(new) > 0, sf.raise_error(message)).otherwise(value)

    def _is_bad(self) -> Column:
        record = sf.col("txn_record")
        line = _one_line(record)
        broken = ~Dialect.of(self._options).is_record(line) | ~is_utf8(record)
        return sf.col(f"txn_value.{_TEXT}").isNotNull() | broken | (sf.trim(line) == "")


def _named(columns: list[str], fields: StructType) -> dict[str, str]:
    """Return Kafka's columns -> their names beside those of the schema.

    Raises:
        TopologyError: the schema has both names.
    """
    taken = {name.lower() for name in fields.fieldNames()}
    names = {name: f"kafka_{name}" if name.lower() in taken else name for name in columns}
    for name, called in names.items():
        if called.lower() in taken:
            raise TopologyError(
                f"A schema of Kafka's values cannot have both a column '{name}' and a column "
                f"'{called}', which a record has beside its value. Parse the value in a transform.",
                number="TXN-404",
            )
    return names


def _one_line(record: Column) -> Column:
    """Return a record without its line end, which Spark would take for part of a value.

    Also without an encoding mark, which Spark skips only in the first value of a task.
    """
    return sf.regexp_replace(record, r"\A\ufeff+|\r?\n\z", "")


def _columns(fields: StructType) -> list[Column]:
    return [sf.col("txn_value").getField(name).alias(name) for name in fields.fieldNames()]


def _ddl(schema: StructType) -> str:
    """Return a schema of flat columns as DDL for `from_csv`."""
    return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema)
