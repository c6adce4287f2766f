"""What no scenario can say of the coordinator; `test_scenarios` has all else.

docs/coordinator.md lists every rule with its tests and scenarios.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from tests.protocol.scenarios.language import Play, attempt_of, scenarios
from txn.protocol.coordinator import step
from txn.protocol.events import BatchFailed


def test_unknown_event_is_an_error() -> None:
    """What is not in the vocabulary is a TypeError, also after the end."""
    play = Play({"streams": "t"})
    for line in ("begin 3", "stop"):
        play.command(line)
        assert play.state
        with pytest.raises(TypeError, match="not an event"):
            step(play.state, "hello")  # type: ignore[arg-type]


def test_state_is_a_value() -> None:
    """A step leaves its argument as it was."""
    play = Play({"streams": "t,o"})
    play.command("begin 3")
    assert play.state
    before = copy.deepcopy(play.state)
    step(play.state, BatchFailed(attempt_of("1:0"), "disk on fire"))
    assert before == play.state


def test_docs_name_tests_and_scenarios_that_exist() -> None:
    """Every test and scenario that docs/coordinator.md names for an invariant is there."""
    here = Path(__file__)
    page = (here.parents[2] / "docs/coordinator.md").read_text("utf-8")
    files = [*here.parent.glob("test_*.py"), here.parents[1] / "exhaustive/test_exhaustive.py"]
    sources = "".join(file.read_text("utf-8") for file in files)
    tests, named = re.findall(r"`(test_\w+)`", page), re.findall(r"`scenario (\w+)`", page)
    assert len(named) > 40
    assert set(tests) <= set(re.findall(r"def (test_\w+)", sources))
    assert set(named) <= {each.name for each in scenarios()}
