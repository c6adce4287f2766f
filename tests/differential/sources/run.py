"""Reads a case with the product, in this process: the spout's own contract, no topology."""

from __future__ import annotations

import bz2
import gzip
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from spouts.files import FileBatch, FileSpout
from spouts.kafka.values import Values
from tests.differential.sources.declaration import Case, File
from txn.attempts import TransactionAttempt
from txn.errors import FailedException
from txn.spark.differences import as_utf8, is_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "Found",
    "collected",
    "columns_of",
    "listening",
    "read_files",
    "read_values",
    "spout_of",
    "values_of",
    "write_files",
]

Columns = tuple[tuple[str, str], ...]


@dataclass
class Found:
    """What came out.

    Args:
        rows: of each file (or offset); "" where the spout does not mark them.
        bad: the texts that were set aside, likewise.
        error: what ended the reading, in the words of the product or of Spark.
        invalid: columns with text that is not UTF-8.
        told: what was logged.
    """

    columns: Columns = ()
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    bad: dict[str, list[str]] = field(default_factory=dict)
    error: BaseException | None = None
    attempted: tuple[str, ...] = ()
    invalid: set[str] = field(default_factory=set)
    told: str = ""

    def add(self, place: str, row: tuple[Any, ...]) -> None:
        """A row of the table."""
        self.rows.setdefault(place, []).append(row)

    def set_aside(self, place: str, text: str) -> None:
        """A bad row."""
        self.bad.setdefault(place, []).append(text)


def write_files(case: Case, folder: Path) -> None:
    """The files of a case, packed as they are to be."""
    folder.mkdir(parents=True)
    for file in case.files:
        (folder / file.name).write_bytes(_packed(file))


def _packed(file: File) -> bytes:
    data = file.data
    if file.packed == "bz2":
        return bz2.compress(data)
    if file.packed == "members":
        middle = len(data) // 2
        return gzip.compress(data[:middle], mtime=0) + gzip.compress(data[middle:], mtime=0)
    if file.packed == "gzip":
        return gzip.compress(data, mtime=0)
    if file.packed == "cut":
        whole = gzip.compress(data + b"\n" * 40, mtime=0)
        return whole[: max(11, len(whole) - 9)]
    return data


def spout_of(case: Case, folder: Path) -> FileSpout:
    """The spout that reads the case."""
    fate: Any = {"bad_rows": case.bad_rows}
    given = case.schema_ and ", ".join(f"`{name}` {kind}" for name, kind in case.schema_)
    return FileSpout(
        f"{folder}/*",
        format=case.form,
        schema=None if case.form == "text" else given,
        files_per_batch=case.files_per_batch,
        **fate,
        **case.options,
    )


def read_files(case: Case, spark: SparkSession, folder: Path) -> Found:
    """Write the files, and read them with a spout, batch by batch."""
    write_files(case, folder)
    found = Found()
    with listening() as told:
        try:
            _read(case, spark, spout_of(case, folder), found)
        except Exception as error:  # noqa: BLE001 - the judge looks at it
            found.error = error
    found.told = "\n".join(told)
    return found


def _read(case: Case, spark: SparkSession, spout: FileSpout, found: Found) -> None:
    found.attempted = tuple(file.name for file in case.files)
    schema = spout.open(spark, None)
    marks = spout.unparsed
    found.columns = columns_of(schema)
    previous: FileBatch | None = None
    for txid in range(1, 99):
        attempt = TransactionAttempt(txid)
        batch = spout.initialize_transaction(attempt, previous)
        if batch is None:
            return
        found.attempted = tuple(Path(file.path).name for file in batch.files)
        for row in _rows(spark, spout, attempt, batch, found):
            text = row[marks.text] if marks else None
            place = unquote(Path(row[marks.position]).name) if marks else ""
            if text is None:
                found.add(place, values_of(row, found.columns))
            else:
                found.set_aside(place, text)
        spout.check_read(attempt, batch)
        previous = batch


def _rows(
    spark: SparkSession,
    spout: FileSpout,
    attempt: TransactionAttempt,
    batch: FileBatch,
    found: Found,
) -> list[dict[str, Any]]:
    """The rows of a batch, replayed once if the spout asks for it, as a run does."""
    try:
        return collected(spout.emit_batch(spark, attempt, batch), found)
    except Exception as error:
        try:
            spout.read_failed(attempt, batch)
        except FailedException:
            again = TransactionAttempt(attempt.txid, 1)
            return collected(spout.emit_batch(spark, again, batch), found)
        raise error


def read_values(case: Case, spark: SparkSession) -> Found:
    """Parse the values as a `KafkaSpout` does, on a DataFrame with Kafka's columns."""
    from pyspark.sql import functions as sf

    found = Found(attempted=("t-0",))
    assert case.schema_ is not None
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in case.schema_)
    found.columns = case.schema_
    records = [
        (n, None if value is None else bytearray(value.encode("latin-1")))
        for n, value in enumerate(case.files[0].values)
    ]
    frame = spark.createDataFrame(records, "`offset` bigint, value binary").select(
        "value", sf.lit("t").alias("topic"), sf.lit(0).alias("partition"), "offset"
    )
    with listening() as told:
        try:
            values = Values("KafkaSpout", case.form, ddl, case.bad_rows, case.options, 3)
            marks = values.unparsed
            for row in collected(values.parsed(frame), found):
                text = row[marks.text] if marks else None
                if text is None:
                    found.add(str(row["offset"]), values_of(row, found.columns))
                else:
                    found.set_aside(str(row["offset"]), text)
        except Exception as error:  # noqa: BLE001 - the judge looks at it
            found.error = error
    found.told = "\n".join(told)
    return found


def columns_of(schema: StructType) -> Columns:
    """The columns of the source, without those by which a spout marks its records."""
    named = [(field.name, field.dataType.simpleString()) for field in schema]
    return tuple((name, kind) for name, kind in named if not name.startswith("txn_"))


def collected(frame: DataFrame, found: Found) -> list[dict[str, Any]]:
    """The rows, times as numbers; and which columns have text that is none."""
    from pyspark.sql import functions as sf

    columns = []
    for one in frame.schema:
        column, kind = sf.col(f"`{one.name}`"), one.dataType.simpleString()
        if kind == "date":
            column = sf.unix_date(column)
        elif kind == "timestamp_ntz":
            column = sf.unix_micros(column.cast("timestamp"))
        elif kind == "timestamp":
            column = sf.unix_micros(column)
        elif kind == "string":
            columns.append(is_utf8(column).alias(f"valid {one.name}"))
            column = as_utf8(column)
        columns.append(column.alias(one.name))
    rows = [row.asDict() for row in frame.select(*columns).collect()]
    for row in rows:
        found.invalid |= {k[6:] for k, v in row.items() if k.startswith("valid ") and v is False}
    return rows


def values_of(row: dict[str, Any], columns: Columns) -> tuple[Any, ...]:
    return tuple(_plain(row[name]) for name, _ in columns)


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """What the product logs meanwhile."""
    logger, handler = logging.getLogger("txn"), _Kept()
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)
