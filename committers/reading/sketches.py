"""Counts of distinct values from Spark's sketches, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from txn.storage.reader_extra import missing

__all__ = ["estimate"]


def estimate(sketches: Sequence[bytes]) -> int:
    """Estimate the distinct values of all sketches together, as Spark's functions do.

    Raises:
        SetupError: the library of the sketches is not installed.
    """
    try:
        from datasketches import hll_sketch, hll_union, tgt_hll_type
    except ImportError as error:
        raise missing("datasketches") from error
    found = [hll_sketch.deserialize(bytes(sketch)) for sketch in sketches]
    if len(found) == 1:
        (sketch,) = found
        return _rounded(sketch.get_estimate())
    union = hll_union(max(sketch.lg_config_k for sketch in found))
    for sketch in found:
        union.update(sketch)
    return _rounded(union.get_result(tgt_hll_type.HLL_8).get_estimate())


def _rounded(estimate: float) -> int:
    return round(estimate)
