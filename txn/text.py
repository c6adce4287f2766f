"""Text for people: strangers' text made harmless, an error in one line, a duration in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["duration", "first_line", "place_of", "placed", "printable"]

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
