"""`FileSpout` on a disk, without Spark: what it pins, lists and refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spouts.files import FileBatch, FileSpout
from txn.attempts import TransactionAttempt
from txn.errors import FailedException

SCHEMA = StructType([StructField("value", StringType())])
FIRST = TransactionAttempt(1)
NO_SPARK: Any = None


def opened(pattern: Path | str, **arguments: Any) -> FileSpout:
    """A spout over text files that takes all that are there."""
    arguments = {"files_per_batch": 99} | arguments
    spout = FileSpout(str(pattern), format="text", schema=SCHEMA, **arguments)
    spout.open(NO_SPARK, None)
    return spout


def planned(spout: FileSpout, previous: FileBatch | None = None) -> FileBatch:
    """The next batch; there is one."""
    batch = spout.initialize_transaction(FIRST, previous)
    assert batch is not None
    return batch


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_that_is_replaced_while_it_is_read_fails_the_attempt(
    tmp_path: Path, scheme: str
) -> None:
    """Spark may have read either content, so neither is committed; what was read and then went is
    no fault.
    """
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    os.utime(file, ns=(5, 5))
    spout = opened(f"{scheme}{tmp_path}/*.txt")
    batch = planned(spout)
    spout.check_read(FIRST, batch)
    file.write_text("two\n")
    with pytest.raises(FailedException, match=r"a\.txt changed after it was planned"):
        spout.check_read(FIRST, batch)
    file.unlink()
    spout.check_read(FIRST, batch)
