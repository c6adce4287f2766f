"""The layout of the coordinator's state in ZooKeeper, as values: paths, contents, splitting.

No I/O here. A node's content is one JSON object with its format version. Reading is strict: an
unknown version, an unknown field, and also a *missing* field are refused, because a default value
for a missing txid would mean "no state". A record's `LATER` names the fields that a later release
added; earlier records lack them, and they then have their default.

A record larger than `NODE_LIMIT` is compressed and cut into parts, which are written first, each
under a name that no other content can have; the record's own node then holds a `PartsIndex` with
the SHA-256 of the record. A crash between the parts leaves parts that no index names; the next
leader removes them. See docs/zookeeper.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json

from txn.errors import BatchError, NewerFormatError, ProgressUnreadableError, TopologyError
from txn.protocol.records import FORMAT_VERSION, Record

__all__ = [
    "DEPTH_LIMIT",
    "NEVER_GUESSED",
    "NODE_LIMIT",
    "RECORD_LIMIT",
    "FormatRecord",
    "PartsIndex",
    "Paths",
    "check_topology_name",
    "decode",
    "decode_index",
    "encode",
    "join_parts",
    "require",
    "split_parts",
    "txid_of",
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

TOPOLOGY_NAME_LIMIT = 200

_STEM = re.compile(r"[A-Za-z0-9-]{1,100}")

# ZooKeeper refuses these in paths; with "/" the path would leave the topology's own node.
_FORBIDDEN = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")

R = TypeVar("R", bound=BaseModel)
N = TypeVar("N")


class FormatRecord(Record):
    """`format`: written with the topology's node, checked at every start."""


class PartsIndex(Record):
    """The content of a node whose record is too large for it."""

    stem: str = Field(pattern=f"^{_STEM.pattern}$")
    """The parts are `parts/<stem>-0000`, `parts/<stem>-0001`, ..."""
    count: int = Field(ge=1, le=-(-RECORD_LIMIT // NODE_LIMIT))
    bytes: int = Field(ge=1, le=RECORD_LIMIT)
    """Size of the record, uncompressed."""
    sha256: str
    """SHA-256 of the record, uncompressed."""
    compression: Literal["none", "zlib"] = "none"

    LATER: ClassVar[frozenset[str]] = frozenset({"compression"})

    def names(self) -> list[str]:
        """Return the names of the parts' nodes, in order."""
        return [f"{self.stem}-{i:04d}" for i in range(self.count)]


@dataclass(frozen=True)
class Paths:
    """The paths of one topology's nodes. `base` is the connect string's chroot plus "/txn"."""

    base: str
    topology: str

    @property
    def root(self) -> str:
        """The topology's own node, parent of all others."""
        return f"{self.base}/{self.topology}"

    @property
    def format(self) -> str:
        """Holds a `FormatRecord`."""
        return f"{self.root}/format"

    @property
    def leader(self) -> str:
        """Ephemeral; holds a `LeaderIdentity`."""
        return f"{self.root}/leader"

    @property
    def epoch(self) -> str:
        """Holds an `EpochRecord`."""
        return f"{self.root}/epoch"

    @property
    def incarnation(self) -> str:
        """Holds an `IncarnationRecord`; a topology of an earlier release lacks it at first."""
        return f"{self.root}/incarnation"

    @property
    def committed(self) -> str:
        """Holds a `CommittedRecord`."""
        return f"{self.root}/committed"

    @property
    def batches(self) -> str:
        """Parent of one node per started, uncommitted txid."""
        return f"{self.root}/batches"

    @property
    def quarantine(self) -> str:
        """Parent of one node per txid that was committed empty.

        Holds `ReplayRequests`; empty before the first request.
        """
        return f"{self.root}/quarantine"

    @property
    def drops(self) -> str:
        """Holds `DropRequests`; created with the first request."""
        return f"{self.root}/drops"

    @property
    def parts(self) -> str:
        """Parent of the parts of records too large for one node."""
        return f"{self.root}/parts"

    @property
    def columns(self) -> str:
        """Parent of one node per stream whose columns are known; created with the first."""
        return f"{self.root}/columns"

    @property
    def row_replays(self) -> str:
        """Parent of one node per stream with replayed rows; created with the first."""
        return f"{self.root}/row_replays"

    @property
    def program(self) -> str:
        """Holds a `ProgramRecord`; created by the first leader whose release writes it."""
        return f"{self.root}/program"

    @property
    def notices(self) -> str:
        """Holds a `NoticesRecord`; created with the first notice."""
        return f"{self.root}/notices"

    @property
    def standbys(self) -> str:
        """Parent of one ephemeral node per waiting process; created with the first."""
        return f"{self.root}/standbys"

    def standby(self, token: str) -> str:
        """Return the path of one process's `StandbyIdentity`."""
        return f"{self.standbys}/{token}"

    def batch(self, txid: int) -> str:
        """Return the path of one txid's `BatchRecord`."""
        return f"{self.batches}/{txid}"

    def quarantined(self, txid: int) -> str:
        """Return the path of one txid's `QuarantineRecord`."""
        return f"{self.quarantine}/{txid}"

    def columns_of(self, stream: str) -> str:
        """Return the path of one stream's `ColumnsRecord`."""
        return f"{self.columns}/{stream}"

    def row_replays_of(self, stream: str) -> str:
        """Return the path of the parent of one stream's replays of rows."""
        return f"{self.row_replays}/{stream}"

    def row_replay(self, stream: str, number: int) -> str:
        """Return the path of one replay's `RowReplayRecord`."""
        return f"{self.row_replays_of(stream)}/{number}"

    def part(self, name: str) -> str:
        """Return the path of one part."""
        return f"{self.parts}/{name}"


def check_topology_name(name: str) -> str:
    """Return `name`, if it can be one ZooKeeper path component.

    Raises:
        TopologyError: it is empty, too long, "." or "..", or has a forbidden character.
    """
    if (
        not name
        or len(name) > TOPOLOGY_NAME_LIMIT
        or name in (".", "..")
        or _FORBIDDEN.search(name)
    ):
        raise TopologyError(
            f"A topology cannot be called {name!r}: the name becomes one component of a ZooKeeper "
            f"path. Use 1 to {TOPOLOGY_NAME_LIMIT} characters without '/', control characters or "
            "private-use characters, and not '.' or '..'.",
            number="TXN-104",
        )
    return name


def txid_of(name: str, parent: str) -> int:
    """Return the txid in the name of a child of `batches` or `quarantine`.

    Raises:
        ProgressUnreadableError: the name is not a txid as this program writes it.
    """
    if not re.fullmatch("[1-9][0-9]*", name):
        raise ProgressUnreadableError(
            f"ZooKeeper node '{parent}/{name}' is not named after a txid: this program did not "
            "write it. Find out who did, and delete the node if it is not needed."
        )
    return int(name)


def encode(record: BaseModel, what: str) -> bytes:
    """Return the JSON of a record, always with every field.

    Args:
        record: one of the records of this module or of `txn.protocol.records`.
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
    raw = _json_object(data, path, advice)
    version = raw.get("version")
    if type(version) is int and version > FORMAT_VERSION:
        raise NewerFormatError(
            f"ZooKeeper node '{path}' has format version {version}, and this program knows "
            f"{FORMAT_VERSION}. Run the version of txn that wrote it, or newer."
        )
    if type(version) is not int or version != FORMAT_VERSION:
        raise _unreadable(path, f"has format version {version!r}, not {FORMAT_VERSION}", advice)
    later: frozenset[str] = getattr(model, "LATER", frozenset())
    missing = sorted(set(model.model_fields) - set(raw) - later)
    if missing:
        raise _unreadable(path, f"lacks the field {', '.join(missing)}", advice)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _unreadable(path, f"has an invalid field {where}: {first['msg']}", advice) from None


def decode_index(data: bytes, path: str) -> PartsIndex | None:
    """Return the index of a record's parts, or None if the node holds the record itself.

    Raises:
        ProgressUnreadableError: as `decode`; or it names more parts, more bytes, or other nodes
            than this program ever writes.
    """
    # Records have no field "stem"; the cheap test saves a second parse of ordinary records.
    if b'"stem"' not in data[:200] or "stem" not in _json_object(data, path):
        return None
    return decode(PartsIndex, data, path)


def split_parts(data: bytes, stem: str) -> tuple[bytes, dict[str, bytes]]:
    """Return the content of the record's own node, and the parts (name -> bytes) to write first.

    Args:
        data: the encoded record.
        stem: unique for the record, the attempt and the leader; the content's digest is added, so
            a name never has two contents.
    """
    if len(data) <= NODE_LIMIT:
        return data, {}
    digest = hashlib.sha256(data).hexdigest()
    # Level 1 is the fastest; fewer parts save writes, each of which syncs the server's disk.
    small = zlib.compress(data, 1)
    pieces = [small[i : i + NODE_LIMIT] for i in range(0, len(small), NODE_LIMIT)]
    index = PartsIndex(
        stem=f"{stem}-{digest[:16]}",
        count=len(pieces),
        bytes=len(data),
        sha256=digest,
        compression="zlib",
    )
    return encode(index, "index"), dict(zip(index.names(), pieces, strict=True))


def join_parts(index: PartsIndex, pieces: Sequence[bytes], path: str) -> bytes:
    """Return the whole record.

    Raises:
        ProgressUnreadableError: the parts do not match the index.
    """
    data = b"".join(pieces)
    if index.compression == "zlib":
        try:
            data = zlib.decompressobj().decompress(data, index.bytes + 1)
        except zlib.error:
            data = b""  # refused below
    if len(data) != index.bytes or hashlib.sha256(data).hexdigest() != index.sha256:
        raise _unreadable(path, f"names {index.count} parts that do not have its checksum")
    return data


def require(node: N | None, path: str) -> N:
    """Return `node`, which every topology has.

    Raises:
        ProgressUnreadableError: it is None.
    """
    if node is None:
        raise ProgressUnreadableError(
            f"ZooKeeper node '{path}' is missing, although its topology exists or has just been "
            f"in use: it was deleted, or all of ZooKeeper's data was. {NEVER_GUESSED}"
        )
    return node


def _json_object(data: bytes, path: str, advice: str = NEVER_GUESSED) -> dict[str, Any]:
    if len(data) > RECORD_LIMIT:
        raise _unreadable(path, f"holds {len(data):,} bytes, more than any record may have", advice)
    try:
        # Parse text, not bytes: from bytes, json would accept lone surrogates.
        raw = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\u" in data:
            _check_characters(raw)
    except (ValueError, RecursionError):
        raise _unreadable(path, "does not hold JSON", advice) from None
    if not isinstance(raw, dict):
        raise _unreadable(path, "does not hold a JSON object", advice)
    if _classify(raw.values()) is _Form.DEEP:
        problem = f"has more than {DEPTH_LIMIT} lists and dicts within each other"
        raise _unreadable(path, problem, advice)
    return raw


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")  # NaN and infinities, which we never write


def _unreadable(path: str, problem: str, advice: str = NEVER_GUESSED) -> ProgressUnreadableError:
    return ProgressUnreadableError(f"ZooKeeper node '{path}' {problem}. {advice}")
