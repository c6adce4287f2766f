"""Event time as of a txid: how far each stream has come, and the watermarks that follow from it.

A watermark is a point in event time: what is not after it is late. It belongs to a txid. All values
are microseconds since 1970, UTC.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["EventTime", "NewestEvent", "NewestTimes", "StreamTime"]

NewestTimes = dict[str, dict[str, int]]
"""Stream -> partition -> the newest event time of one txid's rows. The partition is "" where the
watermark names no column for it, or the column is NULL."""


class NewestEvent(BaseModel):
    """The newest event time of a partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: int
    """Microseconds since 1970, UTC."""
    txid: int
    """The last txid that brought a row of the partition, whatever its time."""


class StreamTime(BaseModel):
    """How far a stream has come since it has its watermark."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str | None
    """The column that names a row's partition; None: there are none."""
    since: int
    """The first txid whose rows count: of earlier ones nobody has looked at the event time."""
    newest: dict[str, NewestEvent] = Field(default_factory=dict)
    """Partition -> its newest event; those that never had a row, or are idle, are absent."""


class EventTime(BaseModel):
    """What the watermarks of later txids follow from, as of one txid."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    own: int | None = None
    """The watermark of this txid."""
    streams: dict[str, StreamTime] = Field(default_factory=dict)
    """Those of the program that have a watermark."""
    watermarks: list[int | None] = Field(default_factory=list)
    """The watermarks of the txids after this one, in order; the last one holds until a later one is
    decided. None: no row is late yet."""

    @property
    def newest_at(self) -> int | None:
        """The newest event time of all streams; None before the first."""
        events = (e.at for stream in self.streams.values() for e in stream.newest.values())
        return max(events, default=None)

    def watermark(self, after: int) -> int | None:
        """The watermark of the `after`-th txid behind this one; the first is 1."""
        known = self.watermarks[:after]
        return known[-1] if known else None
