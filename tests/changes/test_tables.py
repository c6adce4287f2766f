"""Every difference between a table and the one that a program needs, with its verdict. No Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from txn.changes import Expiry, TableShape, Verdict, compare_tables, describe_refused, refused

STATE = TableShape(
    "upsert",
    "opaque",
    keys=("day", "user"),
    values={"n": "Count()", "s": "Sum(v)"},
    buckets=4,
    columns={"day": "date", "user": "integer", "n": "long", "s": "long"},
)
LOG = replace(STATE, kind="log", buckets=0)
ROWS = TableShape("append", "opaque", columns={"k": "string", "v": "integer", "txid": "long"})

NEXT, CHOICE, REBUILD, REFUSED = (
    Verdict.FROM_NEXT,
    Verdict.CHOICE,
    Verdict.REBUILD,
    Verdict.REFUSED,
)

DAY = 86_400_000_000
BY_DAY, BY_EVENT = Expiry("key", 30 * DAY, "day"), Expiry("last event", 30 * DAY, "at")

CASES: dict[str, tuple[TableShape, dict[str, Any], list[tuple[Verdict, str]]]] = {
    "nothing": (STATE, {}, []),
    "order of values": (STATE, {"values": {"s": "Sum(v)", "n": "Count()"}}, []),
    "keys end": (
        STATE,
        {"expiry": BY_DAY},
        [(NEXT, "the end of its keys changes from never to 30 days after 'day'")],
    ),
    "keys end by their last event": (
        LOG,
        {"expiry": BY_EVENT},
        [(NEXT, "from never to 30 days after the last event")],
    ),
    "keys end by their last event again": (
        replace(LOG, former=frozenset({"txn_newest"})),
        {"expiry": BY_EVENT},
        [(REBUILD, "from never to 30 days after the last event")],
    ),
    "keys end earlier": (
        replace(LOG, expiry=BY_EVENT),
        {"expiry": replace(BY_EVENT, after=DAY)},
        [(NEXT, "from 30 days after the last event to 1 day after the last event")],
    ),
    "keys end later": (
        replace(STATE, expiry=BY_DAY),
        {"expiry": replace(BY_DAY, after=31 * DAY)},
        [(REBUILD, "from 30 days after 'day' to 31 days after 'day'")],
    ),
    "keys end by another time": (
        replace(STATE, expiry=BY_DAY),
        {"expiry": Expiry("window end", DAY)},
        [(REBUILD, "from 30 days after 'day' to 1 day after the end of the window")],
    ),
    "keys end no more": (
        replace(STATE, expiry=BY_DAY),
        {"expiry": None},
        [(REBUILD, "from 30 days after 'day' to never")],
    ),
    "value added": (
        STATE,
        {"values": {**STATE.values, "m": "Max(v)"}},
        [(NEXT, "value 'm' is new")],
    ),
    "value added that was dropped": (
        replace(STATE, former=frozenset({"m"})),
        {"values": {**STATE.values, "m": "Max(v)"}},
        [(REBUILD, "old files of the table have a column of that name")],
    ),
    "value in another case": (
        STATE,
        {"values": {"n": "Count()", "s": "Sum(v)", "N": "Count()"}},
        [(REBUILD, "value 'N' is new, and old files")],
    ),
    "value dropped": (
        replace(STATE, since={"s": 7}),
        {"values": {"n": "Count()"}},
        [(CHOICE, "value 's' of the table (added with txid 7) is not in the program")],
    ),
    "value replaced": (
        STATE,
        {"values": {"n": "Count()", "s": "Max(v)"}},
        [(REFUSED, "value 's' is Sum(v) in the table and Max(v) in the program")],
    ),
    "value renamed": (
        STATE,
        {"values": {"n": "Count()", "total": "Sum(v)"}, "was": {"total": "s"}},
        [(REBUILD, "value 's' is renamed to 'total'")],
    ),
    "value renamed long ago": (STATE, {"was": {"s": "old"}}, []),
    "buckets": (STATE, {"buckets": 8}, [(REBUILD, "its buckets change from 4 to 8")]),
    "layout": (STATE, {"kind": "log", "buckets": 0}, [(REBUILD, "from 'upsert' to 'log'")]),
    "semantics": (STATE, {"semantics": "transactional"}, [(NEXT, "from 'opaque' to 'trans")]),
    "semantics with marks of removed keys": (
        replace(STATE, remove_where="n = 0"),
        {"semantics": "transactional"},
        [(REBUILD, "from 'opaque' to 'trans")],
    ),
    "semantics of a log with marks": (
        replace(LOG, kind="log-with-removal", remove_where="n = 0"),
        {"semantics": "transactional"},
        [(NEXT, "from 'opaque' to 'trans")],
    ),
    "key dropped": (STATE, {"keys": ("user",)}, [(REBUILD, "key 'day' goes away")]),
    "key renamed": (
        STATE,
        {"keys": ("day", "customer"), "was": {"customer": "user"}},
        [(REBUILD, "key 'user' is renamed to 'customer'")],
    ),
    "key added": (STATE, {"keys": ("day", "user", "k")}, [(REFUSED, "key 'k' is new")]),
    "keys in another order": (STATE, {"keys": ("user", "day")}, [(REBUILD, "the order of its")]),
    "keys of a log in another order": (LOG, {"keys": ("user", "day")}, [(NEXT, "the order")]),
    "removal begins": (STATE, {"remove_where": "n = 0"}, [(NEXT, "from nothing to 'n = 0'")]),
    "removal of a log begins": (
        LOG,
        {"kind": "log-with-removal", "remove_where": "n = 0"},
        [(REBUILD, "from nothing to 'n = 0'")],
    ),
    "removal changes": (
        replace(STATE, remove_where="n = 0"),
        {"remove_where": "n < 2"},
        [(NEXT, "from 'n = 0' to 'n < 2'")],
    ),
    "removal ends": (
        replace(STATE, remove_where="n = 0"),
        {"remove_where": None},
        [(REBUILD, "from 'n = 0' to nothing")],
    ),
    "types": (
        STATE,
        {"columns": {**(STATE.columns or {}), "user": "long", "s": "double"}},
        [
            (REBUILD, "column 'user' changes from integer to long"),
            (REBUILD, "column 's' changes from long to double"),
        ],
    ),
    "types that nobody knows yet": (STATE, {"columns": None}, []),
    "column added": (
        ROWS,
        {"columns": {"w": "double", **(ROWS.columns or {})}},
        [(NEXT, "column 'w' is new")],
    ),
    "column dropped": (
        ROWS,
        {"columns": {"k": "string", "txid": "long"}},
        [(CHOICE, "column 'v' of the table is not in the program")],
    ),
    "columns in another order": (
        ROWS,
        {"columns": dict(reversed((ROWS.columns or {}).items()))},
        [],
    ),
    "column renamed and widened": (
        ROWS,
        {"columns": {"k": "string", "w": "long", "txid": "long"}, "was": {"w": "v"}},
        [(REBUILD, "'v' is renamed to 'w'"), (REBUILD, "'w' changes from integer to long")],
    ),
    "renamed, and new under the former name": (
        ROWS,
        {"columns": {**(ROWS.columns or {}), "w": "integer"}, "was": {"w": "v"}},
        [(REFUSED, "'v' is renamed to 'w', and"), (REBUILD, "'v' is renamed to 'w'")],
    ),
    "key renamed, and still there": (
        STATE,
        {"keys": ("day", "user", "customer"), "was": {"customer": "user"}},
        [(REFUSED, "'user' is renamed to"), (REBUILD, "key 'user' is renamed to 'customer'")],
    ),
    "two columns change names": (
        ROWS,
        {"was": {"k": "v", "v": "k"}},
        [(REFUSED, "renames 'v' to 'k', and the"), (REFUSED, "renames 'k' to 'v', and the")],
    ),
    "column renamed to one that goes away": (
        ROWS,
        {"columns": {"k": "string", "txid": "long"}, "was": {"k": "v"}},
        [(REFUSED, "renames 'v' to 'k', and the table has"), (CHOICE, "column 'v' of the table")],
    ),
    "key renamed to one that goes away": (
        STATE,
        {"keys": ("day",), "was": {"day": "user"}},
        [(REFUSED, "renames 'user' to 'day', and the table"), (REBUILD, "key 'user' goes away")],
    ),
    "renamed long ago, and new under the former name": (ROWS, {"was": {"v": "k"}}, []),
    "renamed long ago, twice": (ROWS, {"was": {"v": "k", "k": "old"}}, []),
    "another kind": (ROWS, {"kind": "upsert"}, [(REFUSED, "a table of kind 'append'")]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_difference_has_its_verdict(case: str) -> None:
    """A program's table is compared with the stored one, rule by rule."""
    stored, other, expected = CASES[case]
    changes = compare_tables("t", stored, replace(stored, former=frozenset(), since={}, **other))
    assert [change.verdict for change in changes] == [verdict for verdict, _ in expected]
    assert [
        part for change, (_, part) in zip(changes, expected, strict=True) if part not in change.what
    ] == []
    assert [c.allowed for c in changes] == [c.verdict is NEXT for c in changes]
    assert all(change.allowed or change.way_out for change in changes)


def _struct(*names: str, kind: Any = "integer") -> dict[str, Any]:
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n in names]
    return {"type": "struct", "fields": fields}


def _array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def _map(value: str) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (_struct("a", "b"), _struct("a", "b", kind="long"), REBUILD),
        (_array(_struct("a")), _array(_struct("a", kind="long")), REBUILD),
        (_struct("a", "b"), _struct("b", "a"), REFUSED),
        (_array(_struct("a", "b")), _array(_struct("b", "a")), REFUSED),
        (_struct("a"), _struct("a", "b"), REFUSED),
        (_array("integer"), "string", REFUSED),
        ("string", _array("integer"), REFUSED),
        (_map("integer"), _map("long"), REFUSED),
        ("binary", "string", REFUSED),
    ],
)
def test_only_simple_types_are_cast(before: Any, after: Any, verdict: Verdict) -> None:
    """Fields of a struct are cast by position, so their names and order stay."""
    stored = replace(ROWS, columns={"v": before, "txid": "long"})
    program = replace(ROWS, columns={"v": after, "txid": "long"})
    assert [change.verdict for change in compare_tables("t", stored, program)] == [verdict]


def test_settings_allow_what_they_name() -> None:
    """A dropped column and a rebuild are allowed by name, nothing else is."""
    program = replace(STATE, values={"s": "Max(v)", "n": "Count()"}, buckets=8)
    stored = replace(STATE, values={**STATE.values, "gone": "Count()"})
    changes = compare_tables("t", stored, program, dropped=["gone"], rebuilt=True)
    assert [change.verdict for change in refused(changes)] == [REFUSED]
    assert len(changes) == 3


def test_an_empty_table_takes_every_shape() -> None:
    """Without rows there is nothing to rebuild; but a state never becomes a table of rows."""
    stored = replace(STATE, is_empty=True)
    program = replace(STATE, keys=("k",), values={"s": "Max(v)"}, buckets=8)
    changes = compare_tables("t", stored, program)
    assert {change.verdict for change in changes} == {NEXT}
    assert refused(changes) == ()
    assert len(refused(compare_tables("t", stored, ROWS))) == 1


def test_a_refusal_has_each_way_out_once() -> None:
    """Two differences with one way out are told as two clauses and one sentence."""
    changes = compare_tables("a/t", STATE, replace(STATE, buckets=8, keys=("user", "day")))
    text = describe_refused(refused(changes))
    assert text.count("--set rebuilt_tables=a/t") == 1
    assert "from 4 to 8; the order" in describe_refused([changes[0], changes[1]])


def test_a_new_key_in_place_of_another_is_asked_whether_it_is_renamed() -> None:
    """Who renames a key without `columns_were` is told of it; a key beside the others is not."""
    renamed = compare_tables("t", STATE, replace(STATE, keys=("day", "customer")))
    assert renamed[0].way_out.startswith(
        "If it is 'user' under another name, give the table columns_were={'customer': 'user'}."
    )
    added = compare_tables("t", STATE, replace(STATE, keys=("day", "user", "k")))
    assert "columns_were" not in added[0].way_out


def test_a_rename_that_is_written_the_wrong_way_round_is_told() -> None:
    """The new name comes first; the other way round the way out has both names."""
    exchanged = replace(STATE, keys=("day", "customer"), was={"user": "customer"})
    changes = refused(compare_tables("t", STATE, exchanged))
    assert "Write the new name first: columns_were={'customer': 'user'}." in [
        change.way_out for change in changes
    ]


def test_properties_describe_the_shape() -> None:
    """What a table's properties say is read; what is no description is an error."""
    properties = {
        "txn.kind": "upsert",
        "txn.semantics": "opaque",
        "txn.keys": json.dumps(["day", "user"]),
        "txn.values": json.dumps([["n", "Count()"], ["s", "Sum(v)", "result"]]),
        "txn.buckets": "4",
        "txn.former": '["m"]',
        "txn.since": '{"s": 7}',
    }
    fields = [{"name": name, "type": kind} for name, kind in (STATE.columns or {}).items()]
    read = TableShape.of_properties(properties, fields)
    assert read == replace(STATE, former=frozenset({"m"}), since={"s": 7})
    for broken in ({"txn.values": "{"}, {"txn.since": "[]"}, {"txn.buckets": "many"}):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            TableShape.of_properties({**properties, **broken})
