"""Deletion vectors mark rows of a file as deleted, so that the file can stay.

Source: Delta's PROTOCOL.md, "Deletion Vectors", "Deletion Vector Format" and "File Format".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txn.delta.published import DIGITS, vector_path
from txn.errors import SetupError

if TYPE_CHECKING:
    from pyarrow import parquet
    from pyroaring import BitMap64

    from txn.storage.storage import Storage

__all__ = ["Vector", "merged", "require_library", "written"]

_MAGIC = struct.pack("<i", 1681511377)
_VERSION = b"\x01"


@dataclass(frozen=True)
class Vector:
    """The deleted rows of one file."""

    rows: BitMap64
    """Their positions, from 0."""
    footer: parquet.FileMetaData
    """That of the file."""


def require_library() -> None:
    """Refuse deletion vectors without the library that makes them.

    Raises:
        SetupError: naming what to install.
    """
    try:
        import pyroaring  # noqa: F401
    except ImportError as error:
        raise SetupError(
            "Deletion vectors need the library pyroaring, which is not installed: "
            "pip install 'txn-spark[vectors]'.",
            number="TXN-211",
        ) from error


def merged(
    read: Callable[[str], bytes | None], before: Mapping[str, Any] | None, positions: Iterable[int]
) -> BitMap64:
    """Return the deleted rows of a file, with more of them.

    Args:
        read: reads a file of the table; several files may have their vectors in one.
        before: the descriptor until now; None: no row is deleted.
    """
    from pyroaring import BitMap64

    rows = BitMap64(positions)
    if before is not None:
        data = read(vector_path(before))
        assert data is not None
        at = before["offset"] + 4
        rows |= BitMap64.deserialize(data[at + len(_MAGIC) : at + before["sizeInBytes"]])
    return rows


def written(storage: Storage, vectors: Mapping[str, Vector], name: bytes) -> dict[str, Any]:
    """Write the vectors into one file; return path -> descriptor.

    Args:
        vectors: path of a file -> its vector.
        name: 16 random bytes.
    """
    if not vectors:
        return {}
    text = _z85(name)
    content, descriptors = bytearray(_VERSION), {}
    for path, vector in vectors.items():
        data = _MAGIC + vector.rows.serialize()
        descriptors[path] = {
            "storageType": "u",
            "pathOrInlineDv": text,
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(vector.rows),
        }
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    storage.put_if_absent(vector_path({"pathOrInlineDv": text}), bytes(content))
    return descriptors


def _z85(data: bytes) -> str:
    """Base 85 as ZeroMQ's RFC 32 has it; Python has it from 3.13 on."""
    text = bytearray()
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4], "big")
        text += bytes(DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text.decode()
