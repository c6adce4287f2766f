"""Watermarks in random programs, and which rows are late by the declaration alone.

A watermark is put behind a source of a finished program, as a rule is. Its draws come from a source
of their own, so a seed keeps the program that it had without watermarks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.differential.columns import streams_of
from tests.differential.declaration import Program, Source, Step
from tests.differential.rules import placed

__all__ = ["EventTime", "event_time_of", "times_of", "with_watermarks"]

MINUTE = 60_000_000
BEGIN = 1_774_742_400_000_000
"""The night in which Berlin's clocks go forward."""
ADDED = "happened"
DELAYS = (0, 10 * MINUTE, 60 * MINUTE, 400 * 1440 * MINUTE)


def with_watermarks(program: Program, strength: Mapping[str, int]) -> Program:
    """The program with watermarks behind some of its sources.

    Args:
        strength: stream -> 2 transactional, 1 opaque, 0 neither.
    """
    draw = random.Random(f"watermarks {program.seed}")
    marks = (step.id for step in program.steps if step.op == "watermark")
    have = set[str]().union(*(streams_of(program, mark) for mark in marks))
    share = 0.8 if have else 0.5  # another one may hold the watermark back for ever
    if draw.random() < share or not all(source.known for source in program.sources):
        return program
    if not have:
        program = _with_times(program, draw)
    timed = [source for source in program.sources if _times(source) and strength[source.name]]
    timed = [source for source in timed if source.name not in have]
    steps = list(program.steps)
    aside = any(step.args.get("on_violation") == "set_aside" for step in steps)
    for number, source in enumerate(draw.sample(timed, min(len(timed), 2))):
        step = _watermark(draw, source, f"w{number}", may_set_aside=not aside)
        if (result := placed(draw, steps, step)) is not None:
            steps, aside = result, aside or step.args["on_violation"] == "set_aside"
    return program.model_copy(update={"steps": tuple(steps)})


def times_of(steps: Sequence[Step], name: str) -> set[tuple[str, str] | None]:
    """Return column and `late` of the watermarks between a stream and its sources.

    None is among them if there is a path without one.
    """
    step = next((step for step in steps if step.id == name), None)
    if step is None:
        return {None}
    if step.op == "watermark":
        return {(step.args["column"], step.args["on_violation"])}
    of = step.of[:1] if step.op == "query" else step.of
    return set[tuple[str, str] | None]().union(*(times_of(steps, one) for one in of))


def event_time_of(steps: Sequence[Step], name: str, columns: Mapping[str, str]) -> str | None:
    """Return the column with the event time of a stream, if there is exactly one and it has it."""
    times = times_of(steps, name)
    names = {time[0] for time in times if time}
    (column, *others) = names or {""}
    is_one = None not in times and not others and columns.get(column) == "timestamp"
    return column if is_one else None


def _times(source: Source) -> list[str]:
    return [name for name, kind in source.columns if kind == "timestamp"]


def _watermark(draw: random.Random, source: Source, name: str, *, may_set_aside: bool) -> Step:
    fates = ("keep", "drop", "set_aside") if may_set_aside else ("keep", "drop")
    if not all(kind.replace("_", "").isalnum() for _, kind in source.columns):
        fates = ("keep", "drop")
    times = _times(source)
    parts = [n for n, kind in source.columns if kind in ("string", "int", "bigint", "boolean")]
    args = {
        "name": "late",
        "column": ADDED if ADDED in times else draw.choice(times),
        "delay": draw.choice(DELAYS),
        "on_violation": draw.choice(fates),
        "by": draw.choice(parts) if parts and draw.random() < 0.3 else None,
        "idle_after": draw.choice((None, None, 1, 2)),
    }
    return Step(id=name, op="watermark", of=(source.name,), args=args)


def _with_times(program: Program, draw: random.Random) -> Program:
    """The program with a time in one source, unless others would meet the new column."""
    meets = any(step.op in ("join", "merge", "query", "select") for step in program.steps)
    if meets or draw.random() < 0.3:
        return program
    chosen = draw.choice(program.sources)
    batches = tuple(
        batch
        and tuple(
            tuple(tuple((*row, _time(draw, txid)) for row in part) for part in variant)
            for variant in batch
        )
        for txid, batch in enumerate(chosen.batches)
    )
    columns = (*chosen.columns, (ADDED, "timestamp"))
    timed = chosen.model_copy(update={"columns": columns, "batches": batches})
    sources = tuple(timed if source is chosen else source for source in program.sources)
    return program.model_copy(update={"sources": sources})


def _time(draw: random.Random, txid: int) -> int | None:
    if draw.random() < 0.1:
        return None
    return BEGIN + txid * 10 * MINUTE + draw.randrange(-40 * MINUTE, 10 * MINUTE)


class EventTime:
    """The watermark of each txid, from the rows of the txids before it."""

    def __init__(self, program: Program) -> None:
        self._rules = [step for step in program.steps if step.op == "watermark"]
        self._distance = program.config.get("max_spout_pending", 3)
        self._follows: dict[int, int | None] = {0: None}
        """txid -> the watermark that follows from all rows up to it."""
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}

    def watermark(self, txid: int) -> int | None:
        """The watermark of a txid."""
        return self._follows[max(0, txid - self._distance)]

    def take(self, txid: int, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Learn the rows of a txid, by source; all before it are known."""
        for rule in self._rules:
            for row in rows[rule.of[0]]:
                at = row[rule.args["column"]]
                if at is not None:
                    key = rule.id, _part(row, rule.args["by"])
                    self._newest[key] = max(at, self._newest.get(key, (at, 0))[0]), txid
        for rule in self._rules:  # who was idle begins anew
            if (idle := rule.args["idle_after"]) is not None:
                for key, (_, since) in [*self._newest.items()]:
                    if key[0] == rule.id and txid - since >= idle:
                        del self._newest[key]
        least = [self._least(rule, txid) for rule in self._rules]
        known = [at for at in least if at != "idle"]
        before = self._follows[txid - 1]
        if known and None not in known:
            now = min(known)
            self._follows[txid] = now if before is None else max(before, now)
        else:
            self._follows[txid] = before

    def _least(self, rule: Step, txid: int) -> Any:
        """What one source allows: None: nothing yet; "idle": it has no say."""
        idle = rule.args["idle_after"]
        parts = [found for (name, _), found in self._newest.items() if name == rule.id]
        if not parts:
            return "idle" if idle is not None and txid >= idle else None
        return min(at for at, _ in parts) - rule.args["delay"]


def _part(row: Mapping[str, Any], by: str | None) -> str:
    value = None if by is None else row[by]
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
