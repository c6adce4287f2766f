"""The rule by which the keys of a state end: part of a table's description."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, get_args

__all__ = ["EndsBy", "Expiry"]

EndsBy = Literal["key", "window end", "last event"]


@dataclass(frozen=True)
class Expiry:
    """A key has ended as soon as the watermark of a txid reaches the key's time plus `after`.

    NULL is no time: such a key never ends.
    """

    by: EndsBy
    """The time of a key. "key": one of its columns, a timestamp, or a window, whose end counts.
    "window end": the end of its only window. "last event": the newest event time of its rows."""
    after: int
    """Microseconds."""
    column: str = ""
    """The key, or the column of the rows with the event time; none for "window end"."""

    def bound(self, watermark: int) -> int:
        """Return the time at or before which a key has ended; microseconds since 1970, UTC."""
        return watermark - self.after

    def as_text(self) -> str:
        """Return it as a table's property."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Expiry:
        """Read a table's property.

        Raises:
            ValueError, TypeError, KeyError: it is none.
        """
        found = json.loads(text)
        if found["by"] not in get_args(EndsBy):
            raise ValueError(f"a key does not end by {found['by']!r}")
        return cls(found["by"], int(found["after"]), str(found["column"]))
