"""A case as plain data: the files or records that strangers wrote, and the spout that reads them.

Bytes are written as text, a character for each byte (ISO-8859-1), so that a case can be printed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["Case", "File"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class File(_Model):
    """A file, or for "kafka" the values of a topic's records.

    Args:
        name: below the case's folder.
        writer: who wrote it, and in which dialect.
        damage: what was done to its bytes afterwards, in words.
        content: the bytes, before they are packed.
        packed: "", "gzip", "members" (two gzip members), "cut" (a gzip file that ends too early),
            "bz2".
        values: of a topic's records; None: a tombstone.
    """

    name: str
    writer: str = ""
    damage: tuple[str, ...] = ()
    content: str = ""
    packed: str = ""
    values: tuple[str | None, ...] = ()

    @property
    def data(self) -> bytes:
        """The bytes before they are packed."""
        return self.content.encode("latin-1")


class Case(_Model):
    """Everything that a reading depends on.

    Args:
        through: "files" (the spout alone), "kafka" (its parser of values), or "topology" (a whole
            run with tables, and the bad rows on their way back).
        schema_: names and types; None: it is inferred.
    """

    seed: int
    through: Literal["files", "kafka", "topology"] = "files"
    form: Literal["csv", "json", "parquet", "text"]
    schema_: tuple[tuple[str, str], ...] | None
    options: dict[str, str | bool] = {}
    bad_rows: Literal["fail", "drop", "set_aside"] = "set_aside"
    files_per_batch: int = 1
    files: tuple[File, ...]

    def option(self, name: str, otherwise: str = "") -> str:
        """An option as text."""
        return str(self.options.get(name, otherwise))

    def is_on(self, name: str) -> bool:
        """Whether an option is given and true."""
        return bool(self.options.get(name, False))
