"""What hands, disks and scripts do to the bytes of a file after it was written."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

__all__ = ["DAMAGES", "JSON_ONLY"]

Damage = Callable[[random.Random, bytes], bytes]


def _lines(data: bytes) -> list[bytes]:
    return re.split(rb"(?<=\n)", data)


def _place(draw: random.Random, data: bytes) -> int:
    return draw.randint(0, len(data))


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: _place(draw, data)]


def _cut_head(draw: random.Random, data: bytes) -> bytes:
    return data[_place(draw, data) :]


def _without_some(draw: random.Random, data: bytes) -> bytes:
    start = _place(draw, data)
    return data[:start] + data[start + draw.randint(1, 12) :]


def _double_line(draw: random.Random, data: bytes) -> bytes:
    lines = _lines(data)
    place = draw.randrange(len(lines))
    return b"".join([*lines[:place], lines[place], *lines[place:]])


def _join_lines(draw: random.Random, data: bytes) -> bytes:
    """Two writers without a newline between them."""
    ends = [m.span() for m in re.finditer(rb"\r?\n", data)]
    if not ends:
        return data
    start, end = draw.choice(ends)
    return data[:start] + draw.choice((b"", b" ", b",")) + data[end:]


def _insert(*pieces: bytes) -> Damage:
    def insert(draw: random.Random, data: bytes) -> bytes:
        place = _place(draw, data)
        return data[:place] + draw.choice(pieces) + data[place:]

    return insert


def _behind_line(*pieces: bytes) -> Damage:
    def behind(draw: random.Random, data: bytes) -> bytes:
        ends = [m.start() for m in re.finditer(rb"\r?\n|\Z", data)]
        place = draw.choice(ends)
        return data[:place] + draw.choice(pieces) + data[place:]

    return behind


def _new_line(*pieces: bytes) -> Damage:
    def added(draw: random.Random, data: bytes) -> bytes:
        lines = _lines(data)
        place = draw.randint(0, len(lines))
        return b"".join([*lines[:place], draw.choice(pieces), *lines[place:]])

    return added


def _ends(draw: random.Random, data: bytes) -> bytes:
    new = draw.choice((b"\r\n", b"\r"))
    lines = re.sub(rb"\r\n|\r", b"\n", data).split(b"\n")
    if draw.random() < 0.5:
        return new.join(lines)
    place = draw.randrange(len(lines))  # one of them only
    return b"\n".join(lines[:place]) + (new if place else b"") + b"\n".join(lines[place:])


def _encoded(name: str) -> Damage:
    def encoded(draw: random.Random, data: bytes) -> bytes:
        return data.decode("utf-8", "replace").encode(name, "replace")

    return encoded


def _array_line(draw: random.Random, data: bytes) -> bytes:
    lines = data.splitlines()
    if not lines:
        return data
    first = draw.randrange(len(lines))
    last = min(len(lines), first + draw.randint(1, 3))
    return b"\n".join([*lines[:first], b"[" + b",".join(lines[first:last]) + b"]", *lines[last:]])


def _other_case(draw: random.Random, data: bytes) -> bytes:
    """Keys in capitals, in one line or in all."""
    lines = _lines(data)
    chosen = draw.choice([range(len(lines)), [draw.randrange(len(lines))]])
    for place in chosen:
        lines[place] = re.sub(rb'"(\w+)"\s*:', lambda m: m[0].upper(), lines[place])
    return b"".join(lines)


DAMAGES: dict[str, Damage] = {
    "cut": _cut,
    "head cut off": _cut_head,
    "some bytes lost": _without_some,
    "a line twice": _double_line,
    "lines joined": _join_lines,
    "NUL": _insert(b"\x00"),
    "no UTF-8": _insert(b"\xff", b"\xc3", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f"),
    "BOM": lambda draw, data: b"\xef\xbb\xbf" + data,
    "BOM within": _insert(b"\xef\xbb\xbf"),
    "quote": _insert(b'"', b'""'),
    "backslash": _insert(b"\\"),
    "behind a line": _behind_line(b"x", b" ", b",", b'"', b"}", b'{"a":1}', b"]", b" null", b"\t"),
    "a line more": _new_line(b"\n", b" \n", b"word\n", b'"\n', b"null\n", b"[]\n", b"{}\n", b"1\n"),
    "line ends": _ends,
    "no last newline": lambda draw, data: data.rstrip(b"\r\n"),
    "latin-1": _encoded("latin-1"),
    "utf-16": _encoded("utf-16"),
    "twice": lambda draw, data: data + data,
    "empty": lambda draw, data: b"",
    "blanks before": lambda draw, data: draw.choice((b" ", b"\n", b"\t\r\n")) + data,
}
JSON_ONLY: dict[str, Damage] = {
    "a line is an array": _array_line,
    "keys in capitals": _other_case,
    "an object behind": _behind_line(b'{"id":2}', b' {"id":', b"[]", b',{"id":3}'),
}
