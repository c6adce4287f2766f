"""`txn optimize` and `txn vacuum`: they show, ask, do, and refuse."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from tests.cli.test_app import PROGRAM
from tests.delta.owned_tables import WEEK, make_table, put_file
from txn.cli.app import cli
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.zookeeper import ZooKeeperProgress

ITEMS, ORDERS = "tables/items", "tables/orders"


@pytest.fixture
def hosts(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """A ZooKeeper of one test: a chroot of its own."""
    return f"{zookeeper.hosts}/{tmp_path.name}"


@pytest.fixture
def program(tmp_path: Path, hosts: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a program and both of its tables, four txids of which are committed."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    make_table(tmp_path / ITEMS, kind="upsert")
    make_table(tmp_path / ORDERS)
    store = lead(hosts)
    store.persist_committed(
        CommittedRecord(txid=4, epoch=store.epoch, tables={ITEMS: 4, ORDERS: 4})
    )
    store.close()
    return tmp_path


def lead(hosts: str) -> ZooKeeperProgress:
    """A store that leads topology "orders" and has loaded."""
    store = ZooKeeperProgress(hosts, "orders", TopologyConfig())
    store.lead()
    store.load()
    return store


def invoke(hosts: str, *arguments: str, answer: str | None = None) -> Result:
    """The command line, in this process."""
    runner = CliRunner()
    return runner.invoke(cli, [*arguments, "--zookeeper", hosts], answer, prog_name="txn")


def version(program: Path, table: str = ORDERS) -> int:
    """The newest version of a table."""
    return DeltaTable(str(program / table)).version()


@pytest.mark.parametrize("name", ["orders", "program.py:topology"])
def test_optimize_shows_what_it_will_do_and_does_it(program: Path, hosts: str, name: str) -> None:
    """By name or by program: files and bytes, what is rewritten, what is left alone and why, and
    afterwards what became of it.
    """
    result = invoke(hosts, "optimize", name, "--yes")
    assert result.exit_code == 0
    assert re.search(r"tables/orders +4 .* up to 4 files \(.*\) to put together", result.output)
    assert re.search(r"tables/items +4 .* upsert: each bucket is one file", result.output)
    assert re.search(r"tables/orders .* 4 files \(.*\) became 1 ", result.output)
    assert (version(program), version(program, ITEMS)) == (5, 4)
    again = invoke(hosts, "optimize", name, "--yes")
    assert (again.exit_code, "There is nothing to do." in again.output) == (0, True)


def test_json_has_the_same(program: Path, hosts: str) -> None:
    """For programs: each table with numbers, and whether anything was done."""
    told = json.loads(invoke(hosts, "optimize", "orders", "--yes", "--json").output)
    assert (told["topology"], told["done"]) == ("orders", True)
    items, orders = told["tables"]
    assert (items["chosen_files"], "bucket" in items["skipped"]) == (0, True)
    assert (orders["files"], orders["chosen_files"], orders["written_files"]) == (4, 4, 1)
    assert (orders["error"], orders["skipped"]) == (None, None)


@pytest.mark.parametrize("operation", ["optimize", "vacuum"])
def test_nothing_is_done_unless_somebody_says_so(program: Path, hosts: str, operation: str) -> None:
    """Without a terminal and without --yes it ends as a mistake; with --dry-run it is well."""
    left = put_file(program / ORDERS, "data/compaction-ab/part-0.parquet", 2 * WEEK)
    for more in ([], ["--json"]):
        result = invoke(hosts, operation, "orders", *more)
        assert (result.exit_code, "add --yes" in result.output) == (2, True)
    dry = invoke(hosts, operation, "orders", "--dry-run")
    assert (dry.exit_code, "tables/orders" in dry.output) == (0, True)
    told = json.loads(invoke(hosts, operation, "orders", "--dry-run", "--json").output)
    assert (told["done"], told["tables"][1]["chosen_files"]) == (
        False,
        4 if operation == "optimize" else 1,
    )
    assert (version(program), left.exists()) == (4, True)


@pytest.mark.parametrize(("answer", "done"), [("y\n", True), ("n\n", False)])
def test_a_terminal_is_asked(
    program: Path, hosts: str, monkeypatch: pytest.MonkeyPatch, answer: str, done: bool
) -> None:
    """On a terminal it asks after it has shown the plan."""
    monkeypatch.setattr("txn.cli.options._can_ask", lambda: True)
    result = invoke(hosts, "optimize", "orders", answer=answer)
    assert "Do this? [y/N]" in result.output
    assert (result.exit_code, version(program)) == ((0, 5) if done else (1, 4))


def test_vacuum_deletes_leftovers_of_chosen_tables(program: Path, hosts: str) -> None:
    """Files that no version needs go after a week; with --table only there."""
    items = put_file(program / ITEMS, "data/compaction-ab/part-0.parquet", 2 * WEEK)
    orders = put_file(program / ORDERS, "data/compaction-ab/part-0.parquet", 2 * WEEK)
    result = invoke(hosts, "vacuum", "orders", "--table", str(program / ITEMS), "--yes")
    assert (items.exists(), orders.exists()) == (False, True)
    assert re.search(r"tables/items .* 1 files \(4 bytes\) deleted", result.output)
    assert ORDERS not in result.output


def test_a_table_that_the_topology_does_not_have_is_refused(program: Path, hosts: str) -> None:
    """The names that it has are listed."""
    result = invoke(hosts, "vacuum", "orders", "--table", "tables/odors", "--yes")
    assert (result.exit_code, "It has: 'tables/items', 'tables/orders'" in result.output) == (
        2,
        True,
    )


@pytest.mark.parametrize("at_work", ["leader", "batch", "unknown"])
def test_a_short_retention_is_refused_unless_the_topology_is_at_rest(
    program: Path, hosts: str, at_work: str
) -> None:
    """While somebody leads, a batch is open, or ZooKeeper has nothing, an hour is the least; at
    rest anything goes.
    """
    old = put_file(program / ORDERS, "data/compaction-ab/part-0.parquet", 0.5)
    arguments = ["vacuum", "program.py:topology", "--yes", "--retain-hours", "0"]
    store = lead(hosts)
    if at_work == "batch":
        store.persist_start(
            BatchRecord(txid=5, attempt=0, epoch=store.epoch, spouts={"orders": {}})
        )
    if at_work != "leader":
        store.close()
    where = f"{hosts}/empty" if at_work == "unknown" else hosts
    refused = invoke(where, *arguments)
    store.close()
    assert (refused.exit_code, old.exists()) == (1, True)
    assert "Keep them for 1 hours or more" in " ".join(refused.output.split())
    if at_work == "leader":
        assert invoke(hosts, *arguments).exit_code == 0
        assert not old.exists()


def test_a_table_that_cannot_be_read_is_named_and_the_others_are_done(
    program: Path, hosts: str
) -> None:
    """The command ends with 1, and has done what it could."""
    (program / ITEMS / "_delta_log" / f"{4:020}.json").write_text("{broken")
    result = invoke(hosts, "optimize", "orders", "--yes")
    assert (result.exit_code, version(program)) == (1, 5)
    assert re.search(r"tables/items +0 +0 bytes +\w+", result.output)
