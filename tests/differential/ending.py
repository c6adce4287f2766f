"""States whose keys end, in random programs, and which keys have ended by the declaration alone.

A session window ends by its stored rows, not by its key: it needs an `Ends` of its own.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.differential.columns import Columns
from tests.differential.declaration import Step
from tests.differential.event_time import MINUTE, event_time_of

__all__ = ["WINDOW", "Ends", "draw_ends"]

Row = dict[str, Any]
WINDOW = "struct<start:timestamp,end:timestamp>"
BEFORE_ALL = -(10**18)
"""Of a row without an event time, while there is no watermark."""
AFTER = (0, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE, 60 * MINUTE)


def draw_ends(
    draw: random.Random, steps: Sequence[Step], of: str, columns: Columns, keys: Sequence[str]
) -> dict[str, Any]:
    """Draw the arguments that let the keys of a state end; none if they cannot.

    Args:
        of: the stream that feeds the state; every stream behind it has a watermark.
        columns: those of the stream.
    """
    windows = [key for key in keys if columns[key] == WINDOW]
    ways = [*windows, *(key for key in keys if columns[key] == "timestamp")]
    ways += ["window end"] * 2 * (len(windows) == 1)
    time = event_time_of(steps, of, columns)
    if time is not None:
        ways += ["last event"] * 2
    if not keys or not ways:
        return {}
    by = draw.choice(ways)
    return {
        "expire_after": draw.choice(AFTER),
        "by": by,
        "time": {"last event": time, "window end": (windows or [None])[0]}.get(by, by),
    }


@dataclass(frozen=True)
class Ends:
    """The rule by which the keys of a state end."""

    after: int
    time: str
    """A key, or the column of the rows with the event time."""
    by_event: bool

    @classmethod
    def of_step(cls, step: Step) -> Ends | None:
        """Return the rule of a state; None if its keys never end."""
        args = step.args
        if args.get("expire_after") is None:
            return None
        return cls(args["expire_after"], args["time"], args["by"] == "last event")

    def has_ended(
        self,
        batches: Sequence[tuple[int, Sequence[Row]]],
        marks: Mapping[int, int | None],
        txid: int,
    ) -> bool:
        """Return whether a key has ended as of a txid.

        Args:
            batches: the rows of the key since it began, by txid.
            marks: the watermark of each txid.
        """
        mark = marks[txid]
        if mark is None:
            return False
        times = [self._time(rows, marks[at]) for at, rows in batches]
        known = [time for time in times if time is not None]
        return bool(known) and max(known) + self.after <= mark

    def _time(self, rows: Sequence[Row], mark: int | None) -> int | None:
        if not self.by_event:
            value = rows[0][self.time]
            return value[1] if isinstance(value, tuple) else value
        known = [row[self.time] for row in rows if row[self.time] is not None]
        # Rows without an event time are as old as a key that has just ended.
        return max(known) if known else BEFORE_ALL if mark is None else mark - self.after
