"""Tables that the program names otherwise than before, that it leaves out, and new ones."""

from __future__ import annotations

import pytest

from tests.protocol.test_recovery import COMMITTED, publication
from txn.errors import RecoveryRefusedError
from txn.protocol.records import ProgramRecord, Progress
from txn.protocol.table_names import by_todays_names, recorded_ids


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


IDS = {"old/a": "A", "old/b": "B", "old/c": "C"}


def by_id(found, ids, *, recorded=IDS, **meant) -> dict[str, int]:
    """The committed tables of `MOVED` by today's names; `ids` are those of the program's tables."""
    return renamed(found, committed=MOVED, ids=ids, recorded=recorded, **meant)


def test_a_moved_table_is_recognised_by_its_id():
    """Whatever its new path and whatever its new name: nothing is guessed from either."""
    found = {name: (4, publication(4)) for name in ("old/a", "new/c", "x")}
    assert by_id(found, {"old/a": "A", "new/c": "B", "x": "C"}) == {
        "old/a": 14,
        "new/c": 24,
        "x": 34,
    }
    ahead = {**found, "x": (35, publication(5))}
    assert by_id(ahead, {"old/a": "A", "new/c": "B", "x": "C"})["x"] == 34
    both = {**found, "old/b": None}
    assert by_id(both, {"old/a": "A", "new/c": "B", "x": "C"}, new=["old/b"])["new/c"] == 24


def test_no_other_table_is_taken_for_the_one_that_was_moved():
    """One with another id, at its place or at a new one, is refused; so is an exchange of two."""
    found = {name: (4, publication(4)) for name in ("old/a", "old/b", "x")}
    with pytest.raises(RecoveryRefusedError, match="its id, 'x' is another table than 'old/c'"):
        by_id(found, {"old/a": "A", "old/b": "B", "x": "D"})
    assert by_id(found, {"old/a": "A", "old/b": "B", "x": "D"}, dropped=["old/c"]) == {
        "old/a": 14,
        "old/b": 24,
    }
    with pytest.raises(RecoveryRefusedError, match="'old/a'.* id B, .* id A, which is at 'old/b'"):
        by_id(found, {"old/a": "B", "old/b": "A", "x": "C"})
    with pytest.raises(RecoveryRefusedError, match="'old/b' .* has the id D, .* has the id B:"):
        by_id(found, {"old/a": "A", "old/b": "D", "x": "C"})


def test_a_table_that_is_known_by_its_place_is_not_another_ones_new_place():
    """The id of a lost table at the place of a table without a recorded id: both cannot be it."""
    found = {name: (4, publication(4)) for name in ("old/b", "old/c")}
    recorded = {"old/a": "A", "old/c": "C"}
    with pytest.raises(RecoveryRefusedError, match="does not name table 'old/a'"):
        by_id(found, {"old/b": "A", "old/c": "C"}, recorded=recorded)


def test_tables_without_a_recorded_id_are_recognised_as_before():
    """An earlier release recorded none, and other committers have none."""
    found = {name: (4, publication(4)) for name in ("old/a", "new/b", "new/c")}
    expected = {"old/a": 14, "new/b": 4, "new/c": 4}
    ids = {"old/a": "A", "new/b": "B", "new/c": "C"}
    assert by_id(found, ids, recorded={}) == expected
    assert by_id(found, ids, recorded={"old/b": "B"}) == {**expected, "new/b": 24}
    assert by_id(found, {}) == expected


def test_the_former_name_of_a_moved_table_is_no_claim_on_its_place():
    """The record keeps it until a commit has the new name; another table may be there by then."""
    found = {name: (4, publication(4)) for name in ("old/a", "old/b", "old/c")}
    ids = {"old/a": "new", "old/b": "B", "old/c": "A"}
    assert by_id(found, ids, recorded={"old/a": "A", "old/b": "B", "old/c": "A"}) == MOVED.tables


def test_only_committed_tables_have_a_recorded_id():
    """A name that the committed record no longer has is forgotten; so is all without a record."""
    program = ProgramRecord(python="p", tables={**IDS, "gone": "G"})
    assert recorded_ids(Progress(committed=MOVED, program=program)) == IDS
    assert recorded_ids(Progress(committed=MOVED)) == {}
