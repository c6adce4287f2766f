"""What a txid's watermark passes: the event times that are over in it, and were not before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from txn.spark.event_times import moment

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Span"]


@dataclass(frozen=True)
class Span:
    """The event times that a txid's watermark passes: after `before`, up to `watermark`.

    Both are microseconds since 1970, UTC.
    """

    before: int | None
    """That of the txid before."""
    watermark: int | None
    """That of the txid."""

    @property
    def is_empty(self) -> bool:
        """Whether no row's time can end."""
        return self.watermark is None or self.watermark == self.before

    def ends(self, time: Column, after: int = 0) -> Column:
        """The condition that a time plus `after` microseconds lies in it; it is not empty."""
        assert self.watermark is not None
        is_over = time <= moment(self.watermark - after)
        if self.before is not None:
            is_over &= time > moment(self.before - after)
        return is_over
