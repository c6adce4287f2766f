"""A `FileSpout` whose pattern matches nothing."""

import logging
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spouts.files import FileSpout
from txn.attempts import TransactionAttempt


def test_a_pattern_that_matches_no_file_is_told_once_until_it_matches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names the spout, however often it is asked, until a file was there."""
    schema = StructType([StructField("value", StringType())])
    spout = FileSpout(f"{tmp_path}/away/*.txt", format="text", schema=schema)
    spout.open(None, None)  # type: ignore[arg-type]  # a given schema needs no session
    with caplog.at_level(logging.WARNING, logger="spouts"):
        for attempt in range(3):
            assert spout.initialize_transaction(TransactionAttempt(1, attempt), None) is None
        (told,) = caplog.messages
        assert told.startswith(
            f"{spout!r} matches no file now, because the folder {tmp_path}/away/ is not there, so "
        )
        assert [told] == [*spout.notices()]
        (tmp_path / "away").mkdir()
        file = tmp_path / "away" / "a.txt"
        file.write_text("x\n")
        first = spout.initialize_transaction(TransactionAttempt(1, 0), None)
        assert first is not None
        assert spout.initialize_transaction(TransactionAttempt(2, 0), first) is None
        assert (1, []) == (len(caplog.messages), [*spout.notices()])
        file.unlink()
        assert spout.initialize_transaction(TransactionAttempt(2, 0), first) is None
        assert f"{spout!r} matches no file now, so there is" in caplog.messages[1]
        assert caplog.messages[1:] == [*spout.notices()]


def test_a_folder_with_brackets_is_told_how_to_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`HERE` may have them; with the folder as the warning writes it, its files are read."""
    schema = StructType([StructField("value", StringType())])
    folder = tmp_path / "job [1]"
    folder.mkdir()
    (folder / "a.txt").write_text("x\n")
    spout = FileSpout(f"{folder}/*.txt", format="text", schema=schema)
    spout.open(None, None)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, logger="spouts"):
        assert spout.initialize_transaction(TransactionAttempt(1), None) is None
    (told,) = caplog.messages
    written = told.partition(f"for the folder {folder} write ")[2].partition(", so there is")[0]
    spout = FileSpout(f"{written}/*.txt", format="text", schema=schema)
    spout.open(None, None)  # type: ignore[arg-type]
    batch = spout.initialize_transaction(TransactionAttempt(1), None)
    assert batch is not None
    assert [file.path for file in batch.files] == [f"{folder}/a.txt"]
