"""Commit files of Delta tables, as our three readers take them apart; spouts' metadata; files."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from committers.log_layout.intents import Intents
from committers.publishing.files import active_files
from committers.state.properties import shape_of
from spouts.delta import DeltaBatch
from spouts.delta.log import SourceVersion
from spouts.files import FileBatch, FileSpout
from spouts.files.folder.seen import Taking
from spouts.kafka.plan import stored_positions
from tests.fuzz.inputs import COUNTED, broken_bytes, broken_json, fuzz, junk_text, lines
from txn.attempts import TransactionAttempt
from txn.delta.commits import parse_commit
from txn.delta.log import TablePublication
from txn.embedded import running_server
from txn.embedded.folder import ServerFolder
from txn.embedded.guard import read_credential
from txn.errors import RecoveryRefusedError, SetupError, SourceChangedError, TxnError, UserError
from txn.interfaces import PartitionPositions, Publication
from txn.operations.history import _entry
from txn.positions import describe
from txn.protocol.rebuild import rebuild
from txn.storage.storage import Storage

MEMBER = {"txid": 1, "attempt_id": 0, "read": {"s": {"at": 1}}, "rows": 3, "digest": "d"}
PUBLICATION = {
    "format": 1,
    "topology": "t",
    "epoch": 2,
    "first_txid": 1,
    "last_txid": 2,
    "attempt_id": 0,
    "spouts": {"s": {"read": {"0": 1}, "latest": {"0": 1}}},
    "read": {"s": None},
    "rows": 6,
    "digest": "",
    "timings_ms": {"processing": 1.5},
    "members": [MEMBER, {**MEMBER, "txid": 2}],
}
LAST = {"version": 3, "publication": PUBLICATION}
STATS = '{"numRecords":3,"minValues":{"txid":1},"maxValues":{"txid":1},"nullCount":{"txid":0}}'
ADD = {
    "path": "data/1-0-ab/txn_bucket=3/part%200.parquet",
    "size": 10,
    "partitionValues": {"txn_bucket": "3"},
    "modificationTime": 1,
    "dataChange": True,
    "stats": STATS,
}
INFO = {"timestamp": 1_700_000_000_000, "operation": "WRITE", "txn_commit": "token"}
ACTIONS = [
    {"commitInfo": {**INFO, "txn": PUBLICATION}},
    {
        "commitInfo": {
            **INFO,
            "txn_fence": {"topology": "t", "epoch": 3, "settled": 1, "last": LAST},
        }
    },
    {"commitInfo": {**INFO, "txn_settled": {"topology": "t", "epoch": 3, "txid": 1, "last": None}}},
    {"commitInfo": {**INFO, "txn_compaction": {"epoch": 3, "txids": [1, 2], "last": LAST}}},
    {"add": ADD},
    {"remove": {"path": "data/1-0-ab/part-0.parquet", "dataChange": True}},
    {"metaData": {"id": "x", "schemaString": "{}", "configuration": {"txn.topology": "t"}}},
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {"txn": {"appId": "txn/t", "version": 2}},
]


@fuzz(14)
@given(text=lines(*ACTIONS))
def test_a_commit_is_read_or_refused(text: bytes) -> None:
    """What is accepted says which files are outside of the table, and has numbers to compute."""
    COUNTED["commits (committers)"] += 1
    try:
        commit = parse_commit(7, text, "t")
    except RecoveryRefusedError as error:
        assert "7" in str(error)
        return
    for path in {*(add.path for add in commit.adds), *commit.removes} - commit.elsewhere:
        assert path
        assert not path.startswith("/")
        assert ".." not in path.split("/")
    assert commit.epoch >= 0 <= commit.settled_txid
    for file in active_files(commit.adds).values():
        assert file.may_hold(5) in (True, False)
        assert file.holds_only(5) in (True, False)
    if commit.last is not None:
        assert commit.last[1].last_txid >= commit.last[1].first_txid >= 1


@fuzz(7)
@given(text=lines(*ACTIONS))
def test_a_source_tables_commit_is_read_or_refused(text: bytes) -> None:
    """As the Delta spout reads it."""
    COUNTED["commits (spouts)"] += 1
    try:
        version = SourceVersion.of(parse_commit(7, text, "t"))
    except RecoveryRefusedError:
        return
    assert version.changes_rows in (True, False)
    for file in version.files(below=9):
        assert file.is_elsewhere in (True, False)


@fuzz(8)
@given(found=broken_json(PUBLICATION))
def test_a_publication_can_be_acted_on_or_is_refused(found: Any) -> None:
    """History and recovery go through its txids one by one: there are as many as it holds."""
    COUNTED["publications"] += 1
    try:
        publication = Publication.model_validate(found)
    except (ValidationError, RecursionError):
        return
    assert [m.txid for m in publication.txids][-1] == publication.last_txid
    entry = TablePublication(3, publication, 0)
    for txid in range(publication.first_txid, publication.last_txid + 1):
        told = _entry(txid, {"t": entry}, 0)
        for metadata in told.read.values():
            assert "\x1b" not in describe(metadata)
    try:
        rebuild(publication.topology, (), {"t": [(3, publication)]})
    except RecoveryRefusedError:
        pass


BATCH = {
    "files": [{"path": "in/a.csv", "size": 3, "mtime_ns": 7}],
    "spelling": "relative",
    "read_schema": '{"type":"struct","fields":[]}',
    "seen": "AAAAAAAAAAA=",
}
VERSIONS = {
    "table_id": "x",
    "last_version": 3,
    "versions": [{"version": 3, "files": 1, "size": 5, "rows": 2, "below": None}],
    "source_txid": 2,
    "read_schema": '{"type":"struct","fields":[]}',
    "changes": False,
}
POSITIONS = {
    "topic-0": {"start": 0, "end": 5, "topic_id": "x"},
    "topic-1": {"start": 5, "end": 5, "topic_id": "x", "deployment": "d"},
}


@fuzz(7)
@given(found=broken_json(BATCH))
def test_a_file_batch_reads_where_its_pattern_looks(found: Any) -> None:
    """Metadata out of ZooKeeper never makes the file spout look at files of another folder."""
    COUNTED["spout metadata"] += 1
    try:
        batch = FileBatch.model_validate(found)
    except (ValidationError, RecursionError):
        return
    if not batch.segments:
        assert Taking().unseen(["in/new.csv"], batch) in (["in/new.csv"], [])
    spout = FileSpout("in/*.csv", format="csv", schema="a int")
    looked: list[str] = []
    spout._listing.stats = lambda names: [looked.append(name) for name in names]  # type: ignore[method-assign,func-returns-value]
    with contextlib.suppress(SourceChangedError):
        assert len(spout._current_stats(batch, TransactionAttempt(1, 0))) == len(batch.files)
    assert all(name.startswith("in/") and ".." not in name.split("/") for name in looked)


@fuzz(5)
@given(versions=broken_json(VERSIONS), positions=broken_json(POSITIONS))
def test_other_spouts_metadata_is_read_or_refused(versions: Any, positions: Any) -> None:
    """Of Delta, Kafka and every partitioned spout."""
    COUNTED["spout metadata"] += 2
    try:
        batch = DeltaBatch.model_validate(versions)
        assert DeltaBatch.model_validate_json(batch.model_dump_json()) == batch
    except (ValidationError, RecursionError):
        pass
    try:
        read = PartitionPositions.model_validate({"read": positions}).read
        assert stored_positions(read, "KafkaSpout").keys() == read.keys()
    except (ValidationError, TxnError, RecursionError):
        pass


PROPERTIES = {
    "txn.kind": "upsert",
    "txn.keys": '["k"]',
    "txn.values": '[["v","Sum(x)"],["w","Avg(x)","result"]]',
    "txn.buckets": "8",
    "txn.semantics": "opaque",
}


@fuzz(4)
@given(changes=st.dictionaries(st.sampled_from(sorted(PROPERTIES)), junk_text, max_size=3))
def test_a_state_table_describes_itself_or_is_refused(changes: dict[str, str]) -> None:
    """The properties that readers go by."""
    COUNTED["table properties"] += 1
    try:
        shape = shape_of({**PROPERTIES, **changes}, "t")
    except UserError:
        return
    assert {**PROPERTIES, **changes}["txn.kind"] in ("upsert", "log")
    assert json.dumps(list(shape.keys)) == json.dumps(
        json.loads({**PROPERTIES, **changes}["txn.keys"] or "[]")
    )
    assert shape.buckets >= 0


@fuzz(3)
@given(
    owner=broken_bytes({"pid": 7, "server_pid": 8, "hosts": "127.0.0.1:1"}),
    intent=broken_bytes({"version": 3}),
    credential=st.binary(max_size=80),
)
def test_small_files_of_ours_are_read_or_refused(
    owner: bytes, intent: bytes, credential: bytes
) -> None:
    """`server.json` and `credential` of an embedded server, the intent of a compaction."""
    COUNTED["small files"] += 3
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        (folder / "server.json").write_bytes(owner)
        (folder / "lock").touch()
        found = ServerFolder(folder).owner()
        assert found is None or found.hosts.startswith("127.0.0.1:")
        assert running_server(folder) is None  # nobody has the lock
        (folder / "credential").write_bytes(credential)
        try:
            read_credential(folder)
        except SetupError as error:
            assert credential.decode("latin-1") not in str(error) or len(credential) < 8
        (folder / "_txn" / "compaction-1").mkdir(parents=True)
        (folder / "_txn" / "compaction-1" / "intent.json").write_bytes(intent)
        Intents(Storage(name), lambda: "x")._started_after("compaction-1")
