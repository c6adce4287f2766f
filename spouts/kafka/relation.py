"""The offsets that Spark's plan reads from Kafka, taken from the text of the plan.

They are compared with what was planned before anything is staged. Spark has them nowhere else:
`inputFiles` knows files only, no metric of a job names offsets, `KafkaRelation` has no accessor for
them, and to observe them in the rows would cost an aggregate over each batch. If another release
of Spark words its plan otherwise, no offset is found and every batch fails, so nothing is lost;
tests/spouts/test_kafka_relation.py fails before that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["offsets_read"]

_RELATION = re.compile(
    r"KafkaRelation\(strategy=Assign\[[^\]]*\], start=SpecificOffsetRangeLimit\(\w*Map\(([^)]*)\)\)"
    r", end=SpecificOffsetRangeLimit\(\w*Map\(([^)]*)\)\)\)"
)


def offsets_read(frame: DataFrame) -> Iterator[dict[str, tuple[int, int | None]]]:
    """Yield, for each Kafka source in the plan, partition ("topic-number") -> (first, last) offset.

    The last one is exclusive. No job runs.
    """
    plan = frame._jdf.queryExecution().analyzed().toString()
    for starts, ends in _RELATION.findall(plan):
        last = _offsets(ends)
        yield {name: (first, last.get(name)) for name, first in _offsets(starts).items()}


def _offsets(entries: str) -> dict[str, int]:
    """Parse partition -> offset from Scala's text of a map: `a-0 -> 1, a-1 -> 2`."""
    pairs = (entry.split(" -> ") for entry in entries.split(", ") if entry)
    return {name: int(offset) for name, offset in pairs}
