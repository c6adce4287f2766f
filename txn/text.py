"""Text for people: foreign text, durations and sizes, an error in one line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

__all__ = [
    "counted",
    "duration",
    "event_time",
    "first_items",
    "first_line",
    "first_said",
    "is_installed",
    "is_ours",
    "is_the_users",
    "last_users_frame",
    "place_of",
    "placed",
    "printable",
    "size",
    "users_line",
]

_UNITS = ("kB", "MB", "GB", "TB", "PB")
_OURS = tuple(f"{Path(__file__).parents[1] / name}/" for name in ("txn", "spouts", "committers"))
_SPARK_OR_PYTHON = re.compile(
    r"[/\\](?:pyspark|py4j)(?:[/\\]|-[^/\\]*\.zip)|[/\\][Ll]ib(?:64)?[/\\]python3[^/\\]*[/\\](?!site-packages"
    r"|dist-packages)|^<(?:frozen|string)"
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC, which the text says
_SHOWN_ITEMS = 3
_PLACE = "_txn_place"
"""Attribute of an error: the innermost place where it was raised."""


def printable(text: str) -> str:
    r"""Return foreign text, safe for a terminal.

    Control characters, characters that hide or reverse their neighbours, and lone surrogates become
    escapes such as `\x1b`; line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def first_line(error: BaseException, said: str | None = None) -> str:
    """Return the class of an error and the first line of its message, if any; printable.

    Args:
        said: the message, if it is not all of the error's own text.
    """
    lines = (str(error) if said is None else said).strip().splitlines()
    return f"{type(error).__name__}: {printable(lines[0])}" if lines else type(error).__name__


def first_said(error: BaseException) -> str:
    """Return the first line of an error's message, printable; its class if it has none."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def is_ours(file: str) -> bool:
    """True if a file of code belongs to this project."""
    return file.startswith(_OURS)


def is_the_users(file: str) -> bool:
    """True if a file of code is neither ours, nor Spark's, nor Python's."""
    return not is_ours(file) and not _SPARK_OR_PYTHON.search(file)


def is_installed(file: str) -> bool:
    """True if a file belongs to an installed package."""
    return _INSTALLED.search(file) is not None


def last_users_frame(files: Iterable[str]) -> int | None:
    """Find the last file of a traceback, outermost first, that the user wrote.

    An installed package counts only if no other file is the user's: their job may be one.

    Returns:
        Its index; None if all files are ours, Spark's or Python's.
    """
    user_files = [
        (index, is_installed(file)) for index, file in enumerate(files) if is_the_users(file)
    ]
    written = [index for index, installed in user_files if not installed]
    return max(written or (index for index, _ in user_files), default=None)


def users_line(error: BaseException) -> str:
    """Return the user's own line in which an error arose: `clean (orders.py:12)`; "" if none."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in frames]
    # Our callers are not the cause: only code that we called may be.
    entered = next((i for i, file in enumerate(files) if is_ours(file)), 0)
    last = last_users_frame(files[entered:])
    if last is None:
        return ""
    frame = frames[entered + last]
    return f"{frame.name} ({frame.filename}:{frame.lineno})"


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Mark an error that leaves the block with its place, unless an inner block has done so."""
    try:
        yield
    except Exception as error:
        vars(error).setdefault(_PLACE, where)
        raise


def place_of(error: BaseException) -> str | None:
    """Return the place of the innermost `placed` block that an error left, or None."""
    return vars(error).get(_PLACE)


def duration(seconds: float) -> str:
    """Return seconds for people: `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def event_time(at: int) -> str:
    """Return microseconds since 1970, UTC, for people: `2026-01-31 09:30:00 UTC`."""
    try:
        moment = _EPOCH + timedelta(microseconds=at)
    except OverflowError:
        return f"{at} microseconds after 1970"
    return f"{moment.isoformat(' ')} UTC"


def counted(count: int, one: str, several: str = "") -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`, `2 batches`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def size(count: int) -> str:
    """Return bytes for people, in decimal units: `740 bytes`, `1.2 MB`."""
    if count < 1000:
        return f"{count} bytes"
    value, unit = float(count), 0
    # 999,950 would be rounded to 1000.0 kB.
    while value >= 999.95 and unit < len(_UNITS):
        value, unit = value / 1000, unit + 1
    return f"{value:,.1f} {_UNITS[unit - 1]}"


def first_items(items: Sequence[str], most: int = _SHOWN_ITEMS) -> str:
    """The first items in one line, and the number of others."""
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")
