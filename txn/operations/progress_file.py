"""A topology's progress as a file: `txn export` writes it and `txn import` reads it.

    {"format": "txn-progress", "version": 4, "sha256": ..., "progress": {...}}

`sha256` is that of `progress` as JSON with sorted keys and no spaces. Reading is as strict as for
znodes: another checksum, version or field is refused, and so are records that do not fit each
other. The file holds the data of ZooKeeper, without credentials.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from txn.errors import BatchError, NewerFormatError, ProgressUnreadableError, UserError
from txn.protocol.encoding import encode
from txn.protocol.records import (
    BatchRecord,
    ColumnsRecord,
    CommittedRecord,
    QuarantineRecord,
    RowReplayRecord,
)

__all__ = ["FILE_LIMIT", "ProgressFile", "dump", "read_file", "write_file"]

FILE_LIMIT = 256 * 1024 * 1024
"""Most bytes of a file: a larger one is not a progress file and is not read."""

_FORMAT = "txn-progress"
_VERSION = 4


class ProgressFile(BaseModel):
    """A topology's whole durable state at one moment."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    topology: str
    exported_at: str
    """ISO 8601, UTC."""
    epoch: int = Field(ge=0)
    """The newest epoch; an import takes a higher one."""
    committed: CommittedRecord
    batches: list[BatchRecord]
    """Open batches, contiguous from `committed.txid` + 1."""
    quarantine: list[QuarantineRecord]
    """By ascending txid."""
    replays_requested: list[int]
    """The quarantined txids whose replay is requested."""
    drops_requested: list[int] = Field(default_factory=list)
    """The quarantined txids that are given up."""
    columns: list[ColumnsRecord]
    """By ascending stream."""
    row_replays: list[RowReplayRecord] = Field(default_factory=list)
    """By ascending stream and number."""
    incarnation: int = Field(default=0, ge=0, lt=2**63)
    """The incarnation of the topology; an import begins another one in its place. 0: unknown."""
    takes_over: list[int] = Field(default_factory=list)
    """The incarnations that it replaced."""

    @model_validator(mode="after")
    def _fits(self) -> ProgressFile:
        first = self.committed.txid + 1
        txids = [batch.txid for batch in self.batches]
        aside = [record.txid for record in self.quarantine]
        if txids != list(range(first, first + len(txids))):
            raise ValueError(f"the open txids {txids[:5]} do not follow txid {first - 1}")
        if aside != sorted(set(aside)) or any(txid >= first for txid in aside):
            raise ValueError(f"the quarantined txids {aside[:5]} are not committed, in order")
        if not {*self.replays_requested, *self.drops_requested} <= set(aside):
            raise ValueError("a replay or a drop is requested of a txid that is not quarantined")
        if max([self.committed.epoch, *(b.epoch for b in self.batches)]) > self.epoch:
            raise ValueError(f"a record is of an epoch later than {self.epoch}")
        return self


def dump(progress: ProgressFile) -> str:
    """Return the contents of the file."""
    body = progress.model_dump(mode="json")
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "sha256": _checksum(body),
        "progress": body,
    }
    return json.dumps(document, indent=2) + "\n"


def write_file(progress: ProgressFile, path: Path) -> None:
    """Write the file, whole or not at all; replaces an existing one.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with open(number, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor
                file.write(dump(progress))
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise UserError(
            f"The progress of topology '{progress.topology}' cannot be written to '{path}': "
            f"{getattr(error, 'strerror', None) or error}. Name another file.",
            number="TXN-810",
        ) from error


def read_file(path: Path) -> ProgressFile:
    """Read and check a file.

    Raises:
        UserError: the file does not exist.
        NewerFormatError: a newer release wrote it.
        ProgressUnreadableError: it is damaged or not a progress file; says what is wrong.
    """
    try:
        if path.stat().st_size > FILE_LIMIT:
            raise _unreadable(path, f"has more than {FILE_LIMIT:,} bytes")
        text = path.read_bytes()
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        raise UserError(
            f"The file '{path}' cannot be read: {getattr(error, 'strerror', None) or error}. "
            "Check the path.",
            number="TXN-810",
        ) from error
    return _parse(text, path)


def _parse(text: bytes, path: Path) -> ProgressFile:
    try:
        document = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _unreadable(path, "does not hold JSON") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise _unreadable(path, "does not hold a topology's progress")
    version = document.get("version")
    if type(version) is int and version > _VERSION:
        raise NewerFormatError(
            f"File '{path}' has format version {version}, and this program knows {_VERSION}. Run "
            "the version of txn that wrote it, or newer."
        )
    if type(version) is not int or version != _VERSION:
        raise _unreadable(path, f"has format version {version!r}, not {_VERSION}")
    if set(document) != {"format", "version", "sha256", "progress"}:
        raise _unreadable(path, f"has the fields {sorted(document)}")
    body = document["progress"]
    try:
        fits = document["sha256"] == _checksum(body)
    except RecursionError:
        fits = False
    if not fits:
        raise _unreadable(path, "does not have its checksum")
    return _validated(body, path)


def _validated(body: Any, path: Path) -> ProgressFile:
    try:
        progress = ProgressFile.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = f"has an invalid field {where}" if where else "does not fit together"
        raise _unreadable(path, f"{what}: {first['msg']}") from None
    try:
        records = (
            *progress.batches,
            *progress.quarantine,
            *progress.columns,
            *progress.row_replays,
        )
        for record in (progress.committed, *records):
            encode(record, "record")
    except BatchError:
        raise _unreadable(path, "has a record that no topology could have kept") from None
    if _lacks_a_field(progress, body):
        raise _unreadable(path, "lacks a field of a record")
    return progress


def _lacks_a_field(value: Any, raw: Any) -> bool:
    """Return True if a field is missing: its default would be read as "no state".

    The fields in a record's `LATER` may be missing.
    """
    if isinstance(value, BaseModel):
        missing = set(type(value).model_fields) - set(raw) - getattr(value, "LATER", frozenset())
        return bool(missing) or any(_lacks_a_field(getattr(value, name), raw[name]) for name in raw)
    return isinstance(value, list) and any(map(_lacks_a_field, value, raw))


def _checksum(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _unreadable(path: Path, what: str) -> ProgressUnreadableError:
    return ProgressUnreadableError(
        f"File '{path}' {what}: it was damaged, or changed by hand. Nothing was written. Take "
        "another copy of it, or run `txn recover`, which needs the tables alone.",
        number="TXN-810",
    )
