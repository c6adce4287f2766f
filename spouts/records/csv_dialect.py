"""CSV as RFC 4180 defines it: where a record ends.

Spark cuts a file into lines before it parses quotes. It takes half of a quoted field for a whole
one, in every mode, and skips lines of blanks. So the text is matched with patterns first.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spouts.records.options import is_set, lowered
from txn.spark.lazy import sf

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Dialect", "reader_options"]


def reader_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaults that follow RFC 4180: a quote within quotes is doubled (Spark escapes it)."""
    by_name = lowered(options)
    return {} if "escape" in by_name else {"escape": str(by_name.get("quote", '"'))}


@dataclass(frozen=True)
class Dialect:
    """A dialect of CSV."""

    sep: str
    quote: str
    """Empty: nothing is quoted."""
    escape: str
    """The character before a quote that is part of a value."""
    before_escape: str
    """The character before an escape character that means itself."""
    comment: str
    line_end: str
    """Empty: CRLF, LF and CR."""
    skips_blanks: bool
    """True: blanks before a field are left out."""
    ends_at_sep: bool
    """True: text after a closing quote is unquoted up to the next separator."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Dialect:
        """Return the dialect of options for Spark's reader, over the spout's defaults."""
        by_name = {name: str(value) for name, value in lowered(options).items()}
        quote = by_name.get("quote", '"').replace("\0", "")
        escape = by_name.get("escape", quote).replace("\0", "")
        handling = by_name.get("unescapedquotehandling", "").upper()
        return cls(
            # Spark takes the two characters of `\t` for a tab.
            sep=by_name.get("sep", by_name.get("delimiter", ",")).replace("\\t", "\t"),
            quote=quote,
            escape=escape,
            before_escape=by_name.get(
                "chartoescapequoteescaping", "" if escape == quote else escape
            ),
            comment=by_name.get("comment", ""),
            line_end=by_name.get("linesep", ""),
            skips_blanks=is_set(options, "ignoreleadingwhitespace"),
            ends_at_sep=handling != "STOP_AT_CLOSING_QUOTE",
        )

    @property
    def line_ends(self) -> str:
        """A pattern for the end of a line."""
        return re.escape(self.line_end) or r"\r\n|\n|\r"

    def fields(self, line: str) -> list[str]:
        """Split a line into fields, except in dialects that only Spark can split."""
        if len(self.sep) != 1 or len(self.quote) != 1:
            return line.split(self.sep)
        escape = None if self.escape == self.quote else self.escape or None
        reader = csv.reader([line], delimiter=self.sep, quotechar=self.quote, escapechar=escape)
        return next(reader, [])

    def is_plain(self, text: str) -> bool:
        """Return True if a quick check proves `is_by_line` of a file's text."""
        if len(self.sep) != 1 or not self.sep.strip() or self.line_end or "\0" in text:
            return False
        if not self.quote or self.escape != self.quote:
            return not self.quote or self.quote not in text
        parts = f"\n{text}\n".split(self.quote)
        outside, inside, ends = parts[::2], parts[1::2], (self.sep, "\r", "\n")
        # An empty part outside of quotes is a doubled quote.
        return (
            len(outside) > len(inside)
            and all(not part or (part[0] in ends and part[-1] in ends) for part in outside)
            and not any("\n" in part or "\r" in part for part in inside)
        )

    def is_by_line(self, text: Column) -> Column:
        """Return True for a text whose every line is one record, also to Spark."""
        fine = sf.lit(True)
        if self.quote:
            ends = self.line_ends
            fine = ~sf.contains(text, sf.lit(self.quote))
            for pattern in (self._tidy(ends), self._file(ends)):  # the quicker pattern first
                fine |= text.rlike(pattern)
        fine &= ~_has_nul(text)
        if not self.sep.strip():
            # Spark skips a line of separators that are blanks: a record of NULLs.
            blank = rf"(?=[^{self._nl}]*{self._sep})[\x00-\x20&&[^{self._nl}]]++"
            fine &= ~text.rlike(f"(?<![^{self._nl}]){blank}(?![^{self._nl}])")
        return fine

    def is_record(self, text: Column) -> Column:
        """Return True for a text that is one record with every field closed."""
        if not self.quote:
            return ~text.rlike(f"[{self._nl}\\x00]")
        plain = ~text.rlike(f"[{self._nl}{self._quote}]")
        whole = plain | text.rlike(self._file("(?!)", several_lines=True))
        return whole & ~_has_nul(text)

    def line_end_of(self, text: Column) -> Column:
        """Return the line end of all records of a file; NULL: they differ, or a field is open."""
        line_end = sf.lit(None).cast("string")
        for end in [self.line_end] if self.line_end else ["\r", "\r\n", "\n"]:
            pattern = self._file(re.escape(end), several_lines=True)
            line_end = sf.when(text.rlike(pattern), sf.lit(end)).otherwise(line_end)
        return sf.when(~_has_nul(text), line_end)

    def _tidy(self, end: str) -> str:
        """Return a pattern for a whole file with quotes only where RFC 4180 allows them."""
        outside = f"[^{self._quote}]*+"
        before, behind = rf"(?<=\A|{self._sep}|{end})", rf"(?={self._sep}|{end}|\z)"
        field = f"{self._quote}{self._body(end)}{self._quote}"
        return rf"\A(?:{outside}{before}{field}{behind})*+{outside}\z"

    def _file(self, end: str, *, several_lines: bool = False) -> str:
        """Return a pattern for a whole file. All loops are possessive, or Java would recurse.

        Args:
            end: a pattern for the end of a record.
            several_lines: a quoted field may have several lines. No text may follow such a field:
                its closing quote may have been meant to open another.
        """
        plain = f"[^{self._sep}{self._nl}]"
        if len(self.sep) > 1:
            plain = f"(?:(?!{self._sep})[^{self._nl}])"
        field = f"{plain}*+"
        if self.quote:
            closed = rf"{self._blanks}(?={self._sep}|{end}|\z)"
            inner, behind = self._body(end), f"(?!{self._quote})"
            if self.ends_at_sep and self.escape:
                # Spark loses an escape if text follows the closing quote as well.
                inner = f"[^{self._quote}{re.escape(self.escape)}{self._nl}]*+"
            if len(self.sep) > 1:
                # Then it also doubles a quote at the end of its input, and loses the quotes of a
                # field that is followed by a part of a separator.
                last = r"\z" if several_lines else rf"(?:{end}|\z)"
                field += rf"(?!(?<={self._quote}){last})"
                behind += f"(?!{self._blanks}{re.escape(self.sep[0])})"
            quoted = [
                f"{self._quote}{self._body(end)}{self._quote}{closed}",
                f"{self._quote}{inner}{self._quote}{behind}{field}",
            ]
            if several_lines:
                body = self._body(end, several_lines=True)
                quoted.append(f"{self._quote}{body}{self._quote}{closed}")
            field = f"(?:{'|'.join(quoted)}|(?!{self._quote}){field})"
        if self.skips_blanks:
            field = self._blanks + field
        record = f"{field}(?:{self._sep}{field})*+"
        if self.comment:
            record = f"(?:{re.escape(self.comment)}[^{self._nl}]*+|{record})"
        return rf"\A\ufeff?+(?:{record}(?:{end}))*+{record}\z"

    def _body(self, end: str, *, several_lines: bool = False) -> str:
        """Return a pattern for the text between two quotes."""
        inner = f"[^{self._quote}{'' if several_lines else self._nl}]"
        escape, before = re.escape(self.escape), re.escape(self.before_escape)
        parts = [f"{before}{escape}"] if before and escape else []
        parts += [f"{escape}{self._quote}"] if escape else []
        if not self.ends_at_sep:
            parts.append(rf"{self._quote}(?!{self._blanks}(?:{self._sep}|{end}|\z))")
        several = inner.replace("[^", f"[^{escape}{before}", 1) + "++"
        return f"(?:{'|'.join([several, *parts, inner])})*+"

    @property
    def _blanks(self) -> str:
        return rf"[\x00-\x20&&[^{self._sep}{self._nl}]]*+"

    @property
    def _nl(self) -> str:
        """Characters that end lines, for use in [^...]."""
        return re.escape(self.line_end) or r"\r\n"

    @property
    def _quote(self) -> str:
        return re.escape(self.quote)

    @property
    def _sep(self) -> str:
        return re.escape(self.sep)


def _has_nul(text: Column) -> Column:
    """Return True for a text with a NUL: Spark's parser loses some, as it means "no character"."""
    return sf.contains(text, sf.lit("\0"))
