"""What spouts say of a quarantined txid before its replay; the real sources are in tests/faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spouts.delta import DeltaSpout
from spouts.files import FileBatch, FileSpout, PlannedFile
from spouts.kafka.cluster import Snapshot, Topic
from spouts.kafka.plan import Position, Skipped, find_remaining
from spouts.memory import FeederSpout, MemoryPosition, MemoryTransactionalSpout
from spouts.memory_partitions import MemoryPartitionedSpout
from txn.attempts import TransactionAttempt
from txn.errors import FailedException, SourceChangedError, TopologyError, TxnError
from txn.interfaces import Spout, SpoutKind

ATTEMPT = TransactionAttempt(7)
SCHEMA = '{"type":"struct","fields":[]}'


def memory(_: Path) -> tuple[Spout[Any], Any, Any]:
    """A spout, a batch of it, and one that it has no more."""
    spout = MemoryTransactionalSpout([[(1,)]], "v int")
    return spout, MemoryPosition(index=0), MemoryPosition(index=1)


def feeder(_: Path) -> tuple[Spout[Any], Any, Any]:
    """As `memory`."""
    spout = FeederSpout("v int")
    spout.feed([(1,)], timeout=0)
    fed = spout.initialize_transaction(ATTEMPT, None)
    assert fed is not None
    return spout, fed, fed.model_copy(update={"feeder": "another"})


def files(folder: Path) -> tuple[Spout[Any], Any, Any]:
    """As `memory`."""
    found = []
    for name in ("a", "b"):
        path = folder / f"{name}.csv"
        path.write_text("1\n")
        planned = PlannedFile(path=str(path), size=2, mtime_ns=path.stat().st_mtime_ns)
        found.append(FileBatch(files=(planned,), spelling="absolute", read_schema=SCHEMA, seen=""))
    (folder / "b.csv").write_text("12\n")
    return FileSpout(str(folder / "*.csv"), format="csv", schema="v int"), *found


def delta(folder: Path, *, changes: bool = False) -> tuple[Spout[Any], Any, Any]:
    """As `memory`."""
    feed = {"delta.enableChangeDataFeed": "true"} if changes else None
    spout = DeltaSpout(folder, changes=changes)
    found = []
    for value in (1, 2):
        rows = pa.table({"v": pa.array([value], pa.int32())})
        write_deltalake(str(folder), rows, mode="append", configuration=feed)
        found.append(spout.initialize_transaction(ATTEMPT, found[-1] if found else None))
    lost = DeltaTable(str(folder)).file_uris()
    Path(next(uri for uri in lost if "part-" in uri and _has(uri, 2))).unlink()
    return spout, *found


def _has(uri: str, value: int) -> bool:
    import pyarrow.parquet as pq

    return value in pq.read_table(uri).column("v").to_pylist()


def changes(folder: Path) -> tuple[Spout[Any], Any, Any]:
    """As `memory`."""
    return delta(folder, changes=True)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (memory, TopologyError, "has 1 batches"),
        (feeder, FailedException, "was fed to another"),
        (files, SourceChangedError, r"b\.csv changed"),
        (delta, SourceChangedError, r"planned for 7:0, is gone \(VACUUM"),
        (changes, SourceChangedError, r"changes of version 1, planned for 7:0, is gone \(VACUUM"),
    ],
)
def test_a_spout_says_whether_a_batch_can_still_be_read(
    tmp_path: Path, make: Any, error: type[TxnError], words: str
) -> None:
    """It returns the batch as it was planned, or raises, before anything is read."""
    spout, there, gone = make(tmp_path)
    assert spout.readable(ATTEMPT, there) == there
    with pytest.raises(error, match=words):
        spout.readable(ATTEMPT, gone)


def test_the_changes_of_a_delete_are_looked_for_where_delta_wrote_them(tmp_path: Path) -> None:
    """Without files of changes, a version's added and removed files have them."""
    spout, first, _ = delta(tmp_path / "t", changes=True)
    table = DeltaTable(str(tmp_path / "t"))
    (kept,) = [uri for uri in table.file_uris() if Path(uri).exists()]
    commit = tmp_path / "t" / "_delta_log" / f"{2:020d}.json"
    cdc = '{"cdc":{"path":"_change_data/one%20file.parquet","partitionValues":{},"size":1}}\n'
    remove = f'{{"remove":{{"path":"{Path(kept).name}","dataChange":true}}}}\n'
    commit.write_text(cdc + remove)
    planned = first.model_copy(
        update={"versions": (first.versions[0].model_copy(update={"version": 2}),)}
    )
    with pytest.raises(
        SourceChangedError, match=r"_change_data/one file\.parquet with the changes"
    ):
        spout.readable(ATTEMPT, planned)
    (tmp_path / "t" / "_change_data").mkdir()
    (tmp_path / "t" / "_change_data" / "one file.parquet").write_text("x")
    assert spout.readable(ATTEMPT, planned) == planned
    commit.write_text(remove)
    assert spout.readable(ATTEMPT, planned) == planned
    Path(kept).unlink()
    with pytest.raises(SourceChangedError, match=f"{Path(kept).name} with the changes"):
        spout.readable(ATTEMPT, planned)


@pytest.mark.parametrize("kind", [SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE])
def test_partitions_that_are_away_are_left_out_if_the_spout_is_opaque(kind: SpoutKind) -> None:
    """A transactional spout has all of a batch or nothing; the replay of an opaque one reads what
    is there.
    """
    spout = MemoryPartitionedSpout(
        {"a": [(1,)], "b": [(2,)]}, "v int", take_per_partition=1, kind=kind
    )
    batch = spout.initialize_transaction(ATTEMPT, None)
    assert batch is not None
    assert spout.readable(ATTEMPT, batch) == batch
    spout.remove_partition("b")
    if kind is SpoutKind.OPAQUE:
        assert spout.readable(ATTEMPT, batch).read == {"a": batch.read["a"]}
        spout.set_disabled("a", True)
    with pytest.raises(
        SourceChangedError, match=r"Partition '[ab]' .* is (removed|disabled)\.(\n|$)"
    ):
        spout.readable(ATTEMPT, batch)


PLANNED = Position(start=10, end=20, topic_id="x")


@pytest.mark.parametrize(
    ("topic_id", "earliest", "latest", "expected", "words"),
    [
        ("x", 0, 20, (10, 20), ""),
        ("x", 0, 99, (10, 20), ""),
        ("x", 13, 99, (13, 20, "retention", 13), "offsets 10 to 12 of t-0 were deleted"),
        ("x", 50, 99, (20, 20, "retention", 20), "offsets 10 to 49 of t-0 were deleted"),
        ("x", 0, 15, (10, 15), "t-0 ends at offset 15, before the planned 20"),
        ("x", 0, 5, (20, 20, "truncated", 20), "t-0 ends at offset 5"),
        ("y", 0, 99, (20, 20, "recreated", 20), "was deleted and created again"),
        (None, 0, 0, (20, 20), "t-0 is gone"),
    ],
)
def test_what_is_left_of_a_partition(
    topic_id: str | None, earliest: int, latest: int, expected: tuple[Any, ...], words: str
) -> None:
    """The planned offsets that the brokers have, and which they have not, in words."""
    there = topic_id is not None
    look = Snapshot(
        topics={"t": Topic(id=topic_id, partitions=1)} if topic_id else {},
        earliest={("t", 0): earliest} if there else {},
        latest={("t", 0): latest} if there else {},
    )
    left = find_remaining(("t", 0), PLANNED, look)
    skipped = Skipped(reason=expected[2], first=10, next=expected[3]) if expected[2:] else None
    assert left.position == Position(
        start=expected[0], end=expected[1], topic_id="x", skipped=skipped
    )
    assert (words in left.words, bool(left.words)) == (True, bool(words))
