"""Put corrected records into a FileSpout's folder, as a file that it reads once.

A file is staged under a hidden name in the same folder, then linked under its own name: readers see
all of it or nothing, and an existing file is never overwritten.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spouts.files.folder.listing import PACKED, Listing
from spouts.records.csv_dialect import Dialect
from spouts.records.options import encoding_of, is_known, is_set, lowered
from txn.errors import UserError
from txn.interfaces import Inlet
from txn.storage.local import sync_folder, temporary_file

__all__ = ["FileInlet"]

_COMPRESSED = (*PACKED, ".gzip", ".zstd", ".xz")
"""Endings of compressed files, also those of codecs that users have added."""
_STRIPPED = re.compile(r"\S(.*\S)?", re.DOTALL)
_BLANKS = "".join(map(chr, range(33)))
"""Spark skips a line of these characters alone."""
_CHOOSES = {"basepath", "modifiedafter", "modifiedbefore", "pathglobfilter"}
"""Options that choose files by path or time: they may leave out a new file."""
_SHAPES = {
    "dateformat": "date",
    "emptyvalue": "",
    "locale": r"decimal",
    "nanvalue": "float|double",
    "negativeinf": "float|double",
    "positiveinf": "float|double",
    "chartoescapequoteescaping": "",
    "singlevariantcolumn": "",
    "timeformat": r"time\(",
    "timestampformat": "timestamp$",
    "timestampntzformat": "timestamp_ntz",
}
"""Option -> pattern of the types that it spells in a way that this module does not write."""


class FileInlet(Inlet):
    """The folder of a FileSpout, with the listing of its pattern and its options for reading."""

    def __init__(self, spout: str, listing: Listing, form: str, options: Mapping[str, Any]) -> None:
        self._spout = spout
        self._listing = listing
        self._form = form
        self._options = lowered(options)
        self._dialect = Dialect.of(options)

    # --- the content of the file -------------------------------------------------------------

    def content(self, raw: Sequence[str], rows: Sequence[str], position: Any) -> bytes:
        """Return the records, one a line, after a CSV header if the spout's files have one."""
        whole = {"json": "multiline", "text": "wholetext"}.get(self._form)
        if self._form not in ("csv", "json", "text") or (whole and self._is(whole)):
            raise self._cannot_write(f"{self._form} of whole files" if whole else self._form)
        fields = _fields(position)
        if named := self._not_mirrored(fields if rows else ()):
            raise self._cannot_write(f"{self._form} with {', '.join(named)}")
        lines = [self._csv([field["name"] for field in fields])] if self._has_header else []
        lines += [*raw, *(self._record(row, fields) for row in rows)]
        end = str(self._options.get("linesep", "\n"))
        if self._form == "json" and any(end in row for row in rows):
            raise self._cannot_write(f"json with lineSep={end!r}, which is in a record,")
        try:
            return "".join(line + end for line in lines).encode(self._encoding)
        except (LookupError, UnicodeEncodeError) as error:
            raise self._cannot_write(f"{self._encoding} ({error})") from error

    def _not_mirrored(self, fields: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the options that shape values on reading, and that this module does not write.

        Args:
            fields: fields of the records to write anew; empty: they are written unchanged.
        """
        types = [*_types([field["type"] for field in fields])]
        named = [name for name in self._options if name in _CHOOSES]
        for name in self._options if types and self._form != "text" else ():
            shapes = _SHAPES.get(name)
            if name == "locale" and self._form == "json":
                continue  # decimals are written as numbers
            if shapes is None:
                is_mirrored = "." in name or is_known(self._form, name)
            else:
                is_mirrored = not any(re.match(shapes, one) for one in types)
            if not is_mirrored:
                named.append(name)
        if "\\" in self._dialect.sep:
            named.append("sep")
        broken = self._options.get("columnnameofcorruptrecord", "_corrupt_record")
        if any(field["name"] == broken for field in fields):
            named.append(f"a column {broken}")
        return named

    def _cannot_write(self, what: str) -> UserError:
        return UserError(
            f"{self._spout} reads {what}, which `txn rows export` does not write. Take the "
            "rows from `txn rows show --json`, write a file of that format yourself, and give "
            "it to `txn rows replay`.",
            number="TXN-516",
        )

    def check(self, content: bytes, position: Any) -> None:
        """Refuse a CSV file without the needed header, and any file that options may leave out."""
        if chosen := [name for name in self._options if name in _CHOOSES]:
            raise UserError(
                f"{self._spout} reads with {', '.join(chosen)}, which may leave out the file of a "
                "replay. Put the corrected records into the folder yourself, in a file that the "
                "option lets pass. Nothing was changed.",
                number="TXN-516",
            )
        if not self._has_header or self._is("enforceschema") or not content:
            return
        names = [field["name"] for field in _fields(position)]
        text = content.decode(self._encoding, "replace").lstrip("\ufeff")
        first = re.split(self._dialect.line_ends, text, maxsplit=1)[0]
        if _lower(self._dialect.fields(first)) != _lower(names):
            raise UserError(
                f"{self._spout} reads a header, and the first line of the file is not "
                f"{self._csv(names)!r} but {first[:200]!r}: the batch that reads it would fail. "
                "Correct the first line. Nothing was changed.",
                number="TXN-516",
            )

    def _record(self, row: str, fields: Sequence[Mapping[str, Any]]) -> str:
        if self._form == "json":
            return row
        # Numbers as text: a float would round a decimal.
        values = json.loads(row, parse_float=str, parse_int=str)
        if self._form == "text":
            return values["value"] or ""
        for field in fields:
            if field["type"] == "binary" and values.get(field["name"]) is not None:
                # CSV has the bytes themselves, JSON has them as base64.
                values[field["name"]] = base64.b64decode(values[field["name"]]).decode()
        return self._csv([values.get(field["name"]) for field in fields])

    def _csv(self, values: Sequence[Any]) -> str:
        """Return one line for Spark; `csv` would write NULL and the empty string alike."""
        first, *rest = map(self._field, values)
        separator, quote = self._dialect.sep, self._dialect.quote
        if not "".join([first, separator.join(["", *rest])]).strip(_BLANKS):
            first = quote + first + quote  # a blank line is not a record
        return separator.join([first, *rest])

    def _field(self, value: Any) -> str:
        if value is None and not (value := self._options.get("nullvalue")):
            return ""
        text = value if isinstance(value, str) else json.dumps(value)
        quote, escape, comment = self._dialect.quote, self._dialect.escape, self._dialect.comment
        special = (*self._dialect.sep, quote, self._dialect.line_end, "\n", "\r", comment, "\ufeff")
        plain = _STRIPPED.fullmatch(text) and not any(c and c in text for c in special)
        lost = "\0" in text or ("\r" in text and "linesep" not in self._options)
        lost |= quote in text and not escape if quote else not text or "\n" in text
        if lost:
            raise self._cannot_write(
                f"csv that cannot have the value {text[:99]!r} with its options,"
            )
        if plain or not quote:
            return text
        if escape != quote:
            text = text.replace(escape, escape * 2)
        return quote + text.replace(quote, escape + quote) + quote

    @property
    def _has_header(self) -> bool:
        return self._form == "csv" and self._is("header")

    @property
    def _encoding(self) -> str:
        return encoding_of(self._options) or "utf-8"

    def _is(self, option: str) -> bool:
        return is_set(self._options, option)

    # --- the place of the file ---------------------------------------------------------------

    def name(self, stem: str) -> str:
        """Return a name that the pattern matches, spelled as the spout spells its files."""
        if self._listing.remote:
            raise UserError(
                f"{self._spout} reads remote storage, where `txn rows replay` cannot put a file "
                "without the danger of replacing one. Upload the corrected file there yourself, "
                "under a new name; it is read once. `txn rows list` goes on calling its rows open.",
                number="TXN-516",
            )
        name = self._listing.new_name(stem)
        if name is None:
            raise UserError(
                f"The pattern of {self._spout} matches no file like '{stem}', so a file of "
                "corrected rows would never be read. Give the spout a pattern with a * in it that "
                "also matches the files read so far, such as 'data/*.csv'.",
                number="TXN-516",
            )
        if name.lower().endswith(_COMPRESSED):
            raise UserError(
                f"{self._spout} reads compressed files, and '{name}' would not be one. Compress "
                "the corrected file yourself and move it into the folder under a new name, or "
                "widen the pattern so that it ends in *.",
                number="TXN-516",
            )
        if not Path(self._listing.local(self._listing.base)).is_dir():
            raise UserError(
                f"There is no folder '{self._listing.local(self._listing.base)}', in which "
                f"{self._spout} looks for files. Run this in the folder in which the topology "
                "runs; if it is not there either, make it.",
                number="TXN-516",
            )
        return name

    def takes(self, place: str) -> bool:
        """Return True if the pattern matches the path."""
        if self._listing.remote:
            return False
        folder = self._listing.local("")
        relative = self._listing.kind == "relative"
        return self._listing.matches(os.path.relpath(place, folder) if relative else place)

    def place(self, name: str) -> str:
        """Return the absolute path."""
        return os.path.normpath(self._listing.local(name))

    def names(self, start: str) -> list[str]:
        """Return the files whose own name begins with `start`."""
        names = self._listing.names()
        return [name for name in names if name.rpartition("/")[2].startswith(start)]

    def stage(self, name: str, content: bytes) -> None:
        """Write the content, durably, under a hidden name beside the file."""
        hidden = self._hidden(name)
        try:
            # A process that stages the same file now links a whole one: this one or its own.
            place = hidden.with_name("txn")  # short: a name has 255 bytes at most
            with temporary_file(str(place), content, durable=True) as unique:
                Path(unique).chmod(0o644)  # the topology may run as another user
                Path(unique).replace(hidden)
            sync_folder(str(hidden.parent))
        except OSError as error:
            raise self._cannot(hidden, error) from error

    def staged(self, name: str) -> str:
        """Return the hidden name."""
        return str(self._hidden(name))

    def put(self, name: str, sha256: str) -> None:
        """Link the staged file under its own name, unless this was done before."""
        hidden, path = self._hidden(name), Path(self.place(name))
        try:
            with contextlib.suppress(FileExistsError):
                _link(hidden, path)
            sync_folder(str(path.parent))
            if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                raise UserError(
                    f"There is a file '{path}' with other content than that of the replay. It was "
                    "left as it is. Find out who put it there, move it away, and run the same "
                    "command again.",
                    number="TXN-516",
                )
            hidden.unlink(missing_ok=True)
        except OSError as error:
            raise self._cannot(path, error) from error

    def _hidden(self, name: str) -> Path:
        path = Path(self.place(name))
        return path.with_name(f".{path.name}.tmp")

    def _cannot(self, path: Path, error: OSError) -> UserError:
        return UserError(
            f"The file '{path}' cannot be written: {error.strerror or error}. Correct that and "
            "run the same command again: nothing is doubled by it.",
            number="TXN-516",
        )


def _link(hidden: Path, path: Path) -> None:
    try:
        os.link(hidden, path)
    except FileNotFoundError:
        # Another process has put the same file meanwhile and removed the hidden one.
        if not path.exists():
            raise


def _fields(position: Any) -> list[dict[str, Any]]:
    return json.loads(position["read_schema"])["fields"] if position else []


def _types(type_: Any) -> Iterator[str]:
    """Yield the names of all types within one, as in Spark's JSON of a schema."""
    if isinstance(type_, list):
        for one in type_:
            yield from _types(one)
    elif isinstance(type_, dict):
        inner = [type_.get(key) for key in ("elementType", "keyType", "valueType")]
        yield from _types([*filter(None, inner), *(f["type"] for f in type_.get("fields", ()))])
    else:
        yield str(type_)


def _lower(names: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in names]
