"""Tables that the program names otherwise than before, that it leaves out, and new ones."""

from __future__ import annotations

import pytest

from tests.protocol.test_recovery import COMMITTED, publication
from txn.errors import RecoveryRefusedError
from txn.protocol.table_names import by_todays_names


def renamed(found, *, committed=COMMITTED, **meant) -> dict[str, int]:
    """The committed tables by today's names; a place is a name without its capitals."""
    return by_todays_names("t", committed, found, str.lower, **meant).tables


def test_tables_are_known_again_by_place_and_by_what_they_hold():
    """Another spelling, and a table that was moved; one that is gone or new if it is meant so."""
    assert renamed({"A": None, "b": (24, publication(4))}) == {"A": 14, "b": 24}
    assert renamed({"a": (14, publication(4)), "moved": (24, publication(4))}) == {
        "a": 14,
        "moved": 24,
    }
    known = {"a": (14, publication(4))}
    assert renamed(known, dropped=["B"]) == {"a": 14}
    assert renamed({**known, "b": None, "c": None}, new=["C"]) == {"a": 14, "b": 24}
    assert renamed({**known, "b": None, "c": None}, unborn=["c"]) == {"a": 14, "b": 24}
    assert renamed({**known, "c": None}, dropped=["b"], new=["c"]) == {"a": 14}


def test_a_table_that_is_gone_or_new_is_refused():
    """A table that was removed from the program, or added to an old topology, is refused before the
    first txid, unless the program says that this is intended.
    """
    with pytest.raises(RecoveryRefusedError, match="'b' of topology.*--set dropped_tables=b"):
        renamed({"a": (14, publication(4))})
    with pytest.raises(RecoveryRefusedError, match="'c' is new.*txid 4.*--set new_tables=c"):
        renamed({"a": (14, publication(4)), "b": None, "c": None})
    with pytest.raises(RecoveryRefusedError, match="tables 'a', 'b' of .*only 'moved' can be one"):
        renamed({"moved": (24, publication(4))})


def test_a_table_that_may_be_another_ones_new_name_is_refused():
    """It holds nothing, or more than is committed, while one that ZooKeeper knows is gone."""
    with pytest.raises(RecoveryRefusedError, match="knows table 'b'.*names table 'c', which holds"):
        renamed({"a": (14, publication(4)), "c": None})
    with pytest.raises(RecoveryRefusedError, match="'c'.* holds txid 5.*where it was \\('b'\\)"):
        renamed({"a": (14, publication(4)), "c": (25, publication(5))})


MOVED = COMMITTED.model_copy(update={"tables": {"old/a": 14, "old/b": 24, "old/c": 34}})
HERE = (24, publication(4))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            {"new/b": None, "new/a": None, "new/c": None},
            "knows table 'old/b' .* names table 'new/b'",
        ),
        (
            {"new/c": None, "new/a": HERE, "new/b": HERE},
            "knows table 'old/c' .* names table 'new/c'",
        ),
        ({"new/c": (35, publication(5)), "new/a": HERE}, "where it was \\('old/c'\\)"),
        ({"new/c": HERE, "new/a": HERE}, "not name table 'old/b' of .*--set dropped_tables=old/b"),
        ({"d": HERE, "new/a": HERE}, "not name the tables 'old/b', 'old/c' of .*only 'd' can be"),
        ({"d": None, "new/a": HERE}, "If it is one of 'old/b', 'old/c', name .*'d' is a new table"),
        ({"d": HERE, "old/a": HERE, "new/b": HERE}, None),
        ({"n": None, "new/a": HERE, "new/b": HERE, "new/c": HERE}, "'n' is new to"),
    ],
)
def test_a_table_of_a_folder_that_was_moved_is_known_by_the_end_of_its_path(found, told):
    """Unrelated names are not paired, and nobody is told to drop a table that was only moved."""
    if told is None:
        assert renamed(found, committed=MOVED) == {"old/a": 14, "new/b": 24, "d": 24}
        return
    with pytest.raises(RecoveryRefusedError, match=told) as refused:
        renamed(found, committed=MOVED)
    assert ("dropped_tables" in str(refused.value)) == ("dropped" in told or "'d'" in told)
