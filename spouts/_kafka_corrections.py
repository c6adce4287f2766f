"""Corrected records of Kafka: files in a folder, read like records of the topics, once.

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

from spouts._inlet import FileInlet
from spouts._listing import Listing
from spouts.files import FileBatch, FileSpout
from txn.attempts import TransactionAttempt
from txn.errors import TopologyError, UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Corrections", "KafkaInlet", "Records"]

_COLUMNS = "columns"
"""In the place of `value`: the columns of the schema, as JSON."""
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
    """Those with a value as the topics have it."""
    columns: DataFrame
    """Those whose value is the columns of the schema, as JSON."""


class Corrections(FileSpout):
    """Reads the files of a KafkaSpout's folder.

    Args:
        whose: the spout, for errors.
        folder: a local one; it need not be there yet.

    Raises:
        TopologyError: it is no local folder.
    """

    def __init__(self, whose: str, folder: str) -> None:
        """See the class."""
        if not folder or "://" in folder:
            raise TopologyError(
                f"{whose} has corrections={folder!r}, which is no local folder. Name one, such as "
                "'corrections', in which `txn rows replay` can put files.",
                number="TXN-404",
            )
        super().__init__(_pattern(folder), format="json", schema=_SCHEMA)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: FileBatch | None
    ) -> FileBatch | None:
        """The next files. That there is none, as mostly, is not told."""
        with suppress(OSError):  # whoever plans says which
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
        """The records of planned files, with Kafka's columns as its source has them."""
        rows = self.emit_batch(spark, attempt, batch)
        given = rows[_COLUMNS].isNotNull()
        values = rows.where(~given).withColumn("value", rows["value"].cast("binary"))
        parsed = rows.where(given).withColumn("value", rows[_COLUMNS])
        return Records(values.select(*columns), parsed.select(*columns))


def _pattern(folder: str) -> str:
    return f"{escape(folder.rstrip('/'))}/*.json"


class KafkaInlet(FileInlet):
    """The folder of a KafkaSpout.

    Args:
        whose: the spout, for errors.
        folder: None: it has none, so that rows can be exported only.
        columns: Kafka's, in their order.
        is_parsed: whether the values are.
    """

    def __init__(
        self, whose: str, folder: str | None, columns: Sequence[str], *, is_parsed: bool
    ) -> None:
        """See the class."""
        listing = Listing("corrections" if folder is None else _pattern(folder))
        super().__init__(whose, listing, "json", {})
        self._folder, self._columns, self._is_parsed = folder, columns, is_parsed

    def content(self, raw: Sequence[str], rows: Sequence[str], position: Any) -> bytes:
        """The records, one a line.

        Raises:
            UserError: a value is no text.
        """
        lines = [*raw, *map(self._of_row, rows)]
        return "".join(line + "\n" for line in lines).encode()

    def raw(self, text: str, position: str | None) -> str:
        """A value that does not parse, with its place; its key and its time are not known."""
        record: dict[str, Any] = {}
        if found := _PLACE.fullmatch(position or ""):
            record = {"topic": found[1], "partition": int(found[2]), "offset": int(found[3])}
        return json.dumps({**record, "value": text}, ensure_ascii=False)

    def _of_row(self, row: str) -> str:
        pairs = [*_pairs(row)]
        if self._is_parsed:
            # The schema's columns come first, and may have given Kafka's other names.
            rest = [name for name in self._columns if name != "value"]
            own, kafka = pairs[: -len(rest)], pairs[-len(rest) :]
            pairs = [(name, text) for name, (_, text) in zip(rest, kafka, strict=True)]
            return _object([*pairs, (_COLUMNS, json.dumps(_object(own), ensure_ascii=False))])
        texts = dict(pairs)
        value = json.dumps(self._text_of(json.loads(texts["value"])), ensure_ascii=False)
        return _object([*(texts | {"value": value}).items()])

    def _text_of(self, encoded: str | None) -> str | None:
        try:
            return None if encoded is None else base64.b64decode(encoded).decode()
        except UnicodeDecodeError:
            raise UserError(
                f"{self._whose} has a record that was set aside whose value is no UTF-8 text, so "
                "it cannot be written into a file to be corrected. Take the rows from `txn rows "
                "show --json`, and produce the corrected records to the topic yourself.",
                number="TXN-516",
            ) from None

    def check(self, content: bytes, position: Any) -> None:
        """Refuse a file with a line that is no record.

        Raises:
            UserError: see there.
        """
        for number, line in enumerate(re.split(rb"\r\n|\r|\n", content), 1):
            if line.strip() and (wrong := self._wrong_in(line)):
                raise UserError(
                    f"Line {number} of the file is no record for {self._whose}: {wrong}. A line is "
                    "a JSON object with Kafka's columns, `value` as text; what is left out is "
                    "NULL. Correct it. Nothing was changed.",
                    number="TXN-516",
                )

    def _wrong_in(self, line: bytes) -> str | None:
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
        """As for files.

        Raises:
            UserError: there is no folder.
        """
        if self._folder is None:
            raise UserError(
                f"{self._whose} has no folder for corrected records. Give it one, "
                "KafkaSpout(..., corrections='corrections'), make the folder, start the topology "
                "again with that, and run this again.",
                number="TXN-516",
            )
        return super().name(stem)


def _pairs(row: str) -> Iterator[tuple[str, str]]:
    """The names of a JSON object as Spark writes it, each with its value's own text."""
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
    """What a line may have: a record of Kafka as JSON, or `columns` in the place of its value."""

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
