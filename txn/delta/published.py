"""The record of a published table's versions in its log, and the files of its deletion vectors.

Source: Delta's PROTOCOL.md, "Deletion Vectors".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from txn.interfaces.published import PUBLISHED

__all__ = ["DIGITS", "record_in", "vector_path"]

DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Base 85 as ZeroMQ's RFC 32 has it."""


def record_in(commit: bytes) -> Mapping[str, Any] | None:
    """The record of a published table's version; None: it has none.

    Its "vectors" are the descriptors of all deletion vectors that the version uses.

    Args:
        commit: the version's commit file.
    """
    for line in commit.splitlines():
        info = json.loads(line).get("commitInfo") or {}
        if PUBLISHED in info:
            record: Mapping[str, Any] = info[PUBLISHED]
            return record
    return None


def vector_path(descriptor: Mapping[str, Any]) -> str:
    """The path of the file with a deletion vector, within the table."""
    data, name = b"", descriptor["pathOrInlineDv"]
    for start in range(0, len(name), 5):
        number = 0
        for character in name[start : start + 5].encode():
            number = number * 85 + DIGITS.index(character)
        data += number.to_bytes(4, "big")
    return f"deletion_vector_{uuid.UUID(bytes=data)}.bin"
