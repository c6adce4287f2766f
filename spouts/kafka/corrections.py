"""Read corrected records of Kafka from files in a folder, once, like records of the topics.

A line is one record as JSON: Kafka's columns by their names, and `value` as text. Instead of a
value it may have `columns`: those into which the value would be parsed, as the text of an object,
because Spark rounds the numbers of an object that it reads as a text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from glob import escape
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, ValidationError

from spouts.files import FileBatch, FileSpout
from spouts.files.folder.listing import Listing
from spouts.files.inlet import FileInlet
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError, UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Corrections", "KafkaInlet", "Records"]

_COLUMNS = "columns"
"""Replaces `value`: the columns of the schema, as JSON."""
_SCHEMA = (
    "key binary, value string, topic string, partition int, offset bigint, "
    "timestamp timestamp_ltz, timestampType int, "
    "headers array<struct<key: string, value: binary>>, columns string"
)
_PLACE = re.compile(r"(.+)-(\d+):(\d+)")


@dataclass(frozen=True)
class Records:
    """Corrected records."""

    values: DataFrame
    """Records with a value, as in the topics."""
    columns: DataFrame
    """Records with the columns of the schema, as JSON, in place of a value."""


class Corrections(FileSpout):
    """Reads the files of a KafkaSpout's folder.

    Args:
        folder: a local folder; it need not exist yet.

    Raises:
        TopologyError: it is not a local folder.
    """

    def __init__(self, spout: str, folder: str) -> None:
        if not folder or "://" in folder:
            raise TopologyError(
                f"{spout} has corrections={folder!r}, which is not a local folder. Name one, "
                "such as 'corrections', in which `txn rows replay` can put files.",
                number="TXN-404",
            )
        super().__init__(_pattern(folder), format="json", schema=_SCHEMA)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: FileBatch | None
    ) -> FileBatch | None:
        """Return the next files. Mostly there are none: then no notice warns of it."""
        with suppress(OSError):  # planning reports the error
            if not self._listing.names():
                return None
        return super().initialize_transaction(attempt, previous)

    def records(
        self,
        spark: SparkSession,
        attempt: TransactionAttempt,
        batch: FileBatch,
        columns: Sequence[str],
    ) -> Records:
        """Return the records of planned files, with Kafka's columns as its source has them."""
        rows = self.emit_batch(spark, attempt, batch)
        has_columns = rows[_COLUMNS].isNotNull()
        values = rows.where(~has_columns).withColumn("value", rows["value"].cast("binary"))
        parsed = rows.where(has_columns).withColumn("value", rows[_COLUMNS])
        return Records(values.select(*columns), parsed.select(*columns))


def _pattern(folder: str) -> str:
    return f"{escape(folder.rstrip('/'))}/*.json"


class KafkaInlet(FileInlet):
    """The folder of a KafkaSpout.

    Args:
        folder: the folder of corrections; None: rows can be exported only.
        is_parsed: True if the spout parses values.
    """

    def __init__(
        self, spout: str, folder: str | None, columns: Sequence[str], *, is_parsed: bool
    ) -> None:
        listing = Listing("corrections" if folder is None else _pattern(folder))
        super().__init__(spout, listing, "json", {})
        self._folder, self._columns, self._is_parsed = folder, columns, is_parsed

    def content(self, raw: Sequence[str], rows: Sequence[str], position: Any) -> bytes:
        """Return the records, one a line."""
        lines = [*raw, *map(self._line_of_row, rows)]
        return "".join(line + "\n" for line in lines).encode()

    def raw(self, text: str, position: str | None) -> str:
        """Return a record for a value that does not parse, with its place, no key and no time."""
        record: dict[str, Any] = {}
        if place := _PLACE.fullmatch(position or ""):
            record = {"topic": place[1], "partition": int(place[2]), "offset": int(place[3])}
        return json.dumps({**record, "value": text}, ensure_ascii=False)

    def _line_of_row(self, row: str) -> str:
        pairs = [*_pairs(row)]
        if self._is_parsed:
            # The schema's columns come first, and may have given Kafka's other names.
            rest = [name for name in self._columns if name != "value"]
            schema_columns, kafka = pairs[: -len(rest)], pairs[-len(rest) :]
            pairs = [(name, text) for name, (_, text) in zip(rest, kafka, strict=True)]
            return _object(
                [*pairs, (_COLUMNS, json.dumps(_object(schema_columns), ensure_ascii=False))]
            )
        texts = dict(pairs)
        value = json.dumps(self._text_of(json.loads(texts["value"])), ensure_ascii=False)
        return _object([*(texts | {"value": value}).items()])

    def _text_of(self, encoded: str | None) -> str | None:
        try:
            return None if encoded is None else base64.b64decode(encoded).decode()
        except UnicodeDecodeError:
            raise UserError(
                f"{self._spout} has a record that was set aside whose value is no UTF-8 text, so "
                "it cannot be written into a file to be corrected. Take the rows from `txn rows "
                "show --json`, and produce the corrected records to the topic yourself.",
                number="TXN-516",
            ) from None

    def check(self, content: bytes, position: Any) -> None:
        """Refuse a file with a line that is not a record."""
        for number, line in enumerate(re.split(rb"\r\n|\r|\n", content), 1):
            if line.strip() and (problem := self._problem_of_line(line)):
                raise UserError(
                    f"Line {number} of the file is not a record for {self._spout}: {problem}. A "
                    "line is a JSON object with Kafka's columns, `value` as text; missing columns "
                    "are NULL. Correct it. Nothing was changed.",
                    number="TXN-516",
                )

    def _problem_of_line(self, line: bytes) -> str | None:
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            return f"it is no JSON ({error})"
        if not isinstance(record, dict):
            return "it is no JSON object"
        names = [*self._columns, *[_COLUMNS] * self._is_parsed]
        for name in record:
            if name not in names:
                return f"{name!r} is none of {', '.join(names)}"
        try:
            _Record.model_validate(record)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            return f"{name} cannot be {json.dumps(record[name])[:80]}"
        both = record.get("value") is not None and record.get(_COLUMNS) is not None
        return f"it has both a value and {_COLUMNS}" if both else None

    def name(self, stem: str) -> str:
        """Return a name as `FileInlet.name`."""
        if self._folder is None:
            raise UserError(
                f"{self._spout} has no folder for corrected records. Give it one, "
                "KafkaSpout(..., corrections='corrections'), make the folder, start the topology "
                "again with that, and run this again.",
                number="TXN-516",
            )
        return super().name(stem)


def _pairs(row: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a JSON object as Spark writes it, each with its value's own text."""
    decoder, at = json.JSONDecoder(), 1
    while row[at : at + 1] not in ("", "}"):
        name, at = decoder.raw_decode(row, at)
        _, end = decoder.raw_decode(row, at + 1)
        yield name, row[at + 1 : end]
        at = end + (row[end] == ",")


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(n, ensure_ascii=False)}:{text}" for n, text in pairs) + "}"


def _as_base64(text: str) -> str:
    base64.b64decode(text, validate=True)
    return text


def _as_time(text: str) -> str:
    datetime.fromisoformat(text.replace("Z", "+00:00"))
    return text


_Binary = Annotated[str, AfterValidator(_as_base64)]
_Int = Annotated[int, Field(ge=0, lt=2**31)]
_STRICT = ConfigDict(extra="forbid", strict=True)


class _Header(BaseModel):
    model_config = _STRICT

    key: str
    value: _Binary | None = None


class _Record(BaseModel):
    """A line of the file: a record of Kafka as JSON, with `value` or `columns`."""

    model_config = _STRICT

    key: _Binary | None = None
    value: str | None = None
    topic: str | None = None
    partition: _Int | None = None
    offset: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    timestamp: Annotated[str, AfterValidator(_as_time)] | None = None
    timestampType: _Int | None = None  # noqa: N815 - Spark's name
    headers: list[_Header] | None = None
    columns: Json[dict[str, Any]] | None = None
