"""Rules in random programs: where they stand, and the rows that they set aside.

A rule is put behind a stream of a finished program, before all of its readers or only some of them.
Its draws come from a source of their own, so a seed keeps the program that it had without rules.

`scatter` is a transform that is not repeatable: each row goes to one of two tables by chance. The
oracle cannot know which; together the two tables hold every row once, whatever Spark lost between.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from tests.differential.columns import Columns, columns_of
from tests.differential.declaration import Program, Step
from tests.differential.values import draw_value, encode

__all__ = ["BAD_ROWS", "bad_rows_of", "placed", "with_rules"]

BAD_ROWS = "bad_rows"
"""Folder of the table of rows that are set aside."""
_PLAIN = re.compile(r"[a-zA-Z0-9_<>:,()]*")
"""Types that Spark reads as they are written here: no field has a name that needs quotes."""


def with_rules(program: Program, strength: Mapping[str, int]) -> Program:
    """The program with rules behind some of its streams, and perhaps a scattered one.

    Args:
        strength: stream -> 2 transactional, 1 opaque, 0 neither.
    """
    draw = random.Random(f"rules {program.seed}")
    if draw.random() < 0.5:
        return program
    columns = columns_of(program)
    steps = list(program.steps)
    streams = [source.name for source in program.sources]
    streams += [step.id for step in steps if step.op not in ("append", "state")]
    for number in range(draw.choice((1, 1, 2, 3))):
        of = draw.choice(streams)
        if (rule := _rule(draw, of, columns[of], f"r{number}", strength.get(of, 0))) is None:
            continue
        columns[rule.id] = columns[of]
        if (result := placed(draw, steps, rule)) is not None:
            steps = result
            streams.append(rule.id)
    strong = [source.name for source in program.sources if strength[source.name]]
    if strong and draw.random() < 0.3:
        steps += _scattered(draw, draw.choice(strong))
    return program.model_copy(update={"steps": tuple(steps)})


def _rule(draw: random.Random, of: str, columns: Columns, name: str, strength: int) -> Step | None:
    readable = all(_PLAIN.fullmatch(kind) for kind in columns.values())
    fates = ("drop", "set_aside", "set_aside") if strength and readable else ("drop",)
    column = draw.choice(list(columns))
    kind = columns[column]
    conditions: list[list[Any]] = [["not_null", column], ["null", column]]
    simple = not kind.startswith(("array", "struct"))
    if simple and (value := draw_value(draw, kind, few=True)) is not None:
        how = "equal" if kind in ("boolean", "binary") else draw.choice(("less", "equal"))
        conditions += [[how, column, kind, encode(value)]] * 2
    args = {"name": name, "where": draw.choice(conditions), "on_violation": draw.choice(fates)}
    return Step(id=name, op="expect", of=(of,), args=args)


def placed(draw: random.Random, steps: list[Step], rule: Step) -> list[Step] | None:
    """The steps with the rule before some readers of its stream; None: it has no reader."""
    of = rule.of[0]
    readers = [step.id for step in steps if of in step.of]
    if not readers:
        return None
    behind = readers if draw.random() < 0.6 else draw.sample(readers, draw.randint(1, len(readers)))
    at = next((n + 1 for n, step in enumerate(steps) if step.id == of), 0)
    swapped = [
        step.model_copy(update={"of": tuple(rule.id if n == of else n for n in step.of)})
        if step.id in behind
        else step
        for step in steps[at:]
    ]
    return [*steps[:at], rule, *swapped]


def _scattered(draw: random.Random, of: str) -> list[Step]:
    opaque = {"semantics": "opaque", "pair": "scattered"}
    clear = draw.random() < 0.6
    return [
        Step(id="sc", op="scatter", of=(of,)),
        Step(id="sc_low", op="half", of=("sc",), args={"low": True}),
        Step(id="sc_high", op="half", of=("sc",), args={"low": False, "clear": clear}),
        Step(id="t_low", op="append", of=("sc_low",), args=opaque),
        Step(id="t_high", op="append", of=("sc_high",), args=opaque),
    ]


def bad_rows_of(program: Program) -> list[Step]:
    """The rules that set rows aside."""
    rules = [step for step in program.steps if step.op in ("expect", "watermark")]
    return [step for step in rules if step.args["on_violation"] == "set_aside"]
