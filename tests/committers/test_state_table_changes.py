"""What a txid changes in a state table: Trident's new values, with those before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from committers.aggregates import Aggregate, Count, Sum
from committers.state_table import StateTable
from txn.attempts import TransactionAttempt
from txn.errors import CommitConflictError, TableRefusedError, TopologyError
from txn.interfaces import Committer, CommitterContext, Prepared, Publication, Staged

SCHEMA = "k string, v bigint"
VALUES: dict[str, Aggregate] = {"n": Count(), "s": Sum("v")}
BASE = [("a", 1), ("b", 10), (None, 100)]


@dataclass
class Turn:
    """A commit turn that stands between `prepare` and `publish`."""

    committer: Committer
    prepared: Prepared
    publication: Publication

    def changes(self) -> DataFrame:
        return self.committer.changes(self.prepared, self.publication).rows

    def rows(self) -> dict[Any, tuple[Any, ...]]:
        """K -> (n, s, prev_n, prev_s), every key once."""
        rows = [tuple(row) for row in self.changes().collect()]
        assert len(rows) == len({row[0] for row in rows})
        return {row[0]: row[1:] for row in rows}

    def publish(self) -> None:
        self.committer.publish(self.prepared, self.publication)


@dataclass
class Table:
    """A small state table and its turns."""

    driver: Any
    make_publication: Any
    path: Path
    semantics: str = "opaque"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reopen(1)

    def reopen(self, epoch: int) -> None:
        state = StateTable(self.path, self.semantics, **{"buckets": 2, **self.options})
        self.committer = state.bind(["k"], VALUES)
        self.driver.open(self.committer, SCHEMA, epoch)
        self.epoch = epoch

    def turn(self, txid: int, rows: Iterable[Sequence[Any]], attempt: int = 0) -> Turn:
        staged = self.driver.stage(self.committer, self.driver.frame(rows, SCHEMA), txid, attempt)
        own = self.make_publication(txid, attempt, self.epoch, staged.rows)
        return Turn(self.committer, self.committer.prepare(staged, own), own)

    def commit(self, txid: int, rows: Iterable[Sequence[Any]], attempt: int = 0) -> Turn:
        turn = self.turn(txid, rows, attempt)
        turn.publish()
        return turn


@pytest.fixture
def table(driver: Any, warehouse: Path, make_publication: Any) -> Any:
    """A factory of `Table`, by semantics."""

    def make(semantics: str = "opaque", **options: Any) -> Table:
        return Table(driver, make_publication, warehouse / "t", semantics, options)

    return make


@pytest.mark.parametrize("layout", ["upsert", "log"])
@pytest.mark.parametrize("semantics", ["opaque", "transactional", "non_transactional"])
def test_changes_are_the_touched_keys_with_the_values_before(
    table: Any, semantics: str, layout: str
) -> None:
    """One row per key that the batch touched: keys, values, values as of txid - 1, and no more."""
    state = table(semantics, layout=layout)
    first = state.turn(1, BASE)
    assert first.rows() == {
        "a": (1, 1, None, None),
        "b": (1, 10, None, None),
        None: (1, 100, None, None),
    }
    first.publish()
    context = state.driver.spark.sparkContext
    second = state.turn(2, [("a", 5), ("c", 7), (None, None)])
    context.setJobGroup(f"lazy-{semantics}-{layout}", "no job may run")
    changes = second.changes()
    jobs = context.statusTracker().getJobIdsForGroup(f"lazy-{semantics}-{layout}")
    context.setLocalProperty("spark.jobGroup.id", None)
    assert list(jobs) == []
    assert changes.columns == ["k", "n", "s", "prev_n", "prev_s"]
    partials = state.committer.partials(state.driver.frame([], SCHEMA)).schema
    declared = state.committer.changes_schema(partials)
    assert declared.simpleString() == changes.schema.simpleString()
    expected = {"a": (2, 6, 1, 1), "c": (1, 7, None, None), None: (2, 100, 1, 100)}
    assert second.rows() == expected
    second.publish()
    nothing = state.turn(3, [])
    assert (nothing.changes().schema, nothing.rows()) == (declared, {})


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_an_opaque_replay_changes_what_it_touches(table: Any, layout: str) -> None:
    """Values before are those of txid - 1, not the failed attempt's; its other keys are no change.

    A key that only the failed attempt brought, and that the replay brings again, is new.
    """
    state = table(layout=layout)
    state.commit(1, BASE)
    state.commit(2, [("a", 5), ("b", 5), ("dead", 7), ("again", 7)])
    replay = state.turn(2, [("a", 6), ("again", 8)], attempt=1)
    assert replay.rows() == {"a": (2, 7, 1, 1), "again": (1, 8, None, None)}
    replay.publish()
    assert state.turn(2, [], attempt=2).rows() == {}


def test_a_skipped_replay_changes_the_same(table: Any) -> None:
    """A replayed txid reports the same changes again, even after a restart and OPTIMIZE.

    Once the files that it replaced are vacuumed, this is refused.
    """
    state = table("transactional")
    state.commit(1, BASE)
    batch = [("a", 5), ("c", 7)]
    first = state.turn(2, batch)
    said = first.rows()
    assert said == {"a": (2, 6, 1, 1), "c": (1, 7, None, None)}
    first.publish()
    state.driver.spark.sql(f"OPTIMIZE delta.`{state.path}` ZORDER BY (k)")
    state.reopen(2)
    again = state.turn(2, batch, attempt=1)
    assert (again.prepared.skipped, again.rows()) == (True, said)
    replaced = next(iter(first.prepared.removes))
    (state.path / replaced.path).unlink()
    with pytest.raises(TableRefusedError, match=f"file {replaced.path} of version .* vacuumed"):
        again.changes()


def test_a_log_table_tells_the_same_whatever_was_compacted_or_vacuumed(table: Any) -> None:
    """A transactional replay that is skipped, after a compaction, OPTIMIZE, VACUUM and a restart,
    and changes that a VACUUM comes before.
    """
    state = table("transactional", layout="log", compact_files=2, compact_share=1)
    state.commit(1, BASE)
    state.commit(2, [("b", 1), ("b", 2)])
    batch = [("a", 5), ("b", 7), ("c", 7)]
    first = state.turn(3, batch)
    said = first.rows()
    assert said == {"a": (2, 6, 1, 1), "b": (4, 20, 3, 13), "c": (1, 7, None, None)}
    first.publish()
    state.committer.maintain(2)()
    state.reopen(2)
    again = state.turn(3, batch, attempt=1)
    assert (again.prepared.skipped, again.rows()) == (True, said)
    delta = DeltaTable(str(state.path))
    delta.optimize.z_order(["k"])
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    # What this attempt had staged is gone as well, as it would be staged again.
    again = state.turn(3, batch, attempt=2)
    assert (again.prepared.skipped, again.rows()) == (True, said)


def test_what_a_log_table_removes_is_decided_once(table: Any) -> None:
    """A condition that is another one whenever it is asked (a clock, a random number) is evaluated
    once per txid: the table, what is told of it, a replay that is skipped after a restart, and a
    second preparation that somebody's OPTIMIZE makes necessary all say the same.
    """

    def alive(state: Table) -> set[str]:
        rows = StateTable(state.path).read(state.driver.spark).collect()
        return {row["k"] for row in rows}

    batch = [(str(n), n) for n in range(64)]
    options = {"layout": "log", "remove_where": "rand() < 0.5"}
    state = table("transactional", **options)
    first = state.turn(1, batch)
    said = first.rows()
    first.publish()
    assert alive(state) == set(said)
    second = state.turn(2, batch)
    said = second.rows()
    second.publish()
    stays = {key for key, (n, *_) in said.items() if n is not None}
    assert alive(state) == stays
    assert 0 < len(stays) < 64
    assert set(said) - stays
    DeltaTable(str(state.path)).optimize.z_order(["k"])
    state.reopen(2)
    again = state.turn(2, batch, attempt=1)
    assert (again.prepared.skipped, again.rows()) == (True, said)

    path = state.path.with_name("opaque")
    state = Table(state.driver, state.make_publication, path, "opaque", options)
    state.commit(1, batch)
    state.commit(2, batch)
    replay = state.turn(2, batch, attempt=1)
    said = replay.rows()
    DeltaTable(str(path)).optimize.z_order(["k"])
    replay.publish()
    assert alive(state) == {key for key, (n, *_) in said.items() if n is not None}


def test_removals_that_were_told_are_not_decided_again(table: Any) -> None:
    """When OPTIMIZE makes an upsert table prepare again, and it was asked which keys it removes,
    the attempt fails and nothing is stored; if nobody asked, it goes on.
    """

    def alive() -> set[str]:
        rows = StateTable(state.path).read(state.driver.spark).collect()
        return {row["k"] for row in rows}

    def optimize() -> None:
        DeltaTable(str(state.path)).optimize.z_order(["k"])

    batch = [(str(n), n) for n in range(64)]
    state = table("transactional", remove_where="rand() < 0.5", buckets=1)
    state.commit(1, batch)
    before = alive()
    told = state.turn(2, batch)
    assert told.rows()
    optimize()
    with pytest.raises(CommitConflictError, match="was rewritten after it was read"):
        told.publish()
    assert alive() == before
    again = state.turn(2, batch, attempt=1)
    said = again.rows()
    again.publish()
    assert alive() == {key for key, (n, *_) in said.items() if n is not None}
    unasked = state.turn(3, batch)
    optimize()
    unasked.publish()
    assert state.committer.last_publication()[1].last_txid == 3


def test_a_group_of_txids_has_no_changes_one_by_one(table: Any, make_publication: Any) -> None:
    """What one txid of several that were published together changed is not guessed."""
    state = table("transactional")
    staged = state.driver.stage(state.committer, state.driver.frame(BASE, SCHEMA), 3)
    state.driver.turn(state.committer, staged, first=1)
    again = state.turn(3, BASE, attempt=1)
    with pytest.raises(TableRefusedError, match="holds txids 1 to 3"):
        again.changes()


def test_a_non_transactional_replay_changes_its_own_keys(table: Any) -> None:
    """A replay is applied again, and tells the keys of its own batch, not the failed attempt's."""
    state = table("non_transactional", buckets=1)
    state.commit(1, BASE)
    state.commit(2, [("a", 5), ("dead", 7)])
    assert state.turn(2, [("a", 6)], attempt=1).rows() == {"a": (3, 12, 2, 6)}


def test_changes_of_a_global_aggregate(driver: Any, warehouse: Path, make_publication: Any) -> None:
    """Without keys there is one row of values before and after, for an empty batch as well."""
    for semantics, layout in (("opaque", "upsert"), ("transactional", "upsert"), ("opaque", "log")):
        state = StateTable(warehouse / f"{semantics}-{layout}", semantics, layout)
        committer = state.bind([], {"n": Count()})
        driver.open(committer, SCHEMA)
        driver.commit(committer, driver.frame(BASE, SCHEMA), 1)
        staged = driver.stage(committer, driver.frame([], SCHEMA), 2)
        own = make_publication(2, rows=staged.rows)
        changes = committer.changes(committer.prepare(staged, own), own).rows
        assert [row.asDict() for row in changes.collect()] == [{"n": 3, "prev_n": 3}]


@pytest.mark.parametrize("layout", ["upsert", "log"])
def test_an_idle_txid_while_the_columns_of_the_batch_are_unknown(
    table: Any, make_publication: Any, layout: str
) -> None:
    """An idle txid changes nothing; the columns come out of the table, where there is one."""
    state = table(layout=layout)
    committer = StateTable(state.path, layout=layout, buckets=2).bind(["k"], VALUES)
    committer.open(state.driver.spark, CommitterContext("tests", 2), None)
    committer.fence()
    own = make_publication(1, epoch=2)
    prepared = committer.prepare(Staged(TransactionAttempt(1), ()), own)
    changes = committer.changes(prepared, own).rows
    assert (changes.columns, changes.count()) == (["k", "n", "s", "prev_n", "prev_s"], 0)
    nowhere = StateTable(state.path / "nowhere", layout=layout).bind(["k"], VALUES)
    nowhere.open(state.driver.spark, CommitterContext("tests", 2), None)
    prepared = nowhere.prepare(Staged(TransactionAttempt(1), ()), own)
    with pytest.raises(TopologyError, match="before it was opened"):
        nowhere.changes(prepared, own)


def test_a_key_named_like_a_previous_value_is_refused(driver: Any, warehouse: Path) -> None:
    """A transactional table may have it, but its new values cannot."""
    for layout in ("upsert", "log"):
        state = StateTable(warehouse / "t", "transactional", layout)
        committer = state.bind(["PREV_n"], {"n": Count()})
        partials = committer.partials(driver.frame([], "PREV_n string")).schema
        with pytest.raises(TopologyError, match="need a column 'prev_n'"):
            committer.require_changes()
        with pytest.raises(TopologyError, match="need a column 'prev_n'"):
            committer.changes_schema(partials)
