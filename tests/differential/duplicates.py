"""`drop_duplicates` in random programs, and which rows repeat one by the declaration alone.

It is put behind a stream of a finished program, as a rule is. Its draws come from a source of their
own, so a seed keeps the program that it had without.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from tests.differential.columns import columns_of, streams_of
from tests.differential.declaration import TABLES, Program, Step
from tests.differential.event_time import MINUTE
from tests.differential.rules import placed
from tests.differential.values import group_key, order_key

__all__ = ["Repeats", "with_repeats"]

Row = dict[str, Any]
WITHIN = (MINUTE, 20 * MINUTE, 60 * MINUTE, 400 * 1440 * MINUTE)
PLAIN = {"derive", "double", "drop_duplicates", "expect", "fail", "filter", "select", "watermark"}
"""Steps that keep the order of the columns as the declaration has it."""


def with_repeats(program: Program) -> Program:
    """The program without the repeated rows of some of its streams."""
    draw = random.Random(f"duplicates {program.seed}")
    if draw.random() < 0.4:
        return program
    streams = [source.name for source in program.sources]
    streams += [step.id for step in program.steps if step.op not in (*TABLES, "scatter", "half")]
    taken: set[tuple[frozenset[str], str]] = set()
    for number in range(draw.choice((1, 1, 2, 3))):
        timed = [name for name in streams if _time(program, name)]
        of = draw.choice(timed if timed and draw.random() < 0.6 else streams)
        if not _strength(program, of):
            continue
        columns = columns_of(program)[of]
        keys = draw.sample(list(columns), min(len(columns), draw.choice((1, 1, 2))))
        table = frozenset(streams_of(program, of)), re.sub(r"[^\w.-]", "-", "_".join(keys)).lower()
        time = _time(program, of)
        args = {
            "keys": keys,
            "within": draw.choice(WITHIN) if time and draw.random() < 0.8 else None,
            "time": time,
            "sorted": not _is_plain(program, of) or draw.random() < 0.3,
        }
        step = Step(id=f"d{number}", op="drop_duplicates", of=(of,), args=args)
        steps = placed(draw, list(program.steps), step)
        if steps is not None and table not in taken:
            taken.add(table)
            program = program.model_copy(update={"steps": tuple(steps)})
            streams.append(step.id)
    return program


def _strength(program: Program, name: str) -> int:
    """1 if a replay of the stream never brings rows a second time, else 0."""
    for source in program.sources:
        if source.name == name:
            return int(source.kind != "non_transactional")
    step = program.step(name)
    weak = step.op == "state" and step.args["semantics"] == "non_transactional"
    return 0 if weak else min(_strength(program, one) for one in step.of)


def _time(program: Program, name: str) -> str | None:
    """The event time of a stream, if every one behind it has a watermark over that column."""
    found = _times(program, name)
    (time, *others) = found or {None}
    kind = columns_of(program)[name].get(time or "")
    return time if not others and kind == "timestamp" else None


def _times(program: Program, name: str) -> set[str | None]:
    if any(source.name == name for source in program.sources):
        return {None}
    step = program.step(name)
    above = set[str | None]().union(*(_times(program, one) for one in step.of))
    return {step.args["column"]} if step.op == "watermark" else above


def _is_plain(program: Program, name: str) -> bool:
    if any(source.name == name for source in program.sources):
        return True
    step = program.step(name)
    return step.op in PLAIN and all(_is_plain(program, one) for one in step.of)


class Repeats:
    """The keys that a stream has had, with the event times of their first rows."""

    def __init__(self) -> None:
        self._first: dict[Any, int | None] = {}

    def passing(
        self, step: Step, names: Sequence[str], rows: Sequence[Row], watermark: int | None
    ) -> list[Row]:
        """The rows that repeat none before them.

        Args:
            names: the stream's columns in their order.
        """
        args = step.args
        timed = args["within"] is not None
        read = {*args["keys"], *([args["time"]] if timed else [])}
        others = [n for n in (sorted(names) if args["sorted"] else names) if n not in read]

        def order(row: Row) -> Any:
            at = row[args["time"]] if timed else None
            return (at is None, at or 0), [order_key(row[name]) for name in others]

        ended = watermark - args["within"] if timed and watermark is not None else None
        passing: dict[Any, Row] = {}
        for row in sorted(rows, key=order):
            key = tuple(group_key(row[name]) for name in args["keys"])
            first = self._first.get(key)
            is_over = ended is not None and first is not None and first <= ended
            if key not in passing and (key not in self._first or is_over):
                passing[key] = row
        return [*passing.values()]

    def keep(self, step: Step, rows: Sequence[Row]) -> None:
        """Note the keys of rows that have passed."""
        timed = step.args["within"] is not None
        for row in rows:
            key = tuple(group_key(row[name]) for name in step.args["keys"])
            self._first[key] = row[step.args["time"]] if timed else None
