"""The JSON of records, as every store keeps it: one object with its format version.

Reading is strict: an unknown version, an unknown field, and also a *missing* field are refused,
because a default value for a missing txid would mean "no state". A record's `LATER` names the
fields that a later release added: a record without them has their default.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from itertools import chain
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from txn.errors import BatchError, NewerFormatError, ProgressUnreadableError
from txn.protocol.records import FORMAT_VERSION

__all__ = [
    "DEPTH_LIMIT",
    "NEVER_GUESSED",
    "NODE_LIMIT",
    "RECORD_LIMIT",
    "decode",
    "encode",
    "parse_object",
    "unreadable",
]

NODE_LIMIT = 384 * 1024
"""Most bytes of one node. The server refuses requests above `jute.maxbuffer`, by default
1,048,575 bytes, and counts a whole multi: COMMITTED plus a quarantine record must fit."""

RECORD_LIMIT = 64 * 1024 * 1024
"""Most bytes of one record with all its parts: ZooKeeper keeps everything in memory."""

DEPTH_LIMIT = 64
"""Most levels of lists and dicts in a spout's metadata. Readers of JSON have a limit, Delta's
library 128: a deeper commit could never be read again."""

_NESTING = (dict, list, tuple)  # isinstance of a union takes three times as long
_PLAIN = {dict, list, str, int, float, bool, type(None)}

NEVER_GUESSED = (
    "Nothing is guessed: restore ZooKeeper's data from a backup, or run `txn recover`, which "
    "rebuilds it from the tables."
)
"""The end of every refusal to read."""

R = TypeVar("R", bound=BaseModel)


def encode(record: BaseModel, what: str) -> bytes:
    """Return the JSON of a record, always with every field.

    Args:
        what: names the record in an error, for example "START of txid 7".

    Raises:
        BatchError: the metadata is not JSON (NaN is not), larger than `RECORD_LIMIT`, or
            nested deeper than `DEPTH_LIMIT`.
    """
    fields = dict(record)
    form = _classify(fields.values())
    if form is _Form.DEEP:
        raise BatchError(
            f"The {what} cannot be kept: a spout's metadata has more than {DEPTH_LIMIT} lists "
            "and dicts within each other. Flatten the spout's metadata_type.",
            number="TXN-418",
        )
    data = _encode_plain(fields) if form is _Form.PLAIN else None
    data = data or _encode_any(fields, what)
    if len(data) > RECORD_LIMIT:
        raise BatchError(
            f"The {what} has {len(data):,} bytes of JSON; ZooKeeper keeps everything in memory, "
            f"and {RECORD_LIMIT:,} is the limit. Let the spout plan smaller batches or describe "
            "them more briefly.",
            number="TXN-418",
        )
    return data


def _encode_plain(fields: dict[str, Any]) -> bytes | None:
    """Return the JSON of values of JSON's own types; None if some may be of another type.

    For thousands of positions it needs an eighth of the time of Python's own encoder.
    """
    try:
        data = to_json(fields)
    except ValueError:  # a lone surrogate
        return None
    # It writes these where Python's encoder raises; they may also be part of a text.
    return None if b"NaN" in data or b"Infinity" in data else data


def _encode_any(fields: dict[str, Any], what: str) -> bytes:
    """Return the JSON of values that Python's encoder accepts; raises for others, as `encode`."""
    try:
        # Field by field, not `model_dump`, which copies thousands of positions first.
        text = json.dumps(fields, default=_fields_of, allow_nan=False, separators=(",", ":"))
        if "\\ud" in text:
            _check_characters(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise BatchError(
            f"The {what} cannot be kept in ZooKeeper, because a spout's metadata is not JSON: "
            f"{error}. Let the spout's metadata_type hold numbers, strings, lists and dicts only.",
            number="TXN-418",
        ) from error
    return text.encode("ascii")


def _check_characters(value: object) -> None:
    """Raise ValueError for lone surrogates, which only Python's reader accepts.

    They come from file names that are not UTF-8.
    """
    json.dumps(value, ensure_ascii=False).encode("utf-8")


class _Form(Enum):
    """The kinds of values that a record may contain."""

    PLAIN = "JSON's own types, and nothing that only behaves like them"
    OTHER = "something else"
    DEEP = "nested deeper than `DEPTH_LIMIT`"


def _classify(values: Iterable[object]) -> _Form:
    """Classify values by their set of types, without a loop over thousands of values."""
    values, kinds = list(values), set[type]()
    for _ in range(DEPTH_LIMIT + 1):
        level_kinds = set(map(type, values))
        kinds |= level_kinds
        if not any(issubclass(kind, _NESTING) for kind in level_kinds):
            return _Form.PLAIN if kinds <= _PLAIN else _Form.OTHER
        if level_kinds == {dict}:  # thousands of positions, mostly
            dicts, lists = cast("list[dict[Any, Any]]", values), []
        else:
            dicts = [value for value in values if isinstance(value, dict)]
            lists = [value for value in values if isinstance(value, (list, tuple))]
        if not set(map(type, chain.from_iterable(dicts))) <= {str}:
            kinds.add(object)
        values = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
    return _Form.DEEP


def _fields_of(value: object) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def decode(model: type[R], data: bytes, path: str, advice: str = NEVER_GUESSED) -> R:
    """Return the record in `data`, which was read from `path`.

    Args:
        advice: the way out if it cannot be read.

    Raises:
        NewerFormatError: it has a later version.
        ProgressUnreadableError: not JSON, no version, or a missing or unknown field.
    """
    raw = parse_object(data, path, advice)
    version = raw.get("version")
    if type(version) is int and version > FORMAT_VERSION:
        raise NewerFormatError(
            f"ZooKeeper node '{path}' has format version {version}, and this program knows "
            f"{FORMAT_VERSION}. Run the version of txn that wrote it, or newer."
        )
    if type(version) is not int or version != FORMAT_VERSION:
        raise unreadable(path, f"has format version {version!r}, not {FORMAT_VERSION}", advice)
    later: frozenset[str] = getattr(model, "LATER", frozenset())
    missing = sorted(set(model.model_fields) - set(raw) - later)
    if missing:
        raise unreadable(path, f"lacks the field {', '.join(missing)}", advice)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise unreadable(path, f"has an invalid field {where}: {first['msg']}", advice) from None


def parse_object(data: bytes, path: str, advice: str = NEVER_GUESSED) -> dict[str, Any]:
    """Return the JSON object in `data`; raises as `decode`."""
    if len(data) > RECORD_LIMIT:
        raise unreadable(path, f"holds {len(data):,} bytes, more than any record may have", advice)
    try:
        # Parse text, not bytes: from bytes, json would accept lone surrogates.
        raw = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\u" in data:
            _check_characters(raw)
    except (ValueError, RecursionError):
        raise unreadable(path, "does not hold JSON", advice) from None
    if not isinstance(raw, dict):
        raise unreadable(path, "does not hold a JSON object", advice)
    if _classify(raw.values()) is _Form.DEEP:
        problem = f"has more than {DEPTH_LIMIT} lists and dicts within each other"
        raise unreadable(path, problem, advice)
    return raw


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")  # NaN and infinities, which we never write


def unreadable(path: str, problem: str, advice: str = NEVER_GUESSED) -> ProgressUnreadableError:
    """Return the error for a node with this problem."""
    return ProgressUnreadableError(f"ZooKeeper node '{path}' {problem}. {advice}")
