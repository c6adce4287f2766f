"""The count of rows that a job reports: waited for, and not for ever."""

from __future__ import annotations

from itertools import count

import pytest
from pyspark.sql import Observation

from committers.staging.reported import rows_written
from txn.errors import FailedException


def test_a_count_that_never_comes_fails_the_batch() -> None:
    """A report that Spark has dropped is waited for a while, then named, and the batch replayed."""
    clock = map(float, count(step=20))
    with pytest.raises(FailedException, match=r"into 'x/y' within 60 s.*eventqueue.capacity"):
        rows_written(Observation(), "into 'x/y'", clock=clock.__next__)
