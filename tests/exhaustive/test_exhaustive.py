"""Every state of small worlds around the core; `make exhaustive` searches larger ones."""

from __future__ import annotations

import pytest

from tests.exhaustive.__main__ import caught
from tests.exhaustive.cases import CAUGHT, SMALL
from tests.exhaustive.search import search


@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_invariant_holds_in_every_state(name: str) -> None:
    """In every state of a small world all invariants hold, and the run can finish from there."""
    found = search(SMALL[name])
    assert found.broken is None, str(found)
    assert found.states > 500


@pytest.mark.parametrize("name", sorted(CAUGHT))
def test_a_broken_rule_has_a_shortest_history(name: str) -> None:
    """The core with one of its rules broken violates an invariant, after a few moves."""
    found = caught(name)
    assert found.broken is not None, f"{name}: {found}"
    assert 3 <= len(found.history) <= 25
