from __future__ import annotations

import json
from typing import Any

import pytest

from txn.errors import BatchError, ProgressUnreadableError, TopologyError
from txn.records import BatchRecord, CommittedRecord
from txn.znodes import (
    NODE_LIMIT,
    RECORD_LIMIT,
    EpochRecord,
    Paths,
    check_topology_name,
    decode,
    decode_index,
    encode,
    join_parts,
    split_parts,
    txid_of,
)

COMMITTED = CommittedRecord(txid=7, epoch=2, spouts={"s": {"at": [1, 2]}}, tables={"t": 9})


def edited(**changes: Any) -> bytes:
    """COMMITTED with some fields replaced; None takes a field away."""
    raw = {**json.loads(encode(COMMITTED, "record")), **changes}
    return json.dumps({key: value for key, value in raw.items() if value is not None}).encode()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b", "a\nb", "\ud800", "x" * 201])
def test_names_that_would_leave_the_node_are_refused(name: str) -> None:
    """A topology's name must be one ZooKeeper path component."""
    with pytest.raises(TopologyError, match="cannot be called"):
        check_topology_name(name)


@pytest.mark.parametrize("name", ["flights", "a.b", "...", "Flüge 2013", "x" * 200])
def test_ordinary_names_are_accepted(name: str) -> None:
    """Spaces, dots and other letters are fine."""
    assert name == check_topology_name(name)


def test_records_survive_the_node() -> None:
    """What was encoded is what is decoded."""
    assert COMMITTED == decode(CommittedRecord, encode(COMMITTED, "record"), "/x")


@pytest.mark.parametrize("field", sorted(CommittedRecord.model_fields))
def test_a_missing_field_is_refused_and_not_defaulted(field: str) -> None:
    """`{}` would otherwise read as "nothing was ever committed"."""
    with pytest.raises(ProgressUnreadableError, match=r"'/txn/f/committed'"):
        decode(CommittedRecord, edited(**{field: None}), "/txn/f/committed")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not hold JSON"),
        (b"{", "does not hold JSON"),
        (b"\xff\xfe", "does not hold JSON"),
        (b"[" * 100_000, "does not hold JSON"),
        (b"[]", "does not hold a JSON object"),
        (b"{}", "format version None"),
        (edited(version=2), "format version 2"),
        (edited(version=True), "format version True"),
        (edited(surprise=1), "invalid field surprise"),
        (edited(txid=-1), "invalid field txid"),
        (edited(txid="7"), "invalid field txid"),
    ],
)
def test_unreadable_contents_are_refused_by_name(data: bytes, says: str) -> None:
    """The error names the node and what is wrong with it."""
    with pytest.raises(ProgressUnreadableError, match=rf"'/n'.*{says}"):
        decode(CommittedRecord, data, "/n")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes", {1, 2}])
def test_metadata_that_is_no_json_is_refused(value: object) -> None:
    """A value that JSON cannot hold would come back as another one after a restart."""
    record = BatchRecord(txid=3, attempt=0, epoch=1, spouts={"s": value})
    with pytest.raises(BatchError, match="START of txid 3"):
        encode(record, "START of txid 3")


def test_a_record_beyond_all_limits_is_refused() -> None:
    """There is a limit on everything; it is named in the error."""
    record = BatchRecord(txid=3, attempt=0, epoch=1, spouts={"s": "x" * RECORD_LIMIT})
    with pytest.raises(BatchError, match="67,108,864 is the limit"):
        encode(record, "START of txid 3")


@pytest.mark.parametrize(
    ("size", "parts"), [(1, 0), (NODE_LIMIT, 0), (NODE_LIMIT + 1, 2), (5_000_000, 13)]
)
def test_large_records_are_split_and_joined(size: int, parts: int) -> None:
    """Up to the limit a record is one node; beyond, an index and its parts, none too large."""
    data = b"x" * size
    node, pieces = split_parts(data, "batch-7-0-e1")
    assert parts == len(pieces)
    assert all(len(piece) <= NODE_LIMIT for piece in [node, *pieces.values()])
    if parts:
        index = decode_index(node, "/n")
        assert index is not None
        assert list(pieces) == index.names()
        assert data == join_parts(index, list(pieces.values()), "/n")


def test_a_record_is_not_taken_for_an_index() -> None:
    """Also not when its metadata has a field of the index's."""
    data = encode(BatchRecord(txid=1, attempt=0, epoch=1, spouts={"stem": 1}), "record")
    assert decode_index(data, "/n") is None


@pytest.mark.parametrize("spoil", ["swap", "drop", "change"])
def test_parts_that_do_not_fit_their_index_are_refused(spoil: str) -> None:
    """The checksum is over the whole, in order."""
    node, pieces = split_parts("".join(map(str, range(200_000))).encode(), "stem")
    index = decode_index(node, "/n")
    assert index is not None
    parts = list(pieces.values())
    if spoil == "swap":
        parts[0], parts[1] = parts[1], parts[0]
    elif spoil == "drop":
        parts.pop()
    else:
        parts[0] = b"y" + parts[0][1:]
    with pytest.raises(ProgressUnreadableError, match="checksum"):
        join_parts(index, parts, "/n")


def test_different_contents_have_different_part_names() -> None:
    """A part is never overwritten: the digest is in its name."""
    names = [set(split_parts(c * (NODE_LIMIT + 1), "stem")[1]) for c in (b"a", b"b")]
    assert set() == names[0] & names[1]


@pytest.mark.parametrize("name", ["0", "-1", "01", "x", "1x", ""])
def test_children_that_are_no_txids_are_refused(name: str) -> None:
    """Something else under `batches` was not written by this program."""
    with pytest.raises(ProgressUnreadableError, match="not named after a txid"):
        txid_of(name, "/txn/f/batches")


def test_the_layout_is_that_of_the_design() -> None:
    """The paths are durable: changing them needs a new format version."""
    paths = Paths("/chroot/txn", "flights")
    assert [
        "/chroot/txn/flights/format",
        "/chroot/txn/flights/leader",
        "/chroot/txn/flights/epoch",
        "/chroot/txn/flights/committed",
        "/chroot/txn/flights/batches/7",
        "/chroot/txn/flights/quarantine/7",
        "/chroot/txn/flights/parts/p",
    ] == [
        paths.format,
        paths.leader,
        paths.epoch,
        paths.committed,
        paths.batch(7),
        paths.quarantined(7),
        paths.part("p"),
    ]


def test_epoch_zero_means_that_nobody_has_led() -> None:
    """The record of a new topology has no leader."""
    assert decode(EpochRecord, encode(EpochRecord(epoch=0), "epoch"), "/e").leader is None
