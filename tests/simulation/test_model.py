"""The pure model of the guards, held against Spark: the same histories on both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from tests.committers.conftest import TOPOLOGY, Driver
from tests.simulation import primitives
from tests.simulation.books import Books
from tests.simulation.chance import Faults
from tests.simulation.delta import Table
from tests.simulation.kernel import Kernel, Process
from tests.simulation.plan import TableKind, draw_plan
from tests.simulation.rows import event_time_of
from tests.simulation.run import Run
from tests.simulation.seams import installed
from tests.simulation.spark import FUNCTIONS, RECORDS, Frame
from tests.simulation.spark import SparkSession as SimSparkSession
from tests.simulation.tables import make_committer
from tests.simulation.world import World, set_world
from tests.simulation.zookeeper import Ensemble
from txn.attempts import TransactionAttempt
from txn.interfaces import (
    WATERMARK,
    Committer,
    CommitterContext,
    Expiry,
    Member,
    Publication,
    Staged,
)
from txn.interfaces.committer_capabilities import MaintainsTable

KEYS = 7
BUCKETS = 3
TURNS = 7
ENDS = Expiry("last event", 30, "at")
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Step:
    """A commit turn of some txids, and what comes after it."""

    epoch: int
    batches: tuple[tuple[int, int, tuple[int, ...]], ...]
    """(txid, attempt id, records)."""
    dies: bool
    """The leader dies before COMMITTED: the next one replays."""
    optimized: bool


def history(seed: int, *, opaque: bool, groups: bool = True) -> list[Step]:
    """Turns of one or two txids, some of which are replayed, alone or in other groups."""
    random, steps = Random(seed), []
    committed, epoch, attempt, record = 0, 1, 0, 0
    known: dict[int, tuple[int, ...]] = {}
    for number in range(TURNS):
        batches = []
        for txid in range(committed + 1, committed + 1 + random.choice((1, 1, 2 if groups else 1))):
            if opaque or txid not in known:
                size = random.choice((0, 1, 3, 5))
                known[txid] = tuple(random.sample(range(record, record + 9), size))
                record += 9
            batches.append((txid, attempt, known[txid]))
            attempt += 1
        dies = number < TURNS - 1 and random.random() < 0.6
        steps.append(Step(epoch, tuple(batches), dies, random.random() < 0.4))
        if dies:
            epoch += 1
        else:
            committed = batches[-1][0]
    return steps


def publication(step: Step, staged: list[Staged]) -> Publication:
    """What the shell would say of a turn."""
    members = tuple(
        Member(txid=m.attempt.txid, attempt_id=m.attempt.attempt_id, rows=m.rows, digest=m.digest)
        for m in staged
    )
    own = staged[-1]
    return Publication(
        topology=TOPOLOGY,
        epoch=step.epoch,
        first_txid=staged[0].attempt.txid,
        last_txid=own.attempt.txid,
        attempt_id=own.attempt.attempt_id,
        rows=sum(m.rows for m in staged),
        digest=own.digest if len(staged) == 1 else "",
        members=members if len(members) > 1 else (),
        watermark=watermark(own.attempt.txid),
    )


def watermark(txid: int) -> int:
    """The watermark of a txid, for the tables whose keys end."""
    return txid * 60 - 90


def turn(committer: Any, step: Step, staged: list[Staged], *, ends: bool) -> Rows:
    """The commit turn; where keys end, what it has changed."""
    own = publication(step, staged)
    prepared = committer.prepare(Staged.together(staged), own)
    changed = committer.changes(prepared, own).rows.collect() if ends else []
    committer.publish(prepared, own)
    return [*changed]


def shown(committer: Any, step: Step) -> list[Rows]:
    """What readers see as of the step's txid, and as of the one before it."""
    last = step.batches[-1][0]
    return [
        committer.state_as_of(txid, exact=False).rows.collect()
        for txid in ((last, last - 1) if step.dies else (last,))
    ]


def on_spark(
    driver: Driver, path: Path, kind: str, semantics: str, steps: list[Step], ends: Expiry | None
) -> list[Rows]:
    """Rows after every step of a real table; where keys end, what it has changed and shows."""
    found: list[Rows] = []
    schema = f"k int, v bigint{', at timestamp' if ends else ''}"
    for number, step in enumerate(steps):
        if number == 0 or steps[number - 1].dies:
            committer = real_committer(path, kind, semantics, ends)
            own = marked(driver.frame([], schema), 0) if ends else driver.frame([], schema)
            opened(driver, committer, own, step.epoch)
        staged = []
        for txid, attempt, records in step.batches:
            rows = [(record % KEYS, record, at(record))[: 3 if ends else 2] for record in records]
            frame = driver.frame(rows, schema)
            frame = marked(frame, txid) if ends else frame
            staged.append(driver.stage(committer, frame, txid, attempt))
        changed = turn(committer, step, staged, ends=ends is not None)
        if step.optimized:
            DeltaTable(str(path)).optimize.compact()
        if not step.dies:
            compact(committer, step.batches[-1][0])
        if ends:
            views = shown(committer, step)
            found += [sorted(map(tuple, one), key=repr) for one in (changed, *views)]
        if not ends or kind == "upsert":
            rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
            found.append(sorted(map(COLUMNS[kind, semantics], rows), key=repr))
    return found


def at(record: int) -> datetime:
    """The event time of a record."""
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=event_time_of(record))


def marked(frame: DataFrame, txid: int) -> DataFrame:
    """The rows of a batch as a state gets them whose keys end."""
    return frame.withColumn(WATERMARK, sf.lit(watermark(txid)).cast("bigint"))


def opened(driver: Driver, committer: Committer, rows: DataFrame, epoch: int) -> None:
    """`Driver.open`, with the columns of these rows."""
    context = CommitterContext(TOPOLOGY, epoch)
    committer.open(driver.spark, context, committer.partials(rows).schema)
    committer.fence()


def compact(committer: Committer, committed: int) -> None:
    if isinstance(committer, MaintainsTable) and (publish := committer.maintain(committed)):
        publish()


def real_committer(path: Path, kind: str, semantics: str, ends: Expiry | None) -> Committer:
    if kind == "append":
        return AppendTable(path, semantics)
    settings: dict[str, Any] = {"compact_files": 2, "compact_share": 1} if kind == "log" else {}
    state = StateTable(path, semantics, kind, BUCKETS, **settings)
    return state.bind(["k"], {"n": Count(), "s": Sum("v")}, expiry=ends)


def upsert_row(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("k", "n", "s", "txid", "prev_n", "prev_s", "prev_txid")
    return tuple(row.get(name) for name in names)


COLUMNS: Any = {
    ("append", "opaque"): lambda row: (row["v"], row["txid"]),
    ("append", "transactional"): lambda row: (row["v"], row["txid"]),
    ("upsert", "opaque"): upsert_row,
    ("upsert", "transactional"): upsert_row,
    ("log", "opaque"): lambda row: (row["k"], row["n"], row["s"]),
    ("log", "transactional"): lambda row: (row["k"], row["n"], row["s"]),
}


def on_the_simulation(
    kind: str, semantics: str, steps: list[Step], ends: Expiry | None
) -> list[Rows]:
    """The same of a simulated table."""
    random = Random(7)
    kernel = Kernel()
    tables = {"t": TableKind(kind, semantics, (0,), ends=ends)}
    plan = replace(draw_plan(random), keys=KEYS, buckets=BUCKETS, rates={}, tables=tables)
    world = World(plan, kernel, random, Faults(random, {}, 0.0), Random(8))
    world.make_table = Table
    world.ensemble, world.books = Ensemble(world), Silent(world)
    found: list[Rows] = []
    primitives.use(kernel)
    set_world(world)
    try:
        process = Process("p")
        kernel.processes.append(process)
        world.contexts[process] = SimSparkSession(2).sparkContext
        kernel.spawn(process, "main", lambda: live(world, kind, steps, found))
        kernel.run()
        assert kernel.failure is None, kernel.failure
        kernel.wind_up()
    finally:
        set_world(None)
        primitives.use(None)
    return found


class Silent(Books):
    """There is no ZooKeeper and no source here whose books could be kept."""

    def append_arrived(self, table: Any, version: int, process: Any, *, done: bool) -> None:
        return None

    def landed(self, table: Any, info: Any, process: Any) -> None:
        return None


def live(world: World, kind: str, steps: list[Step], found: list[Rows]) -> None:
    run = Run(world)
    for number, step in enumerate(steps):
        if number == 0 or steps[number - 1].dies:
            committer = make_committer(world, "t", release=0)
            context = CommitterContext(TOPOLOGY, step.epoch)
            committer.open(SimSparkSession(2), context, RECORDS)  # type: ignore[arg-type]
            committer.fence()
        staged = [
            committer.stage(
                Frame(records).withColumn(WATERMARK, FUNCTIONS.lit(watermark(txid))),  # type: ignore[arg-type]
                TransactionAttempt(txid, attempt),
            )
            for txid, attempt, records in step.batches
        ]
        ends = world.plan.tables["t"].ends
        changed = turn(committer, step, staged, ends=ends is not None)
        table = world.tables["t"]
        if step.optimized and table.active:
            run.optimize(table)
        if not step.dies:
            compact(committer, step.batches[-1][0])
        rows = [row for path in table.active for row in table.blobs[path].rows]
        if ends:
            own = [(k, *both(value), *both(previous)) for k, value, previous in changed]
            found.append(sorted(own, key=repr))
            views = ([(r.key, *both(r.value)) for r in view] for view in shown(committer, step))
            found += [sorted(view, key=repr) for view in views]
        if not ends or kind == "upsert":
            found.append(sorted((as_real(kind, row) for row in rows), key=repr))


def as_real(kind: str, row: Any) -> tuple[Any, ...]:
    if kind == "append":
        return (row.record, row.txid)
    if kind == "log":
        return (row.key, len(row.value), sum(row.value))
    return (row.key, *both(row.value), row.txid, *both(row.previous), row.prev_txid)


def both(value: tuple[int, ...] | None) -> tuple[int | None, int | None]:
    """Count and sum of a value."""
    return (None, None) if value is None else (len(value), sum(value))


def totals(rows: Rows) -> dict[int, tuple[int, int]]:
    """What a reader of a log table sees: which files are compacted already is a matter of sizes."""
    added: dict[int, tuple[int, int]] = {}
    for k, n, s in rows:
        known = added.get(k, (0, 0))
        added[k] = known[0] + n, known[1] + s
    return added


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
@pytest.mark.parametrize("kind", ["append", "upsert", "log"])
def test_the_model_makes_the_rows_that_spark_makes(
    spark: SparkSession, tmp_path: Path, kind: str, semantics: str
) -> None:
    """After every commit turn, replay and OPTIMIZE of the same random history, a simulated table
    holds the rows of a real one, bookkeeping included.
    """
    steps = history(11, opaque=semantics == "opaque")
    assert {step.dies for step in steps} == {step.optimized for step in steps} == {True, False}
    real = on_spark(Driver(spark), tmp_path / "table", kind, semantics, steps, None)
    with installed():
        simulated = on_the_simulation(kind, semantics, steps, None)
    if kind == "log":
        assert list(map(totals, simulated)) == list(map(totals, real))
    else:
        assert simulated == real


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
@pytest.mark.parametrize("kind", ["upsert", "log"])
def test_keys_end_in_the_model_as_they_end_on_spark(
    spark: SparkSession, tmp_path: Path, kind: str, semantics: str
) -> None:
    """The same where keys end by their last event: what each txid changes and ends, and what
    readers see, also as of the committed txid beside one that is not.
    """
    steps = history(11, opaque=semantics == "opaque", groups=False)
    real = on_spark(Driver(spark), tmp_path / "table", kind, semantics, steps, ENDS)
    with installed():
        simulated = on_the_simulation(kind, semantics, steps, ENDS)
    assert simulated == real
    assert any(row[1] is None for rows in real for row in rows)
