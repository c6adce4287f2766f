"""Group commit: several consecutive txids as one version, for append and state tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from committers.aggregates import Sum
from committers.append_table import AppendTable
from committers.publishing.rules import require_newer
from committers.state_table import StateTable
from committers.upsert_layout import shares
from committers.upsert_layout.shares import HASHED_BYTES, shared_out
from tests.committers.aggregates import test_algebra as algebra
from tests.committers.aggregates.test_merge import ALL as AGGREGATES
from tests.committers.conftest import TOPOLOGY, Driver, Totals, publication
from txn.errors import (
    CommitConflictError,
    RecoveryRefusedError,
    SourceChangedError,
    TableChangedError,
)
from txn.interfaces import (
    Aggregate,
    Committer,
    CommitterContext,
    Member,
    Publication,
    Published,
    Staged,
)

SCHEMA = "k string, v bigint"
Rows = list[tuple[Any, ...]]
ONE: Rows = [("a", 1), ("b", 10), ("c", 7)]
BATCHES: dict[int, Rows] = {2: [("a", 2), ("d", 5)], 3: [("a", 3), ("b", 1)], 4: [("d", 9)]}


def together(staged: Sequence[Staged], epoch: int = 1) -> tuple[Staged, Publication]:
    """What the pipeline hands over for these consecutive txids."""
    group = Staged.together(staged)
    own = publication(
        group.attempt.txid,
        group.attempt.attempt_id,
        epoch,
        group.rows,
        staged[0].attempt.txid,
    )
    members = tuple(
        Member(txid=m.attempt.txid, attempt_id=m.attempt.attempt_id, rows=m.rows, digest=m.digest)
        for m in group.members
    )
    return group, own.model_copy(update={"digest": group.digest, "members": members})


def commit(
    driver: Driver,
    table: Committer,
    batches: Mapping[int, Rows],
    attempt: int = 0,
    epoch: int = 1,
) -> Published:
    """Stage these batches, and publish them as one version."""
    staged = [
        driver.stage(table, driver.frame(rows, SCHEMA), txid, attempt)
        for txid, rows in batches.items()
    ]
    group, own = together(staged, epoch)
    return table.publish(table.prepare(group, own), own)


def opened(driver: Driver, path: Path, semantics: str, epoch: int = 1) -> Committer:
    """A leader's append table."""
    return driver.open(AppendTable(path, semantics), SCHEMA, epoch)


def appended(path: Path) -> Counter[tuple[Any, ...]]:
    """Multiset of (k, v, txid), as delta-rs reads it."""
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return Counter((row["k"], row["v"], row["txid"]) for row in found)


def rows_of(*batches: Mapping[int, Rows]) -> Counter[tuple[Any, ...]]:
    """The multiset that an append table holds after these batches."""
    return Counter((*row, txid) for some in batches for txid, rows in some.items() for row in rows)


def sums(*batches: Rows) -> dict[Any, tuple[int, int]]:
    """K -> (rows, sum), as plain Python counts them."""
    found: dict[Any, tuple[int, int]] = {}
    for key, value in (row for batch in batches for row in batch):
        n, s = found.get(key, (0, 0))
        found[key] = (n + 1, s + value)
    return found


# --- one version for several txids -----------------------------------------------------------


@pytest.mark.parametrize("hashed", [True, False], ids=["in memory", "shuffled and sorted"])
def test_a_group_rewrites_each_bucket_once(
    totals: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch, hashed: bool
) -> None:
    """A state table has the values and txids of one by one, and previous values as of before."""
    if not hashed:
        monkeypatch.setattr(shares, "HASHED_BYTES", 0)
    table: Totals = totals("opaque")
    table.commit(1, ONE)
    group = commit(driver, table.committer, BATCHES)
    buckets = [file.partition["txn_bucket"] for file in group.files]
    assert len(buckets) == len(set(buckets))
    names = ("n", "s", "txid", "prev_n", "prev_s", "prev_txid")
    assert {row["k"]: tuple(row[name] for name in names) for row in table.rows()} == {
        "a": (3, 6, 3, 1, 1, 1),
        "b": (2, 11, 3, 1, 10, 1),
        "c": (1, 7, 1, None, None, None),
        "d": (2, 14, 4, None, None, None),
    }


def test_every_aggregate_in_a_group_is_as_one_by_one(driver: Driver, warehouse: Path) -> None:
    """Readers of a state table see the same, whether txids were published together or alone."""
    rows = driver.spark.createDataFrame(
        algebra.random_rows(seed=11), algebra.SCHEMA
    ).localCheckpoint()
    batches = sorted(row[0] for row in rows.select("batch").distinct().collect())
    assert len(batches) > 2
    found = {}
    for name in ("alone", "together"):
        state = StateTable(warehouse / name, "transactional", buckets=2)
        table = state.bind(["case"], AGGREGATES)
        table.open(driver.spark, CommitterContext(TOPOLOGY, 1), table.partials(rows).schema)
        staged = [
            driver.stage(table, rows.where(sf.col("batch") == batch), txid)
            for txid, batch in enumerate(batches, 1)
        ]
        groups = [[one] for one in staged] if name == "alone" else [staged[:1], staged[1:]]
        for members in groups:
            group, own = together(members)
            table.publish(table.prepare(group, own), own)
        found[name] = {
            row["case"]: row for row in state.read(driver.spark, aggregates=AGGREGATES).collect()
        }
    assert found["alone"].keys() == found["together"].keys()
    wrong = [
        (key, value, alone[value], found["together"][key][value])
        for key, alone in found["alone"].items()
        for value in AGGREGATES
        if not algebra.near(alone[value], found["together"][key][value], "double")
    ]
    assert wrong == []


class _Started(Aggregate):
    """A sum that stores something else than its partials, and does not say how those merge."""

    def partial(self) -> Column:
        return sf.sum("v")

    def initial(self, partial: Column) -> Column:
        return partial + 1000

    def combine(self, stored: Column, partial: Column) -> Column:
        return stored + partial

    def zero(self) -> Column:
        return sf.lit(0)


class _Merged(_Started):
    def merge(self, partial: Column, txid: Column, kind: DataType) -> Column:
        return sf.sum(partial)


def test_what_cannot_be_grouped_says_so(warehouse: Path) -> None:
    """Removal, and an `initial` of one's own without `merge`, need each txid on its own."""

    def groups(remove_where: str | None = None, **aggregates: Any) -> bool:
        table = StateTable(warehouse / "t", remove_where=remove_where)
        return table.bind(["k"], aggregates).groups

    assert AppendTable(warehouse / "t").groups
    assert groups(s=Sum("v"))
    assert groups(s=_Merged())
    assert not groups(s=Sum("v"), other=_Started())
    assert not groups("s = 0", s=Sum("v"))


# --- replays ---------------------------------------------------------------------------------


def test_a_member_that_differs_is_refused(totals: Any, driver: Driver) -> None:
    """A transactional replay is held against the member of its txid, and named by it."""
    table: Totals = totals("transactional")
    commit(driver, table.committer, BATCHES)
    with pytest.raises(SourceChangedError, match="Attempt 3:1 staged 1 rows .* from attempt 0"):
        commit(driver, table.committer, {2: BATCHES[2], 3: [("a", 3)]}, attempt=1)
    with pytest.raises(SourceChangedError, match="Attempt 4:1 staged other values"):
        commit(driver, table.committer, {**BATCHES, 4: [("d", 8)]}, attempt=1)
    assert table.read() == sums(*BATCHES.values())


@pytest.mark.parametrize("semantics", ["opaque", "non_transactional"])
def test_a_replay_from_inside_a_group_is_refused(
    totals: Any, driver: Driver, semantics: str
) -> None:
    """A group can only be taken back from its first txid on; nothing is guessed."""
    table: Totals = totals(semantics)
    commit(driver, table.committer, BATCHES)
    with pytest.raises(
        RecoveryRefusedError, match="holds txids 2 to 4 as one group, but attempt 3:1"
    ):
        commit(driver, table.committer, {3: [("a", 1)]}, attempt=1)
    assert table.read() == sums(*BATCHES.values())


def test_a_lost_group_leaves_each_file_to_its_attempt(driver: Driver, warehouse: Path) -> None:
    """After a version that was not made, each member can be published or discarded alone."""
    table = opened(driver, warehouse, "opaque")
    staged = [
        driver.stage(table, driver.frame(rows, SCHEMA), txid) for txid, rows in BATCHES.items()
    ]
    group, own = together(staged)
    prepared = table.prepare(group, own)
    driver.frame([("x", 0, 0)], f"{SCHEMA}, txid bigint").write.format("delta").mode("append").save(
        str(warehouse)
    )
    with pytest.raises(TableChangedError, match="added rows"):
        table.publish(prepared, own)
    DeltaTable(str(warehouse)).restore(prepared.read_version)
    table.settle(0)  # looks at the log again
    table.discard(staged[1].attempt)
    there = [all((warehouse / file.path).exists() for file in one.files) for one in staged]
    assert there == [True, False, True]
    driver.turn(table, staged[0])
    assert appended(warehouse) == rows_of({2: BATCHES[2]})


# --- pure rules ------------------------------------------------------------------------------


def _publication(*members: tuple[int, int], epoch: int = 1) -> Publication:
    first, (last, attempt) = members[0][0], members[-1]
    named = tuple(Member(txid=txid, attempt_id=number) for txid, number in members)
    own = publication(last, attempt, epoch, first=first)
    return own.model_copy(update={"members": named if len(named) > 1 else ()})


GROUP = ((5, 0), (6, 0), (7, 0))


@pytest.mark.parametrize(
    ("members", "epoch", "passes"),
    [
        (((5, 1),), 1, True),
        (((5, 1), (6, 1)), 1, True),
        (((7, 1), (8, 0)), 1, True),
        (((8, 0),), 1, True),
        (GROUP, 1, False),
        (((5, 0),), 1, False),
        (((7, 0), (8, 0)), 1, False),
        (((5, 1), (6, 0)), 1, False),
        (((4, 9), (5, 9)), 1, False),
        (GROUP, 2, True),
        (((5, 0),), 2, True),
    ],
)
def test_within_an_epoch_every_attempt_of_a_group_must_be_newer(
    members: tuple[tuple[int, int], ...], epoch: int, passes: bool
) -> None:
    """Each txid that the table holds may only come again with a newer attempt; none goes back."""
    last = (3, _publication(*GROUP))
    if passes:
        require_newer(_publication(*members, epoch=epoch), last, 1, "t")
    else:
        with pytest.raises(CommitConflictError, match="is not newer"):
            require_newer(_publication(*members, epoch=epoch), last, 1, "t")


def test_buckets_are_dealt_out_by_size() -> None:
    """No more tasks than slots, buckets or megabytes; all buckets, each once, in even shares."""
    mega = 1024 * 1024
    stored = [(0, 3 * mega), (1, 2 * mega), (2, 2 * mega), (3, mega), (3, mega)]
    shares, hashed = shared_out(stored, [(4, mega)], slots=2)
    assert (sorted(map(sorted, shares)), hashed) == ([[0, 3], [1, 2, 4]], True)
    assert len(shared_out(stored, [], slots=8)[0]) == 4
    assert shared_out([(0, 5), (1, 5)], [(0, 5)], slots=8) == ([{0, 1}], True)


def test_partials_too_large_for_one_task_are_spread_and_then_shuffled() -> None:
    """First each bucket gets a task of its own; a bucket too large for that is not hashed."""
    half = HASHED_BYTES // 2 + 1
    assert shared_out([], [(0, half), (1, half)], slots=1) == ([{0}, {1}], True)
    assert shared_out([], [(0, half), (0, half), (1, 1)], slots=2) == ([{0, 1}], False)


def test_shares_of_a_rewrite_are_tasks_of_their_own(
    totals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets that are dealt out to two tasks are written by two, each by one of them."""
    monkeypatch.setattr(shares, "TASK_BYTES", 1)
    table: Totals = totals("transactional")
    keys = [(f"k{n}", n) for n in range(200)]
    # The first has nothing to join with: then it is up to the union to keep the shares apart.
    for txid in (1, 2):
        files = table.commit(txid, keys).files
        # part-<task>-<job>.snappy.parquet
        tasks = {Path(file.path).name.split("-")[1] for file in files}
        buckets = {file.partition["txn_bucket"] for file in files}
        assert (len(tasks), len(buckets)) == (2, len(files))
    assert table.read() == {key: (2, 2 * value) for key, value in keys}
