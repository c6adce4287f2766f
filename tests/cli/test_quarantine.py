"""`txn quarantine`, and what `txn status`, `history` and `recover` make of quarantined txids."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cli.test_app import PROGRAM
from tests.delta.publishing import publish
from txn.cli.app import cli
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.protocol.records import BatchRecord, CommittedRecord, QuarantineRecord
from txn.zookeeper import ZooKeeperProgress


@pytest.fixture
def hosts(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """A ZooKeeper of one test: a chroot of its own."""
    return f"{zookeeper.hosts}/{tmp_path.name}"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user, with a program."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def invoke(*arguments: str) -> Result:
    """The command line, in this process."""
    return CliRunner().invoke(cli, list(arguments), prog_name="txn")


def lead(hosts: str) -> ZooKeeperProgress:
    """A store that leads topology "orders" and has loaded."""
    store = ZooKeeperProgress(hosts, "orders", TopologyConfig())
    store.lead()
    store.load()
    return store


def quarantine(store: ZooKeeperProgress, txid: int) -> None:
    """Commit a txid empty; it was to read position `txid`."""
    aside = QuarantineRecord(
        txid=txid, attempt=4, spouts={"orders": {"at": txid}, "idle": None}, error="bad row"
    )
    store.persist_committed(CommittedRecord(txid=txid, epoch=store.epoch), aside)


def test_list_tells_what_was_set_aside(hosts: str) -> None:
    """Txid, attempt, what it was to read, the error, and whether it is on its way back."""
    store = lead(hosts)
    for txid in (1, 2, 3):
        quarantine(store, txid)
    invoke("quarantine", "replay", "orders", "2", "3", "--zookeeper", hosts)
    replay = BatchRecord(txid=4, attempt=0, epoch=1, spouts={"orders": {"at": 2}}, replay_of=2)
    store.persist_start(replay)
    text = invoke("quarantine", "list", "orders", "--zookeeper", hosts).output
    told = json.loads(invoke("quarantine", "list", "orders", "--zookeeper", hosts, "--json").output)
    store.close()
    assert [line.split() for line in text.splitlines()] == [
        ["txid", "read", "replay", "error"],
        ["1:4", "orders", "{at:", "1}", "-", "bad", "row"],
        ["2:4", "orders", "{at:", "2}", "txid", "4", "bad", "row"],
        ["3:4", "orders", "{at:", "3}", "requested", "bad", "row"],
    ]
    assert [entry["replay"] for entry in told["quarantine"]] == [None, 4, "requested"]
    assert told["quarantine"][0]["spouts"] == {"orders": {"at": 1}, "idle": None}


def test_nothing_is_quarantined(hosts: str) -> None:
    """Listing says so; asking for a replay is an error."""
    lead(hosts).close()
    shown = invoke("quarantine", "list", "orders", "--zookeeper", hosts)
    assert (shown.exit_code, shown.output) == (0, "Topology 'orders' has no quarantined txids.\n")
    asked = invoke("quarantine", "replay", "orders", "--all", "--zookeeper", hosts)
    assert (asked.exit_code, "nothing to replay" in asked.output) == (1, True)


def test_replay_is_asked_for_by_txid_or_for_all(program: Path, hosts: str) -> None:
    """By name or by file, while the topology runs or not; the answer names the txids."""
    store = lead(hosts)
    for txid in (1, 2):
        quarantine(store, txid)
    one = invoke("quarantine", "replay", "orders", "2", "--zookeeper", hosts)
    assert one.output == "Topology 'orders' is going to replay what txid 2 was to read.\n"
    store.close()
    every = invoke(
        "quarantine", "replay", "program.py:topology", "--all", "--zookeeper", hosts, "--json"
    )
    assert json.loads(every.output) == {"topology": "orders", "replay": [1, 2]}
    unknown = invoke("quarantine", "replay", "orders", "7", "--zookeeper", hosts)
    assert (unknown.exit_code, "Txid 7 of topology 'orders'" in unknown.output) == (1, True)


@pytest.mark.parametrize("arguments", [[], ["1", "--all"], ["0"], ["first"]])
def test_replay_needs_txids_or_all(arguments: list[str]) -> None:
    """Neither or both is a mistake on the command line."""
    assert invoke("quarantine", "replay", "orders", *arguments).exit_code == 2


def test_a_txid_is_given_up_for_good(program: Path, hosts: str) -> None:
    """`drop` asks for it, by name or by file, once however often; `list` shows that until a txid
    has its place, and `history` what was lost, as far back as the logs tell.
    """
    store = lead(hosts)
    for txid in (1, 2):
        quarantine(store, txid)
    invoke("quarantine", "replay", "orders", "2", "--zookeeper", hosts)
    for name in ("orders", "program.py:topology"):
        dropped = invoke("quarantine", "drop", name, "2", "--zookeeper", hosts)
        told = "Topology 'orders' is going to give up what txid 2 was to read.\n"
        assert (dropped.exit_code, dropped.output) == (0, told)
    asked = invoke("quarantine", "drop", "orders", "2", "--zookeeper", hosts, "--json")
    assert json.loads(asked.output) == {"topology": "orders", "drop": [2]}
    listed = invoke("quarantine", "list", "orders", "--zookeeper", hosts, "--json")
    assert [q["replay"] for q in json.loads(listed.output)["quarantine"]] == [
        None,
        "drop requested",
    ]
    unknown = invoke("quarantine", "drop", "orders", "7", "--zookeeper", hosts)
    assert (unknown.exit_code, "Txid 7 of topology 'orders'" in unknown.output) == (1, True)
    assert invoke("quarantine", "drop", "orders", "--zookeeper", hosts).exit_code == 2

    for table in ("items", "orders"):
        where = program / "tables" / table
        publish(where, 2, topology="orders", read={"orders": {"at": 2}}, quarantined="bad row")
        publish(where, 3, topology="orders", read={"orders": None}, replay_of=2, rows=0)
        publish(where, 4, topology="orders", read={"orders": None}, replay_of=1, rows=0)
    store.persist_committed(CommittedRecord(txid=4, epoch=store.epoch), replay_of=2)
    store.close()
    history = ("history", "program.py:topology", "--zookeeper", hosts)
    text = " ".join(invoke(*history).output.split())
    assert "gives up txid 2: orders {at: 2}" in text
    assert "gives up txid 1: its log is gone" in text
    told = json.loads(invoke(*history, "--json").output)["txids"]
    assert [(each["txid"], each["replay_of"], each["lost"]) for each in told] == [
        (4, 1, {}),
        (3, 2, {"orders": {"at": 2}}),
        (2, None, {}),
    ]


def test_status_counts_quarantined_txids_and_names_open_attempts(hosts: str) -> None:
    """Attempt ids of open batches, what is special about them, and how many are set aside."""
    store = lead(hosts)
    for txid in range(1, 8):
        quarantine(store, txid)
    for txid, more in ((8, {"replay_of": 3}), (9, {"quarantined": "boom"}), (10, {})):
        spouts = {"orders": {"at": 3}} if txid == 8 else {}
        store.persist_start(BatchRecord(txid=txid, attempt=2, epoch=1, spouts=spouts, **more))
    text = invoke("status", "orders", "--zookeeper", hosts).output
    told = json.loads(invoke("status", "orders", "--zookeeper", hosts, "--json").output)
    store.close()
    assert "{at: 3}" not in text, "A replay is not where its stream stands."
    assert "8:2 (replays 3), 9:2 (emptied), 10:2" in text
    assert "7: txid 3, 4, 5, 6, 7 and 2 before (txn quarantine list orders)" in text
    assert (told["quarantined"], told["quarantine"][2]["replay"]) == (7, 8)


def test_recover_does_not_bring_back_what_was_replayed(program: Path, hosts: str) -> None:
    """A ZooKeeper that lags behind the tables may still list what they have been given since."""
    store = lead(hosts)
    for txid in (1, 2, 3):
        quarantine(store, txid)
    store.close()
    invoke("quarantine", "replay", "orders", "--all", "--zookeeper", hosts)
    positions = {"orders": {"at": 3}}
    for table in ("items", "orders"):
        for txid, of in ((4, 1), (5, 2)):
            if (table, txid) != ("orders", 5):
                publish(
                    program / "tables" / table,
                    txid,
                    topology="orders",
                    spouts=positions,
                    read={"orders": {"at": of}},
                    replay_of=of,
                )
    result = invoke("recover", "program.py:topology", "--zookeeper", hosts, "--yes")
    assert result.exit_code == 0, result.output
    told = json.loads(invoke("status", "orders", "--zookeeper", hosts, "--json").output)
    assert (told["committed_txid"], told["spouts"]) == (4, positions)
    assert [(batch["txid"], batch["replay_of"]) for batch in told["batches"]] == [(5, 2)]
    assert [(q["txid"], q["replay"]) for q in told["quarantine"]] == [(2, 5), (3, "requested")]


def test_what_strangers_wrote_is_shown_as_it_is(hosts: str) -> None:
    """Brackets are no markup, control characters reach no terminal, whatever an error quotes."""
    store = lead(hosts)
    store.persist_start(BatchRecord(txid=1, attempt=0, epoch=1, spouts={"orders": {"x": "[/red]"}}))
    bad = QuarantineRecord(
        txid=1, attempt=0, spouts={"orders": {"x": "[/red]"}}, error="[bold]\x1b[2J[/no] :smile:"
    )
    store.persist_committed(CommittedRecord(txid=1, epoch=1, spouts={"[/b]": "[/red]"}), bad)
    text = invoke("quarantine", "list", "orders", "--zookeeper", hosts)
    status = invoke("status", "orders", "--zookeeper", hosts)
    store.close()
    assert (text.exit_code, status.exit_code) == (0, 0), text.output + status.output
    assert "[bold]\\x1b[2J[/no] :smile:" in text.output
    assert "{x: [/red]}" in text.output
    assert "[/b]" in status.output
