"""`txn export` and `txn import`: the whole of it, or a refusal that says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import SecretStr

from tests.zookeeper.progress_store import CONFIG, committed, leading, start
from txn.backends import open_backend
from txn.cli.app import cli
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.errors import LeaderExistsError, NewerFormatError, ProgressUnreadableError, UserError
from txn.operations.progress_file import (
    ProgressFile,
    _checksum,
    _lacks_a_field,
    _parse,
    dump,
    read_file,
    write_file,
)
from txn.operations.transfer import export_progress, import_progress
from txn.protocol.records import BatchRecord, ColumnsRecord, QuarantineRecord, RowReplayRecord
from txn.zookeeper import ZooKeeperProgress, read_status

NAME = "orders"
LONG = {"s": [f"part-{i:05d}.csv" for i in range(60_000)]}  # more than one node holds
COLUMNS = {"type": "struct", "fields": []}
ASIDE = [
    QuarantineRecord(txid=txid, attempt=4, spouts={"s": txid}, error=f"no {txid}")
    for txid in (3, 5)
]
REPLAYED = [
    RowReplayRecord(
        stream="s", number=n, rules={"r": n}, first_txid=n, rows=2, file=f"{n}.csv", sha256="0"
    )
    for n in (1, 2)
]


@pytest.fixture
def old(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """An ensemble on which a topology came to txid 7, with much in flight."""
    hosts = f"{zookeeper.hosts}/{tmp_path.name}-old"
    with leading(hosts, NAME) as store:
        store.incarnation()
        for txid in range(1, 8):
            aside = next((record for record in ASIDE if record.txid == txid), None)
            store.persist_committed(committed(txid, s=txid, t=None), aside)
        store.persist_start(start(8, attempt=3, s=8))
        store.persist_start(start(9, **LONG))
        for stream in ("t", "s"):
            store.persist_columns(ColumnsRecord(stream=stream, columns=COLUMNS))
    with open_backend(hosts, CONFIG) as backend:
        backend.request_replays(NAME, [5])
        backend.request_drops(NAME, [3])
        for replay in REPLAYED:
            backend.begin_row_replay(NAME, replay)
        backend.settle_row_replay(NAME, REPLAYED[0])
    return hosts


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """Another server than that of the other tests."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("other")) as server:
        yield server


@pytest.fixture
def new(other_server: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """An ensemble that knows nothing."""
    return f"{other_server.hosts}/{tmp_path.name}-new"


@pytest.fixture
def file(old: str, tmp_path: Path) -> Path:
    """What `txn export` wrote."""
    path = tmp_path / "orders.json"
    with open_backend(old, CONFIG) as backend:
        write_file(export_progress(backend, NAME), path)
    return path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def put(hosts: str, progress: ProgressFile, *, replace: bool = False) -> None:
    """Import a file's progress into an ensemble."""
    with open_backend(hosts, CONFIG) as backend:
        import_progress(backend, progress, replace=replace)


def known(hosts: str) -> dict[str, Any]:
    """What ZooKeeper says, but for epochs and leaders."""
    with open_backend(hosts, CONFIG) as backend:
        status, row_replays = backend.status(NAME), backend.row_replays(NAME)
    progress = status.progress.model_dump(mode="json")
    for record in (progress["committed"], *progress["batches"]):
        del record["epoch"]
    return {
        "progress": progress,
        "quarantine": [record.model_dump() for record in status.quarantine],
        "requests": (status.replays_requested, status.drops_requested),
        "row_replays": row_replays,
    }


def test_everything_comes_over_under_a_higher_epoch(old: str, new: str, tmp_path: Path) -> None:
    """Committed record, positions, open batches, quarantine, requests, columns and replays of rows
    come over.
    """
    path = tmp_path / "orders.json"
    out = json.loads(invoke("export", NAME, "-o", str(path), "--zookeeper", old, "--json").output)
    assert out == {"topology": NAME, "file": str(path), "committed_txid": 7, "epoch": 1}
    shown = invoke("export", NAME, "--zookeeper", old).output
    assert json.loads(shown)["progress"]["batches"] == read_file(path).model_dump()["batches"]
    back = json.loads(invoke("import", str(path), "--zookeeper", new, "--json").output)
    assert back == {"topology": NAME, "committed_txid": 7, "epoch": 2}
    assert known(new) == known(old)
    assert known(new)["requests"] == ({5}, {3})
    assert known(new)["progress"]["columns"] == {"s": COLUMNS, "t": COLUMNS}
    assert [replay.placed for replay in known(new)["row_replays"]["s"]] == [True, False]
    assert read_status(new, NAME, CONFIG).leader is None
    with leading(new, NAME) as store:  # as the next run does
        assert (store.epoch, store.load().committed.txid) == (3, 7)
    text = invoke("export", NAME, "-o", str(path), "--zookeeper", new).output
    assert text == f"Topology 'orders' at txid 7, epoch 3: written to {path}.\n"


def test_a_topology_that_is_there_is_replaced_only_when_told_to(
    old: str, new: str, file: Path
) -> None:
    """Both states are named, and the epoch grows above that of the file and that of ZooKeeper.

    Of what was there, nothing is left: no quarantined txid, request, columns or replays of rows.
    """
    for _ in range(5):
        with leading(new, NAME) as store:
            epoch = store.epoch
            txid = store.load().committed.txid + 1
            aside = QuarantineRecord(txid=txid, attempt=0, error="of the old state")
            store.persist_committed(committed(txid, epoch=epoch), aside)
            store.persist_columns(ColumnsRecord(stream="u", columns=COLUMNS))
    with open_backend(new, CONFIG) as backend:
        backend.request_replays(NAME, [1, 3])
        for stream in ("s", "u"):
            other = REPLAYED[0].model_copy(update={"stream": stream, "rows": 9})
            for number in (1, 2, 3):
                backend.begin_row_replay(NAME, other.model_copy(update={"number": number}))
    before = known(new)
    result = invoke("import", str(file), "--zookeeper", new)
    assert result.exit_code == 1
    assert "(txid 5, epoch 5); the file of 2" in result.output
    assert "has txid 7, epoch 1. Nothing was changed." in result.output
    assert known(new) == before
    result = invoke("import", str(file), "--zookeeper", new, "--replace")
    assert (result.exit_code, "at txid 7, in epoch 6" in result.output) == (0, True)
    assert known(new) == known(old)


def test_nothing_is_imported_under_a_running_leader(new: str, file: Path) -> None:
    """The code is that of leadership, and what the leader wrote stands."""
    with leading(new, NAME) as store:
        store.persist_committed(committed(1))
        with pytest.raises(LeaderExistsError):
            put(new, read_file(file), replace=True)
        assert invoke("import", str(file), "--zookeeper", new, "--replace").exit_code == 3
        store.persist_committed(committed(2))


def test_an_import_that_was_cut_short_has_committed_nothing(
    new: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COMMITTED comes last: what is left is refused, or is behind the tables; and it can be made
    again.
    """

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    genuine = ZooKeeperProgress.persist_start
    for fails_at in (8, 9):

        def some(store: ZooKeeperProgress, record: Any, at: int = fails_at) -> None:
            (cut if record.txid == at else genuine)(store, record)

        monkeypatch.setattr(ZooKeeperProgress, "persist_start", some)
        with pytest.raises(KeyboardInterrupt):
            put(new, read_file(file), replace=True)
        if fails_at == 8:
            assert read_status(new, NAME, CONFIG).progress.committed.txid == 0
        else:
            with pytest.raises(ProgressUnreadableError, match="without a gap"):
                read_status(new, NAME, CONFIG)
    monkeypatch.undo()
    put(new, read_file(file), replace=True)
    assert known(new)["progress"]["committed"]["txid"] == 7


def signed(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], str]:
    """A file that was changed together with its checksum."""

    def changed(document: dict[str, Any]) -> str:
        change(document["progress"])
        return json.dumps({**document, "sha256": _checksum(document["progress"])})

    return changed


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "cut short": (lambda d: json.dumps(d)[:-20], "does not hold JSON"),
    "empty": (lambda d: "", "does not hold JSON"),
    "of another program": (lambda d: '{"version": 1}', "does not hold a topology's progress"),
    "changed": (
        lambda d: json.dumps(d).replace('"txid": 7', '"txid": 6'),
        "does not have its checksum",
    ),
    "other checksum": (lambda d: json.dumps({**d, "sha256": "0"}), "does not have its checksum"),
    "surplus": (lambda d: json.dumps({**d, "more": 1}), "has the fields"),
    "no version": (lambda d: json.dumps({**d, "version": "1"}), "has format version '1'"),
    "missing field": (signed(lambda p: p["committed"].pop("tables")), "lacks a field"),
    "missing list": (signed(lambda p: p.pop("batches")), "invalid field batches"),
    "surplus field": (signed(lambda p: p["batches"][0].update(x=1)), "invalid field batches.0.x"),
    "gap": (signed(lambda p: p["batches"].pop(0)), "do not follow txid 7"),
    "epoch": (signed(lambda p: p.update(epoch=0)), "epoch later than 0"),
    "quarantine": (signed(lambda p: p["quarantine"].reverse()), "are not committed, in order"),
    "request": (signed(lambda p: p.update(replays_requested=[4])), "not quarantined"),
    "drop": (signed(lambda p: p.update(drops_requested=[4])), "not quarantined"),
    "record version": (signed(lambda p: p["committed"].update(version=2)), "committed.version"),
}


@pytest.mark.parametrize(("damage", "told"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused_by_name(
    new: str, file: Path, damage: Callable[[dict[str, Any]], str], told: str
) -> None:
    """It says what is wrong, and nothing is written."""
    file.write_text(damage(json.loads(file.read_text())))
    result = invoke("import", str(file), "--zookeeper", new)
    assert result.exit_code == 1
    assert result.output.startswith(f"error: File '{file}' ")
    assert told in result.output
    assert "no topology at all" in invoke("status", NAME, "--zookeeper", new).output


def test_an_import_takes_over_from_the_ensemble_of_the_file(new: str, file: Path) -> None:
    """Another life begins, in the place of the file's, and of that which was there."""
    was = json.loads(file.read_text())["progress"]["incarnation"]
    lives = []
    for _ in range(2):
        put(new, read_file(file), replace=True)
        life = read_status(new, NAME, CONFIG).incarnation
        assert life is not None
        lives.append(life)
    assert lives[0].takes_over == [was]
    assert lives[1].takes_over == sorted([was, lives[0].id])
    assert len({was, lives[0].id, lives[1].id}) == 3


def test_a_file_of_a_newer_release_is_refused(new: str, file: Path) -> None:
    """Whatever else is in it: the program that wrote it is named as the way out."""
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "version": 5, "more": 1}))
    with pytest.raises(NewerFormatError, match="format version 5.* Run the version of txn"):
        read_file(file)


def test_other_mistakes_are_told(old: str, new: str, file: Path, tmp_path: Path) -> None:
    """A file that is not there, a folder that is not, another name, a topology that is not."""
    for arguments, code, told in (
        (("import", "missing.json"), 1, "'missing.json' cannot be read: No such file"),
        (("export", NAME, "-o", str(tmp_path / "no/x.json")), 1, "cannot be written to"),
        (("import", str(file), "invoices"), 2, "progress of topology 'orders', not of 'invoices'"),
        (("export", "invoices"), 1, "It knows orders."),
    ):
        result = invoke(*arguments, "--zookeeper", old)
        assert (result.exit_code, told in result.output) == (code, True), result.output
    assert [path.name for path in tmp_path.glob("*.json*")] == ["orders.json"]
    bad = read_file(file).model_copy(update={"topology": "../orders"})
    with pytest.raises(UserError, match="cannot be called"):
        put(new, bad)


def test_the_file_holds_no_credentials(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """What opens the ensemble is not in the backup of it."""
    config = TopologyConfig(
        zookeeper_auth=(("digest", SecretStr("keeper:pass-of-the-keeper")),),
        zookeeper_acl="creator",
    )
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    with leading(hosts, NAME, config) as store:
        store.persist_committed(committed(1))
    with open_backend(hosts, config) as backend:
        text = dump(export_progress(backend, NAME))
    assert ProgressFile.model_validate(json.loads(text)["progress"]).committed.txid == 1
    assert "keeper" not in text


def small_file() -> ProgressFile:
    """One committed txid, and nothing else."""
    return ProgressFile(
        topology="t",
        exported_at="now",
        epoch=1,
        committed=committed(1),
        batches=[],
        quarantine=[],
        replays_requested=[],
        columns=[],
    )


class Grown(BatchRecord):
    """START with a field that a later release has added."""

    LATER = frozenset({"replay_of"})


@pytest.mark.parametrize("field", ["replay_of", "attempt"])
def test_a_field_that_a_record_got_later_may_be_missing(field: str) -> None:
    """A file of an earlier release lacks it; every other field of a record it must have."""
    body = BatchRecord(txid=2, attempt=0, epoch=1).model_dump(mode="json")
    assert not _lacks_a_field([Grown(**body)], [body])
    del body[field]
    assert _lacks_a_field([Grown(**{"attempt": 0, **body})], [body]) == (field == "attempt")


@pytest.mark.parametrize("levels", [0, 70, 300, 900])
def test_a_file_with_what_no_topology_could_have_kept_is_refused(levels: int) -> None:
    """Its checksum fits, and half a character or deep nesting is refused all the same, by name."""
    spoilt: Any = {"\ud800": 1}
    for _ in range(levels):
        spoilt = [spoilt]
    for metadata in ({"s": spoilt}, {"s": "\ud800"}):
        body = small_file().model_dump(mode="json")
        body["committed"]["spouts"] = metadata
        whole = {"format": "txn-progress", "version": 4, "sha256": _checksum(body)}
        text = json.dumps({**whole, "progress": body}).encode()
        with pytest.raises(ProgressUnreadableError, match=r"'f\.json' (has a record|does not)"):
            _parse(text, Path("f.json"))


def test_a_name_that_no_file_can_have_is_told(tmp_path: Path) -> None:
    """Reading and writing refuse it by name."""
    progress = small_file()
    for path in (tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        with pytest.raises(UserError, match="cannot be written"):
            write_file(progress, path)
        with pytest.raises(UserError, match="cannot be read"):
            read_file(path)
