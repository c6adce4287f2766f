"""The files that a `FileSpout` has taken: an exact set of digests.

A position holds the tail of the set. Once the tail is long enough it becomes a segment, which is
stored beside the tables and never changed; from then on positions hold its name. Eight segments of
about the same size become one, so there are few of them, whatever the number of files. Merged
segments stay stored, because older positions in a table's log or an exported file still name them.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, field_validator

from txn.errors import ProgressUnreadableError
from txn.interfaces import Keeper

__all__ = ["Segment", "Taken", "Taking"]

_DIGEST_BYTES = 8
"""Two of a million names share a digest with probability 3e-8."""
_TAIL = 256
"""Digests that a position holds before they become a segment."""
_MERGED = 8
"""Number of segments of one size that become one of the next size."""
_LARGEST = 1 << 20
"""Most digests of a merged segment: 8 MB."""
_MAGIC = b"txnseen1"
"""Format and version, as long as a digest."""


class Segment(BaseModel):
    """Digests that are stored beside the tables."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(pattern="^[0-9a-f]{32}$")
    """The keeper's name for it."""
    files: int = Field(gt=0)
    """The number of its digests."""


class Taken(BaseModel):
    """Part of a position: the files that this and all earlier batches took."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seen: str
    """Base64 of sorted 8-byte digests of paths that are in no segment."""
    segments: tuple[Segment, ...] = Field(default=(), strict=False)
    """The segments with the other digests."""

    @field_validator("seen")
    @classmethod
    def _whole_digests(cls, seen: str) -> str:
        if len(b64decode(seen, validate=True)) % _DIGEST_BYTES:
            raise ValueError("the digests of the files taken are cut off")
        return seen


class Taking:
    """The set of a position, and of the next position.

    Not thread-safe: only the planner uses it. Every method may raise as `load`.
    """

    def __init__(self) -> None:
        self.keeper: Keeper | None = None
        """None: all digests stay in the positions."""
        self.moved: tuple[str, str] | None = None
        """The beginning of all names, and the one that they had when the first were taken."""
        self._loaded: dict[str, pa.Array] = {}

    def load(self, taken: Taken | None) -> None:
        """Read the segments of a position that are not in memory yet.

        Raises:
            OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
            ProgressUnreadableError: a segment is missing or damaged.
        """
        segments = {segment.name: segment for segment in taken.segments} if taken else {}
        self._loaded = {name: digests for name, digests in self._loaded.items() if name in segments}
        for name, segment in segments.items():
            if name not in self._loaded:
                self._loaded[name] = self._read(segment)

    def unseen(self, names: Sequence[str], taken: Taken | None) -> list[str]:
        """Return the names that no batch took, in their order."""
        if taken is None:
            return list(names)
        old = pc.is_in(self._digests(names), value_set=self._all(taken))
        return [names[place] for place in pc.indices_nonzero(pc.invert(old)).to_pylist()]

    def without_missing(self, names: Sequence[str], taken: Taken) -> Taken:
        """Return the set reduced to these names; segments that lose none are reused."""
        self.load(taken)
        there = self._digests(names)
        rest, segments = [_remaining(_array_of(b64decode(taken.seen)), there)], []
        for segment in taken.segments:
            left = _remaining(self._loaded[segment.name], there)
            if len(left) == segment.files:
                segments.append(segment)
            else:
                rest.append(left)
        return Taken(seen=_encoded(pa.concat_arrays(rest)), segments=tuple(segments))

    def after(self, taken: Taken | None, names: Sequence[str]) -> Taken:
        """Return the set with these names added; stores a long tail as a segment."""
        before = self._fold_tail(taken) if taken else Taken(seen="")
        tail = pa.concat_arrays([_array_of(b64decode(before.seen)), self._digests(names)])
        return Taken(seen=_encoded(tail), segments=before.segments)

    def _digests(self, names: Sequence[str]) -> pa.Array:
        if self.moved is not None:
            base, former = self.moved
            names = [former + name.removeprefix(base) for name in names]
        return _digests(names)

    def _fold_tail(self, taken: Taken) -> Taken:
        tail = _array_of(b64decode(taken.seen))
        if len(tail) < _TAIL or self.keeper is None:
            return taken
        self.load(taken)
        merged, parts, level = [*taken.segments], [tail], _level(len(tail))
        while True:
            equals = [s for s in merged if _level(s.files) == level]
            size = sum(len(part) for part in parts) + sum(s.files for s in equals)
            if len(equals) < _MERGED - 1 or size > _LARGEST:
                break
            parts += [self._loaded[s.name] for s in equals]
            merged = [s for s in merged if s not in equals]
            level = _level(size)
        segment = self._store_segment(pa.concat_arrays(parts))
        return taken if segment is None else Taken(seen="", segments=(*merged, segment))

    def _store_segment(self, digests: pa.Array) -> Segment | None:
        assert self.keeper is not None
        joined = _joined(digests)
        name = self.keeper.keep(_MAGIC + joined)
        if name is None:
            return None
        self._loaded[name] = _array_of(joined)
        return Segment(name=name, files=len(self._loaded[name]))

    def _all(self, taken: Taken) -> pa.ChunkedArray:
        self.load(taken)
        stored = [self._loaded[segment.name] for segment in taken.segments]
        return pa.chunked_array([_array_of(b64decode(taken.seen)), *stored], pa.uint64())

    def _read(self, segment: Segment) -> pa.Array:
        if self.keeper is None:
            raise ProgressUnreadableError(
                f"A position names a list of {segment.files} files that is stored beside the "
                "tables, but this FileSpout has no tables. Run it in its topology.",
                number="TXN-416",
            )
        content = self.keeper.kept(segment.name)
        if not content.startswith(_MAGIC) or len(content) != _DIGEST_BYTES * (segment.files + 1):
            raise ProgressUnreadableError(
                f"'{segment.name}', stored beside the tables, is not a list of {segment.files} "
                "files that this release can read. Run the release that wrote it.",
                number="TXN-416",
            )
        return _array_of(content[len(_MAGIC) :])


def _level(files: int) -> int:
    level = 0
    while files >= _TAIL * _MERGED ** (level + 1):
        level += 1
    return level


def _digests(names: Sequence[str]) -> pa.Array:
    joined = b"".join(
        blake2b(name.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).digest()
        for name in names
    )
    return _array_of(joined)


def _array_of(joined: bytes) -> pa.Array:
    """Return digests as an array of integers, without a copy."""
    count = len(joined) // _DIGEST_BYTES
    return pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(joined)])


def _remaining(digests: pa.Array, there: pa.Array) -> pa.Array:
    return digests.filter(pc.is_in(digests, value_set=there))


def _encoded(digests: pa.Array) -> str:
    return b64encode(_joined(digests)).decode("ascii")


def _joined(digests: pa.Array) -> bytes:
    """Return each digest once, in the order of its bytes."""
    values = digests.buffers()[1]
    start, end = (_DIGEST_BYTES * n for n in (digests.offset, digests.offset + len(digests)))
    joined = values.to_pybytes()[start:end] if values is not None else b""
    distinct = {joined[i : i + _DIGEST_BYTES] for i in range(0, len(joined), _DIGEST_BYTES)}
    return b"".join(sorted(distinct))
