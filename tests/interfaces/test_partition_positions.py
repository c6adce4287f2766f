"""Metadata of partitioned spouts as it is kept: brief, and read back as it was."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from txn.interfaces import PartitionPositions

POSITIONS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6)


@settings(deadline=None)
@given(POSITIONS, POSITIONS)
def test_what_is_kept_is_read_back_as_it_was(read: dict[str, Any], earlier: dict[str, Any]):
    """As JSON and back: the same positions to read, the same newest ones."""
    positions = PartitionPositions(read=read, latest={**earlier, **read})
    text = json.dumps(positions.model_dump(mode="json"))
    assert PartitionPositions.model_validate(json.loads(text)) == positions
    assert PartitionPositions.model_validate_json(positions.model_dump_json()) == positions


def test_a_position_that_is_read_now_is_kept_once():
    """`latest` has only the partitions that are idle in this txid."""
    positions = PartitionPositions(read={"a": 5}, latest={"a": 5, "b": 2})
    assert positions.model_dump(mode="json") == {"read": {"a": 5}, "latest": {"b": 2}}


def test_metadata_of_earlier_releases_is_read():
    """They kept every position in `latest`, too."""
    stored = {"read": {"a": 5}, "latest": {"a": 5, "b": 2}}
    assert PartitionPositions.model_validate(stored).latest == {"a": 5, "b": 2}


def test_a_newest_position_that_differs_is_not_lost():
    """Whatever a spout keeps beside what it reads now."""
    positions = PartitionPositions(read={"a": 5}, latest={"a": 7})
    assert PartitionPositions.model_validate(positions.model_dump()) == positions
