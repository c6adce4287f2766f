"""A Delta commit file, whoever wrote it: read as a whole, and its JSON taken apart.

For tables of ours, for those that a spout reads, and for `txn history`. What is wrong with a file
each of them says in its own words, around everything in `BROKEN`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from txn.errors import RecoveryRefusedError

__all__ = ["BROKEN", "READ_LIMIT", "actions_of", "info_of", "json_object", "read_whole"]

READ_LIMIT = 512 * 1024 * 1024
"""Bytes of a file that is read as a whole, such as a commit: a commit that adds 500,000 files."""
_PIECE = 16 * 1024 * 1024

BROKEN = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
"""What a commit file that is not Delta's raises while it is taken apart."""


def read_whole(stream: Any, what: str) -> bytes:
    """All that a stream has.

    Args:
        stream: has `read(bytes)`.
        what: the file, for the message.

    Raises:
        RecoveryRefusedError: it is larger than anything that is read as a whole.
    """
    pieces: list[bytes] = []
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        if len(pieces) * _PIECE > READ_LIMIT:
            raise RecoveryRefusedError(
                f"{what} has more than {READ_LIMIT:,} bytes, which no commit has. Restore that "
                "file from a backup."
            )
    return b"".join(pieces)


def actions_of(text: bytes) -> Iterator[dict[str, Any]]:
    """The actions of a commit file, one by one; raises what is in `BROKEN`."""
    return (json_object(json.loads(line)) for line in text.splitlines() if line.strip())


def info_of(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """`commitInfo` out of a commit file's actions, empty when there is none; raises as they do."""
    return json_object(next((a["commitInfo"] for a in actions if "commitInfo" in a), {}))


def json_object(value: Any) -> dict[str, Any]:
    """A JSON object; raises TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} is no JSON object")
    return value
