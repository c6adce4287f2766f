from __future__ import annotations

import json
import tracemalloc
from datetime import datetime, timezone
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.zookeeper.progress_store import noise
from txn.errors import BatchError, ProgressUnreadableError, TopologyError
from txn.protocol.encoding import DEPTH_LIMIT, NODE_LIMIT, RECORD_LIMIT, decode, encode
from txn.protocol.records import BatchRecord, CommittedRecord, EpochRecord, QuarantineRecord
from txn.protocol.store import check_topology_name
from txn.zookeeper.znodes import Paths, decode_index, join_parts, split_parts, txid_of

FIELDS = {*CommittedRecord.model_fields} - CommittedRecord.LATER
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


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_missing_field_is_refused_and_not_defaulted(field: str) -> None:
    """`{}` would otherwise read as "nothing was ever committed"."""
    with pytest.raises(ProgressUnreadableError, match=r"'/txn/f/committed'"):
        decode(CommittedRecord, edited(**{field: None}), "/txn/f/committed")


class Grown(CommittedRecord):
    """COMMITTED with a field that a later release has added."""

    LATER = CommittedRecord.LATER | {"note"}
    note: str = "none"


def test_only_a_field_that_a_later_release_has_added_may_be_missing() -> None:
    """An earlier release's record has the default there; one that is written now has the field."""
    assert decode(Grown, encode(COMMITTED, "record"), "/n") == Grown(**dict(COMMITTED))
    with pytest.raises(ProgressUnreadableError, match="lacks the field tables"):
        decode(Grown, edited(tables=None), "/n")
    with pytest.raises(ProgressUnreadableError, match="invalid field note"):
        decode(CommittedRecord, encode(Grown(**dict(COMMITTED)), "record"), "/n")


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


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 11, 27, tzinfo=timezone.utc),
        Decimal("1.5"),
        UUID(int=1),
        {"a": {("k",): 1}},
        {"a": [1, {b"k": 1}]},
        float("nan"),
        ["NaN", float("-inf")],
    ],
)
def test_only_what_pythons_own_encoder_takes_is_taken(value: object) -> None:
    """The quick encoder would write a date or a set as a text or a list, which comes back so."""
    record = BatchRecord.model_construct(txid=3, attempt=0, epoch=1, spouts={"s": value})
    with pytest.raises(BatchError, match="START of txid 3.*is not JSON"):
        encode(record, "START of txid 3")


def test_what_is_written_is_what_pythons_own_encoder_means() -> None:
    """Random values, among them texts with any character and numbers of any size."""
    random = Random(5)

    def value(depth: int) -> Any:
        kind = random.choice("ifstbnldLTE" if depth < 5 else "ifstbn")
        size = range(random.randrange(4))
        match kind:
            case "i":
                return random.choice([0, -1, 2**63, -(2**70), random.getrandbits(40)])
            case "f":
                return random.choice([0.1, -0.0, 1e300, 5e-324, 123456789012345680.0, 1e16])
            case "s" | "t":
                return random.choice(["", "NaN", "Infinity", "\x00\x7f\u2028", "é😀", '"\\/'])
            case "b" | "n":
                return random.choice([True, False, None])
            case "T":
                return tuple(value(depth + 1) for _ in size)
            case "E":
                return {random.choice([1, True, None, 1.5]): value(depth + 1)}
            case "l" | "L":
                return [value(depth + 1) for _ in size]
        return {random.choice(["a", "é", "NaN", ""]) + str(i): value(depth + 1) for i in size}

    for _ in range(2_000):
        spouts = {"s": value(0)}
        record = BatchRecord.model_construct(txid=3, attempt=0, epoch=1, spouts=spouts)
        found = json.loads(encode(record, "it"))["spouts"]
        assert repr(found) == repr(json.loads(json.dumps(spouts)))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_json_does_not_have_is_refused(constant: str) -> None:
    """This program never writes it, and other readers of the node would stumble over it."""
    data = encode(COMMITTED, "record").replace(b"[1,2]", constant.encode())
    with pytest.raises(ProgressUnreadableError, match="does not hold JSON"):
        decode(CommittedRecord, data, "/n")


@pytest.mark.parametrize("half", ["\ud800", "a\udc80b", "\ude00\ud83d"])
def test_half_characters_are_refused(half: str) -> None:
    """Names of files that are not UTF-8 have them; Delta's library cannot store them."""
    record = BatchRecord(txid=3, attempt=0, epoch=1, spouts={"s": {half: [half]}})
    with pytest.raises(BatchError, match="START of txid 3.*surrogates not allowed"):
        encode(record, "START of txid 3")
    for node in (
        json.dumps(record.model_copy(update={"spouts": {"s": half}}).__dict__).encode(),
        encode(COMMITTED, "it").replace(b"at", half.encode("utf-8", "surrogatepass")),
    ):
        with pytest.raises(ProgressUnreadableError, match="does not hold JSON"):
            decode(BatchRecord, node, "/n")
    whole = BatchRecord(txid=3, attempt=0, epoch=1, spouts={"s": "\U0001f600"})
    assert decode(BatchRecord, encode(whole, "it"), "/n") == whole


def test_an_error_that_quotes_half_a_character_can_be_kept() -> None:
    """The words of an error are ours: they must not keep a txid from being quarantined."""
    aside = QuarantineRecord(txid=1, attempt=0, error="no file a\udcff")
    start = BatchRecord(txid=1, attempt=0, epoch=1, quarantined="no file a\udcff")
    for record in (aside, start):
        assert decode(type(record), encode(record, "it"), "/n") == record
    assert aside.error == "no file a\\udcff"


def test_a_node_that_is_nested_too_deeply_is_refused() -> None:
    """As it would have been before it was written."""
    node = encode(COMMITTED, "it").replace(b"[1,2]", b"[" * 70 + b"]" * 70)
    with pytest.raises(ProgressUnreadableError, match="more than 64 lists"):
        decode(CommittedRecord, node, "/n")


@pytest.mark.parametrize("kind", [list, dict])
def test_metadata_that_is_nested_too_deeply_is_refused(kind: type) -> None:
    """Before it is written: Delta's library could never read a commit with it again."""
    value: Any = 1
    for levels in range(1, 300):
        value = [value] if kind is list else {"x": value}
        record = BatchRecord(txid=3, attempt=0, epoch=1, spouts={"s": value})
        if levels < DEPTH_LIMIT:
            assert decode(BatchRecord, encode(record, "it"), "/n") == record
        else:
            with pytest.raises(BatchError, match="more than 64 lists and dicts"):
                encode(record, "START of txid 3")


@pytest.mark.parametrize(
    "changed",
    [
        {"stem": "../../other/committed"},
        {"stem": "a/b"},
        {"stem": ""},
        {"stem": "x" * 101},
        {"stem": "a\n"},
        {"count": 172},
        {"count": 10**9},
        {"bytes": RECORD_LIMIT + 1},
        {"compression": "lz4"},
    ],
)
def test_an_index_that_no_record_has_is_refused(changed: dict[str, Any]) -> None:
    """A record in parts has bounded parts, and they are nodes of its own topology."""
    sizes = {"count": 2, "bytes": 9, "sha256": "0", "compression": "zlib"}
    index = {"version": 1, "stem": "batch-1-0-e1-ab", **sizes}
    assert decode_index(json.dumps(index).encode(), "/n") is not None
    with pytest.raises(ProgressUnreadableError, match="'/n' has an invalid field"):
        decode_index(json.dumps({**index, **changed}).encode(), "/n")


def test_a_node_larger_than_any_record_is_refused() -> None:
    """A server may allow larger ones; none of ours is."""
    with pytest.raises(ProgressUnreadableError, match="more than any record may have"):
        decode(CommittedRecord, b" " * (RECORD_LIMIT + 1), "/n")


def test_a_record_beyond_all_limits_is_refused() -> None:
    """There is a limit on everything; it is named in the error."""
    record = BatchRecord(txid=3, attempt=0, epoch=1, spouts={"s": "x" * RECORD_LIMIT})
    with pytest.raises(BatchError, match="67,108,864 is the limit"):
        encode(record, "START of txid 3")


@pytest.mark.parametrize(
    ("size", "parts"), [(1, 0), (NODE_LIMIT, 0), (NODE_LIMIT + 1, 1), (5_000_000, 10)]
)
def test_large_records_are_split_and_joined(size: int, parts: int) -> None:
    """Up to the limit a record is one node; beyond, an index and its parts, none too large."""
    data = noise(size).encode()
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
    node, pieces = split_parts(noise(1_000_000).encode(), "stem")
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


def test_no_more_is_decompressed_than_the_index_says() -> None:
    """Parts that a stranger changed must not fill the memory."""
    node, pieces = split_parts(b"0" * RECORD_LIMIT, "stem")
    index = decode_index(node, "/n")
    assert index is not None
    small = index.model_copy(update={"bytes": 9})
    tracemalloc.start()
    with pytest.raises(ProgressUnreadableError, match="checksum"):
        join_parts(small, list(pieces.values()), "/n")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000


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
