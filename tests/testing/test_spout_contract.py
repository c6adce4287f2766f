"""The contract kit catches spouts that promise more than they keep, and says how."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from txn.attempts import TransactionAttempt
from txn.errors import SourceUnavailableError
from txn.interfaces import Lag, PartitionedSpout, Spout, SpoutKind
from txn.spark.differences import parse_ddl
from txn.testing import ContractError, SpoutContract, judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Log = list[int]

SCHEMA = "id int"


class Range(BaseModel):
    """Metadata of the spouts here: records [start, end)."""

    start: int
    end: int


class HonestSpout(Spout[Range]):
    """Reads a list of numbers, three per batch, and keeps its word."""

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Range

    def __init__(self, log: Log) -> None:
        self.log = log

    def open(self, spark, previous):
        return parse_ddl(SCHEMA)

    def initialize_transaction(self, attempt, previous):
        start = previous.end if previous else 0
        end = min(start + 3, len(self.log))
        return Range(start=start, end=end) if end > start else None

    def emit_batch(self, spark, attempt, metadata):
        return frame(spark, self.log[metadata.start : metadata.end])


def frame(spark: SparkSession, ids: Sequence[int], schema: str = SCHEMA) -> DataFrame:
    return spark.createDataFrame([(n,) for n in ids], schema)


class OpaqueSpout(HonestSpout):
    """Reads what is there when the attempt is made, up to five: replays differ, none is lost."""

    kind = SpoutKind.OPAQUE

    def initialize_transaction(self, attempt, previous):
        start = previous.end if previous else 0
        end = min(start + 2 + attempt.attempt_id % 3, len(self.log))
        return Range(start=start, end=end) if end > start else None


class DropsAtReplay(HonestSpout):
    """Loses the last record of every replay."""

    def emit_batch(self, spark, attempt, metadata):
        end = metadata.end - (attempt.attempt_id > 0)
        return frame(spark, self.log[metadata.start : end])


class RepeatsInTheNext(HonestSpout):
    """Begins a batch with the last record of the one before."""

    def initialize_transaction(self, attempt, previous):
        planned = super().initialize_transaction(attempt, previous)
        if planned is None or previous is None:
            return planned
        return Range(start=planned.start - 1, end=planned.end)


class KeepsItsPositionToItself(HonestSpout):
    """Goes on from a position in memory instead of from `previous`."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.position = 0

    def open(self, spark, previous):
        self.position = previous.end if previous else 0
        return super().open(spark, previous)

    def initialize_transaction(self, attempt, previous):
        planned = super().initialize_transaction(attempt, Range(start=0, end=self.position))
        self.position = planned.end if planned else self.position
        return planned


class EmitsOnce(HonestSpout):
    """Has nothing for an attempt that it has emitted before."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.emitted: set[TransactionAttempt] = set()

    def emit_batch(self, spark, attempt, metadata):
        again = attempt in self.emitted
        self.emitted.add(attempt)
        return frame(spark, [] if again else self.log[metadata.start : metadata.end])


class ReadsTheNewest(HonestSpout):
    """Emits what is there at emission, whatever was planned."""

    def emit_batch(self, spark, attempt, metadata):
        return frame(spark, self.log[metadata.start :])


class Anything(BaseModel):
    """Metadata that takes whatever it is given."""

    held: Any


class MetadataIsNoJson(HonestSpout):
    """Stores an object."""

    metadata_type = Anything

    def initialize_transaction(self, attempt, previous):
        return Anything(held=self) if self.log and not previous else None


class MetadataComesBackOtherwise(HonestSpout):
    """Stores a tuple, which JSON gives back as a list."""

    metadata_type = Anything

    def initialize_transaction(self, attempt, previous):
        return Anything(held=(0, len(self.log))) if self.log and not previous else None

    def emit_batch(self, spark, attempt, metadata):
        return frame(spark, self.log[slice(*metadata.held)])


class StoresTheRecords(HonestSpout):
    """Puts far too much into its metadata."""

    metadata_type = Anything

    def initialize_transaction(self, attempt, previous):
        return Anything(held=["record" * 10] * 10_000) if self.log and not previous else None


class ChangesItsSchema(HonestSpout):
    """Emits bigints where it said int, from the second batch on."""

    def emit_batch(self, spark, attempt, metadata):
        schema = "id bigint" if metadata.start else SCHEMA
        return frame(spark, self.log[metadata.start : metadata.end], schema)


class NamesAPartTwice(HonestSpout):
    """Two parts of one name."""

    def planned_parts(self, metadata):
        return ["a", "a"]


class ReadsAnotherPart(HonestSpout):
    """Does not read what it planned."""

    def parts_read(self, batch, metadata):
        return ["another"]


class CountsWrong(HonestSpout):
    """Plans a row more than it has."""

    def planned_rows(self, metadata):
        return metadata.end - metadata.start + 1


class LagsBelowZero(HonestSpout):
    """Forgets that a batch may be planned ahead of what was counted."""

    def lag(self, newest):
        return Lag(records=-1 if newest else 0)


class LagsByANumber(HonestSpout):
    """Does not say which unit."""

    def lag(self, newest):
        return 3


class LagsForEver(HonestSpout):
    """Counts what it has, and not what is left."""

    def lag(self, newest):
        return Lag(records=len(self.log))

    def planned_lag(self, metadata):
        return Lag(records=0)


class LagsByFiles(HonestSpout):
    """Does not say what a batch has of them."""

    def lag(self, newest):
        return Lag(files=0)


class NeverIdle(HonestSpout):
    """Plans empty batches for ever."""

    def initialize_transaction(self, attempt, previous):
        start = previous.end if previous else 0
        return Range(start=start, end=min(start + 3, len(self.log)))


class RaisesWhereItMayNot(HonestSpout):
    """Breaks down at a replay with an error of its own."""

    def emit_batch(self, spark, attempt, metadata):
        if attempt.attempt_id:
            raise KeyError(metadata.start)
        return super().emit_batch(spark, attempt, metadata)


class ClosesBadly(HonestSpout):
    """Cannot be closed twice."""

    closed = False

    def close(self):
        assert self.closed is not True
        self.closed = True


class BoundToAThread(HonestSpout):
    """Works on the planning thread only, as a connection to SQLite would."""

    def initialize_transaction(self, attempt, previous):
        from threading import get_ident

        self.thread = get_ident()
        return super().initialize_transaction(attempt, previous)

    def emit_batch(self, spark, attempt, metadata):
        from threading import get_ident

        if getattr(self, "thread", get_ident()) != get_ident():
            raise RuntimeError("used in another thread")
        return super().emit_batch(spark, attempt, metadata)


def contract_of(make: Callable[[Log], Spout[Any]]) -> type[SpoutContract]:
    """The kit, pointed at a spout over a list."""

    class Contract(SpoutContract):
        seeds = (1,)

        def make_source(self, folder: Path) -> None:
            self.log: Log = []

        def make_spout(self, folder: Path) -> Spout[Any]:
            return make(self.log)

        def add_records(self, folder: Path, ids: Sequence[int]) -> None:
            self.log.extend(ids)

    return Contract


PROMISE = "test_it_keeps_what_its_kind_promises"
LAST = "test_its_metadata_and_schema_last"


@pytest.mark.parametrize(
    ("spout", "test", "message"),
    [
        (DropsAtReplay, PROMISE,
         r"but is not. DropsAtReplay: a replay of txid (\d) differs .*: \1:\d lacks \['Row\(id=\d"),
        (RepeatsInTheNext, PROMISE, r"record \d+ is in txids \[\d, \d\]"),
        (KeepsItsPositionToItself, PROMISE, r"are in no txid|asked again for 3:0 with the same"),
        (ReadsTheNewest, PROMISE, r"a replay of txid \d differs|are in more than one txid"),
        (RaisesWhereItMayNot, PROMISE, r"emit_batch\(\d:\d\) raised KeyError"),
        (EmitsOnce, LAST, r"a replay of txid 1 differs from the batch: 1:0 lacks"),
        (MetadataIsNoJson, LAST, r"the metadata of 1:0 is not JSON"),
        (MetadataComesBackOtherwise, LAST, r"changes in a round trip through JSON: .*\(0, 3\)"),
        (StoresTheRecords, LAST, r"Store where to read, not what was read"),
        (NamesAPartTwice, LAST, r"planned_parts of 1:0 must be one or more different names"),
        (ReadsAnotherPart, LAST, r"planned to read \['batch'\], and reads \['another'\]"),
        (LagsBelowZero, LAST, r"lag\(\) has -1 records, but a number cannot be below 0"),
        (LagsByANumber, LAST, r"lag\(\) returned int, not a txn.interfaces.Lag"),
        (LagsByFiles, LAST, r"lag\(\) is in files, but planned_lag\(\) knows no files of a batch"),
        (LagsForEver, "test_an_idle_source_has_nothing_to_read", r"but all was read"),
        (CountsWrong, LAST, r"1:0 was planned to have 4 rows"),
        (ChangesItsSchema, "test_an_idle_source_has_nothing_to_read",
         r"its columns were \[\('id', 'int'\)\], and the batch of 2:0 has \[\('id', 'bigint'\)\]"),
        (NeverIdle, "test_an_idle_source_has_nothing_to_read", r"plans a batch of a source"),
        (ClosesBadly, "test_close_and_success_may_come_at_any_time", r"not True"),
        (BoundToAThread, "test_batches_are_emitted_side_by_side", r"used in another thread"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)  # fmt: skip
def test_a_liar_is_caught_and_told_how(
    spark: SparkSession, tmp_path: Path, spout: type[HonestSpout], test: str, message: str
) -> None:
    """The contract kit catches a spout that promises more than it keeps, and says how it breaks its
    promise.
    """
    contract = contract_of(spout)()
    with pytest.raises(AssertionError, match=message):
        getattr(contract, test)(spark, tmp_path)


def test_an_honest_spout_passes(spark: SparkSession, tmp_path: Path) -> None:
    """Every test of the kit passes for a spout that keeps its word, though its replays differ."""
    contract = contract_of(OpaqueSpout)
    tests = [name for name in dir(SpoutContract) if name.startswith("test_")]
    assert len(tests) == 6
    for name in tests:
        folder = tmp_path / name
        folder.mkdir()
        test = getattr(contract(), name)
        if "spark" in inspect.signature(test).parameters:
            test(spark, folder)
        else:
            test(folder)


class OpaqueReplays(OpaqueSpout):
    """Does not look at the end that was planned when that was for another attempt."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.planned: dict[int, int] = {}

    def initialize_transaction(self, attempt, previous):
        planned = super().initialize_transaction(attempt, previous)
        if planned is not None:
            self.planned[attempt.txid] = attempt.attempt_id
        return planned

    def emit_batch(self, spark, attempt, metadata):
        if self.planned.get(attempt.txid) != attempt.attempt_id:  # never, when replays are planned
            return frame(spark, [])
        return super().emit_batch(spark, attempt, metadata)


class NeitherSpout(ReadsTheNewest):
    """As `ReadsTheNewest`, and says so."""

    kind = SpoutKind.NON_TRANSACTIONAL


def test_the_judge_says_what_a_spout_is(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever it claims, a spout is found to be transactional, opaque or neither, with reasons."""
    found = {}
    for spout in (HonestSpout, OpaqueReplays, NeitherSpout):
        folder = tmp_path / spout.__name__
        folder.mkdir()
        found[spout] = judge(contract_of(spout), spark, folder, seeds=(1,))
    assert [v.kind for v in found.values()] == [
        SpoutKind.TRANSACTIONAL,
        SpoutKind.OPAQUE,
        SpoutKind.NON_TRANSACTIONAL,
    ]
    told = str(found[OpaqueReplays]).splitlines()
    assert told[0] == "The spout is opaque."
    assert told[1].startswith("It is not transactional: OpaqueReplays: a replay of txid ")
    assert set(found[NeitherSpout].reasons) == {SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE}


# --- partitions ------------------------------------------------------------------------------


class Partitions:
    """A source of named lists, some of which cannot be read for now."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {"a": [], "b": []}
        self.away: set[str] = set()


class OfPartitions(PartitionedSpout):
    """Reads up to two records per partition."""

    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, source: Partitions) -> None:
        self.source = source

    def get_partitions(self) -> list[str]:
        return sorted(self.source.logs)

    def plan_partition(self, attempt, partition, previous):
        start = previous[1] if previous else 0
        end = min(start + 2, len(self.source.logs[partition]))
        return [start, end] if end > start else None

    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        self.refuse(set(positions) & self.source.away)
        return frame(spark, list(self.read(positions)))

    def read(self, positions: Mapping[str, Any]) -> Iterator[int]:
        for name, (start, end) in positions.items():
            yield from self.source.logs[name][start:end]

    def refuse(self, away: set[str]) -> None:
        if away:
            raise SourceUnavailableError(f"{sorted(away)} cannot be read")


class SkipsWhatIsAway(OfPartitions):
    """Leaves out a partition that is away, without a word."""

    def emit_partitions(self, spark, attempt, positions):
        here = {name: p for name, p in positions.items() if name not in self.source.away}
        return frame(spark, list(self.read(here)))


class KnowsTheFirstPartitionsOnly(OfPartitions):
    """Never looks for new partitions."""

    def get_partitions(self) -> list[str]:
        return ["a", "b"]


class PartitionedContract(SpoutContract):
    """The kit, pointed at partitions that come, go away and come back."""

    seeds = (1,)
    spout: type[OfPartitions]

    def make_source(self, folder: Path) -> None:
        self.source = Partitions()

    def make_spout(self, folder: Path) -> Spout[Any]:
        return self.spout(self.source)

    def add_records(self, folder: Path, ids: Sequence[int]) -> None:
        names = sorted(self.source.logs, reverse=True)
        for place, number in enumerate(ids):
            self.source.logs[names[place % len(names)]].append(number)

    def add_partition(self, folder: Path) -> None:
        self.source.logs["c"] = []

    def take_partition_away(self, folder: Path) -> None:
        self.source.away = {"b"}

    def bring_partition_back(self, folder: Path) -> None:
        self.source.away = set()


@pytest.mark.parametrize(
    ("spout", "message"),
    [
        (SkipsWhatIsAway, r"differs from the batch|are in no txid"),
        (KnowsTheFirstPartitionsOnly, "in no"),
    ],
)
def test_partitions_are_taken_away_and_added(
    spark: SparkSession, tmp_path: Path, spout: type[OfPartitions], message: str
) -> None:
    """A spout that skips a partition that is away, or never sees a new one, is caught."""

    class Contract(PartitionedContract):
        pass

    Contract.spout = spout
    with pytest.raises(ContractError, match=message):
        Contract().test_it_keeps_what_its_kind_promises(spark, tmp_path)


def test_honest_partitions_pass(spark: SparkSession, tmp_path: Path) -> None:
    """A partitioned spout that refuses to read while a partition is away keeps its promise."""
    refused: list[set[str]] = []
    read: set[str] = set()

    class Noting(OfPartitions):
        """Says what the kit made it go through."""

        def refuse(self, away: set[str]) -> None:
            refused.append(away)
            super().refuse(away)

        def read(self, positions: Mapping[str, Any]) -> Iterator[int]:
            read.update(positions)
            return super().read(positions)

    class Contract(PartitionedContract):
        spout = Noting

    Contract().test_it_keeps_what_its_kind_promises(spark, tmp_path)
    assert {"b"} in refused
    assert read == {"a", "b", "c"}
