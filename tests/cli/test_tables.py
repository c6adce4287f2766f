"""How the answers of operations look to people."""

from __future__ import annotations

import io

from rich.console import Console

from txn.cli.tables import status_table
from txn.operations.status import status_of
from txn.operations.tables.table_status import TableStatus
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import CommittedRecord, Progress

RULES = {"s": {"a key": 1200, "a sum": 0}}


def shown(tables: TableStatus) -> list[list[str]]:
    """The words of each line of a status of two tables."""
    committed = CommittedRecord(txid=9, epoch=1, tables={"w/a": 8, "w/b": 3})
    status = status_of(TopologyStatus("t", Progress(committed=committed), 1, None, None, ()))
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(status_table(status, tables, "embedded"))
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_a_status_shows_where_each_table_begins() -> None:
    """Beside its version; a question mark and the reason for one that cannot be read."""
    assert ["w/b", "3", "7"] in shown(TableStatus({"w/a": 1, "w/b": 7}))
    lines = shown(TableStatus({"w/a": 1}, {"w/b": "OSError: away"}))
    assert ["w/a", "8", "1"] in lines
    assert ["w/b", "3", "?", "OSError:", "away"] in lines


def test_a_status_shows_the_rules_that_rows_broke_and_in_which_txids() -> None:
    """A topology without rules has no such line."""
    told = " ".join(map(" ".join, shown(TableStatus(txids=(2, 9), violations=RULES))))
    assert "broken rules a key 1,200 (s); in txids 2 to 9 " in told
    told = " ".join(map(" ".join, shown(TableStatus(txids=(9, 9), violations={"s": {"r": 0}}))))
    assert "broken rules none; in txid 9 " in told
    assert "broken" not in " ".join(map(" ".join, shown(TableStatus(txids=(2, 9)))))


def test_a_status_shows_how_far_published_tables_are_behind() -> None:
    """In txids; a question mark and the reason for one that cannot be read."""
    known = TableStatus({}, {"w/d": "OSError: away"}, published={"w/c": 7, "w/d": None, "w/e": 0})
    lines = shown(known)
    assert ["w/c", "txid", "7", "2"] in lines
    assert ["w/d", "OSError:", "away", "?"] in lines
    assert ["w/e", "nothing", "yet", "9"] in lines
    assert not any("published" in line for line in shown(TableStatus()))
