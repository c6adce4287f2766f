"""The spouts whose content is written down in the program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spouts.memory import (
    MemoryOpaqueSpout,
    MemoryPosition,
    MemoryTransactionalSpout,
    ScriptedAttempt,
)
from txn.attempts import TransactionAttempt
from txn.errors import FailedException, TopologyError
from txn.interfaces import Lag, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "k string, v int"


def attempt(txid: int, attempt_id: int = 0) -> TransactionAttempt:
    return TransactionAttempt(txid, attempt_id)


def test_batches_come_one_per_txid_and_then_nothing() -> None:
    """Each txid has the batch after the previous one's; when all were taken, the answer is None."""
    spout = MemoryTransactionalSpout([[("a", 1)], [("b", 2)]], SCHEMA)
    first = spout.initialize_transaction(attempt(1), None)
    second = spout.initialize_transaction(attempt(2), first)
    third = spout.initialize_transaction(attempt(3), second)
    assert (first, second, third) == (MemoryPosition(index=0), MemoryPosition(index=1), None)


def test_a_transactional_replay_has_the_same_rows(spark: SparkSession) -> None:
    """Another object, given the same batches and the stored metadata, emits the same rows."""
    rows = [("a", 1), ("a", 1), (None, None)]
    stored = MemoryPosition(index=1).model_dump_json()
    metadata = MemoryPosition.model_validate_json(stored)
    emitted = [
        [tuple(r) for r in spout.emit_batch(spark, attempt(2, n), metadata).collect()]
        for n, spout in enumerate([MemoryTransactionalSpout([[], rows], SCHEMA) for _ in range(2)])
    ]
    assert emitted == [rows, rows]


def test_an_exception_among_the_rows_is_raised_once(spark: SparkSession) -> None:
    """A failure placed in the data fails one attempt; the replay has the rows without it."""
    spout = MemoryTransactionalSpout([[("a", 1), FailedException("down"), ("b", 2)]], SCHEMA)
    metadata = MemoryPosition(index=0)
    with pytest.raises(FailedException, match="down"):
        spout.emit_batch(spark, attempt(1, 0), metadata)
    replayed = spout.emit_batch(spark, attempt(1, 1), metadata).collect()
    assert [tuple(r) for r in replayed] == [("a", 1), ("b", 2)]


def test_two_exceptions_fail_two_attempts(spark: SparkSession) -> None:
    """Several exceptions of one batch are raised one per attempt, in their order."""
    spout = MemoryTransactionalSpout([[FailedException("one"), RuntimeError("two")]], SCHEMA)
    metadata = MemoryPosition(index=0)
    with pytest.raises(FailedException, match="one"):
        spout.emit_batch(spark, attempt(1, 0), metadata)
    with pytest.raises(RuntimeError, match="two"):
        spout.emit_batch(spark, attempt(1, 1), metadata)
    assert spout.emit_batch(spark, attempt(1, 2), metadata).collect() == []


def test_fewer_batches_than_were_planned_are_refused(spark: SparkSession) -> None:
    """Metadata that points behind the last batch says that the program was changed."""
    spout = MemoryTransactionalSpout([[("a", 1)]], SCHEMA)
    with pytest.raises(TopologyError, match="has 1 batches, but 3:0 was planned as number 3"):
        spout.emit_batch(spark, attempt(3), MemoryPosition(index=2))


def test_opaque_rows_are_those_of_the_attempt(spark: SparkSession) -> None:
    """A replay has its own rows, and an unscripted attempt those of the highest lower one."""
    spout = MemoryOpaqueSpout({(1, 0): [("a", 1)], (1, 2): [("b", 2)]}, SCHEMA)
    emitted = []
    for n in range(4):
        metadata = spout.initialize_transaction(attempt(1, n), None)
        assert metadata == ScriptedAttempt(txid=1, attempt_id=n)
        emitted += [tuple(r) for r in spout.emit_batch(spark, attempt(1, n), metadata).collect()]
    assert emitted == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]


def test_opaque_none_is_nothing_to_read() -> None:
    """A txid that is absent from the script, or None in it, has nothing to read."""
    spout = MemoryOpaqueSpout({(1, 0): [("a", 1)], (1, 1): None}, SCHEMA)
    answers = [spout.initialize_transaction(attempt(*a), None) for a in [(1, 1), (1, 5), (2, 0)]]
    assert answers == [None, None, None]


def test_opaque_script_may_be_a_function(spark: SparkSession) -> None:
    """A function of txid and attempt id is as good as a mapping."""
    spout = MemoryOpaqueSpout(lambda txid, n: [("t", txid), ("n", n)], SCHEMA)
    metadata = spout.initialize_transaction(attempt(4, 2), None)
    assert metadata is not None
    emitted = spout.emit_batch(spark, attempt(4, 2), metadata).collect()
    assert [tuple(r) for r in emitted] == [("t", 4), ("n", 2)]


def test_opaque_exception_fails_that_attempt_every_time(spark: SparkSession) -> None:
    """An exception of one attempt is raised whenever that attempt is emitted, and no other's."""
    spout = MemoryOpaqueSpout({(1, 0): [FailedException("no")], (1, 1): [("a", 1)]}, SCHEMA)
    first = ScriptedAttempt(txid=1, attempt_id=0)
    for _ in range(2):
        with pytest.raises(FailedException, match="no"):
            spout.emit_batch(spark, attempt(1, 0), first)
    second = ScriptedAttempt(txid=1, attempt_id=1)
    assert spout.emit_batch(spark, attempt(1, 1), second).count() == 1


def test_kinds_and_schemas_are_told_before_anything_runs(spark: SparkSession) -> None:
    """`kind` says the promise, and `open` the schema of what will be emitted."""
    transactional = MemoryTransactionalSpout([], SCHEMA)
    opaque = MemoryOpaqueSpout({}, SCHEMA)
    loose = MemoryOpaqueSpout({}, SCHEMA, kind=SpoutKind.NON_TRANSACTIONAL)
    assert [s.kind for s in (transactional, opaque, loose)] == [
        SpoutKind.TRANSACTIONAL,
        SpoutKind.OPAQUE,
        SpoutKind.NON_TRANSACTIONAL,
    ]
    expected = "struct<k:string,v:int>"
    assert [s.open(spark, None).simpleString() for s in (transactional, opaque)] == [expected] * 2


def test_a_schema_that_is_no_ddl_is_refused(spark: SparkSession) -> None:
    """Broken DDL and a bare type are refused when the spout is opened, with the text at fault."""
    for ddl in ("k strin", "int"):
        with pytest.raises(TopologyError, match=ddl):
            MemoryTransactionalSpout([], ddl).open(spark, None)


def test_metadata_refuses_unknown_fields() -> None:
    """Metadata of another version is not half understood."""
    with pytest.raises(ValueError, match="extra"):
        MemoryPosition.model_validate_json(json.dumps({"index": 0, "extra": 1}))


def test_a_cycle_begins_again_after_the_last_batch(spark: SparkSession) -> None:
    """With `cycle` the batches come round for ever, failures in them once per round."""
    batches = [[("a", 1)], [FailedException("down"), ("b", 2)]]
    spout = MemoryTransactionalSpout(batches, SCHEMA, cycle=True)
    seen: list[object] = []
    metadata = None
    for txid in range(1, 5):
        metadata = spout.initialize_transaction(attempt(txid), metadata)
        assert metadata == MemoryPosition(index=txid - 1)
        if txid % 2 == 0:
            with pytest.raises(FailedException, match="down"):
                spout.emit_batch(spark, attempt(txid), metadata)
        frame = spout.emit_batch(spark, attempt(txid, 1), metadata)
        seen += [tuple(row) for row in frame.collect()]
    assert seen == [("a", 1), ("b", 2)] * 2
    nothing = MemoryTransactionalSpout([], SCHEMA, cycle=True)
    assert nothing.initialize_transaction(attempt(1), None) is None


def test_lag_is_the_rows_of_the_batches_that_are_left() -> None:
    """Also of batches that were added since; with `cycle` there is no end, so nobody knows."""
    batches: list[Any] = [[("a", 1), FailedException("down"), ("b", 2)], [("c", 3)]]
    spout = MemoryTransactionalSpout(batches, SCHEMA)
    left = [spout.lag(MemoryPosition(index=at - 1) if at else None) for at in (0, 1, 2, 7)]
    assert left == [Lag(records=rows) for rows in (3, 1, 0, 0)]
    batches.append([("d", 4), ("e", 5)])
    assert spout.lag(MemoryPosition(index=1)) == Lag(records=2)
    assert MemoryTransactionalSpout(batches, SCHEMA, cycle=True).lag(None) is None


def test_the_rows_of_a_batch_are_counted_without_its_failures() -> None:
    """`planned_rows` is what will be emitted, and None for a batch that this object lacks."""
    spout = MemoryTransactionalSpout([[("a", 1), FailedException("down"), ("b", 2)]], SCHEMA)
    counts = [spout.planned_rows(MemoryPosition(index=n)) for n in range(2)]
    assert counts == [2, None]
