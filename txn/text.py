"""Text for people: strangers' text made harmless, an error in one line, a duration in words."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "duration",
    "first_line",
    "last_users_frame",
    "place_of",
    "placed",
    "printable",
    "users_line",
]

_OURS = tuple(f"{Path(__file__).parents[1] / name}/" for name in ("txn", "spouts", "committers"))
_SPARK_OR_PYTHON = re.compile(
    r"[/\\](?:pyspark|py4j)(?:[/\\]|-[^/\\]*\.zip)|[/\\][Ll]ib[/\\]python3[^/\\]*[/\\](?!site-packages"
    r"|dist-packages)|^<(?:frozen|string)"
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_PLACE = "_txn_place"
"""Attribute of an error: the innermost place that it came from."""


def printable(text: str) -> str:
    r"""Foreign text, safe for a terminal.

    Characters that move the cursor, hide or turn around what stands beside them, and halves of
    characters, become escapes such as `\x1b`; line breaks and tabs stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def first_line(error: BaseException, said: str | None = None) -> str:
    """The kind of an error, and the first line of what it says if it says anything.

    Args:
        said: what it says, where that is not all of its own text.
    """
    lines = (str(error) if said is None else said).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def last_users_frame(files: Iterable[str]) -> int | None:
    """Which of a traceback's files, the outermost first, is the last one that the user wrote.

    A package that was installed counts only if nothing else is the user's: their job may be one.

    Returns:
        its index; None if all of them are ours, Spark's or Python's.
    """
    own = [
        (index, _INSTALLED.search(file) is not None)
        for index, file in enumerate(files)
        if not file.startswith(_OURS) and not _SPARK_OR_PYTHON.search(file)
    ]
    written = [index for index, installed in own if not installed]
    return max(written or (index for index, _ in own), default=None)


def users_line(error: BaseException) -> str:
    """The user's own line in which an error arose: `clean (orders.py:12)`; empty if none."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in frames]
    # What called us is not the cause: only what we called may be.
    entered = next((i for i, file in enumerate(files) if file.startswith(_OURS)), 0)
    last = last_users_frame(files[entered:])
    if last is None:
        return ""
    frame = frames[entered + last]
    return f"{frame.name} ({frame.filename}:{frame.lineno})"


@contextmanager
def placed(where: str) -> Iterator[None]:
    """An error that leaves the block came from there, unless a block within says it already."""
    try:
        yield
    except Exception as error:
        vars(error).setdefault(_PLACE, where)
        raise


def place_of(error: BaseException) -> str | None:
    """The innermost `placed` that an error came from; None if there is none."""
    return vars(error).get(_PLACE)


def duration(seconds: float) -> str:
    """Seconds for people: `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
