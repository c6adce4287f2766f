"""Makes a program that shows something smaller, as long as it shows the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tests.differential.columns import columns_of
from tests.differential.declaration import Life, Program, Source, Step, Variant

__all__ = ["candidates", "shrink", "smallest"]

T = TypeVar("T")


def shrink(program: Program, same: Callable[[Program], bool], seconds: float = 240.0) -> Program:
    """Find the smallest program in that time of which `same` holds."""
    return smallest(program, lambda one: filter(_has_columns, candidates(one)), same, seconds)


def smallest(
    case: T, candidates: Callable[[T], Iterator[T]], same: Callable[[T], bool], seconds: float
) -> T:
    """Take the first smaller candidate of which `same` holds, until none is left or time is up."""
    deadline = time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for candidate in candidates(case):
            if time.monotonic() > deadline:
                return case
            if same(candidate):
                case, progress = candidate, True
                break
    return case


def _has_columns(program: Program) -> bool:
    """Check that it has every column that it names."""
    try:
        columns_of(program)
    except (KeyError, StopIteration):
        return False
    return True


def candidates(program: Program) -> Iterator[Program]:
    """Programs with one thing less, the greatest things first."""
    for step in reversed(program.tables):
        yield from _valid(_without_step(program, step.id))
    if len(program.lives) > 1:
        yield program.model_copy(update={"lives": (Life(),)})
    for number in range(len(program.lives) - 1):
        lives = program.lives[:number] + program.lives[number + 1 :]
        yield program.model_copy(update={"lives": lives})
    if program.txids > 1:
        for txid in reversed(range(program.txids)):
            yield from _valid(_without_txid(program, txid))
    for source in program.sources:
        yield from _valid(_without_source(program, source.name))
    for step in reversed(program.steps):
        if step.op not in ("append", "state"):
            yield from _valid(_bypassing(program, step))
    yield from _plainer(program)
    yield from _smaller_steps(program)
    yield from _smaller_sources(program)


def _plainer(program: Program) -> Iterator[Program]:
    """With fewer settings."""
    if program.large:
        yield program.model_copy(update={"large": False})
    if program.compiled:
        yield program.model_copy(update={"compiled": False})
    if program.conf:
        yield program.model_copy(update={"conf": {}})
        for name in program.conf:
            conf = {key: value for key, value in program.conf.items() if key != name}
            yield program.model_copy(update={"conf": conf})
    base = {
        "max_spout_pending",
        "retry_backoff_ms",
        "on_exhausted",
        "zookeeper_acl",
        "message_timeout_secs",
    }
    if more := set(program.config) - base - {"max_batch_attempts"}:
        config = {key: value for key, value in program.config.items() if key not in more}
        yield program.model_copy(update={"config": config})


def _without_step(program: Program, name: str) -> Program:
    """Without a step and all that follows from it, and what nobody reads then."""
    gone = {name}
    for step in program.steps:
        if gone & set(step.of):
            gone.add(step.id)
    return _pruned(program, [step for step in program.steps if step.id not in gone])


def _pruned(program: Program, steps: list[Step]) -> Program:
    used: set[str] = set()
    for step in reversed(steps):
        if step.op in ("append", "state") or step.id in used:
            used |= {step.id, *step.of}
    kept = tuple(step for step in steps if step.id in used)
    sources = tuple(source for source in program.sources if source.name in used)
    return program.model_copy(update={"steps": kept, "sources": sources})


def _bypassing(program: Program, step: Step) -> Program:
    """What reads a step reads its first input."""
    if step.op == "new_values":
        return _without_step(program, step.id)
    swap = {step.id: step.of[0]}
    steps = [
        one.model_copy(update={"of": tuple(swap.get(name, name) for name in one.of)})
        for one in program.steps
        if one.id != step.id
    ]
    return _pruned(program, steps)


def _without_source(program: Program, name: str) -> Program:
    """Every step that reads it goes, but for merges that have others."""
    steps = [
        step.model_copy(update={"of": tuple(one for one in step.of if one != name)})
        if step.op == "merge" and len(set(step.of) - {name}) > 0
        else step
        for step in program.steps
    ]
    gone = {name}
    for step in steps:
        if gone & set(step.of):
            gone.add(step.id)
    return _pruned(program, [step for step in steps if step.id not in gone])


def _without_txid(program: Program, txid: int) -> Program:
    sources = tuple(
        source.model_copy(update={"batches": source.batches[:txid] + source.batches[txid + 1 :]})
        for source in program.sources
    )
    lives = tuple(
        life.model_copy(update={"until": max(1, min(life.until, program.txids - 1))})
        if life.until
        else life
        for life in program.lives
    )
    return program.model_copy(update={"sources": sources, "lives": lives})


def _valid(program: Program) -> Iterator[Program]:
    """Only what has a table, and something to read in every txid."""
    if (
        program.tables
        and program.sources
        and program.txids
        and all(
            any(txid < len(s.batches) and s.batches[txid] is not None for s in program.sources)
            for txid in range(program.txids)
        )
    ):
        yield program


def _smaller_steps(program: Program) -> Iterator[Program]:
    for place, step in enumerate(program.steps):
        for args in _smaller_args(step):
            smaller = step.model_copy(update={"args": args})
            steps = (*program.steps[:place], smaller, *program.steps[place + 1 :])
            yield program.model_copy(update={"steps": steps})


def _smaller_args(step: Step) -> Iterator[dict[str, Any]]:
    args = step.args
    if len(args.get("aggregates", ())) > 1:
        for name in args["aggregates"]:
            kept = {key: value for key, value in args["aggregates"].items() if key != name}
            yield {**args, "aggregates": kept}
    for name in ("keys", "columns"):
        if isinstance(args.get(name), list) and len(args[name]) > (name == "columns"):
            for one in args[name]:
                yield {**args, name: [other for other in args[name] if other != one]}
    if args.get("remove_where"):
        yield {**args, "remove_where": None}
    if args.get("expire_after") is not None:
        yield {name: args[name] for name in args if name not in ("expire_after", "by", "time")}
    for name in ("within", "delay", "expire_after"):
        if args.get(name):
            yield {**args, name: 0}
    if args.get("compact_files"):
        yield {**args, "compact_files": None}
    if args.get("buckets", 1) > 1:
        yield {**args, "buckets": 1}


def _smaller_sources(program: Program) -> Iterator[Program]:
    for place, source in enumerate(program.sources):
        for smaller in _smaller(source):
            sources = (*program.sources[:place], smaller, *program.sources[place + 1 :])
            yield from _valid(program.model_copy(update={"sources": sources}))


def _smaller(source: Source) -> Iterator[Source]:
    if not source.known:
        yield source.model_copy(update={"known": True})
    if source.partitions:
        flat = tuple(
            None
            if batch is None
            else tuple((tuple(row for part in variant for row in part),) for variant in batch)
            for batch in source.batches
        )
        yield source.model_copy(update={"partitions": 0, "batches": flat})
    for number in range(len(source.columns)):
        if len(source.columns) > 1:
            yield _without_column(source, number)
    for txid, batch in enumerate(source.batches):
        if batch is None:
            continue

        def changed(new: Any, txid: int = txid) -> Source:
            batches = (*source.batches[:txid], new, *source.batches[txid + 1 :])
            return source.model_copy(update={"batches": batches})

        yield changed(None)
        if len(batch) > 1:
            yield changed(batch[:1])
        for v, variant in enumerate(batch):
            for parts in _without_a_row(variant):
                if any(parts) or not source.partitions:
                    yield changed((*batch[:v], parts, *batch[v + 1 :]))


def _without_a_row(variant: Variant) -> Iterator[Variant]:
    for p, part in enumerate(variant):
        for r in range(len(part)):
            yield (*variant[:p], part[:r] + part[r + 1 :], *variant[p + 1 :])


def _without_column(source: Source, number: int) -> Source:
    def cut(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return values[:number] + values[number + 1 :]

    batches = tuple(
        None
        if batch is None
        else tuple(tuple(tuple(cut(row) for row in part) for part in v) for v in batch)
        for batch in source.batches
    )
    return source.model_copy(update={"columns": cut(source.columns), "batches": batches})
