"""`bad_rows=`: the fate of records that do not parse, for every spout that parses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from txn.errors import TopologyError
from txn.interfaces import Unparsed
from txn.spark.lazy import st

__all__ = ["PARSED", "OnBadRows", "marks", "marks_of", "permissive", "with_text"]

OnBadRows = Literal["fail", "drop", "set_aside"]

PARSED = ("csv", "json")
"""Formats whose records have columns and may fail to parse."""


def marks_of(
    spout: str,
    bad_rows: str,
    form: str | None,
    options: Mapping[str, Any],
    *,
    position: str,
    beside: int = 0,
    of_files: bool = False,
) -> Unparsed | None:
    """Return the marks for records that do not parse; None: they fail the batch.

    Args:
        form: the format of the records, such as "csv".
        options: the user's options for Spark's reader.
        position: name of the column with the place of each record.
        beside: as `Unparsed.beside`.
        of_files: True if a whole file may be unreadable, whatever its format.

    Raises:
        TopologyError: an unknown fate, a format without parsing, or Spark's options for the same.
    """
    if bad_rows not in get_args(OnBadRows):
        raise TopologyError(
            f"{spout}: bad_rows={bad_rows!r} is none of 'fail', 'drop' and 'set_aside'.",
            number="TXN-415",
        )
    if bad_rows == "fail":
        return None
    if form is None or (form not in PARSED and not of_files):
        raise TopologyError(
            f"{spout}: bad_rows={bad_rows!r} needs records that may not parse, such as those of "
            f"{' or '.join(PARSED)}, not of {form or 'bytes'}. Leave bad_rows out.",
            number="TXN-415",
        )
    conflicting = [
        name for name in options if name.lower() in ("mode", "columnnameofcorruptrecord")
    ]
    if conflicting:
        raise TopologyError(
            f"{spout} is given both bad_rows={bad_rows!r} and {conflicting[0]}=, which say "
            "different things about records that do not parse. Leave one of them out.",
            number="TXN-415",
        )
    fate: Any = bad_rows
    reason = "txn_reason" if of_files or form == "json" else None
    return Unparsed(fate, "txn_text", position, form, beside, reason)


def permissive(text: str) -> dict[str, str]:
    """Return Spark's options that put a record which does not parse into column `text`."""
    return {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": text}


def marks(unparsed: Unparsed | None) -> tuple[str, ...]:
    """Return the columns in which a spout marks its records."""
    return () if unparsed is None else unparsed.columns


def with_text(schema: st.StructType, *names: str) -> st.StructType:
    """Add columns of text to a schema.

    Raises:
        TopologyError: it has a column of that name.
    """
    taken = {name.lower() for name in schema.fieldNames()}
    for name in names:
        if name in taken:
            raise TopologyError(
                f"A schema of a spout with bad_rows cannot have a column '{name}': the spout marks "
                "records that do not parse by it. Rename the column, or leave bad_rows out.",
                number="TXN-415",
            )
    return st.StructType(
        [*schema.fields, *(st.StructField(name, st.StringType()) for name in names)]
    )
