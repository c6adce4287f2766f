"""Tables as they are, as of a txid, and between two."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Field as DeltaField
from deltalake.exceptions import DeltaError

from tests.dashboard.made_logs import append_version, made_table, publication
from txn.dashboard.watching import tables as module
from txn.dashboard.watching.tables import difference, first_rows, table_facts
from txn.errors import TxnError, UserError
from txn.storage.storage import Storage

STATE = {"carrier": "string", "flights": "long", "txid": "long"}


def rows(*found: tuple[str, int, int]) -> pa.Table:
    carriers, flights, txids = zip(*found, strict=True)
    kinds = pa.schema([("carrier", pa.string()), ("flights", pa.int64()), ("txid", pa.int64())])
    return pa.table([carriers, flights, txids], schema=kinds)


def state(folder: Path) -> Storage:
    """An upsert table: AA 1, then AA 3 and UA 1, then UA alone."""
    table = made_table(folder / "state", STATE, "upsert")
    a = append_version(table, 1, publication(1), rows=rows(("AA", 1, 1), ("B6", 5, 1)))
    b = append_version(
        table,
        2,
        publication(2),
        rows=rows(("AA", 3, 2), ("B6", 5, 1), ("UA", 1, 2)),
        removes=(a or "",),
    )
    append_version(
        table, 3, publication(3), rows=rows(("B6", 5, 1), ("UA", 1, 2)), removes=(b or "",)
    )
    return Storage(str(table))


def appended(folder: Path, kind: str | None = "append") -> Storage:
    """Rows of three txids; the third has two."""
    table = made_table(folder / "rows", STATE, kind)
    for txid in (1, 2):
        append_version(table, txid, publication(txid), rows=rows(("AA", txid, txid)))
    append_version(table, 3, publication(4, group=2), rows=rows(("UA", 3, 3), ("UA", 4, 4)))
    return Storage(str(table))


def test_facts_of_a_table(tmp_path: Path) -> None:
    """Files, bytes, rows, and what its topology says of it."""
    found = table_facts(state(tmp_path))
    assert (found.version, found.files, found.rows, found.small_files) == (3, 1, 2, 1)
    assert (found.kind, found.keys, found.values) == (
        "upsert",
        ("carrier",),
        {"flights": "Count()"},
    )
    assert found.columns == {"carrier": "string", "flights": "long", "txid": "long"}
    assert found.bytes > 0
    assert found.first_txid == 1


def test_facts_of_a_table_that_says_nonsense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Properties that were changed by hand are left out, and no error."""
    about = {"txn.keys": "[", "txn.values": "7", "txn.buckets": "x", "txn.firstTxid": "-3"}
    monkeypatch.setitem(__import__("tests.dashboard.made_logs", fromlist=["x"]).ABOUT, "odd", about)
    found = table_facts(Storage(str(made_table(tmp_path / "odd", STATE, "odd"))))
    assert (found.keys, found.values, found.buckets, found.first_txid, found.files) == (
        (),
        {},
        0,
        1,
        0,
    )


def test_a_state_as_of_a_version(tmp_path: Path) -> None:
    """The rows of that version, as text."""
    storage = state(tmp_path)
    found = first_rows(storage, 1, 1, 10)
    assert found.rows == [["AA", "1", "1"], ["B6", "5", "1"]]
    assert (found.more, found.version) == (False, 1)
    assert first_rows(storage, 3, 3, 1).more


def test_appended_rows_as_of_a_txid_within_a_group(tmp_path: Path) -> None:
    """The version holds two txids; rows of the later one are left out."""
    storage = appended(tmp_path)
    assert sorted(str(row[2]) for row in first_rows(storage, 3, 3, 10).rows) == ["1", "2", "3"]
    assert len(first_rows(storage, 3, None, 10).rows) == 4


def test_partials_of_a_log_table_are_combined(tmp_path: Path) -> None:
    """Counts are added up by key, as of a txid; what is not known here is told as it is stored."""
    table = made_table(tmp_path / "log", {**STATE, "latest": "long"}, "log")
    kinds = [
        ("carrier", pa.string()),
        ("flights", pa.int64()),
        ("txid", pa.int64()),
        ("latest", pa.int64()),
    ]
    for txid in (1, 2, 3):
        found = pa.table([["AA"], [txid * 10], [txid], [txid]], schema=pa.schema(kinds))
        append_version(table, txid, publication(txid), rows=found)
    storage = Storage(str(table))
    assert first_rows(storage, 3, 2, 10).rows == [["AA", "30", "2"]]
    assert list(first_rows(storage, 3, 2, 10).columns) == ["carrier", "flights", "latest"]
    changed = difference(storage, (1, 3), (1, 3), 10)
    assert changed.changes[0].before == ["10", "1"]
    assert changed.changes[0].after == ["60", "3"]


def test_partials_that_arrow_cannot_combine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are shown one by one, and the reader is told why."""
    made = __import__("tests.dashboard.made_logs", fromlist=["x"])
    about = {**made.ABOUT["log"], "txn.values": '[["flights", "Variance(x)"]]'}
    monkeypatch.setitem(made.ABOUT, "variance", about)
    table = made_table(tmp_path / "log", STATE, "variance")
    for txid in (1, 2):
        append_version(table, txid, publication(txid), rows=rows(("AA", 1, txid)))
    found = first_rows(Storage(str(table)), 2, 2, 10)
    assert len(found.rows) == 2
    assert "flights (Variance(x))" in found.note


def log_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: str,
    values: str,
    *parts: pa.Table,
) -> Storage:
    """A log table with one version for each part, which gets its txid."""
    made = __import__("tests.dashboard.made_logs", fromlist=["x"])
    about = {**made.ABOUT["log"], "txn.keys": keys, "txn.values": values}
    monkeypatch.setitem(made.ABOUT, "made", about)
    kinds: dict[str, Any] = {
        field.name: json.loads(DeltaField.from_arrow(field).to_json())["type"]
        for field in parts[0].schema
    }
    table = made_table(folder / "made", {**kinds, "txid": "long"}, "made")
    for txid, part in enumerate(parts, 1):
        txids = pa.array([txid] * part.num_rows, pa.int64())
        append_version(table, txid, publication(txid), rows=part.append_column("txid", txids))
    return Storage(str(table))


def test_nan_is_the_greatest_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in Spark; a key or a value that is NaN before and after has not changed."""
    nan = float("nan")
    storage = log_of(
        tmp_path,
        monkeypatch,
        '["k"]',
        '[["most", "Max(x)"], ["least", "Min(x)"]]',
        pa.table({"k": [1.0, nan], "most": [2.0, nan], "least": [nan, 7.0]}),
        pa.table({"k": [1.0], "most": [nan], "least": [3.0]}),
        pa.table({"k": [1.0], "most": [1.0], "least": [nan]}),
    )
    assert first_rows(storage, 3, 3, 10).rows == [["1.0", "nan", "3.0"], ["nan", "nan", "7.0"]]
    assert difference(storage, (1, 3), (1, 3), 10).counts == {
        "added": 0,
        "changed": 1,
        "removed": 0,
    }
    assert not difference(storage, (2, 3), (2, 3), 10).changes


def test_a_key_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one by which Arrow would name the sum of a value."""
    part = pa.table({"c_sum": ["a"], "0": ["b"], "c": [2]})
    values = '[["c", "Sum(v)"]]'
    storage = log_of(tmp_path, monkeypatch, '["c_sum", "0"]', values, part, part)
    assert first_rows(storage, 2, 2, 10).rows == [["a", "b", "4"]]


@pytest.mark.parametrize("nested", ["key", "value"])
def test_partials_of_a_type_that_arrow_cannot_combine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: str
) -> None:
    """The greatest struct, and keys that are structs: shown as they are stored, with the reason."""
    key = [{"x": 1}] if nested == "key" else ["a"]
    value = [{"x": 1}] if nested == "value" else [7]
    part = pa.table({"k": key, "v": value})
    storage = log_of(tmp_path, monkeypatch, '["k"]', '[["v", "Max(x)"]]', part, part)
    found = first_rows(storage, 2, 2, 10)
    assert len(found.rows) == 2
    assert "only Spark can combine" in found.note
    assert difference(storage, (1, 2), (1, 2), 10).counts == {"added": 1}


def test_values_that_python_cannot_have(tmp_path: Path) -> None:
    """A date and a time after the year 9999, and text that is no UTF-8, as Spark makes them: the
    cell says what it is, and the rest of the table is shown.
    """
    table = made_table(tmp_path / "rows", {"d": "date", "t": "timestamp", "s": "string"}, None)
    days, moments = [0, 4_000_000], [0, 316_516_032_000_000_000]
    rows = pa.table(
        {
            "d": pa.array(days, pa.date32()),
            "t": pa.array(moments, pa.timestamp("us", "UTC")),
            "s": pa.array([b"A", b"\xffA"], pa.binary()).view(pa.string()),
        }
    )
    append_version(table, 1, rows=rows)
    assert first_rows(Storage(str(table)), 1, None, 10).rows == [
        ["1970-01-01", "1970-01-01 00:00:00+00:00", "A"],
        ["12921-08-18", "11999-12-30 00:00:00.000000Z", "\\xffA"],
    ]
    nested = pa.array([[4_000_000]], pa.list_(pa.date32()))
    assert module._texts(pa.table({"v": nested})) == [
        ["list<item: date32[day]>: Python has no such value"]
    ]


def test_what_a_txid_changed_in_a_state(tmp_path: Path) -> None:
    """Keys that came, changed and went; the rest of a rewritten file is not among them."""
    storage = state(tmp_path)
    found = difference(storage, (1, 2), (1, 2), 10)
    assert found.counts == {"added": 1, "changed": 1, "removed": 0}
    assert {(c.kind, tuple(c.key)) for c in found.changes} == {
        ("added", ("UA",)),
        ("changed", ("AA",)),
    }
    assert next(c for c in found.changes if c.kind == "changed").before == ["1"]
    gone = difference(storage, (2, 3), (2, 3), 10)
    assert [(c.kind, c.key, c.after) for c in gone.changes] == [("removed", ["AA"], None)]
    assert len(difference(storage, (1, 2), (1, 2), 1).changes) == 1


def test_a_state_has_no_part_of_a_group(tmp_path: Path) -> None:
    """Its version has the state after the group's last txid: rows are shown as of that one, and a
    difference within a group is refused with two txids that can be compared.
    """
    table = made_table(tmp_path / "state", STATE, "upsert")
    a = append_version(table, 1, publication(4), rows=rows(("AA", 1, 4)))
    found = rows(("AA", 3, 7), ("UA", 1, 6))
    append_version(table, 2, publication(7, group=3), rows=found, removes=(a or "",))
    storage = Storage(str(table))
    shown = first_rows(storage, 2, 6, 10, (5, 7))
    assert "Txids 5 to 7 were published together" in shown.note
    assert "after txid 7" in shown.note
    assert first_rows(storage, 2, 7, 10, (5, 7)).note == ""
    for txids, groups in (
        ((5, 6), [(5, 7), (5, 7)]),
        ((4, 6), [(4, 4), (5, 7)]),
        ((6, 9), [(5, 7), (9, 9)]),
    ):
        with pytest.raises(UserError, match=r"cannot be told apart\. Compare 4 with 7"):
            difference(storage, (1, 2), txids, 10, groups)
    assert difference(storage, (1, 2), (4, 7), 10, [(4, 4), (5, 7)]).counts["added"] == 1


def test_removed_keys_of_a_state_do_not_show(tmp_path: Path) -> None:
    """They are stored until their txid is certainly committed, and no reader sees them."""
    table = made_table(tmp_path / "state", {**STATE, "txn_removed": "boolean"}, "upsert")
    found = rows(("AA", 1, 1), ("B6", 2, 1), ("UA", 3, 1))
    found = found.append_column("txn_removed", pa.array([True, False, None], pa.bool_()))
    append_version(table, 1, publication(1), rows=found)
    assert [row[0] for row in first_rows(Storage(str(table)), 1, 1, 10).rows] == ["B6", "UA"]


def test_a_value_of_a_state_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one as bookkeeping has in other tables; and what is stored may not be the result."""
    made = __import__("tests.dashboard.made_logs", fromlist=["x"])
    values = '[["prev_price", "Max(price)"], ["txn_rate", "Avg(x)", "result"]]'
    monkeypatch.setitem(made.ABOUT, "named", {**made.ABOUT["upsert"], "txn.values": values})
    columns = {"carrier": "string", "prev_price": "long", "txn_rate": "double", "txid": "long"}
    table = made_table(tmp_path / "state", columns, "named")
    kinds = pa.schema(
        [
            ("carrier", pa.string()),
            ("prev_price", pa.int64()),
            ("txn_rate", pa.float64()),
            ("txid", pa.int64()),
        ]
    )
    a = append_version(
        table, 1, publication(1), rows=pa.table([["AA"], [1], [0.5], [1]], schema=kinds)
    )
    newer = pa.table([["AA"], [2], [0.5], [2]], schema=kinds)
    append_version(table, 2, publication(2), rows=newer, removes=(a or "",))
    storage = Storage(str(table))
    changed = difference(storage, (1, 2), (1, 2), 10)
    assert (changed.values, changed.changes[0].before) == (("prev_price", "txn_rate"), ["1", "0.5"])
    assert first_rows(storage, 2, 2, 10).note.startswith("txn_rate: what is stored")


def test_what_txids_appended(tmp_path: Path) -> None:
    """The rows of the txids in between."""
    found = difference(appended(tmp_path), (1, 3), (1, 3), 10)
    after = sorted(map(str, (change.after for change in found.changes)))
    assert after == ["['AA', '2', '2']", "['UA', '3', '3']"]
    assert found.counts == {"added": 2}


def test_too_much_to_compare_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read, with another way to do it."""
    monkeypatch.setattr(module, "_LARGEST_BYTES", 10)
    with pytest.raises(UserError, match="Choose txids that are nearer"):
        difference(state(tmp_path), (1, 2), (1, 2), 10)


def test_a_table_without_txids_cannot_be_compared(tmp_path: Path) -> None:
    """The error says what to do instead."""
    table = made_table(tmp_path / "theirs", {"x": "long"}, None)
    append_version(table, 1, rows=pa.table({"x": [1]}))
    with pytest.raises(UserError, match="no column txid"):
        difference(Storage(str(table)), (0, 1), (0, 1), 10)


def test_a_version_whose_files_are_gone(tmp_path: Path) -> None:
    """VACUUM has deleted them: an error, and no rows that are wrong."""
    storage = state(tmp_path)
    (tmp_path / "state" / "part-000001.parquet").unlink()
    with pytest.raises((OSError, DeltaError, TxnError)):
        first_rows(storage, 1, 1, 10)


def test_values_become_text(tmp_path: Path) -> None:
    """Every kind of value, NULL apart from text, and nothing that is too long for a page."""
    columns = {"v": "string"}
    table = made_table(tmp_path / "values", columns, None)
    append_version(table, 1, rows=pa.table({"v": ["x" * 1000, None, ""]}))
    found = first_rows(Storage(str(table)), 1, None, 10).rows
    assert [len(row[0] or "") for row in found] == [303, 0, 0]
    assert [row[0] is None for row in found] == [False, True, False]
    values = [True, 1.5, Decimal("1.10"), b"\x01\xff", date(2013, 1, 1), {"a": [1]}, 2**60]
    told = [module._text(value) for value in values]
    assert told == ["true", "1.5", "1.10", "01ff", "2013-01-01", '{"a": [1]}', str(2**60)]
    moment = datetime(2013, 1, 1, 5, tzinfo=timezone.utc)
    assert module._text(moment) == "2013-01-01 05:00:00+00:00"
