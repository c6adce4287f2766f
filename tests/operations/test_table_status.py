"""What tables add to a status."""

from __future__ import annotations

import json
from pathlib import Path

from tests.delta.publishing import publish
from txn.operations.tables.table_status import NEWEST_TXIDS, TableStatus, read_tables


def began_late(table: Path) -> None:
    """A table that was made when txid 7 was the next one."""
    publish(table, 7)
    log = table / "_delta_log" / f"{0:020d}.json"
    # delta-rs itself makes no table with a property that it does not know.
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    next(filter(None, (line.get("metaData") for line in lines)))["configuration"] = {
        "txn.firstTxid": "7"
    }
    log.write_text("\n".join(map(json.dumps, lines)))


def test_each_table_has_the_txid_with_which_it_begins(tmp_path: Path) -> None:
    """That of its property; a table without it begins with txid 1."""
    publish(tmp_path / "a", 1)
    began_late(tmp_path / "b")
    names = [str(tmp_path / name) for name in "ab"]
    assert list(read_tables("t", names, 7).first_txids.items()) == [(names[0], 1), (names[1], 7)]


def test_violations_of_the_newest_committed_txids_are_added_up(tmp_path: Path) -> None:
    """By stream and rule; a txid counts once, however many tables tell of it."""
    for txid in range(1, NEWEST_TXIDS + 3):
        broken = {"s": {"a key": 1, "a sum": 0}}
        publish(tmp_path / "a", txid, violations=broken)
        publish(tmp_path / "b", txid, violations={"s": broken["s"], "u": {"a date": 2}})
    names = [str(tmp_path / name) for name in "ab"]
    found = read_tables("t", names, NEWEST_TXIDS + 1)
    assert found.txids is not None
    txids = found.txids[1] - found.txids[0] + 1
    assert found.txids[1] == NEWEST_TXIDS + 1
    assert txids in (NEWEST_TXIDS - 1, NEWEST_TXIDS)
    assert found.violations == {"s": {"a key": txids, "a sum": 0}, "u": {"a date": 2 * txids}}


def test_a_table_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    """A status is wanted most when something is away."""
    publish(tmp_path / "a", 1)
    gone = str(tmp_path / "gone")
    found = read_tables("t", [gone, str(tmp_path / "a")], 1)
    assert found.unread[gone].startswith("UserError: There is no Delta table at")
    assert found.first_txids == {str(tmp_path / "a"): 1}


def test_a_table_whose_commits_cannot_be_read_is_only_listed_as_unread(tmp_path: Path) -> None:
    """Nothing of a table counts if a later read of its log fails."""
    publish(tmp_path / "a", 1)
    log = tmp_path / "a" / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace('"format":1', '"format":99'))
    found = read_tables("t", [str(tmp_path / "a")], 1)
    assert list(found.unread) == [str(tmp_path / "a")]
    assert found.first_txids == {}


def test_it_is_json(tmp_path: Path) -> None:
    """Everything in it can be written as JSON and read again, also if there is nothing."""
    publish(tmp_path / "a", 1, violations={"s": {"a key": 3}})
    told = read_tables("t", [str(tmp_path / "a")], 1).to_json()
    assert told == json.loads(json.dumps(told))
    assert (told["violations"], told["violations_txids"]) == ({"s": {"a key": 3}}, [1, 1])
    assert TableStatus().to_json()["violations_txids"] is None
