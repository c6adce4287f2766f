"""The table of a batch's transitions: docs show it, the scenarios take all of it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.protocol.scenarios.language import scenarios
from txn.protocol import rules
from txn.protocol.events import Phase
from txn.protocol.transitions import TRANSITIONS, Cause, require_transition

PAGE = (Path(__file__).parents[2] / "docs/coordinator.md").read_text("utf-8")
ALL = [
    (before, cause, after, why)
    for before, causes in TRANSITIONS.items()
    for cause, afters in causes.items()
    for after, why in afters.items()
]
TAKEN = {(before, cause, after) for before, cause, after, _ in ALL}


def section(heading: str) -> list[str]:
    """The lines of one section of docs/coordinator.md."""
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()


def test_docs_show_the_table() -> None:
    """docs/coordinator.md has every transition with its cause and reason, word for word."""
    rows = ["| phase | moved by | becomes | because |", "| --- | --- | --- | --- |"]
    for before, cause, after, why in ALL:
        phases = [phase.name if phase else "none" for phase in (before, after)]
        rows.append(f"| {phases[0]} | {cause.value} | {phases[1]} | {why} |")
    assert rows == [line for line in section("Every transition") if line.startswith("|")]


def test_docs_draw_the_table() -> None:
    """The diagram of docs/coordinator.md has an arrow for each pair of phases, with its causes."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, cause, after, _ in ALL:
        ends = (before.name if before else "[*]", after.name if after else "[*]")
        arrows.setdefault(ends, []).append(cause.value)
    expected = [f"    {a} --> {b}: {', '.join(causes)}" for (a, b), causes in arrows.items()]
    assert expected == [line for line in section("The states of a txid") if " --> " in line]


def test_the_scenarios_take_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    """What batches do in all scenarios together is the table, no more and no less."""
    seen = set()

    def record(txid: int, before: Phase | None, cause: Cause, after: Phase | None) -> None:
        seen.add((before, cause, after))
        require_transition(txid, before, cause, after)

    monkeypatch.setattr(rules, "require_transition", record)
    for scenario in scenarios():
        scenario.played()
    assert TAKEN == seen


def test_what_is_not_in_the_table_is_an_error() -> None:
    """Every other way from one phase to another is refused, by names."""
    phases = [None, *Phase]
    for before, cause, after in set(product(phases, Cause, phases)) - TAKEN:
        with pytest.raises(RuntimeError, match=f"{cause.value} cannot bring txid 7 from "):
            require_transition(7, before, cause, after)
    with pytest.raises(RuntimeError, match="PlanMade cannot bring txid 7 from nothing to WAITING:"):
        require_transition(7, None, Cause.PLAN_MADE, Phase.WAITING)


def test_phases_have_readable_names() -> None:
    """A phase compares with its name, as status displays show it."""
    names = ["waiting", "planning", "processing", "processed", "committing"]
    assert names == [phase.value for phase in Phase]
