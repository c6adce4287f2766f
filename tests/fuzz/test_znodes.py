"""Znodes of every kind, as somebody or something might have changed them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.fuzz.inputs import COUNTED, broken_bytes, broken_json, fuzz, junk_text
from txn.cli.tables import quarantine_table, status_table
from txn.errors import NewerFormatError, ProgressUnreadableError, TxnError
from txn.operations.progress_file import _checksum, _parse, dump
from txn.operations.status import status_of
from txn.operations.tables.table_status import TableStatus
from txn.protocol.backend import TopologyStatus
from txn.protocol.encoding import decode, encode
from txn.protocol.records import (
    BatchRecord,
    CommittedRecord,
    EpochRecord,
    LeaderIdentity,
    NoticesRecord,
    ProgramRecord,
    QuarantineRecord,
    ReplayRequests,
    StageRecord,
)
from txn.protocol.store import check_topology_name
from txn.zookeeper.client.connection import Node
from txn.zookeeper.image import read_image, read_record
from txn.zookeeper.leadership import read_epoch, read_leader
from txn.zookeeper.znodes import FormatRecord, PartsIndex, Paths, decode_index, txid_of

LEADER = LeaderIdentity(
    host="h", pid=7, started="2026-01-01T00:00:00+00:00", epoch=3, token="t", machine="m"
)
METADATA = {"s": {"files": [{"path": "in/a.csv", "size": 3}], "at": [1, 2.5, None, True]}}
RECORDS = [
    FormatRecord(),
    LEADER,
    EpochRecord(epoch=3, leader=LEADER),
    CommittedRecord(txid=1, epoch=3, spouts=METADATA, tables={"t": 4}),
    BatchRecord(txid=2, attempt=1, epoch=3, spouts=METADATA, opaque=["s"]),
    QuarantineRecord(txid=1, attempt=0, spouts=METADATA, error="ValueError: [/no]"),
    ReplayRequests(replay=[1]),
    NoticesRecord(
        epoch=3, txid=2, at="2026-01-01T00:00:00+00:00", streams={"s": ["[/no] file"]}, left_out=1
    ),
    ProgramRecord(
        python="cpython-311 3.11.7",
        stages=[StageRecord(id="s/transform-1", told="transform clean", fingerprint="0" * 32)],
        changes=["transform clean was changed"],
        since=2,
    ),
    PartsIndex(stem="batch-2-0-e3-0123456789abcdef", count=2, bytes=9, sha256="0" * 64),
]
SPOILED = {type(r): broken_bytes(json.loads(encode(r, "it"))) for r in RECORDS}
PATHS = Paths("/txn", "t")
PLACES = {
    FormatRecord: PATHS.format,
    LeaderIdentity: PATHS.leader,
    EpochRecord: PATHS.epoch,
    CommittedRecord: PATHS.committed,
    BatchRecord: PATHS.batch(2),
    QuarantineRecord: PATHS.quarantined(1),
    ReplayRequests: PATHS.quarantine,
    NoticesRecord: PATHS.notices,
    ProgramRecord: PATHS.program,
    PartsIndex: PATHS.batch(2),
}


class Nodes:
    """A connection that reads out of a dictionary."""

    def __init__(self, data: dict[str, bytes]) -> None:
        self.data = data

    def get(self, path: str, deadline: float) -> Node | None:
        """The node, or None; refuses what kazoo refuses."""
        assert not {".", "..", ""} & set(path.strip("/").split("/")), path
        assert "\0" not in path
        return Node(self.data[path], 0, 0) if path in self.data else None

    def get_each(self, paths: list[str], deadline: float) -> list[Node | None]:
        """Each node."""
        return [self.get(path, deadline) for path in paths]

    def children(self, path: str, deadline: float) -> list[str] | None:
        """Names of the children."""
        below = [p.removeprefix(f"{path}/") for p in self.data if p.startswith(f"{path}/")]
        return sorted(name for name in below if "/" not in name)


def topology() -> dict[str, bytes]:
    """The nodes of a topology, all of them as they should be."""
    nodes = {PLACES[type(r)]: encode(r, "it") for r in RECORDS if not isinstance(r, PartsIndex)}
    return {**nodes, PATHS.parts: b"", PATHS.batches: b""}


@pytest.mark.parametrize("model", sorted(SPOILED, key=lambda model: model.__name__))
@fuzz(3)
@given(data=st.data())
def test_a_record_is_read_or_refused(model: Any, data: st.DataObject) -> None:
    """What is accepted can be written again and is the same; all else is refused by name."""
    spoiled = data.draw(SPOILED[model])
    COUNTED["znodes"] += 1
    try:
        found = decode(model, spoiled, "/txn/t/node")
        index = decode_index(spoiled, "/txn/t/node")
    except ProgressUnreadableError as error:
        assert "'/txn/t/node'" in str(error)
        return
    assert index is None or index.bytes <= 64 * 2**20 >= index.count
    assert decode(model, encode(found, "it"), "/x") == found


@pytest.mark.parametrize("model", sorted(SPOILED, key=lambda model: model.__name__))
@fuzz(3)
@given(data=st.data())
def test_a_topology_with_one_bad_node_is_shown_or_refused(model: Any, data: st.DataObject) -> None:
    """Whatever one node holds: the status can be printed, or one error names what is wrong."""
    spoiled = data.draw(SPOILED[model])
    COUNTED["topologies"] += 1
    nodes: Any = Nodes({**topology(), PLACES[model]: spoiled})
    try:
        image = read_image(nodes, PATHS, 0)
        epoch, _ = read_epoch(nodes, PATHS, 0)
        holder = read_leader(nodes, PATHS, 0)
        said = read_record(nodes, NoticesRecord, PATHS.notices, 0)
    except ProgressUnreadableError:
        return
    aside = tuple(stored.record for stored in image.quarantine.values())
    leader = holder[0] if holder else None
    status = status_of(
        TopologyStatus(
            "t",
            image.progress,
            epoch.epoch,
            leader,
            epoch.leader,
            aside,
            notices=said.record if said else None,
        )
    )
    out = io.StringIO()
    console = Console(file=out, width=120, markup=False, emoji=False)
    console.print(status_table(status, TableStatus(), "h:1"), highlight=False)
    console.print(quarantine_table(status.quarantine), highlight=False)
    out.getvalue().encode("utf-8")
    assert not {"\x1b", "\x07", "\u202e"} & set(out.getvalue())
    json.dumps(status.to_json())


@fuzz(4)
@given(name=junk_text)
def test_names_become_one_component_or_are_refused(name: str) -> None:
    """A topology's name, and the name of a batch's node."""
    COUNTED["names"] += 1
    try:
        assert "/" not in check_topology_name(name)
        assert name not in (".", "..", "")
        name.encode("utf-8")
    except TxnError:
        pass
    try:
        assert str(txid_of(name, "/p")) == name
    except ProgressUnreadableError:
        pass


def exported() -> dict[str, Any]:
    """What `txn export` writes of a topology."""
    raw = {type(r): json.loads(encode(r, "it")) for r in RECORDS}
    return {
        "topology": "t",
        "exported_at": "2026-01-01T00:00:00+00:00",
        "epoch": 3,
        "committed": raw[CommittedRecord],
        "batches": [raw[BatchRecord]],
        "quarantine": [raw[QuarantineRecord]],
        "replays_requested": [1],
    }


@fuzz(6)
@given(body=broken_json(exported()), honest=st.booleans(), whole=broken_bytes(exported()))
def test_an_exported_file_is_read_or_refused(body: Any, honest: bool, whole: bytes) -> None:
    """With a checksum that fits what was changed, too: what is accepted can be exported again."""
    COUNTED["exported files"] += 2
    document = {"format": "txn-progress", "version": 4, "sha256": "", "progress": body}
    if honest:
        document["sha256"] = _checksum(body)
    for text in (json.dumps(document).encode(), whole):
        try:
            found = _parse(text, Path("f.json"))
        except (ProgressUnreadableError, NewerFormatError) as error:
            assert "'f.json'" in str(error)
            continue
        assert _parse(dump(found).encode(), Path("f.json")) == found
