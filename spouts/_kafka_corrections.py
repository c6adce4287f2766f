"""Corrected records of Kafka: files in a folder, read like records of the topics, once.

A line is one record as JSON: Kafka's columns by their names, and `value` as text. Instead of a
value it may have `columns`: those into which the value would be parsed, as the text of an object,
because Spark rounds the numbers of an object that it reads as a text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


class Corrections:
    """The files of a KafkaSpout's folder.

    Args:
        whose: the spout, for errors.
        folder: a local one; it need not be there yet.

    Raises:
        TopologyError: it is no local folder.
    """

    def __init__(self, whose: str, folder: str) -> None:
        if not folder or "://" in folder:
            raise TopologyError(
                f"{whose} has corrections={folder!r}, which is no local folder. Name one, such as "
                "'corrections', in which `txn rows replay` can put files.",
                number="TXN-404",
            )
        self._listing = Listing(_pattern(folder))
        self.files = FileSpout(_pattern(folder), format="json", schema=_SCHEMA)

    def open(self, spark: SparkSession, previous: Any | None) -> None:
        """As `FileSpout.open`; `previous` is the newest position."""
        self.files.open(spark, _batch(previous))

    def plan(self, attempt: TransactionAttempt, previous: Any | None) -> Any | None:
        """The next files; None: there is none that was not read."""
        with suppress(OSError):  # the spout of the files says which
            if not self._listing.names():
                return None
        planned = self.files.initialize_transaction(attempt, _batch(previous))
        return None if planned is None else planned.model_dump(mode="json")

    def records(
        self,
        spark: SparkSession,
        attempt: TransactionAttempt,
        position: Any,
        columns: Sequence[str],
    ) -> Records:
        """The records of planned files, with Kafka's columns as its source has them."""
        rows = self.files.emit_batch(spark, attempt, FileBatch.model_validate(position))
        given = rows[_COLUMNS].isNotNull()
        values = rows.where(~given).withColumn("value", rows["value"].cast("binary"))
        parsed = rows.where(given).withColumn("value", rows[_COLUMNS])
        return Records(values.select(*columns), parsed.select(*columns))

    def check_read(self, attempt: TransactionAttempt, position: Any) -> None:
        """As `FileSpout.check_read`."""
        self.files.check_read(attempt, FileBatch.model_validate(position))

    def readable(self, attempt: TransactionAttempt, position: Any) -> None:
        """As `FileSpout.readable`."""
        self.files.readable(attempt, FileBatch.model_validate(position))

    def parts(self, position: Any) -> Sequence[str]:
        """The planned files."""
        return self.files.planned_parts(FileBatch.model_validate(position))

    def parts_read(self, batch: DataFrame, position: Any) -> Sequence[str]:
        """As `FileSpout.parts_read`."""
        return self.files.parts_read(batch, FileBatch.model_validate(position))


def _batch(position: Any | None) -> FileBatch | None:
    return None if position is None else FileBatch.model_validate(position)


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
        for name, value in record.items():
            if name not in names:
                return f"{name!r} is none of {', '.join(names)}"
            if value is not None and not _FITS[name](value):
                return f"{name} cannot be {json.dumps(value)[:80]}"
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
        if not Path(self._listing.local(self._listing.base)).is_dir():
            raise UserError(
                f"There is no folder '{self._listing.local(self._listing.base)}', in which "
                f"{self._whose} looks for corrected records. Make it, in the folder in which the "
                "topology runs, and run this again there.",
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


def _whole(below: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value < below


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_binary(value: Any) -> bool:
    try:
        base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        return False
    return True


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (ValueError, AttributeError):
        return False
    return True


def _is_object(value: Any) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, TypeError, RecursionError):
        return False


def _are_headers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and one.keys() <= {"key", "value"}
        and _is_text(one.get("key"))
        and (one.get("value") is None or _is_binary(one["value"]))
        for one in value
    )


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "key": _is_binary,
    "value": _is_text,
    "topic": _is_text,
    "partition": _whole(2**31),
    "offset": _whole(2**63),
    "timestamp": _is_time,
    "timestampType": _whole(2**31),
    "headers": _are_headers,
    _COLUMNS: _is_object,
}
