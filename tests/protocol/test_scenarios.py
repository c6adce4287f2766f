"""What the coordinator does, event by event, as text: see `scenarios/language.py`.

With TXN_REWRITE=1 the files are written anew, with what it does now, before they are compared.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.protocol.scenarios.language import FOLDER, Scenario, rewrite, scenarios
from tests.simulation.mutants import MUTANTS
from tests.simulation.seams import patched

if os.environ.get("TXN_REWRITE"):
    rewrite()

ALL = scenarios()
RULES = [
    "attempt-counter-lost",
    "emit-before-persist",
    "later-plans-kept",
    "opaque-kept",
    "stale-failure",
    "success-before-durable",
]
"""The mutants that break a rule of the coordinator."""
EXAMPLE = """scenario an_example
# It
# plays.
given streams=t|o max_spout_pending=2
begin 2
failed 1:0
stop
"""


@pytest.mark.parametrize("scenario", ALL, ids=lambda each: each.name)
def test_scenario(scenario: Scenario) -> None:
    """The coordinator does what the scenario says, order for order."""
    assert scenario.text == scenario.played()


def test_scenarios_have_names_of_their_own_and_say_what_they_show() -> None:
    """A document can name a scenario, and its first lines say which rule it shows."""
    names = [each.name for each in ALL]
    assert len(names) == len(set(names)) > 100
    assert [each.name for each in ALL if not re.fullmatch(r"[A-Z`].+\..*", each.doc)] == []


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_shows_in_a_scenario(rule: str) -> None:
    """Without the world and its books, too, each broken rule of the coordinator is caught."""
    with patched(list(MUTANTS[rule].patches)):
        broken = [each.name for each in ALL if each.played() != each.text]
    print(f"{rule}: {', '.join(broken)}")
    assert broken


def test_rewriting_puts_what_happens_in_the_place_of_the_output(tmp_path: Path) -> None:
    """Only indented lines change; what differs between variants has the variant in front."""
    file = tmp_path / "example.txt"
    file.write_text("# Kept.\n\n" + EXAMPLE.replace("stop\n", "stop\n    Nonsense\n"), "utf-8")
    assert [file] == rewrite(tmp_path)
    assert [] == rewrite(tmp_path)
    text = file.read_text("utf-8")
    assert "# Kept.\n\n" + EXAMPLE == re.sub(r"(?m)^    .*\n", "", text)
    assert text.endswith("stop\n    [t] Cancel 2:0\n    [t] Finish\n    [o] Finish\n")


@pytest.mark.parametrize("line", ["stopp", "failed 1:0 bloked", "failed 1:0 eror=away", "due"])
def test_a_line_that_is_not_understood_is_an_error(line: str) -> None:
    """A typing error is not taken for an event that does nothing."""
    begin = "" if line == "due" else "begin 1\n"
    with pytest.raises(SyntaxError):
        Scenario(FOLDER, "wrong", f"scenario wrong\n{begin}{line}\n").played()
