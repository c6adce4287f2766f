"""Random histories of the coordinator: see `coordinator_world` for the world and its books."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocol.coordinator_world import live_through
from txn.protocol.events import Finish


@settings(deadline=None, max_examples=500, derandomize=True)
@given(seed=st.integers(0, 2**32), moves=st.integers(0, 80))
def test_every_record_is_in_exactly_one_committed_txid(seed: int, moves: int) -> None:
    """Whatever fails, crashes, comes late or twice: every record is in one committed txid."""
    world = live_through(random.Random(seed).choice, moves)
    assert world.memory.ended == Finish()


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data(), moves=st.integers(0, 30))
def test_small_histories(data: st.DataObject, moves: int) -> None:
    """The same over choices that Hypothesis makes, so that what it finds comes out short."""
    world = live_through(
        lambda options: options[data.draw(st.integers(0, len(options) - 1))], moves
    )
    assert world.memory.ended == Finish()
