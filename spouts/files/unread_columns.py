"""Warn of columns that reach no table: a file has them and the schema lacks them.

Spark's readers ignore them, and read NULL for columns of the schema that a file lacks. So a key in
another case, records within an envelope, and renamed columns look like rows of NULL. The first
record of a few files shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spouts.files.columns import (
    OVER_LINES,
    beginning,
    columns_of,
    first_object,
    goes_over_lines,
    header_of,
)
from spouts.files.source_files import SourceFiles
from spouts.records.options import lowered
from txn.errors import SourceChangedError, StorageRefusedError, StorageUnavailableError
from txn.interfaces import NOTICES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["UnreadColumns"]

_LOOKED = 20
"""Most files of a batch to check; of remote ones only the first, with one request."""
_KINDS = 20
"""Most notices of a run."""
_NAMED = 20
"""Most columns in one notice."""

notices = logging.getLogger(f"{NOTICES}.files")


class UnreadColumns:
    """The notices of unread columns. Only the planner checks; any thread may ask for `texts`."""

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._listing = files.listing
        options = lowered(files.options)
        has_header = files.form == "csv" and files.are("header") and files.new_columns is not None
        self._has_names = (
            has_header or files.form in ("json", "parquet")
        ) and "singlevariantcolumn" not in options
        self._takes_folders = "basepath" in options
        self._notices: dict[tuple[str, ...], str] = {}
        """Kind -> the notice of its first file."""

    def texts(self) -> list[str]:
        """Return the notices of this run so far."""
        return [*self._notices.values()]

    def look(self, names: Sequence[str], schema: StructType) -> None:
        """Check the files of a batch, and warn once of each kind of unread columns."""
        most = len(names) if self._files.new_columns else _LOOKED
        for name in names[: 1 if self._listing.remote else most]:
            try:
                problems = [*self._unread(name, schema.fieldNames())]
            except (OSError, StorageUnavailableError, StorageRefusedError):
                return  # reading the file reports it
            for kind, text in problems:
                if kind not in self._notices and len(self._notices) < _KINDS:
                    self._notices = {**self._notices, kind: f"{self._files.spout}: {name} {text}"}
                    notices.warning("%s", self._notices[kind])

    def refuse_new(self, name: str, schema: StructType, *, declared: bool) -> None:
        """Refuse a file with columns that the schema lacks, unless these are to be ignored.

        Raises:
            SourceChangedError: it has such columns.
        """
        if self._files.new_columns not in ("fail", "add"):
            return
        if not (new := self.new(name, schema)):
            return
        way_out = (
            "To go on without them, say new_columns='ignore'; to read them from here on, "
            "new_columns='add'."
        )
        if self._files.new_columns == "add":
            first = "Add them to the spout's schema and start" if declared else "Start"
            way_out = f"{first} the run again: it then reads them."
        raise SourceChangedError(
            f"{self._files.spout}: {name} has columns that the schema lacks: {_some(new)}. "
            f"Nothing of it was read. {way_out}",
            number="TXN-411",
        )

    def new(self, name: str, schema: StructType) -> list[str]:
        """Return the columns of a file that the schema lacks, as far as its beginning shows.

        A file that is gone or unreadable has none here; reading it reports that.
        """
        try:
            columns = self._columns(name)
        except (OSError, StorageUnavailableError, StorageRefusedError):
            return []
        names = {column.lower() for column in schema.fieldNames()}
        return [column for column in columns if column.lower() not in names]

    def _columns(self, name: str) -> Mapping[str, Any]:
        """Return column -> type or first value of a file; empty: unknown."""
        if not self._has_names:
            return {}
        if self._files.form == "csv":
            return dict.fromkeys(filter(None, header_of(self._files, name)))
        if self._files.form == "json":
            text = beginning(self._files, name)
            return {} if goes_over_lines(self._files, text) else first_object(text) or {}
        return columns_of(self._files, name) or {}

    def _beyond(self, columns: Iterable[str], schema: Sequence[str]) -> list[str]:
        names = {self._alike(column) for column in schema}
        return [column for column in columns if self._alike(column) not in names]

    def _alike(self, column: str) -> str:
        # Spark distinguishes capitals in JSON only.
        return column if self._files.form == "json" else column.lower()

    def _unread(self, name: str, schema: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield (kind, text) for columns that are not read."""
        columns = self._columns(name)
        is_json = self._has_names and self._files.form == "json"
        if is_json and not columns and goes_over_lines(self._files, beginning(self._files, name)):
            yield ("lines",), OVER_LINES
        start = len(self._listing.base)
        folders = [part for part in name[start:].split("/")[:-1] if "=" in part]
        keys = [folder.partition("=")[0] for folder in folders]
        if folders and not self._takes_folders and not {*keys} & {*columns}:
            above = name[: name.index(f"{folders[0]}/", start)].rstrip("/") or "."
            text = (
                f"lies in {'/'.join(folders)}, and no column is taken from folders. If these are "
                f"columns, say basePath={above!r}, and name them in the schema if you give one."
            )
            yield ("folders", *keys), text
        unread = {column: columns[column] for column in self._beyond(columns, schema)}
        if not unread:
            return
        hint = f"{_some([*unread])}.{_hint(unread, schema)}"
        taken = keys if self._takes_folders else []
        in_file = {self._alike(column) for column in [*columns, *taken]}
        if in_file.isdisjoint(map(self._alike, schema)):
            text = f"has none of the schema's columns ({_some(schema)}), so in its rows all of them"
            yield ("none", *unread), f"{text} are NULL. It has {hint}"
        else:
            text = "has columns that the schema lacks, so they reach no table"
            yield ("more", *unread), f"{text}: {hint}"


def _hint(columns: Mapping[str, Any], schema: Sequence[str]) -> str:
    """Suggest the place of the schema's columns; empty: none."""
    by_lower_name = {column.lower(): column for column in schema}
    for column, value in columns.items():
        if column not in schema and column.lower() in by_lower_name:
            return (
                f" Capitals are told apart in JSON: write '{column}', not "
                f"'{by_lower_name[column.lower()]}', in the schema."
            )
        within = value[0] if isinstance(value, list) and value else value
        if column not in schema and isinstance(within, dict) and {*within} & {*schema}:
            return (
                f" Records within '{column}' have such columns: read that column as what it is "
                "(a struct, or an array of structs), and take it apart in a transform."
            )
    return ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
