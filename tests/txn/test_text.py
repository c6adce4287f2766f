from __future__ import annotations

import pytest

from txn.text import duration, first_line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (42.9, "42 s"), (185, "3 min 05 s"), (7860, "2 h 11 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    """Durations are given in the two units that matter."""
    assert duration(seconds) == text


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
