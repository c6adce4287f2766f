"""The records and bytes that a txid read, by stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["NOTHING_READ", "Input"]


@dataclass(frozen=True)
class Input:
    """The input of one txid by stream; streams that had nothing to read are left out."""

    records: Mapping[str, int | None] = field(default_factory=dict)
    """stream -> records that its batch has, before any transform; None: its spout cannot know."""
    bytes: Mapping[str, int | None] = field(default_factory=dict)
    """stream -> bytes as they lie in the source; None: its spout does not know."""


NOTHING_READ = Input()
