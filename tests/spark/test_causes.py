"""What is kept of a message of Spark or Java: needs no JVM."""

from __future__ import annotations

import pytest

from txn.spark.causes import Cause, in_one_line

MESSAGES = {
    "lines": (
        "[A_B] No change data, as it was not\nrecorded.\nUse `DESCRIBE HISTORY`. SQLSTATE: KD002",
        "[A_B] No change data, as it was not recorded. Use `DESCRIBE HISTORY`.",
    ),
    "plan": ("No `a` here. SQLSTATE: 42703;\n'Project ['a]\n+- OneRowRelation\n", "No `a` here."),
    "sql": (
        "\nSyntax error.  SQLSTATE: 42601 (line 1)\n\n== SQL ==\na int,\n",
        "Syntax error. (line 1)",
    ),
    "stack": (
        "Lost a task:\njava.io.IOException: no\n\tat a.B.c(D.java:1)\n\nDriver stacktrace:",
        "Lost a task: java.io.IOException: no",
    ),
    "long": ("x" * 700, "x" * 600 + " ..."),
}


@pytest.mark.parametrize(("message", "told"), MESSAGES.values(), ids=MESSAGES.keys())
def test_a_message_is_told_to_the_end_of_its_sentences(message: str, told: str) -> None:
    """Spark and Delta break sentences over lines; plan, SQL and stack are no part of them."""
    assert in_one_line(message) == told
    assert Cause(("a.Refused",), message).line.startswith(f"Refused: {told[:300]}")
