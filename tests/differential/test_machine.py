"""The parts of the machine by themselves: what it draws, how it shrinks, what its oracle says."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from tests.committers.aggregates.cases import OF_A_COLUMN, OF_ROWS, OutOfRangeError
from tests.differential.aggregation import aggregated
from tests.differential.changes import programs_of
from tests.differential.declaration import Change, Life, Program, Source, Step
from tests.differential.generate import CHANGING, generate
from tests.differential.oracle import expected_tables
from tests.differential.shrink import candidates, shrink
from tests.differential.time_joins import TIME_JOINS
from tests.differential.time_mutants import everything_in_time
from tests.differential.values import decode, encode

OPERATIONS = {
    "aggregate",
    "append",
    "derive",
    "double",
    "drop_duplicates",
    "fail",
    "filter",
    "join",
    "join_in_time",
    "merge",
    "new_values",
    "query",
    "select",
    "session_windows",
    "state",
    "window",
}


def small(*steps: Step, lives: tuple[Life, ...] = (Life(),)) -> Program:
    """One source of two txids, with a key and a number."""
    batches = ((((("a", 1), ("b", 2), (None, 3)),),), (((("a", 10),),),))
    columns = (("k", "string"), ("v", "bigint"))
    source = Source(
        name="s0", kind="opaque", partitions=0, known=True, columns=columns, batches=batches
    )
    return Program(seed=0, sources=(source,), steps=steps, lives=lives)


def test_a_program_is_plain_data() -> None:
    """What is printed of a program is all of it, and a seed always makes the same one."""
    for seed in range(60):
        program = generate(seed)
        assert Program.model_validate_json(program.model_dump_json()) == program == generate(seed)


def test_everything_is_drawn() -> None:
    """Five hundred programs have every operation, layout, semantics, aggregate, join and moment."""
    found: Counter[str] = Counter()
    for seed in range(500):
        program = generate(seed)
        found.update(source.kind for source in program.sources)
        found.update(f"known {source.known}" for source in program.sources)
        found.update(str(life.crash) for life in program.lives)
        for step in program.steps:
            found[step.op] += 1
            for name in ("how", "as_of", "semantics", "layout"):
                found[str(step.args.get(name))] += 1
            if step.op == "join_in_time":
                found[f"{step.args['how']} in time"] += 1
            if step.args.get("expire_after") is not None:
                found[f"by {step.args['by']}"] += 1
                found[f"ends in {step.args['layout']}, {step.args['semantics']}"] += 1
            found.update(spec[0] for spec in step.args.get("aggregates", {}).values())
    expected = OPERATIONS | {"transactional", "opaque", "non_transactional", "log", "upsert"}
    expected |= {"known True", "known False", "committed", "txid-1", "left_anti", "full", "right"}
    expected |= OF_ROWS | {name for name, case in OF_A_COLUMN.items() if case.weight}
    expected |= {"before-publish", "between-publications", "after-committed", "during-clean-up"}
    expected |= {f"{how} in time" for how in TIME_JOINS} | {"by last event", "by window end"}
    expected |= {
        f"ends in {a}, {b}" for a in ("log", "upsert") for b in ("transactional", "opaque")
    }
    assert {name: found[name] for name in expected if not found[name]} == {}


def test_every_change_is_drawn() -> None:
    """Programs that change have every kind of change, and are what the seed was without them."""
    found: Counter[str] = Counter()
    for seed in range(200):
        program = generate(seed, 1.0)
        changes = [change for life in program.lives for change in life.changes]
        found.update(change.op for change in changes)
        found.update(f"{name} of {c.op}" for c in changes for name in c.args)
        found.update(f"{c.op}: {c.args['how']}" for c in changes if "how" in c.args)
        found.update(str(life.crash) for life in program.lives if life.changes)
        assert program.steps == generate(seed, 0.0).steps
    shapes = {
        f"{what}_{name}" for what in ("add", "drop", "rename") for name in ("value", "column")
    }
    expected = shapes | {"rename_key", "drop_key", "add_table", "drop_table", "restore_table"}
    expected |= {"widen", "rename_stream", "refill: beside", "refill: copied"}
    expected |= {f"add_table: {how}" for how in ("run", "beside", "new")}
    reshaped = ("aggregates", "layout", "buckets", "semantics", "keys", "remove_where")
    expected |= {f"{name} of reshape" for name in reshaped}
    expected |= {"None", "between-publications", "shape-staged", "shape-changed", "backfilled"}
    assert {name: found[name] for name in expected if not found[name]} == {}


def test_each_step_has_an_id_of_its_own_whatever_changes() -> None:
    """A table that goes away must not leave its number to a step of another (seed 20484)."""
    for seed in (20484, *range(20500, 20540)):
        for program in programs_of(generate(seed, CHANGING)):
            ids = Counter(step.id for step in program.steps)
            assert {name: times for name, times in ids.items() if times > 1} == {}, seed


def test_a_program_changes_as_it_says() -> None:
    """A table's steps change with each life, and settings say so; the oracle's value counts from
    the next txid on, and a table with its history was always there.
    """
    totals: dict[str, Any] = {
        "layout": "upsert",
        "semantics": "opaque",
        "keys": ["k"],
        "aggregates": {"total": ["Sum", "v"]},
    }
    state = Step(id="t1", op="state", of=("s0",), args=totals)
    late = Step(id="t2", op="append", of=("s0",), args={"semantics": "opaque"})
    changes = (
        Change(op="rename_key", table="t1", args={"old": "k", "new": "key"}),
        Change(op="add_value", table="t1", args={"name": "n", "spec": ["Count"]}),
        Change(
            op="add_table", table="t2", args={"step": late.model_dump(mode="json"), "how": "run"}
        ),
    )
    program = small(state, lives=(Life(until=1), Life(changes=changes)))
    first, second = programs_of(program)
    assert (first.steps, first.config) == ((state,), {})
    assert second.config == {"rebuilt_tables": ["t1"], "backfilled_tables": ["t2"]}
    assert second.step("t1").args["keys"] == ["key"]
    found, _ = expected_tables(program, {}, (), (0, 1))
    assert found["t1"].rows == [
        {"key": "a", "total": 11, "n": 1},
        {"key": "b", "total": 2, "n": None},
        {"key": None, "total": 3, "n": None},
    ]
    assert [row["txid"] for row in found["t2"].rows] == [1, 1, 1, 2]


@pytest.mark.parametrize(("layout", "counted"), [("upsert", None), ("log", 0)])
@pytest.mark.parametrize("refilled", [False, True])
def test_a_table_changes_several_times_at_once(
    layout: str, counted: int | None, refilled: bool
) -> None:
    """Names and values of a table change together, and a table that is filled anew from its history
    has its new values from the first txid on; otherwise they are NULL for keys without a later
    row, apart from a count in a log.
    """
    totals: dict[str, Any] = {
        "layout": layout,
        "semantics": "opaque",
        "keys": ["k"],
        "aggregates": {"total": ["Sum", "v"]},
    }
    changes = [
        Change(op="add_value", table="t1", args={"name": "n", "spec": ["Count"]}),
        Change(op="add_value", table="t1", args={"name": "one", "spec": ["FirstN", 1, "v", "v"]}),
        Change(op="drop_value", table="t1", args={"name": "total"}),
        Change(op="rename_key", table="t1", args={"old": "k", "new": "key"}),
    ]
    if refilled:
        changes.append(Change(op="refill", table="t1", args={"how": "beside"}))
    state = Step(id="t1", op="state", of=("s0",), args=totals)
    program = small(state, lives=(Life(until=1), Life(changes=tuple(changes))))
    found, _ = expected_tables(program, {}, (), (0, 1))
    assert found["t1"].rows == [
        {"key": "a", "n": 1 + refilled, "one": ((1 if refilled else 10,),)},
        {"key": "b", "n": 1 if refilled else counted, "one": ((2,),) if refilled else None},
        {"key": None, "n": 1 if refilled else counted, "one": ((3,),) if refilled else None},
    ]


def test_a_value_is_written_as_it_is() -> None:
    """Values of every type come back out of JSON unchanged, to the last digit and byte."""
    cases = [
        ("decimal(38,18)", Decimal("12345678901234567890.123456789012345678")),
        ("double", -0.0),
        ("double", float("inf")),
        ("binary", b"\x00\xff"),
        ("struct<x:decimal(5,2),y:array<bigint>>", (Decimal("1.10"), (2**62, None))),
        ("timestamp", 253402300799999999),
    ]
    for kind, value in cases:
        back = decode(encode(value), kind)
        assert repr(back) == repr(value)


def test_the_oracle_knows_sql() -> None:
    """NULL groups, joins with nothing, is no value of a sum; a sum out of its range is told."""
    totals = Step(
        id="t1",
        op="state",
        of=("s0",),
        args={
            "layout": "upsert",
            "semantics": "opaque",
            "keys": ["k"],
            "aggregates": {"total": ["Sum", "v"]},
        },
    )
    changes = Step(id="n1", op="new_values", of=("t1",))
    told = Step(id="t2", op="append", of=("n1",), args={"semantics": "opaque"})
    joined = Step(id="n2", op="join", of=("s0", "s0"), args={"on": ["k"], "how": "left_anti"})
    lonely = Step(id="t3", op="append", of=("n2",), args={"semantics": "opaque"})
    found, _ = expected_tables(small(totals, changes, told, joined, lonely), {})
    assert found["t1"].rows == [
        {"k": "a", "total": 11},
        {"k": "b", "total": 2},
        {"k": None, "total": 3},
    ]
    assert {"k": "a", "total": 11, "prev_total": 1, "txid": 2} in found["t2"].rows
    assert found["t3"].rows == [{"k": None, "v": 3, "txid": 1}]
    with pytest.raises(OutOfRangeError, match="18446744073709551614"):
        aggregated(["Sum", "v"], [[{"v": 2**63 - 1}] * 2], {"v": "bigint"})


def test_the_oracle_knows_event_time() -> None:
    """A row without a match comes once, and a key has ended as soon as its time is reached."""
    found, _ = expected_tables(everything_in_time(), {})
    alone = [row for row in found["t0"].rows if row["w"] is None]
    assert [(row["txid"], row["k"]) for row in alone] == [(3, "b"), (3, None)]
    newest = [(row["txid"], row["v"], row["w"]) for row in found["t1"].rows]
    assert newest[:4] == [(2, 1, 10), (2, 2, None), (2, 3, None), (3, 4, 30)]
    assert [(row["k"], row["n"]) for row in found["t3"].as_of[3]] == [("a", 2), ("c", 1)]
    ends = [row for row in found["t4"].rows if row["n"] is None]
    assert [(row["txid"], row["k"], row["prev_n"]) for row in ends] == [
        (3, "b", 1),
        (3, None, 1),
        (5, "c", 1),
    ]
    assert {"k": "a", "n": 1, "total": 5} in found["t5"].rows  # begun anew


def test_a_program_in_time_shrinks() -> None:
    """Of joins and ends only what a finding needs is left, also of their durations."""

    def ends(program: Program) -> bool:
        marks = {step.id for step in program.steps if step.op == "watermark"}
        states = [step for step in program.steps if step.args.get("expire_after") is not None]
        return any(marks & {*step.of} for step in states)

    least = shrink(everything_in_time(), ends)
    assert [step.op for step in least.steps] == ["watermark", "state"]
    assert least.steps[-1].args["expire_after"] == 0
    assert least.txids == 1


def test_a_program_shrinks_to_what_shows_it() -> None:
    """Of a program of forty steps and rows only what a finding needs is left."""

    def joins(program: Program) -> bool:
        return any(step.op == "join" and step.args["how"] == "full" for step in program.steps)

    seed = next(s for s in range(500) if joins(generate(s)) and len(generate(s).steps) > 8)
    least = shrink(generate(seed), joins)
    assert len(least.steps) <= 5 < 8 < len(generate(seed).steps)
    assert least.txids == len(least.lives) == 1
    assert least.conf == {}
    rows = [row for s in least.sources for b in s.batches if b for v in b for p in v for row in p]
    assert rows == []
    assert not any(joins(candidate) and candidate == least for candidate in candidates(least))
