"""What a publication says of itself in a table's log."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from txn.interfaces import Publication

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers()
POSITIONS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        NUMBERS | st.text(max_size=3) | st.none() | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=6,
    ),
    max_size=3,
)


def publication(**more: Any) -> Publication:
    """Txid 1 of a topology."""
    return Publication(topology="t", epoch=1, first_txid=1, last_txid=1, attempt_id=1, **more)


def careless(value: Any) -> Any:
    """What a JSON writer without care for numbers makes of a value."""
    if isinstance(value, dict):
        return {key: careless(one) for key, one in value.items()}
    if isinstance(value, list):
        return [careless(one) for one in value]
    if isinstance(value, float) or (isinstance(value, int) and not -(2**63) < value < 2**63):
        return 0.5
    return value


@given(spouts=POSITIONS, read=POSITIONS)
def test_positions_in_the_log_of_an_earlier_release_are_those_of_its_text(
    spouts: dict[str, Any], read: dict[str, Any]
) -> None:
    """An earlier release wrote positions as a text, too: its log's writer changed numbers."""
    written = publication(spouts=spouts, read=read)
    exact = json.dumps({"spouts": spouts, "read": read, "members": []})
    found = {**careless(written.model_dump(mode="json")), "exact": exact}
    assert Publication.model_validate(json.loads(json.dumps(found))) == written


@pytest.mark.parametrize("exact", [None, 1, "", "[]", "{", "{}", '{"spouts": {}, "topology": "x"}'])
def test_a_text_that_says_anything_else_is_refused(exact: Any) -> None:
    """What a stranger wrote in its place is an error, and takes no other field over."""
    with pytest.raises(ValidationError):
        Publication.model_validate({**publication().model_dump(), "exact": exact})
