"""The contract kit: tests that every spout must pass, and that show its kind.

    from txn.testing import SpoutContract

    class TestLogSpout(SpoutContract):
        def make_source(self, folder):
            create_table(folder / "log.db")

        def make_spout(self, folder):
            return LogSpout(folder / "log.db")

        def add_records(self, folder, ids):
            insert(folder / "log.db", ids)

Run by pytest, with a session-scoped fixture `spark` (`txn.testing.fixtures` has one). Each test
gets a new object of the class and an empty folder. `judge` finds a spout's kind without pytest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from txn.interfaces import SpoutKind
from txn.interfaces.spout import undeclared
from txn.testing.capability_check import unfit_method
from txn.testing.spout_bench import ContractError, SpoutBench, SpoutSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SpoutContract", "Verdict", "judge"]

IN_FLIGHT = 3
"""Most open txids, as `TopologyConfig.max_spout_pending`."""


class SpoutContract(SpoutSource):
    """Inherit under a name that begins with `Test`; implement how to make the spout and its source.

    A record has its number from `add_records` in the column `id_column`; if that is not a column of
    its own, override `record_id`. A spout whose promise depends on an argument gets one subclass
    per promise.

    A source that is a server (Kafka) is a fixture of the test module: `make_source` creates a topic
    named after the folder, `make_spout` reads it from the beginning, `add_partition` adds one to
    it, `add_records` waits until the server has acknowledged.

    Not checked: speed, and faults of the source itself (a log that forgets its past).
    """

    seeds: Sequence[int] = (1, 2)
    """Seeds of random histories of failures."""

    def test_it_says_what_it_is(self, tmp_path: Path) -> None:
        """It has a kind and a pydantic model; its capabilities take the engine's arguments."""
        self.make_source(tmp_path)
        spout = self.make_spout(tmp_path)
        lacks = undeclared(spout) or unfit_method(spout)
        _require(lacks is None, f"{lacks}.")

    def test_an_idle_source_has_nothing_to_read(self, spark: SparkSession, tmp_path: Path) -> None:
        """Without records, or after the last one, the spout plans None; later it goes on."""
        with SpoutBench(spark, self, tmp_path) as bench:
            if bench.kind is SpoutKind.NON_TRANSACTIONAL:
                return  # it may read the same records again without end
            _require(not bench.plan(), bench.broken("it plans a batch of a source without records"))
            for _ in range(2):
                bench.grow()
                bench.commit_all()
                bench.check_caught_up()
            bench.check_every_record_once()

    def test_its_metadata_and_schema_last(self, spark: SparkSession, tmp_path: Path) -> None:
        """A fresh object reads another one's plan: same columns, same names of parts."""
        with SpoutBench(spark, self, tmp_path) as bench:
            bench.grow()
            _require(bench.plan(), bench.broken("it finds none of the source's records"))
            metadata = bench.parse(bench.open[1].metadata or "")
            parts = list(bench.spout.planned_parts(metadata))
            bench.emit(1)
            bench.emit(1)  # a transactional spout: the same rows, also twice for one attempt
            bench.crash()
            again = list(bench.spout.planned_parts(metadata))
            _require(
                parts == again,
                bench.broken(f"planned_parts were {parts}; after a crash they are {again}"),
            )
            bench.commit_all()

    def test_batches_are_emitted_side_by_side(self, spark: SparkSession, tmp_path: Path) -> None:
        """Several open txids are emitted at once, on other threads than the planning."""
        with SpoutBench(spark, self, tmp_path) as bench:
            while len(bench.open) < IN_FLIGHT and bench.added < 3 * IN_FLIGHT:
                bench.grow()
                bench.plan()
            rows = bench.emit_all()
            _require(any(rows.values()), bench.broken("no txid has any row"))

    def test_it_keeps_what_its_kind_promises(self, spark: SparkSession, tmp_path: Path) -> None:
        """Through failures, crashes and lost partitions the spout keeps its kind's promise."""
        self.make_source(tmp_path)
        claimed = self.make_spout(tmp_path).kind
        reason = _broken_promise(type(self), spark, tmp_path, claimed, self.seeds)
        if reason is not None:
            raise ContractError(f"It claims to be {claimed.value}, but is not. {reason}")

    def test_close_and_success_may_come_at_any_time(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """`success` may be missed or repeated, `close` repeated; another object goes on."""
        with SpoutBench(spark, self, tmp_path) as bench:
            bench.grow()
            bench.plan()
            bench.commit(success=False)
            bench.spout.success(1)
            bench.spout.success(1)
            bench.spout.close()
            bench.spout.close()
            bench.crash()
            bench.grow()
            bench.commit_all()
            if bench.kind is not SpoutKind.NON_TRANSACTIONAL:
                bench.check_every_record_once()


@dataclass(frozen=True)
class Verdict:
    """The verdict on a spout."""

    kind: SpoutKind
    """The strongest kind whose promise it kept."""
    reasons: dict[SpoutKind, str]
    """Stronger kind -> the way in which its promise was broken."""

    def __str__(self) -> str:
        lines = [f"The spout is {self.kind.value}."]
        lines += [f"It is not {kind.value}: {reason}" for kind, reason in self.reasons.items()]
        return "\n".join(lines)


def judge(
    contract: Callable[[], SpoutSource],
    spark: SparkSession,
    folder: Path,
    seeds: Sequence[int] = SpoutContract.seeds,
) -> Verdict:
    """Find out whether a spout is transactional, opaque or neither, regardless of its claim.

    Args:
        contract: a subclass of `SpoutContract`; one object of it is made per history.
        folder: an empty folder; each history makes one in it.
        seeds: seeds of random histories; one history for each seed and kind.
    """
    reasons: dict[SpoutKind, str] = {}
    for kind in (SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE):
        reason = _broken_promise(contract, spark, folder, kind, seeds)
        if reason is None:
            return Verdict(kind, reasons)
        reasons[kind] = reason
    return Verdict(SpoutKind.NON_TRANSACTIONAL, reasons)


def _broken_promise(
    contract: Callable[[], SpoutSource],
    spark: SparkSession,
    folder: Path,
    kind: SpoutKind,
    seeds: Sequence[int],
) -> str | None:
    for seed in seeds:
        place = folder / f"{kind.value}-{seed}"
        place.mkdir()
        source = contract()
        try:
            with SpoutBench(spark, source, place, kind) as bench:
                _History(bench, source, random.Random(seed)).run()
        except ContractError as error:
            return f"{error}\n  (seed {seed})"
    return None


class _History:
    """The events that may happen to a spout, in random order."""

    def __init__(self, bench: SpoutBench, source: SpoutSource, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.steps: list[Callable[[], object]] = [
            *[bench.grow] * 2,
            *[self.plan] * 5,
            *[self.fail] * 2,
            *[self.commit] * 3,
            bench.crash,
            lambda: bench.crash(planning=True),
            self.lose_an_answer,
        ]
        # Without overridden hooks there is nothing to add or to lose.
        if _overrides(source, "add_partition"):
            self.steps += [bench.add_partition, bench.grow]
        if _overrides(source, "take_partition_away"):
            self.steps += [self.lose_a_partition, bench.bring_partition_back]

    def run(self) -> None:
        """Begin with two open batches, then random events; check every record at the end."""
        self.chance.shuffle(self.steps)
        for step in (self.bench.grow, self.plan, self.bench.grow, self.plan, *self.steps):
            step()
        self.bench.commit_all()
        if self.bench.kind is not SpoutKind.NON_TRANSACTIONAL:
            self.bench.check_every_record_once()

    def plan(self) -> None:
        if len(self.bench.open) < IN_FLIGHT and self.bench.plan() and self.chance.random() < 0.5:
            self.emit(max(self.bench.open))

    def emit(self, txid: int) -> None:
        """Let a transactional spout emit the batch that replays are compared with."""
        if self.bench.kind is SpoutKind.TRANSACTIONAL and self.bench.open[txid].rows is None:
            self.bench.emit(txid)

    def fail(self) -> None:
        if self.bench.open:
            txid = self.chance.choice(sorted(self.bench.open))
            self.emit(txid)
            self.bench.fail(txid)

    def commit(self) -> None:
        if self.bench.open:
            self.bench.commit(success=self.chance.random() < 0.7)

    def lose_an_answer(self) -> None:
        if len(self.bench.open) == IN_FLIGHT:
            self.commit()
        self.bench.grow()
        self.bench.ask_and_forget()
        self.plan()

    def lose_a_partition(self) -> None:
        self.bench.grow()
        self.plan()
        self.bench.take_partition_away()
        self.commit()


def _overrides(source: SpoutSource, hook: str) -> bool:
    return getattr(type(source), hook) is not getattr(SpoutSource, hook)


def _require(holds: bool, error: ContractError | str) -> None:
    if not holds:
        raise error if isinstance(error, ContractError) else ContractError(error)
