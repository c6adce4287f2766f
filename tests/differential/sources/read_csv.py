"""CSV as RFC 4180 has it: a state machine of its own over the characters of a file.

Where the RFC says nothing (a quote inside an unquoted field, letters behind a closing quote), the
record may be set aside, or stored as it stands; parts of it may not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import dropwhile, pairwise

from tests.differential.sources.records import Bad, Expected, Field, Good, Outcome, row_of
from tests.differential.sources.texts import read_text

__all__ = ["Dialect", "csv_records", "csv_value", "header_of", "is_unclear"]

Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Dialect:
    """The options of the reader."""

    sep: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    lines: bool = True
    """Whether a record ends with its line (no `multiLine`)."""


@dataclass
class _Record:
    start: int
    end: int = 0
    fields: list[tuple[str, bool]] = field(default_factory=list)
    """The text of each, and whether it was quoted."""
    flaws: set[str] = field(default_factory=set)


class _Machine:
    """Cuts a text into records."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.at = 0
        self.dialect = dialect

    def records(self) -> list[_Record]:
        found = []
        while self.at < len(self.text):
            found.append(self._record())
        return found

    def _record(self) -> _Record:
        record = _Record(self.at)
        while True:
            self._field(record)
            if self.text.startswith(self.dialect.sep, self.at):
                self.at += len(self.dialect.sep)
                continue
            record.end = self.at
            if self.text.startswith("\r\n", self.at):
                self.at += 2
            else:
                self.at += 1
            return record

    def _field(self, record: _Record) -> None:
        dialect, text = self.dialect, self.text
        if dialect.quote and text.startswith(dialect.quote, self.at):
            value = self._quoted(record)
            rest = self._until_end()
            if rest:
                record.flaws.add("letters behind a closing quote")
            record.fields.append((value, True))
            return
        value = self._until_end()
        if dialect.quote and dialect.quote in value:
            record.flaws.add("a quote in a field that is not quoted")
        record.fields.append((value, False))

    def _quoted(self, record: _Record) -> str:
        dialect, text = self.dialect, self.text
        self.at += 1
        value = []
        while self.at < len(text):
            letter = text[self.at]
            following = text[self.at + 1 : self.at + 2]
            if letter == dialect.escape and following == dialect.quote:
                value.append(following)
                self.at += 2
            elif letter == dialect.escape != dialect.quote and following == dialect.escape:
                record.flaws.add("an escape character before another")
                value.append(following)
                self.at += 2
            elif letter == dialect.quote:
                self.at += 1
                return "".join(value)
            else:
                value.append(letter)
                self.at += 1
        record.flaws.add("open")
        return "".join(value)

    def _until_end(self) -> str:
        start = self.at
        while self.at < len(self.text):
            if self.text[self.at] in "\r\n" or self.text.startswith(self.dialect.sep, self.at):
                break
            self.at += 1
        return self.text[start : self.at]


def csv_records(text: str, dialect: Dialect, columns: Columns, header: bool) -> list[Expected]:
    """The records of a file."""
    found = [one for one in _Machine(text, dialect).records() if one.end > one.start]
    if header:
        found = _from_header(text, found, dialect)[1:]
    expected: list[Expected] = []
    for record in found:
        raw = text[record.start : record.end]
        if dialect.lines and re.search("[\r\n]", raw):
            expected += _spanning(record, raw, dialect, columns)
        else:
            expected.append(_expected(record, raw, columns, dialect))
    return expected


def header_of(text: str, dialect: Dialect) -> list[str] | None:
    """The names of the first record; None: the file has none."""
    found = [one for one in _Machine(text, dialect).records() if one.end > one.start]
    first = _from_header(text, found, dialect)[:1]
    return [value for value, _ in first[0].fields] if first else None


def is_unclear(text: str, dialect: Dialect) -> bool:
    """Whether a field is not closed, or has text behind it and several lines or quotes in it.

    Then nobody can say where records end, or Spark would store other quotes.
    """
    for record in _Machine(text, dialect).records():
        raw = text[record.start : record.end]
        escaped = '""' in raw or (
            dialect.escape and dialect.escape != '"' and dialect.escape in raw
        )
        if "open" in record.flaws or (record.flaws and (escaped or re.search("[\r\n]", raw))):
            return True
    return False


def _from_header(text: str, found: list[_Record], dialect: Dialect) -> list[_Record]:
    """Without the lines of blanks above the header."""

    def is_blank(record: _Record) -> bool:
        raw = text[record.start : record.end]
        return _is_blank(raw) and dialect.sep not in raw

    return list(dropwhile(is_blank, found))


def _is_blank(raw: str) -> bool:
    """Whether a line has nothing but blanks and control characters, which is no record."""
    return all(character <= " " for character in raw)


def csv_value(text: str, dialect: Dialect, columns: Columns) -> Expected:
    """The record of one value of Kafka; a mark of its encoding and its line end are none of it."""
    inner = re.sub(r"\A\ufeff+|\r?\n\Z", "", text)
    found = _Machine(inner, dialect).records()
    if len(found) != 1 or not inner.strip():
        return Expected(((Bad(text),),), text)
    own = _expected(found[0], text, columns, dialect)
    if inner.endswith(("\r", "\n")) or "\x00" in inner:  # more than the end of its line; or NULs
        return Expected((*own.outcomes, (Bad(text),)), text)
    return own


def _spanning(record: _Record, raw: str, dialect: Dialect, columns: Columns) -> list[Expected]:
    """A record over several lines, read line by line: whole, or aside, but never its halves."""
    parts = [part for part in re.split(r"\r\n|\n|\r", raw) if part]
    if "open" in record.flaws:  # nobody can tell whether what follows belongs to it
        first, *rest = parts
        each = [_alone(part, dialect, columns) for part in rest]
        if not each:
            return [Expected(((Bad(first),),), first)]
        return [Expected(((Bad(first),),), first), *each]
    whole = _expected(record, raw, columns, dialect)
    aside: Outcome = tuple(Bad(part) for part in parts)
    return [Expected((*whole.outcomes, aside, (Bad(raw),)), raw)]


def _alone(line: str, dialect: Dialect, columns: Columns) -> Expected:
    """A line that may be a record, or the rest of one."""
    (record,) = _Machine(line, dialect).records()
    own = _expected(record, line, columns, dialect)
    return Expected((*own.outcomes, (Bad(line),)), line)


def _expected(record: _Record, raw: str, columns: Columns, dialect: Dialect) -> Expected:
    bad: Outcome = (Bad(raw),)
    if "open" in record.flaws:
        return Expected((bad,), raw)
    if len(record.fields) != len(columns):
        nothing: tuple[Outcome, ...] = ((),) if _is_blank(raw) and dialect.sep not in raw else ()
        return Expected((bad, *nothing), raw)
    if _is_blank(raw) and dialect.sep not in raw:
        return Expected((bad, ()), raw)
    fields = [
        _field(text, quoted, kind, dialect)
        for (text, quoted), (_, kind) in zip(record.fields, columns, strict=True)
    ]
    if not record.flaws:
        return row_of(fields, raw)
    literal = _literal(raw, dialect, columns)
    return (
        Expected((*literal, *row_of(fields, raw).outcomes, bad), raw)
        if (record.flaws == {"an escape character before another"})
        else Expected((*literal, bad), raw)
    )


def _literal(raw: str, dialect: Dialect, columns: Columns) -> tuple[Outcome, ...]:
    """A record with a flaw, every field of which is stored as it stands."""
    cuts = [0]
    machine = _Machine(raw, dialect)
    record = _Record(0)
    while True:
        machine._field(record)
        cuts.append(machine.at + len(dialect.sep))
        if not raw.startswith(dialect.sep, machine.at):
            break
        machine.at += len(dialect.sep)
    texts = [raw[start : end - len(dialect.sep)] for start, end in pairwise(cuts)]
    fields = []
    for stands, (value, quoted), (_, kind) in zip(texts, record.fields, columns, strict=True):
        inner = stands[1:-1] if quoted and stands.endswith(dialect.quote) else stands
        # Escaped quotes are quotes; one that is not escaped stands as it is.
        escaped = inner.replace(dialect.escape + dialect.quote, dialect.quote)
        options = [_field(text, quoted, kind, dialect) for text in (stands, inner, value, escaped)]
        if quoted and not stands.endswith(dialect.quote):
            options = options[:1]
        values = tuple(one for option in options for one in option.values)
        fields.append(Field(values, any(option.bad for option in options)))
    if not all(one.values for one in fields):
        return ()
    return ((Good(tuple(fields)),),)


def _field(text: str, quoted: bool, kind: str, dialect: Dialect) -> Field:
    if text == dialect.null and not quoted:
        return Field((None,))
    own = read_text(kind, text)
    if quoted and text in (dialect.null, ""):
        # A quoted NULL: Spark's reader cannot tell it from one without quotes.
        return Field((*own.values, None), own.bad)
    if not quoted and text == "":
        return Field((*own.values, None), own.bad)
    return own
