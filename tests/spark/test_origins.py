"""Which expressions PySpark notes: the user's, with file and line; not ours."""

from __future__ import annotations

import pyspark.errors.utils
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from txn.spark.origins import noted, unnoted
from txn.spark.own_session import make_active

NOTES = hasattr(pyspark.errors.utils, "is_debugging_enabled")
"""Spark 3.5 notes nothing."""


@pytest.fixture(autouse=True)
def noting(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark decides once per process whether it notes; tests before these may have decided."""
    make_active(spark)
    monkeypatch.setattr(pyspark.errors.utils, "_enable_debugging_cache", True, raising=NOTES)


def note_of(spark: SparkSession) -> str:
    """What the error of a division says of the place where the division was written."""
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO") as caught:
        spark.range(1).select(sf.lit(1) / sf.col("id")).collect()
    return str(caught.value)


def test_only_what_is_made_inside_is_not_noted(spark: SparkSession) -> None:
    """A division names its file outside, not inside, inside where it is asked for, and again
    outside.
    """
    notes = [note_of(spark)]
    with unnoted():
        notes.append(note_of(spark))
        with noted():
            notes.append(note_of(spark))
        notes.append(note_of(spark))
    notes.append(note_of(spark))
    assert [NOTES, False, NOTES, False, NOTES] == [__file__ in note for note in notes]


def test_what_the_user_has_switched_off_stays_off(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`noted` does not note where the session's setting says that nothing is."""
    monkeypatch.setattr(pyspark.errors.utils, "_enable_debugging_cache", False, raising=NOTES)
    with unnoted(), noted():
        assert __file__ not in note_of(spark)
