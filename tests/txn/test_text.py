from __future__ import annotations

import pytest

from txn.attempts import TransactionAttempt
from txn.spark.causes import cause_line
from txn.text import duration, first_line, first_said, last_users_frame, size, users_line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (42.9, "42 s"), (185, "3 min 05 s"), (7860, "2 h 11 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    """Durations are given in the two units that matter."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_250, "1.2 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (3 * 10**15, "3.0 PB"),
        (2 * 10**18, "2,000.0 PB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    """Bytes are given in the unit that leaves at most three digits before the point."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  no such\nluck"), "ValueError: no such"),
        (KeyError("k"), "KeyError: 'k'"),
        (RuntimeError("  \n"), "RuntimeError"),
    ],
)
def test_an_error_is_told_in_one_line(error: Exception, line: str) -> None:
    """The kind of an error comes first; one without words is its kind alone."""
    assert first_line(error) == line


def test_an_error_in_one_line_is_printable() -> None:
    """The name of a file that is not UTF-8, and what would move a terminal's cursor, as escapes."""
    error = OSError("cannot open 'in/\udcff.csv'\x1b[2J\nmore")
    assert first_line(error) == r"OSError: cannot open 'in/\udcff.csv'\x1b[2J"
    assert cause_line(error) == first_line(error)
    assert first_said(error) == r"cannot open 'in/\udcff.csv'\x1b[2J"
    assert first_said(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    ("files", "last"),
    [
        (["/venv/bin/txn", "/home/me/a.py", "/venv/lib/python3.12/site-packages/pandas/x.py"], 1),
        (["/home/me/a.py", "/usr/lib/python3.11/json/decoder.py", "<frozen importlib>"], 0),
        (["/home/me/a.py", "/usr/lib64/python3.11/json/decoder.py"], 0),
        (["/spark/python/pyspark/worker.py", "/home/me/a.py", "/x/py4j-0.10.9-src.zip/y"], 1),
        (["/venv/lib/python3.12/site-packages/pyspark/sql/x.py"], None),
        # Of a job that was installed as a package, its own file is the only one.
        (["/venv/lib/python3.12/site-packages/my_job/flow.py", "/usr/lib/python3.11/re.py"], 0),
    ],
)
def test_the_users_last_file_is_found(files: list[str], last: int | None) -> None:
    """Libraries, Spark, Python and this project are not the user's."""
    assert last_users_frame(files) == last


def test_who_called_us_is_not_the_cause() -> None:
    """A line of the user counts if we called it; not the one that called us."""
    with pytest.raises(ValueError, match="txid counts from 1") as ours:
        TransactionAttempt(0)
    assert users_line(ours.value) == ""
    with pytest.raises(ZeroDivisionError) as own:
        users_line(1 // 0)  # type: ignore[arg-type]
    assert users_line(own.value).startswith(f"test_who_called_us_is_not_the_cause ({__file__}:")
