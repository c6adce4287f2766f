"""Warn of columns that reach no table: a file has them and the schema lacks them.

Spark's readers ignore them, and read NULL for columns of the schema that a file lacks. So a key in
another case, records within an envelope, and renamed columns look like rows of NULL. The first
record of a few files shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spouts.files.columns import OVER_LINES, beginning, columns_of, first_object, goes_over_lines
from spouts.files.source_files import SourceFiles
from spouts.records.options import lowered
from txn.errors import StorageRefusedError, StorageUnavailableError
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
        self._has_names = files.form in ("json", "parquet") and "singlevariantcolumn" not in options
        self._takes_folders = "basepath" in options
        self._notices: dict[tuple[str, ...], str] = {}
        """Kind -> the notice of its first file."""

    def texts(self) -> list[str]:
        """Return the notices of this run so far."""
        return [*self._notices.values()]

    def look(self, names: Sequence[str], schema: StructType) -> None:
        """Check the files of a batch, and warn once of each kind of unread columns."""
        for name in names[: 1 if self._listing.remote else _LOOKED]:
            try:
                problems = [*self._unread(name, schema.fieldNames())]
            except (OSError, StorageUnavailableError, StorageRefusedError):
                return  # reading the file reports it
            for kind, text in problems:
                if kind not in self._notices and len(self._notices) < _KINDS:
                    self._notices = {**self._notices, kind: f"{self._files.spout}: {name} {text}"}
                    notices.warning("%s", self._notices[kind])

    def _unread(self, name: str, schema: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield (kind, text) for columns that are not read."""
        columns: Mapping[str, Any] = {}
        if self._has_names and self._files.form == "json":
            text = beginning(self._files, name)
            if goes_over_lines(self._files, text):
                yield ("lines",), OVER_LINES
            else:
                columns = first_object(text) or {}
        elif self._has_names:
            columns = columns_of(self._files, name) or {}
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
        # Spark distinguishes capitals in JSON only.
        alike = (lambda text: text) if self._files.form == "json" else str.lower
        schema_names = {alike(column) for column in schema}
        unread = {c: value for c, value in columns.items() if alike(c) not in schema_names}
        if not unread:
            return
        hint = f"{_some([*unread])}.{_hint(unread, schema)}"
        taken = keys if self._takes_folders else []
        if schema_names.isdisjoint(map(alike, [*columns, *taken])):
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
