"""Mutants of the product and of the oracle, and a program in which each of them shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from committers.aggregates import Sum
from committers.log_layout.compactor import Compactor
from committers.table_committer import TableCommitter
from tests.differential import oracle
from tests.differential.declaration import Change, Life, Program, Source, Step
from txn.dataflow import evaluation
from txn.dataflow.expectations import Expectation, Judged
from txn.dataflow.graph import Join, Merge, StateQuery
from txn.dataflow.repeats import Repeats
from txn.engine.work.backfill import Backfill
from txn.interfaces import Staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MUTANTS", "everything"]


def everything() -> Program:
    """A small program in which every mutant shows: a join, a merge, a query, changes, a replay,
    and a second half with other columns and one table more.
    """
    columns = (("k", "string"), ("v", "bigint"))
    left = Source(
        name="s0",
        kind="opaque",
        partitions=0,
        known=True,
        columns=columns,
        batches=(
            (((("a", 1), (None, 2), ("b", 3)),),),
            ((((None, 20), ("c", 30)),), (((None, 20), ("a", 40)),)),
            (((("a", 100), ("b", 200)),),),
        ),
    )
    right = Source(
        name="s1",
        kind="transactional",
        partitions=2,
        known=True,
        columns=(("k", "string"), ("w", "bigint")),
        batches=((((("a", 7),), (("a", 8),)),), None, (((), (("b", 9),)),)),
    )
    totals: dict[str, Any] = {
        "layout": "upsert",
        "semantics": "opaque",
        "keys": ["k"],
        "aggregates": {"n": ["Count"], "total": ["Sum", "v"]},
    }
    opaque = {"semantics": "opaque"}
    asked = {"on": ["k"], "as_of": "txid-1"}
    steps = (
        Step(id="t1", op="state", of=("s0",), args=totals),
        Step(id="n1", op="join", of=("s0", "s1"), args={"on": ["k"], "how": "left"}),
        Step(id="t2", op="append", of=("n1",), args=opaque),
        Step(id="n2", op="double", of=("s0",)),
        Step(id="n3", op="merge", of=("n2", "s0")),
        Step(id="t3", op="append", of=("n3",), args=opaque),
        Step(id="n4", op="query", of=("s0", "t1"), args=asked),
        Step(id="t4", op="append", of=("n4",), args=opaque),
        Step(id="n5", op="new_values", of=("t1",)),
        Step(id="t5", op="append", of=("n5",), args=opaque),
    )
    rule = {"name": "small", "where": ["less", "w", "bigint", 9], "on_violation": "set_aside"}
    steps += (
        Step(id="r0", op="expect", of=("s1",), args=rule),
        Step(id="t6", op="append", of=("r0",), args=opaque),
    )
    once = {"keys": ["k"], "within": None, "time": None, "sorted": False}
    steps += (
        Step(id="d1", op="drop_duplicates", of=("s0",), args=once),
        Step(id="t9", op="append", of=("d1",), args=opaque),
    )
    logged = {**totals, "layout": "log", "compact_files": None}
    steps += (Step(id="t7", op="state", of=("s0",), args=logged),)
    late = Step(id="t8", op="append", of=("s0",), args=opaque).model_dump(mode="json")
    changes = (
        Change(op="rename_value", table="t7", args={"old": "n", "new": "rows"}),
        Change(op="add_value", table="t7", args={"name": "most", "spec": ["Max", "v"]}),
        Change(op="add_table", table="t8", args={"step": late, "how": "run"}),
    )
    # The second txid is in the first table when the run dies; its replay has other rows.
    lives = (
        Life(crash="between-publications", nth=2),
        Life(until=2),
        Life(changes=changes),
    )
    return Program(seed=0, large=True, sources=(left, right), steps=steps, lives=lives)


def inner(self: Join, inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0].join(inputs[1], on=list(self.on), how="inner")


def first_only(self: Merge, inputs: Sequence[DataFrame]) -> DataFrame:
    return inputs[0]


asked, asked_for = StateQuery.compute, evaluation.rows_for


def without_null(self: StateQuery, inputs: Sequence[DataFrame]) -> DataFrame:
    return asked(self, [inputs[0], inputs[1].where("k IS NOT NULL")])


def without_null_keys(batch: DataFrame, *others: Any, **how: Any) -> DataFrame:
    return asked_for(batch.where("k IS NOT NULL"), *others, **how)


def once(step: Step, row: dict[str, Any], txid: int) -> list[dict[str, Any]]:
    return [row]


set_aside = Judged.set_aside


def all_pass(self: Judged, rule: Expectation) -> DataFrame:
    return self.frame.select(*self.columns)


def one_is_lost(self: Judged, *arguments: Any) -> DataFrame:
    return set_aside(self, *arguments).limit(0)


kept_keys = Repeats.kept_keys


def nothing_before(self: Repeats, *arguments: Any) -> DataFrame:
    return kept_keys(self, *arguments).limit(0)


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "a left join is an inner one": (Join, "compute", inner),
    "a merge loses a stream": (Merge, "compute", first_only),
    "NULL is no key of a query": (StateQuery, "compute", without_null),
    "NULL is no key that a query asks for": (evaluation, "rows_for", without_null_keys),
    "a sum forgets what was stored": (
        Sum,
        "combine_as",
        lambda self, stored, partial, kind: partial,
    ),
    "an opaque replay takes nothing back": (
        TableCommitter,
        "_unfinished",
        lambda self, publication: False,
    ),
    "keys of earlier txids are forgotten": (Repeats, "kept_keys", nothing_before),
    "a rule lets every row pass": (Judged, "passing", all_pass),
    "a row that is set aside is lost": (Judged, "set_aside", one_is_lost),
    "a rebuilt table loses its files": (Compactor, "publishing", lambda self, files: None),
    "a late table has an empty history": (
        Backfill,
        "_stage",
        lambda self, step, attempts: Staged.together([Staged(one, ()) for one in attempts]),
    ),
    "the oracle forgets that rows may be doubled": (oracle, "_row", once),
}
"""What is mutated -> object, attribute, what stands there instead."""
