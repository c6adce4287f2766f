"""The metadata of a batch of files, and the error for a file that is no longer as planned."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from spouts._schemas import require_schema
from spouts.files.folder.listing import FileStat
from spouts.files.folder.seen import Taken
from txn.attempts import TransactionAttempt
from txn.errors import SourceChangedError

__all__ = ["FileBatch", "PlannedFile", "changed_error"]


class PlannedFile(BaseModel):
    """One file of a batch, in its state at planning."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: str
    """In the spelling of the pattern: relative patterns give relative paths."""
    size: int = Field(ge=0)
    """Bytes."""
    mtime_ns: int | None
    """Time of the last change, nanoseconds since 1970; None if the storage has none."""
    version: str | None = None
    """ETag; None on disks and HDFS."""

    @property
    def stat(self) -> FileStat:
        """The stat that the file must still have when it is read."""
        return FileStat(self.size, self.mtime_ns, self.version)


class FileBatch(Taken):
    """Metadata of one txid: its files, and all files taken so far."""

    files: tuple[PlannedFile, ...] = Field(strict=False)
    """In reading order."""
    spelling: str
    """The spelling of paths: "relative", "absolute" or a URI scheme."""
    read_schema: str
    """Spark's JSON of the schema for reading every file."""
    newest_ns: int | None = None
    """The newest time of change of all files that were taken; None: the storage has no times."""
    named_as: str | None = None
    """The pattern's part without wildcards when the first files were taken, if the folder was moved
    since: `seen` has their names of then."""

    @property
    def sizes(self) -> dict[str, int]:
        """Path -> bytes."""
        return {file.path: file.size for file in self.files}

    @model_serializer(mode="wrap")
    def _without_move(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `named_as` out where nothing was moved: earlier releases do not know it."""
        fields: dict[str, Any] = handler(self)
        if self.named_as is None:
            fields.pop("named_as", None)
        return fields

    @field_validator("read_schema")
    @classmethod
    def _check_schema(cls, text: str) -> str:
        return require_schema(text)


def changed_error(
    planned: PlannedFile, current: FileStat | None, attempt: TransactionAttempt
) -> SourceChangedError:
    """Return the error for a planned file that is gone or another one now."""
    state = "it is gone" if current is None else f"it has {_described(current)}"
    time = "" if planned.version else f", with its time{_touch(planned)},"
    return SourceChangedError(
        f"The file {planned.path} changed after it was planned for {attempt}: it had "
        f"{_described(planned.stat)}, and now {state}. Put the planned file back{time} and start "
        f"the topology again; move new data in under new names. {SourceChangedError.LET_GO}",
        number="TXN-407",
    )


def _touch(planned: PlannedFile) -> str:
    """Return the command that restores the file's time; empty: it is in remote storage."""
    if planned.mtime_ns is None or "://" in planned.path:
        return ""
    seconds, rest = divmod(planned.mtime_ns, 1_000_000_000)
    return f" (touch -d '@{seconds}.{rest:09d}' {shlex.quote(planned.path)})"


def _described(stat: FileStat) -> str:
    version = "" if stat.version is None else f", ETag {stat.version}"
    if stat.mtime_ns is None:
        return f"{stat.size} bytes{version}"
    seconds, rest = divmod(stat.mtime_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{stat.size} bytes, last changed at {moment:%Y-%m-%d %H:%M:%S}.{rest:09d} UTC{version}"
