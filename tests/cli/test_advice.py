"""Who follows the advice of a message about the program gets through: `txn plan`, before Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from txn.cli import cli

PROGRAM = """
from committers.aggregates import Count
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.memory import MemoryOpaqueSpout
from txn import Topology

orders = Topology("orders")
stream = orders.stream("s", MemoryOpaqueSpout([[(1,)]], "k int"))
"""
PERSIST = 'stream.partition_persist(AppendTable("out"))\n'
TOTAL = 'stream.group_by("k").persistent_aggregate(StateTable("t", semantics={}), n=Count())\n'

CASES = {
    "no such name": (
        PROGRAM + PERSIST,
        ["order"],
        "[TXN-117]",
        "error: {file} has no 'order'; it has: orders.",
        (PROGRAM + PERSIST, ["orders"]),
    ),
    "an error of the program": (
        PROGRAM + PERSIST.replace("AppendTable", "AppendTabel"),
        ["orders"],
        "[TXN-118]",
        (
            "error: {file} failed while it was loaded: NameError: name 'AppendTabel' is not "
            "defined (orders.py, line 10). Correct it; --traceback shows where."
        ),
        (PROGRAM + PERSIST, ["orders"]),
    ),
    "a setting misspelt": (
        PROGRAM + PERSIST,
        ["orders", "--set", "max_spout_pendin=4"],
        "[TXN-119]",
        (
            "error: --set max_spout_pendin: 'max_spout_pendin' is not a setting of a topology. Did "
            "you mean max_spout_pending?"
        ),
        (PROGRAM + PERSIST, ["orders", "--set", "max_spout_pending=4"]),
    ),
    "a stream without a table": (
        PROGRAM,
        ["orders"],
        "[TXN-105]",
        (
            "error: Topology 'orders' ends nowhere: no stream has a committer. Add "
            "persistent_aggregate(...) or partition_persist(...)."
        ),
        (PROGRAM + PERSIST, ["orders"]),
    ),
    "a source too weak": (
        PROGRAM + TOTAL.format('"transactional"'),
        ["orders"],
        "[TXN-106]",
        (
            "error: Stream 's' has an opaque spout, so its replays may differ, but table 't' "
            "has transactional semantics, which needs more than that. Give the table "
            "semantics='opaque' or use a stronger source."
        ),
        (PROGRAM + TOTAL.format('"opaque"'), ["orders"]),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_advice_about_the_program_works(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has its number and says what to write; with that, the plan is printed."""
    program, words, number, told, (corrected, advised) = CASES[case]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "orders.py"

    def plan(text: str, name: str, *options: str) -> tuple[int, str]:
        file.write_text(text)
        result = CliRunner().invoke(cli, ["plan", f"{file}:{name}", *options])
        return result.exit_code, result.output.strip()

    code, output = plan(program, *words)
    assert code in (1, 2)
    assert output == f"{told.format(file=file)} {number}"
    code, output = plan(corrected, *advised)
    assert code == 0, output
