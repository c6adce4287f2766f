"""What a change makes of a program: its steps, and the settings that allow it.

Changes of the shape of a state table: `add_value`, `drop_value`, `rename_value`, `rename_key`,
`drop_key`, `widen`, which casts the column of a key or value, and `reshape`, which sets anything
else of it (`layout`, `buckets`, `semantics`, `remove_where`, the order of `keys` and `aggregates`).
Of an append table: `add_column`, `drop_column`, `rename_column`, `widen`, `reshape`. Of the
topology: `add_table`, `drop_table`, `restore_table`; `rename_stream`, whose "table" is a source.
`refill` fills the next generation of a table beside the former program: from its history, or with
its own rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from tests.differential.columns import columns_of
from tests.differential.declaration import Change, Program, Source, Step

__all__ = ["OF_TABLES", "always_there", "changed", "held", "programs_of", "renamed"]

OF_TABLES = (
    "new_tables",
    "dropped_tables",
    "dropped_columns",
    "backfilled_tables",
    "rebuilt_tables",
)
"""Settings that name tables; here by the ids of their steps."""
BACKFILLED = ("run", "beside")
"""How a table gets its history: by the run itself, or before it by `Topology.backfill`."""


def programs_of(program: Program) -> list[Program]:
    """The program of each life."""
    found = []
    for life in program.lives:
        for change in life.changes:
            program = changed(program, change)
        found.append(program)
    return found


def always_there(program: Program) -> Program:
    """The program if every table that gets its history late had been there all the time."""
    changes = [change for life in program.lives for change in life.changes]
    late = {c.table for c in changes if c.op == "add_table" and c.args["how"] in BACKFILLED}
    back = {c.table for c in changes if c.op == "restore_table"}

    def is_seen(change: Change) -> bool:
        is_late = change.op == "add_table" and change.table in late
        is_away = change.op in ("drop_table", "restore_table") and change.table in back
        return not is_late and not is_away

    lives = tuple(
        life.model_copy(update={"changes": tuple(filter(is_seen, life.changes))})
        for life in program.lives
    )
    added = [_added(c) for c in changes if c.op == "add_table" and c.table in late]
    return program.model_copy(update={"steps": (*program.steps, *added), "lives": lives})


def held(program: Program) -> Program:
    """The last program, with the tables that it has dropped as they were."""
    for life in program.lives:
        for change in life.changes:
            if change.op not in ("drop_table", "restore_table"):
                program = changed(program, change)
    return program


def changed(program: Program, change: Change) -> Program:
    """The program after a change."""
    if change.op == "rename_stream":
        return program.model_copy(update={"sources": tuple(_renamed(program, change))})
    config = dict(program.config)
    for name, entry in settings_of(change):
        config[name] = [*dict.fromkeys([*config.get(name, []), entry])]
    steps = tuple(_steps(program, change))
    return program.model_copy(update={"steps": steps, "config": config})


def settings_of(change: Change) -> Iterable[tuple[str, str]]:
    """The settings that a change needs: name and entry."""
    match change.op:
        case "add_table" | "restore_table":
            new = change.args["how"] == "new"
            yield ("new_tables" if new else "backfilled_tables"), change.table
        case "refill":
            yield "backfilled_tables", change.table
        case "drop_table":
            yield "dropped_tables", change.table
        case "drop_value" | "drop_column":
            yield "dropped_columns", f"{change.table}:{change.args['name']}"
        case "rename_value" | "rename_key" | "rename_column" | "drop_key":
            yield "rebuilt_tables", change.table
        case _:
            if change.args.get("rebuild"):
                yield "rebuilt_tables", change.table


def _renamed(program: Program, change: Change) -> Iterable[Source]:
    for source in program.sources:
        if source.name == change.table:
            called = (*(source.called or (source.name,)), change.args["new"])
            source = source.model_copy(update={"called": called})
        yield source


def _added(change: Change) -> Step:
    step: Step = Step.model_validate(change.args["step"])
    return step


def _steps(program: Program, change: Change) -> Iterable[Step]:
    if change.op in ("add_table", "restore_table"):
        return [*program.steps, _added(change)]
    return [
        made
        for step in program.steps
        for made in (_changed(program, step, change) if step.id == change.table else [step])
    ]


def _changed(program: Program, step: Step, change: Change) -> list[Step]:
    """The steps that stand in the place of a table's."""
    args, how = dict(step.args), change.args
    name, new, old = how.get("name"), how.get("new"), how.get("old")
    before: list[Step] = []
    match change.op:
        case "drop_table":
            return []
        case "add_value":
            args["aggregates"] = {**args["aggregates"], name: how["spec"]}
        case "drop_value":
            args["aggregates"] = {n: s for n, s in args["aggregates"].items() if n != name}
        case "rename_value":
            args["aggregates"] = renamed(args["aggregates"], old, new)
        case "drop_key":
            args["keys"] = [key for key in args["keys"] if key != name]
        case "rename_key":
            args["keys"] = [new if key == old else key for key in args["keys"]]
            before = [_derived(program, step, {"name": new, "expression": ["copy", old]})]
        case "add_column":
            before = [_derived(program, step, {"name": name, "expression": how["expression"]})]
        case "widen":
            before = [_derived(program, step, {"name": name, "kind": how["kind"]}, "cast")]
        case "drop_column" | "rename_column":
            columns = [[n, n] for n in columns_of(program)[step.of[0]] if n != name]
            columns = [[n, new if n == old else m] for n, m in columns]
            before = [_derived(program, step, {"columns": columns}, "select")]
        case "reshape":
            args |= {key: value for key, value in how.items() if key != "rebuild"}
    if old is not None:
        args["columns_were"] = {**args.get("columns_were", {}), new: old}
    of = tuple(one.id for one in before) or step.of
    return [*before, step.model_copy(update={"args": args, "of": of})]


def _derived(program: Program, step: Step, args: dict[str, Any], op: str = "derive") -> Step:
    """A stream for one table alone."""
    taken = {one.id for one in program.steps}  # a table that is gone left its number free
    ids = (f"{step.id}_{number}" for number in count(len(program.steps)))
    return Step(id=next(one for one in ids if one not in taken), op=op, of=step.of, args=args)


def renamed(values: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The same in the same order, one under another name."""
    return {new if name == old else name: value for name, value in values.items()}
