"""The parts of the machine by themselves: what it draws, how it shrinks, what its oracle says."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest

from tests.committers.aggregates.cases import OF_A_COLUMN, OF_ROWS, OutOfRangeError
from tests.differential.aggregation import aggregated
from tests.differential.declaration import Life, Program, Source, Step
from tests.differential.generate import generate
from tests.differential.oracle import expected_tables
from tests.differential.shrink import candidates, shrink
from tests.differential.values import decode, encode

OPERATIONS = {
    "aggregate",
    "append",
    "derive",
    "double",
    "fail",
    "filter",
    "join",
    "merge",
    "new_values",
    "query",
    "select",
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
            found.update(spec[0] for spec in step.args.get("aggregates", {}).values())
    expected = OPERATIONS | {"transactional", "opaque", "non_transactional", "log", "upsert"}
    expected |= {"known True", "known False", "committed", "txid-1", "left_anti", "full", "right"}
    expected |= OF_ROWS | {name for name, case in OF_A_COLUMN.items() if case.weight}
    expected |= {"before-publish", "between-publications", "after-committed", "during-clean-up"}
    assert {name: found[name] for name in expected if not found[name]} == {}


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
