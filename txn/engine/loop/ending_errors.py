"""Make the error that ends a run, a start or a preview: the failure, its place, the way out."""

from __future__ import annotations

import errno
import os
import re

from txn import text
from txn.attempts import TransactionAttempt
from txn.engine.base.failures import is_refused
from txn.errors import BatchError, TopologyError, TransformError, TxnError
from txn.interfaces import NOT_PARSED
from txn.positions import describe
from txn.protocol.events import Batch, Metadata
from txn.spark.causes import cause_line, causes

__all__ = ["given_up", "not_previewed", "not_started", "stopped"]

_MALFORMED = "MALFORMED_"
_RAISED = "USER_RAISED_EXCEPTION"
_NUMBERS = {
    "TXN-505": ("PYTHON_EXCEPTION", "FAILED_EXECUTE_UDF"),
    "TXN-506": ("CAST_", "CANNOT_PARSE_", "INVALID_INPUT_SYNTAX", "CANNOT_CHANGE_DECIMAL"),
    "TXN-507": (
        "ARITHMETIC_OVERFLOW",
        "BINARY_ARITHMETIC_OVERFLOW",
        "DIVIDE_BY_ZERO",
        "INTERVAL_",
        "NUMERIC_",
        "REMAINDER_BY_ZERO",
    ),
    "TXN-508": ("FAILED_READ_FILE",),
}
"""Number of an error -> prefixes of the Spark conditions that it stands for."""
_CSV_HEADER = ("CSV header does not conform", "Number of column in CSV header is not equal")

_NUMBER_FOR_TIME = re.compile("column: .* physicalType: INT64, logicalType: timestamp")
"""A Parquet column of nanoseconds, or of bare numbers, is not read as timestamps."""


def stopped(topology: str, batch: Batch, error: BaseException) -> BatchError:
    """The error that ends a run if no replay helps: names txid, attempt and metadata."""
    place = text.place_of(error)
    at = f", with {place}" if place else ""
    line, number = cause_line(error), _number(error)
    cause = error
    if isinstance(error, TransformError) and error.__cause__ is not None:
        line, cause = str(error).removesuffix(" Correct it; nothing was run."), error.__cause__
    result = BatchError(
        f"Batch {batch.attempt} of topology '{topology}' failed in user code or in Spark, in phase "
        f"{batch.phase.value}{at}: {_sentence(line)} {_describe_read(batch.metadata)} Progress is "
        f"intact: {_way_out(line, number, error)} and run again; the batch is replayed.",
        number=number,
    )
    result.__cause__ = cause
    return result


def not_previewed(topology: str, read: Metadata, error: BaseException) -> TopologyError:
    """The error of a preview whose rows fail in the user's code or in Spark."""
    line, number, place = cause_line(error), _number(error), text.place_of(error)
    return TopologyError(
        f"Topology '{topology}' cannot be previewed: its first batch failed in user code or in "
        f"Spark{f', with {place}' if place else ''}: {_sentence(line)} {_describe_read(read)} "
        f"Nothing was written: {_way_out(line, number, error)} and try again.",
        number=number,
    )


def _describe_read(metadata: Metadata | None) -> str:
    positions = (metadata or {}).items()
    read = "; ".join(f"{stream}: {describe(position)}" for stream, position in positions)
    return f"It read {read or 'nothing'}."


def _way_out(line: str, number: str, error: BaseException) -> str:
    if any(words in line for words in _CSV_HEADER):
        return (
            "say how the file is written (sep=, encoding=, ignoreLeadingWhiteSpace=, header=), or, "
            "as long as nothing is committed, give the spout a schema with the header's names (_c0 "
            "for a first one without a name); once something is, put the rows, with the columns of "
            "the schema, into a new file, and let this batch pass (on_exhausted='quarantine'); "
            "or, if a column is new, add it to the schema and say new_columns='add' (NULL in this "
            "batch),"
        )
    if "VALUE.CHARSET" in line and "Options`" in line:
        return (
            "say one of these in the spout's encoding=, or give the session "
            "spark.sql.legacy.javaCharsets=true (--conf), which takes all that Java has,"
        )
    if _is_malformed(error):
        return "let the spout drop or set aside such records (bad_rows=), or correct its schema,"
    if _NUMBER_FOR_TIME.search(line):
        return (
            "say bigint for that column in the spout's schema, and let a transform make "
            "timestamps of the numbers (timestamp_micros(t div 1000) if they are nanoseconds),"
        )
    if number == "TXN-508":
        return (
            "correct the spout's format or schema; or, if the file is damaged, put a whole one "
            "beside it under a new name and let this batch pass (on_exhausted='quarantine'),"
        )
    return "correct the cause"


def not_started(topology: str, about: str, error: BaseException) -> TopologyError:
    """The error of a start that Spark refuses."""
    number = _number(error)
    return TopologyError(
        f"Topology '{topology}' could not start, {about}: {_sentence(cause_line(error))} Nothing "
        "was run: correct the cause and run again.",
        number="TXN-514" if number == BatchError.number else number,
    )


def given_up(topology: str, attempt: TransactionAttempt | None, error: str) -> BatchError:
    """The error that ends a run whose batch has used up its attempts."""
    no_space = os.strerror(errno.ENOSPC) in error
    return BatchError(
        f"Batch {attempt} of topology '{topology}' was given up: {_sentence(error)} "
        "Progress is intact: correct the cause and run again; the batch is replayed.",
        number="TXN-510" if no_space else "TXN-502",
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _is_malformed(error: BaseException) -> bool:
    return any(
        cause.condition.startswith(_MALFORMED)
        or (cause.condition == _RAISED and NOT_PARSED in cause.message)
        for cause in causes(error)
    )


def _number(error: BaseException) -> str:
    """The number for an error that stopped a batch: that of the innermost cause that has one."""
    if isinstance(error, TxnError):
        return error.number
    if isinstance(error, OverflowError):
        return "TXN-512"  # a committer's total that left its type
    if _is_malformed(error):
        return "TXN-508"  # for any kind of record that Spark could not parse
    for cause in reversed(causes(error)):
        if is_refused(cause):
            return "TXN-509"
        for number, conditions in _NUMBERS.items():
            if cause.condition.startswith(conditions):
                return number
    return BatchError.number
