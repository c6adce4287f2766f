"""The metadata of a `DeltaSpout`: the table and the versions that a txid reads. It is durable."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, field_validator

from spouts._schemas import require_schema

__all__ = ["DeltaBatch", "DeltaVersion", "sum_if_known"]


class DeltaVersion(BaseModel):
    """One planned version of a batch."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: int = Field(ge=0)
    files: int = Field(ge=0)
    """The number of files with its rows; 0 if changes are read."""
    size: int = Field(ge=0)
    """Bytes of these files together."""
    rows: int | None
    """Their rows; None if the log has no statistics or changes are read."""
    below: int | None = None
    """Files of this and later txids of the writing topology are left out: they were replaced."""


class DeltaBatch(BaseModel):
    """Metadata of one txid: the table, its versions and the columns to read."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    table_id: str
    """Delta's own id; another one means that the table was replaced."""
    last_version: int = Field(ge=-1)
    """The next batch begins after it."""
    versions: tuple[DeltaVersion, ...] = Field(strict=False)
    """The versions with something to read; those between them had no rows."""
    passed: int = Field(default=0, ge=0)
    """The number of further versions that the batch takes; they have no rows."""
    source_txid: int = Field(ge=0)
    """The newest committed txid of the writing topology, according to the log up to
    `last_version`; 0 if none. No later version may publish it again."""
    read_schema: str
    """JSON of the columns of the table."""
    changes: bool
    """True if the change data feed is read."""

    @field_validator("read_schema")
    @classmethod
    def _check_schema(cls, text: str) -> str:
        return require_schema(text)


def sum_if_known(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the counts is unknown."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
