"""What a start tells of a program that has changed since the last run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from spouts.memory import MemoryTransactionalSpout
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.engine.changed_code import (
    describe_changes,
    list_changes,
    program_of,
    record_to_keep,
)
from txn.errors import BatchError
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.protocol.recovery import Recovered
from txn.testing import MemoryNodes, MemoryProgress, run_in_memory

Function = Callable[[DataFrame], DataFrame]


def clean(df: DataFrame) -> DataFrame:
    return df.where("n > 1")


def cleaner(df: DataFrame) -> DataFrame:
    return df.where("n > 2")


def broken(df: DataFrame) -> DataFrame:
    return df.selectExpr("CAST(raise_error('broken') AS int) AS n")


def topology(
    *functions: Function, rule: str = "n > 0", batches: int = 2, folder: Path = Path()
) -> Topology:
    """A stream of whole numbers through these functions, and beside it one that never changes."""
    made = Topology("t", TopologyConfig(retry_backoff_ms=0, max_batch_attempts=1))
    spout = MemoryTransactionalSpout([[(3 * n,), (3 * n + 1,)] for n in range(batches)], "n int")
    stream = made.stream("orders", spout).expect("positive", rule, on_violation="drop")
    other = stream
    for function in functions:
        stream = stream.transform(function)
    stream.partition_persist(AppendTable(folder / "out"))
    other.transform(lambda df: df).aggregate(rows=Count(), total=Sum("n")).partition_persist(
        AppendTable(folder / "sums")
    )
    return made


def told(before: Topology, now: Topology) -> list[str]:
    return list_changes(program_of(before.definition), program_of(now.definition))


def test_what_differs_is_named_and_nothing_else() -> None:
    """A changed function or rule is named with its place; what was put before others moves none."""
    place = f"{__file__}:{cleaner.__code__.co_firstlineno}"
    changed = f"transform cleaner ({place}) of stream 'orders'"
    assert told(topology(clean), topology(clean)) == []
    assert told(topology(clean), topology(cleaner)) == [f"{changed} was changed"]
    assert told(topology(clean), topology(cleaner, clean)) == [f"{changed} is new"]
    assert told(topology(clean, cleaner), topology(clean)) == [f"{changed} is gone"]
    rule = "rule 'positive' of stream 'orders' was changed"
    assert told(topology(clean), topology(clean, rule="n >= 0")) == [rule]


@pytest.mark.parametrize("python", ["cpython-310 3.10.1", None])
def test_what_cannot_be_compared_is_not(python: str | None) -> None:
    """Bytecode of two Pythons, and a function without a fingerprint, are no change."""
    now = program_of(topology(cleaner).definition)
    before = program_of(topology(clean).definition)
    if python is not None:
        before = before.model_copy(update={"python": python})
    else:
        unknown = [stage.model_copy(update={"fingerprint": None}) for stage in before.stages]
        before = before.model_copy(update={"stages": unknown})
    assert list_changes(before, now) == []
    assert record_to_keep(now, before, 3) == now


def test_the_newest_change_is_kept_until_the_next() -> None:
    """A start with equal code writes nothing; a new Python alone forgets no change."""
    first = program_of(topology(clean).definition)
    second = record_to_keep(program_of(topology(cleaner).definition), first, 15)
    assert (second.since, len(second.changes)) == (15, 1)
    assert record_to_keep(program_of(topology(cleaner).definition), second, 20) == second
    newer = program_of(topology(cleaner).definition).model_copy(update={"python": "newer"})
    assert record_to_keep(newer, second, 20) == second.model_copy(update={"python": "newer"})


def test_a_program_of_thousands_of_stages_fits_into_a_node() -> None:
    """Then it is compared as one; of many changes some are named."""
    many = [topology(*[function] * 1500).definition for function in (clean, cleaner)]
    records = [program_of(each) for each in many]
    assert [len(record.stages) for record in records] == [1, 1]
    assert list_changes(*records) == ["the program was changed"]
    some = [topology(*[function] * 30).definition for function in (clean, cleaner)]
    kept = record_to_keep(program_of(some[1]), program_of(some[0]), 3).changes
    assert (len(kept), kept[-1]) == (21, "and 10 more")


def test_open_txids_have_a_word_of_their_own() -> None:
    """What was begun by the former program is said to be processed by the present one."""
    batches = tuple(BatchRecord(txid=txid, attempt=0, epoch=1) for txid in (15, 16))
    recovered = Recovered(CommittedRecord(txid=14), batches, published=frozenset({15}))
    line = describe_changes(["a", "b", "c", "d", "e"], recovered)
    assert line.startswith("The program is not as it was at txid 14: a, b, c, and 2 more. Txids ")
    assert "Txids 15, 16 were begun by the former program" in line
    assert "Some tables hold txid 15 already" in line
    quiet = describe_changes(["a"], Recovered(CommittedRecord(txid=14), ()))
    assert "begun" not in quiet
    assert "hold txid" not in quiet


def test_a_change_is_told_once_and_kept(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The start after a change says so, also of what is open; the next one says nothing."""
    nodes = MemoryNodes()

    def run(function: Function, batches: int) -> list[str]:
        caplog.clear()
        run_in_memory(topology(function, batches=batches, folder=tmp_path), spark, nodes)
        return [message for message in caplog.messages if "not as it was" in message]

    assert run(clean, 1) == []
    assert run(clean, 2) == []
    with pytest.raises(BatchError, match="broken"):
        run(broken, 3)
    assert "at txid 2: transform broken (" in caplog.text
    assert "begun" not in caplog.text
    [line] = run(cleaner, 3)
    assert "at txid 2: transform cleaner (" in line
    assert "Txid 3 was begun by the former program" in line
    assert run(cleaner, 4) == []
    program = MemoryProgress("t", nodes).peek().program
    assert program is not None
    assert (program.since, len(program.changes)) == (3, 1)
    assert rows_of(tmp_path / "out", "n") == [(3,), (4,), (6,), (7,), (9,), (10,)]


def test_a_program_that_has_done_nothing_may_change_in_silence(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first batch is planned there is nothing to compare with."""
    nodes = MemoryNodes()
    for function in (clean, cleaner):
        run_in_memory(topology(function, batches=0, folder=tmp_path), spark, nodes)
    assert "not as it was" not in caplog.text
    program = MemoryProgress("t", nodes).peek().program
    assert program is not None
    assert program.stages == program_of(topology(cleaner).definition).stages
