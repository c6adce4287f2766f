"""Caps of a batch that the user gives as a number or as a range."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from spouts._sizes import BatchSize
from spouts.delta import DeltaSpout
from spouts.files import FileSpout
from spouts.kafka import KafkaSpout
from spouts.memory import MemoryPartitionedSpout
from spouts.rate import RateSpout
from txn import TransactionAttempt
from txn.errors import TopologyError

SPOUTS: dict[str, Callable[[Any], Any]] = {
    "files_per_batch": lambda size: FileSpout("*.csv", format="csv", files_per_batch=size),
    "rows_per_batch": RateSpout,
    "versions_per_batch": lambda size: DeltaSpout("t", versions_per_batch=size),
    "bytes_per_batch": lambda size: DeltaSpout("t", bytes_per_batch=size),
    "take_per_partition": lambda size: MemoryPartitionedSpout({}, "v int", take_per_partition=size),
    "max_records_per_batch": lambda size: KafkaSpout(
        "b:9092", topics=["t"], max_records_per_batch=size
    ),
    "max_records_per_partition": lambda size: KafkaSpout(
        "b:9092", topics=["t"], max_records_per_partition=size
    ),
}
"""Setting -> a spout that has it."""


def test_a_number_means_exactly_so_many():
    """A user who gives no range is not adapted."""
    size = BatchSize(7, "S", "n")
    found = []
    for share in (0.0, 0.5, 1.0):
        size.set_target(share)
        found.append(size.now)
    assert found == [7, 7, 7]


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 1))
def test_a_range_is_kept_and_larger_shares_take_no_less(least, more, share, other):
    """Share 0.0 is the least, 1.0 the most, and between them it only rises."""
    size = BatchSize((least, least + more), "S", "n")
    found = []
    for target in (0.0, min(share, other), max(share, other), 1.0):
        size.set_target(target)
        found.append(size.now)
    assert (found[0], found[-1]) == (least, least + more)
    assert found == sorted(found)


@pytest.mark.parametrize("setting", SPOUTS)
@pytest.mark.parametrize("given_size", [0, -1, (0, 5), (5, 4), (1, 2, 3), (1,), (1.5, 2), True])
def test_what_is_no_size_is_refused_by_the_name_of_the_setting(setting, given_size):
    """Neither a number from 1 on nor a range of such numbers: the error names the setting."""
    with pytest.raises(TopologyError, match=setting):
        SPOUTS[setting](given_size)


@pytest.mark.parametrize("setting", SPOUTS)
@pytest.mark.parametrize("given_size", [1, (1, 1), (2, 9)])
def test_every_cap_of_a_batch_may_be_a_range(setting, given_size):
    """A number and a range are taken by every spout that has a cap, and it follows its target."""
    spout = SPOUTS[setting](given_size)
    held = [*vars(spout).values(), *getattr(spout, "_limits", {}).values()]
    caps = [cap for cap in held if isinstance(cap, BatchSize)]
    sizes = []
    for share in (0.0, 1.0):
        spout.set_batch_target(share)
        sizes.append([cap.now for cap in caps])
    assert ((1, 1) if given_size == 1 else given_size) in list(zip(*sizes, strict=True))


def test_a_file_spout_takes_more_files_while_it_is_behind(tmp_path: Path, spark):
    """`files_per_batch=(1, 5)`: the least at 0.0, the most at 1.0, each file once."""
    for number in range(9):
        (tmp_path / f"{number}.csv").write_text("1\n", "utf-8")
    spout = FileSpout(f"{tmp_path}/*.csv", format="csv", schema="v int", files_per_batch=(1, 5))
    spout.open(spark, None)
    sizes, previous = [], None
    for txid, share in enumerate((0.0, 0.5, 1.0), 1):
        spout.set_batch_target(share)
        previous = spout.initialize_transaction(TransactionAttempt(txid), previous)
        sizes.append([Path(file.path).stem for file in previous.files])
    assert sizes == [["0"], ["1", "2", "3"], ["4", "5", "6", "7", "8"]]


def test_a_rate_spout_takes_more_values_while_it_is_behind():
    """`rows_per_batch=(10, 100)`: spans follow each other without a gap."""
    spout = RateSpout((10, 100))
    spans, previous = [], None
    for txid, share in enumerate((0.0, 1.0, 0.0), 1):
        spout.set_batch_target(share)
        previous = spout.initialize_transaction(TransactionAttempt(txid), previous)
        spans.append((previous.start, previous.end))
    assert spans == [(0, 10), (10, 110), (110, 120)]


def test_a_partitioned_spout_takes_more_of_each_partition_while_it_is_behind():
    """`take_per_partition=(1, 3)` holds for every partition."""
    rows = [(n,) for n in range(9)]
    spout = MemoryPartitionedSpout({"p": rows, "q": rows}, "v int", take_per_partition=(1, 3))
    spout.set_batch_target(1.0)
    planned = spout.initialize_transaction(TransactionAttempt(1), None)
    assert planned is not None
    assert [p["end"] for p in planned.read.values()] == [3, 3]


def test_delta_and_kafka_caps_follow_the_target():
    """Their planning asks for the caps of the moment."""
    delta: Any = DeltaSpout("t", versions_per_batch=(1, 9), bytes_per_batch=(100, 900))
    delta.set_batch_target(0.5)
    kafka: Any = KafkaSpout(
        "b:9092", topics=["t"], max_records_per_batch=(10, 20), max_records_per_partition=None
    )
    kafka.set_batch_target(1.0)
    assert (delta._versions.now, delta._bytes.now) == (5, 500)
    assert [limit and limit.now for limit in kafka._limits.values()] == [None, 20]


def test_small_files_are_read_together_while_behind(tmp_path: Path) -> None:
    """Without a setting: one file, then up to 100, but not more bytes than a txid should have."""
    spout = FileSpout(str(tmp_path / "*.csv"), format="csv", schema="v int")
    for number in range(150):
        (tmp_path / f"{number:03}.csv").write_text("1\n")
    (tmp_path / "105.csv").write_bytes(b"1\n" * 80)
    spout._most_bytes = 200
    taken, previous = [], None
    for share in (0.0, 1.0, 1.0, 1.0):
        spout.set_batch_target(share)
        spout._schema = types.StructType([types.StructField("v", types.IntegerType())])
        previous = spout.initialize_transaction(TransactionAttempt(1), previous)
        assert previous is not None
        taken.append([file.path[-7:-4] for file in previous.files])
    assert taken[0] == ["000"]
    assert (taken[1][0], taken[1][-1], len(taken[1])) == ("001", "100", 100)
    assert (taken[2][0], taken[2][-1]) == ("101", "121")
    assert sum(map(len, taken[2:])) == 49


def test_a_file_that_is_too_large_is_a_txid_of_its_own(tmp_path: Path) -> None:
    """A limit of bytes never stops the stream."""
    (tmp_path / "a.csv").write_text("1\n" * 10)
    (tmp_path / "b.csv").write_text("1\n")
    spout = FileSpout(str(tmp_path / "*.csv"), format="csv", schema="v int")
    spout._most_bytes, spout._schema = (
        5,
        types.StructType([types.StructField("v", types.IntegerType())]),
    )
    spout.set_batch_target(1.0)
    planned = spout.initialize_transaction(TransactionAttempt(1), None)
    assert planned is not None
    assert [file.path[-5:] for file in planned.files] == ["a.csv"]


@pytest.mark.parametrize(
    ("spout", "words"),
    [
        (
            FileSpout("*.csv", format="csv"),
            "1 file, up to 100 and 256 MB while it is behind",
        ),
        (FileSpout("*.csv", format="csv", files_per_batch=3), "3 files"),
        (DeltaSpout("t", versions_per_batch=(1, 5)), "1 version, up to 5 while it is behind"),
        (
            KafkaSpout("b:9092", topics=["t"], max_records_per_batch=(10, 1000)),
            "10 records, up to 1,000 while it is behind",
        ),
    ],
)
def test_a_plan_tells_how_large_a_txid_is(spout: Any, words: str) -> None:
    """In words; what is fixed has no second number."""
    assert spout.batch_size_in_words().startswith(words)
