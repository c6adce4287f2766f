"""The values of Kafka records as columns: JSON or CSV, parsed by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from spouts._bad_rows import marks_of, permissive, with_text
from spouts._csv import Dialect, reader_options
from spouts._json_records import JsonRecords
from spouts._options import check_options
from spouts._schemas import as_nullable, as_struct
from txn.errors import TopologyError
from txn.interfaces import NOT_PARSED
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
    """How the values of a spout's records are parsed.

    A record without a value (a tombstone) has NULL in every column of the schema. A value with
    nothing in it does not parse, nor does one with several records.

    Args:
        whose: the spout, for messages.
        schema: DDL or StructType.
        bad_rows: "fail", "drop" or "set_aside".
        options: of Spark's parser.
        beside: how many columns a record has beside its value.

    Raises:
        TopologyError: an unknown format, a misspelt option, or settings that contradict each other.
    """

    def __init__(
        self,
        whose: str,
        form: str,
        schema: str | StructType,
        bad_rows: str,
        options: Mapping[str, Any],
        beside: int,
    ) -> None:
        if form not in get_args(ValueFormat):
            raise TopologyError(
                f"{whose} cannot parse values of format {form!r}. Formats are: "
                f"{', '.join(get_args(ValueFormat))}.",
                number="TXN-404",
            )
        check_options(form, options, whose)
        for name in options:
            if name.lower() in ("mode", "columnnameofcorruptrecord", "header"):
                raise TopologyError(
                    f"{whose} has a value option {name!r}, which you must not set: bad_rows says "
                    "what becomes of values that do not parse, and a value has no header.",
                    number="TXN-404",
                )
        self.unparsed = marks_of(
            whose, bad_rows, form, options, position="txn_position", beside=beside
        )
        self._whose = whose
        self._form = form
        self._schema = schema
        self._given = options
        given = {**options, **(reader_options(options) if form == "csv" else {})}
        self._options = {name: str(value) for name, value in given.items()} | permissive(_TEXT)

    def parsed(self, records: DataFrame, *, as_json: bool = False) -> DataFrame:
        """Spark's records with the columns of the schema in the place of `value`.

        Args:
            as_json: the values are JSON without options, whatever those of the topics are.

        Raises:
            TopologyError: the schema cannot be read, or has names that records have as well.
        """
        from pyspark.sql import functions as sf

        fields = self._struct()
        value = sf.col("value").cast("string")
        place = sf.format_string("%s-%d:%d", "topic", "partition", "offset")
        if self._form == "json" or as_json:
            names = _named([name for name in records.columns if name != "value"], fields)
            given = {} if as_json else self._given
            marks = self.unparsed and replace(self.unparsed, reason="txn_reason")
            rows = JsonRecords(self._whose, fields, given, marks, of_files=False)
            found = rows.rows(records, value, place, names)
            return found if self._form == "json" else found.drop("txn_reason")
        struct = sf.from_csv(_one_line(value), _ddl(with_text(fields, _TEXT)), self._options)
        rest = [name for name in records.columns if name != "value"]
        beside = [sf.col(name).alias(alias) for name, alias in _named(rest, fields).items()]
        whole = records.select(struct.alias("txn_value"), value.alias("txn_record"), *rest)
        bad = self._bad()
        if self.unparsed is None:
            told = sf.concat(
                sf.lit(f"{self._whose} has a {NOT_PARSED} as {self._form} with the schema, at "),
                place,
                sf.lit(": "),
                sf.make_valid_utf8(sf.substring("txn_record", 1, _SHOWN)),
            )
            checked = sf.when(bad, sf.raise_error(told)).otherwise(sf.col("txn_value"))
            whole = whole.select(checked.alias("txn_value"), *rest)
            return whole.select(*_columns(fields), *beside)
        return whole.select(
            *_columns(fields),
            *beside,
            sf.when(bad, sf.make_valid_utf8("txn_record")).alias(self.unparsed.text),
            place.alias(self.unparsed.position),
        )

    def _bad(self) -> Column:
        from pyspark.sql import functions as sf

        record = sf.col("txn_record")
        line = _one_line(record)
        broken = ~Dialect.of(self._options).is_record(line) | ~sf.is_valid_utf8(record)
        return sf.col(f"txn_value.{_TEXT}").isNotNull() | broken | (sf.trim(line) == "")

    def _struct(self) -> StructType:
        from pyspark.sql.types import StructType

        fields = as_nullable(as_struct(self._schema, self._whose))
        assert isinstance(fields, StructType)
        return fields


def _named(columns: list[str], fields: StructType) -> dict[str, str]:
    """Kafka's columns and what they are called beside those of the schema.

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
    """A record without the end of its line, which Spark would take for a part of a value.

    Nor with a mark of its encoding, which Spark passes over in the first value of a task alone.
    """
    from pyspark.sql import functions as sf

    return sf.regexp_replace(record, r"\A\ufeff+|\r?\n\z", "")


def _columns(fields: StructType) -> list[Column]:
    from pyspark.sql import functions as sf

    return [sf.col("txn_value").getField(name).alias(name) for name in fields.fieldNames()]


def _ddl(schema: StructType) -> str:
    """A schema of flat columns, as `from_csv` wants it."""
    return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema)
