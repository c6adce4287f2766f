"""Every kind of node, spoilt in every way, and everything that reads it: refused by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from tests.delta.publishing import publish
from tests.zookeeper.progress_store import CONFIG, bare_client, committed, leading, noise, start
from txn.cli.app import cli
from txn.embedded import EmbeddedZooKeeper
from txn.errors import NewerFormatError, ProgressUnreadableError
from txn.protocol.records import ColumnsRecord, NoticesRecord, ProgramRecord, QuarantineRecord
from txn.zookeeper import ZooKeeperProgress

NAME = "orders"
LONG = {"s": noise(1_000_000)}  # more than one node holds
COLUMNS = {"type": "struct", "fields": []}
PROGRAM = """
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from txn import Topology
topology = Topology("orders")
spout = MemoryTransactionalSpout([[(1,)]], "n int")
topology.stream("s", spout).partition_persist(AppendTable("table"))
"""
GARBAGE = {
    "empty": b"",
    "no-json": b"not json",
    "no-object": b"[1]",
    "no-version": b"{}",
    "text-version": b'{"version": "1"}',
    "old-version": b'{"version": 0}',
    "surplus-field": b'{"version": 1, "surplus": 1}',
    "deep": b"[" * 100_000,
}
NEWER = b'{"version": 2, "whatever": "it has"}'
READ_BY_ALL = (
    "format",
    "epoch",
    "committed",
    "batches/3",
    "quarantine/1",
    "quarantine",
    "columns/s",
    "program",
)
"""By what leads, and by what only looks."""
ONLY_SHOWN = ("standbys/one", "notices")
NODES = (*READ_BY_ALL, "leader", "parts", *ONLY_SHOWN)


@pytest.fixture
def hosts(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """A ZooKeeper of one test: a chroot of its own."""
    return f"{zookeeper.hosts}/{tmp_path.name}"


@pytest.fixture
def raw(zookeeper: EmbeddedZooKeeper, hosts: str) -> Iterator[KazooClient]:
    """A bare client, after a topology came to txid 2 with 3 open and 1 quarantined."""
    with leading(hosts, NAME) as store:
        aside = QuarantineRecord(txid=1, attempt=4, spouts={"s": 1}, error="it broke")
        store.persist_committed(committed(2), aside)
        store.persist_start(start(3, s=3))
        store.persist_start(start(4, **LONG))
        store.persist_columns(ColumnsRecord(stream="s", columns=COLUMNS))
        store.persist_program(ProgramRecord(python="cpython-311 3.11.7"))
    with bare_client(zookeeper.hosts) as client:
        yield client


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with a table that holds txids 1 and 2."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for txid in (1, 2):
        publish(tmp_path / "table", txid, topology=NAME, spouts={"s": txid}, epoch=1)
    return tmp_path


def spoil(raw: KazooClient, hosts: str, node: str, data: bytes) -> str:
    """Put `data` into a node; its path, as messages name it."""
    root = f"/{hosts.partition('/')[2]}/txn/{NAME}"
    if node == "parts":
        raw.set(f"{root}/parts/{sorted(raw.get_children(f'{root}/parts'))[1]}", data)
        return f"{root}/batches/4"  # it names its parts, and their checksum does not hold
    path = f"{root}/{node}"
    raw.ensure_path(path.rpartition("/")[0])
    if raw.exists(path):
        raw.set(path, data)
    else:
        raw.create(path, data)
    return path


def leads(hosts: str, *, wait: bool) -> None:
    """What a run does first, or a standby."""
    store = ZooKeeperProgress(hosts, NAME, CONFIG)
    try:
        store.lead(wait=wait)
        store.load()
    finally:
        store.close()


def command(*arguments: str) -> Callable[[str], None]:
    """A command of `txn`, which raises what it would tell."""

    def run(hosts: str) -> None:
        result = CliRunner().invoke(cli, [*arguments, "--zookeeper", hosts])
        if result.exit_code == 1 and result.output.startswith("error: ZooKeeper node"):
            raise ProgressUnreadableError(result.output)
        assert result.exit_code == 0, result.output

    return run


LEADING: dict[str, Callable[[str], None]] = {
    "run": lambda hosts: leads(hosts, wait=False),
    "standby": lambda hosts: leads(hosts, wait=True),
}
LOOKING: dict[str, Callable[[str], None]] = {
    "status": command("status", NAME),
    "history": command("history", NAME),
    "quarantine": command("quarantine", "list", NAME),
    "export": command("export", NAME),
}
READERS = {
    **{node: {**LEADING, **LOOKING} for node in (*READ_BY_ALL, "leader", "parts")},
    # Nobody decides by them: a leader does not look at them.
    **dict.fromkeys(ONLY_SHOWN, LOOKING),
}


@pytest.mark.parametrize("node", NODES)
def test_an_unreadable_node_is_refused_by_name_by_everything_that_reads_it(
    raw: KazooClient, hosts: str, program: Path, node: str
) -> None:
    """Whatever it holds instead, and whoever reads it; nothing is written meanwhile."""
    for name, data in {**GARBAGE, "newer": NEWER}.items():
        if node == "quarantine" and name == "empty":
            continue  # as it is before the first request
        path = spoil(raw, hosts, node, data)
        for reader, read in READERS[node].items():
            with pytest.raises(ProgressUnreadableError) as error:
                read(hosts)
            told = f"{reader}, {name}: {error.value}"
            assert f"node '{path}'" in str(error.value), told
            newer = name == "newer" and node != "parts"
            assert ("Run the version of txn that wrote it" in str(error.value)) == newer, told
    kept = "committed" if node == "batches/3" else "batches/3"
    assert json.loads(raw.get(f"{root_of(hosts)}/{kept}")[0])["txid"] in (2, 3)


def test_nothing_is_written_over_notices_that_cannot_be_read(raw: KazooClient, hosts: str) -> None:
    """Neither over rubbish nor over what a newer release wrote; the leader names the node."""
    record = NoticesRecord(epoch=2, txid=3, at="2026-01-01T00:00:00+00:00", streams={"s": ["it"]})
    with leading(hosts, NAME) as store:
        for data in (b"not json", NEWER):
            path = spoil(raw, hosts, "notices", data)
            with pytest.raises(ProgressUnreadableError, match=f"node '{path}'"):
                store.persist_notices(record)
            assert raw.get(path)[0] == data


def root_of(hosts: str) -> str:
    return f"/{hosts.partition('/')[2]}/txn/{NAME}"


@pytest.mark.parametrize(
    "node", [n for n in READ_BY_ALL if n != "batches/3"] + ["batches/3", "parts", "notices"]
)
def test_recover_rebuilds_what_cannot_be_read(
    raw: KazooClient, hosts: str, program: Path, node: str
) -> None:
    """Whatever was spoilt, the state is whole afterwards; what could be read of the quarantine
    stays.
    """
    spoil(raw, hosts, node, b"not json")
    result = CliRunner().invoke(
        cli, ["recover", "program.py:topology", "--zookeeper", hosts, "--yes", "--json"]
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["written"]
    with leading(hosts, NAME) as store:
        progress = store.load()
    assert (progress.committed.txid, progress.batches) == (2, ())
    shown = CliRunner().invoke(cli, ["quarantine", "list", NAME, "--zookeeper", hosts, "--json"])
    aside = [entry["txid"] for entry in json.loads(shown.output)["quarantine"]]
    assert aside == ([] if node == "quarantine/1" else [1])


@pytest.mark.parametrize("node", READ_BY_ALL)
def test_nothing_replaces_what_a_newer_release_wrote(
    raw: KazooClient, hosts: str, program: Path, node: str
) -> None:
    """An older release never replaces anything that a newer release has written.

    `txn recover` and `txn import --replace` refuse it by name, and change no node.
    """
    saved = program / "saved.json"
    command("export", NAME, "-o", str(saved))(hosts)
    path = spoil(raw, hosts, node, NEWER)
    before = {n: raw.get(f"{root_of(hosts)}/{n}")[0] for n in READ_BY_ALL}
    for arguments in (
        ("recover", "program.py:topology", "--yes"),
        ("import", str(saved), "--replace"),
    ):
        with pytest.raises(ProgressUnreadableError, match="Run the version of txn") as error:
            command(*arguments)(hosts)
        assert f"node '{path}'" in str(error.value)
    assert before == {n: raw.get(f"{root_of(hosts)}/{n}")[0] for n in READ_BY_ALL}
    with pytest.raises(NewerFormatError):
        leads(hosts, wait=False)
