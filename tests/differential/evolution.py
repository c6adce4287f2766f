"""Draws what a random program changes between its lives, as docs/changing.md allows it."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tests.differential.changes import changed
from tests.differential.columns import Columns, columns_of
from tests.differential.declaration import KEEPING, Change, Life, Program, Step
from tests.differential.values import encode, is_decimal, precision_of

__all__ = ["with_changes"]

POINTS = ("after-staging", "before-publish", "between-publications", "after-publish")
"""Where a life dies before the program changes."""
INTEGERS = ("tinyint", "smallint", "int", "bigint")
SEMANTICS = ("non_transactional", "opaque", "transactional")


class Drawer(Protocol):
    """What the generator draws for a table."""

    draw: random.Random

    def fresh(self, taken: Columns) -> str: ...

    def spec(self, columns: Columns, *, stored: bool, layout: str) -> list[Any]: ...


def with_changes(program: Program, strength: Mapping[str, int], drawer: Drawer) -> Program:
    """The program with changes before some of its lives, of which it gets a second one.

    Args:
        strength: stream -> 2 transactional, 1 opaque, 0 neither.
    """
    draw = drawer.draw
    if program.txids < 2:
        return program
    first, *others = _lives(program, draw)
    evolution = _Evolution(program, strength, drawer)
    lives = [first]
    for life in others:
        changes = evolution.changes(lives[-1]) if draw.random() < 0.85 else ()
        if changes and draw.random() < 0.25:  # it dies while it changes its tables
            fills = any(change.args.get("how") == "run" for change in changes)
            point = "backfilled" if fills else draw.choice(("shape-staged", "shape-changed"))
            lives.append(Life(changes=changes, crash=point, nth=draw.choice((1, 1, 2))))
            changes = evolution.changes(lives[-1]) if draw.random() < 0.4 else ()
        lives.append(life.model_copy(update={"changes": changes}))
    return program.model_copy(update={"lives": tuple(lives)})


def _lives(program: Program, draw: random.Random) -> list[Life]:
    """The lives of the program, or more of them, of which some die in a batch."""
    lives = list(program.lives)
    weak = any(step.args["semantics"] == "non_transactional" for step in program.tables)
    if len(lives) < 3:
        until = draw.randint(1, program.txids - 1)
        lives.insert(0, Life(until=until))
        if not weak and draw.random() < 0.5:
            lives.insert(1, Life(crash=draw.choice(POINTS), nth=draw.choice((1, 1, 2, 3))))
    return lives


class _Evolution:
    """A program from life to life."""

    def __init__(self, program: Program, strength: Mapping[str, int], drawer: Drawer) -> None:
        self.first = self.program = program
        self.strength = strength
        self.drawer, self.draw = drawer, drawer.draw
        self.names: dict[str, set[str]] = {}
        """Table -> the names that its columns ever had."""
        self.dropped: dict[str, set[str]] = {}
        """Table -> names that it has no longer, which may come back."""
        self.gone: dict[str, Step] = {}
        """Tables that may come back."""
        self.arriving: set[str] = set()
        """Tables that may not exist yet: they would be made in any shape at once."""
        self.filling: set[str] = set()
        """Tables that may have a next generation yet, which only its own program may adopt."""
        self.busy: set[str] = set()
        """Tables and columns (TABLE:COLUMN) of which nobody knows whether they have changed yet."""

    def changes(self, before: Life) -> tuple[Change, ...]:
        """Changes of the next life."""
        if before.crash is None:
            self.busy, self.arriving, self.filling = set(), set(), set()
        found = []
        for _ in range(self.draw.choice((1, 1, 2, 2, 3))):
            if able := list(self._able()):
                ops = sorted({change.op for change in able})
                rare = "restore_table" in ops and self.draw.random() < 0.5
                op = "restore_table" if rare else self.draw.choice(ops)
                change = self.draw.choice([change for change in able if change.op == op])
                found.append(change)
                self._note(change)
        if refilled := self._refilled(found, before):
            found.append(refilled)
            self._note(refilled)
            self.filling.add(refilled.table)
        return tuple(found)

    def _refilled(self, changes: Sequence[Change], before: Life) -> Change | None:
        """One of the changed tables, filled anew beside the former program."""
        tables = {step.id: step for step in self.program.tables}
        changed = [tables[change.table] for change in changes if change.table in tables]
        able = [s for s in changed if s.id not in self.arriving and not self._reads_state(s)]
        if not able or self.draw.random() < 0.6:
            return None
        # After a crash the former program may commit one txid more behind the rows that are copied.
        ways = ("beside", "beside", "copied") if before.crash is None else ("beside",)
        how = {"how": self.draw.choice(ways)}
        return Change(op="refill", table=self.draw.choice(able).id, args=how)

    def _note(self, change: Change) -> None:
        names = {change.args[key] for key in ("name", "old", "new") if key in change.args}
        self.names.setdefault(change.table, set()).update(names)
        self.busy |= {change.table, *(f"{change.table}:{name}" for name in names)}
        dropped = self.dropped.setdefault(change.table, set())
        if change.op in ("drop_value", "drop_column"):
            dropped.add(change.args["name"])
        dropped -= {change.args["name"]} if change.op.startswith("add_") and names else set()
        if change.op in ("add_table", "restore_table"):
            self.arriving.add(change.table)
        if change.op == "drop_table":
            self.gone[change.table] = self.program.step(change.table)
        self.gone = {n: s for n, s in self.gone.items() if (n, "restore_table") != _key(change)}
        self.program = changed(self.program, change)

    def _able(self) -> Iterator[Change]:
        """Changes of each kind that is allowed now."""
        self.columns = columns_of(self.program)
        for step in self.program.tables:
            if "pair" in step.args or step.id in self.arriving | self.filling:
                continue
            leaf = not any(step.id in other.of for other in self.program.steps)
            if step.op == "state":
                yield from self._of_state(step, leaf=leaf)
            elif leaf:
                yield from self._of_append(step)
            yield from self._semantics(step)
            if leaf and step.id not in self.busy and self._is_spare(step):
                yield Change(op="drop_table", table=step.id)
        yield from self._added_tables()
        for source in self.program.sources:
            # A program knows one former name, and a life may commit nothing under the next one.
            named = any(s.op in KEEPING for s in self.program.steps)
            if source.name not in self.busy and not source.called and not named:
                new = f"{source.name}.{len(source.called)}"
                yield Change(op="rename_stream", table=source.name, args={"new": new})
        for name, step in self.gone.items():
            if name not in self.busy and not self._reads_state(step):
                yield self._table("restore_table", step, self.draw.choice(("run", "beside")))

    # --- state tables ------------------------------------------------------------------------

    def _of_state(self, step: Step, *, leaf: bool) -> Iterator[Change]:
        draw, args = self.draw, step.args
        folds = any(spec[0] == "Fold" for spec in args["aggregates"].values())
        removes = args.get("remove_where")
        if args["layout"] == "log":
            yield self._reshaped(step, layout="upsert", buckets=draw.choice((1, 2, 3)))
        else:
            yield self._reshaped(step, buckets=draw.choice((1, 2, 3, 4)))
            if not folds and not (removes and args["semantics"] == "non_transactional"):
                yield self._reshaped(step, layout="log", compact_files=draw.choice((None, 2)))
        if len(args["keys"]) > 1:
            order = draw.sample(args["keys"], len(args["keys"]))
            yield self._reshaped(step, keys=order)
        if len(args["aggregates"]) > 1:
            values = self.draw.sample(list(args["aggregates"].items()), len(args["aggregates"]))
            yield Change(op="reshape", table=step.id, args={"aggregates": dict(values)})
        if not leaf:
            return
        for _ in range(3):
            name, again = self._name(step, (*args["keys"], *args["aggregates"]))
            spec = self.drawer.spec(self._into(step), stored=True, layout=args["layout"])
            more = {"name": name, "spec": spec, "rebuild": again}
            yield Change(op="add_value", table=step.id, args=more)
        settled = [n for n in args["aggregates"] if self._is_settled(step, n)]
        settled = [n for n in settled if not removes or removes[1] != n]
        if settled and len(args["aggregates"]) > 1:
            yield self._drop("drop_value", step, settled)
        if settled:
            yield self._rename("rename_value", step, settled)
        if args.get("expire_after") is not None:
            return  # which keys there are follows from the rule
        if keys := [key for key in args["keys"] if self._is_settled(step, key)]:
            yield self._rename("rename_key", step, keys)
            if not folds and not (removes and len(args["keys"]) == 1):
                yield self._drop("drop_key", step, keys)
        yield from self._removal(step)
        yield from self._widened(step, [*filter(self._may_widen(step), self._into(step))])

    def _removal(self, step: Step) -> Iterator[Change]:
        args = step.args
        counts = [name for name, spec in args["aggregates"].items() if spec[0] == "Count"]
        if args.get("remove_where"):
            yield self._reshaped(step, remove_where=None)
        if counts and args["keys"] and args["semantics"] != "non_transactional":
            where = ["equal", self.draw.choice(counts), "bigint", self.draw.choice((1, 2, 3))]
            begins = args["layout"] == "log" and not args.get("remove_where")
            more = {"remove_where": where, "rebuild": begins}
            yield Change(op="reshape", table=step.id, args=more)

    def _reshaped(self, step: Step, **args: Any) -> Change:
        return Change(op="reshape", table=step.id, args={**args, "rebuild": True})

    def _semantics(self, step: Step) -> Iterator[Change]:
        able = SEMANTICS[1 : self._strength(step.of[0]) + 1]
        if step.args["semantics"] != "non_transactional" and len(able) > 1:
            yield Change(op="reshape", table=step.id, args={"semantics": self.draw.choice(able)})

    # --- append tables -----------------------------------------------------------------------

    def _of_append(self, step: Step) -> Iterator[Change]:
        draw, columns = self.draw, self._into(step)
        for _ in range(2):
            name, again = self._name(step, columns)
            one = draw.choice(list(columns))
            literal = ["literal", "bigint", encode(draw.randint(-9, 9))]
            expression = draw.choice((["txid"], ["is_null", one], ["copy", one], literal))
            more = {"name": name, "expression": expression, "rebuild": again}
            yield Change(op="add_column", table=step.id, args=more)
        if settled := [name for name in columns if self._is_settled(step, name)]:
            yield self._rename("rename_column", step, settled)
            if len(columns) > 1:
                yield self._drop("drop_column", step, settled)
            yield from self._widened(step, settled)

    # --- types -------------------------------------------------------------------------------

    def _may_widen(self, step: Step) -> Callable[[str], bool]:
        """Tell columns that the table has as they are: inside of a partial a type is fixed."""
        args = step.args
        specs = args["aggregates"].values()
        fixed = {
            name for spec in specs if spec[0] not in ("Count", "Min", "Max") for name in spec[1:]
        }
        shown = {*args["keys"], *(name for spec in specs for name in spec[1:])}
        return lambda name: name in shown - fixed and self._is_settled(step, name)

    def _widened(self, step: Step, names: Sequence[str]) -> Iterator[Change]:
        for name in names:
            kind = self._into(step)[name]
            wider = list(INTEGERS[INTEGERS.index(kind) + 1 :] if kind in INTEGERS else ())
            wider += ["double"] * (kind == "float")
            if is_decimal(kind):
                precision, scale = precision_of(kind)
                wider += [f"decimal({digits},{scale})" for digits in range(precision + 1, 39)]
            if wider:
                more = {"name": name, "kind": self.draw.choice(wider), "rebuild": True}
                yield Change(op="widen", table=step.id, args=more)

    # --- names -------------------------------------------------------------------------------

    def _into(self, step: Step) -> Columns:
        return self.columns[step.of[0]]

    def _name(self, step: Step, now: Collection[str]) -> tuple[str, bool]:
        """A name for a new column, and whether the table had it once."""
        back = [n for n in self.dropped.get(step.id, ()) if self._is_settled(step, n)]
        lower = {name.lower() for name in (*now, *self._into(step))}
        back = sorted(name for name in back if name.lower() not in lower)
        if back and self.draw.random() < 0.4:
            return self.draw.choice(back), True
        taken = {*now, *self._into(step), *self.names.get(step.id, ()), "txid"}
        return self.drawer.fresh(dict.fromkeys((*taken, *(f"prev_{n}" for n in now)), "")), False

    def _is_settled(self, step: Step, name: str) -> bool:
        return f"{step.id}:{name}" not in self.busy

    def _rename(self, op: str, step: Step, names: list[str]) -> Change:
        now = (*step.args.get("keys", ()), *step.args.get("aggregates", ()))
        taken = {*now, *self._into(step), *self.names.get(step.id, ()), "txid"}
        new = self.drawer.fresh(dict.fromkeys((*taken, *(f"prev_{n}" for n in now)), ""))
        return Change(op=op, table=step.id, args={"old": self.draw.choice(names), "new": new})

    def _drop(self, op: str, step: Step, names: list[str]) -> Change:
        return Change(op=op, table=step.id, args={"name": self.draw.choice(names)})

    # --- tables ------------------------------------------------------------------------------

    def _added_tables(self) -> Iterator[Change]:
        tables = [step for step in self.first.tables if "pair" not in step.args]
        if not tables:
            return
        step = self.draw.choice(tables)
        copy = step.model_copy(update={"id": f"{step.id}c{len(self.names)}"})
        how = (
            "new" if self._reads_state(step) else self.draw.choice(("run", "run", "beside", "new"))
        )
        if copy.id not in {one.id for one in self.program.steps} | self.gone.keys():
            yield self._table("add_table", copy, how)

    def _table(self, op: str, step: Step, how: str) -> Change:
        args = {"step": step.model_dump(mode="json"), "how": how}
        return Change(op=op, table=step.id, args=args)

    def _is_spare(self, step: Step) -> bool:
        """Whether every source, rule and failure has another table behind it."""
        sources = {source.name for source in self.program.sources}
        watched = sources | {
            s.id for s in self.program.steps if s.op in (*KEEPING, "expect", "fail", "watermark")
        }
        others = [table for table in self.program.tables if table.id != step.id]
        behind = set[str]().union(*(self._ancestors(table) for table in others))
        return watched & self._ancestors(step) <= behind

    def _ancestors(self, step: Step) -> set[str]:
        steps = {one.id: one for one in self.program.steps}
        found, stack = set[str](), [*step.of]
        while stack:
            if (name := stack.pop()) not in found:
                found.add(name)
                stack += steps[name].of if name in steps else ()
        return found

    def _reads_state(self, step: Step) -> bool:
        above = self._ancestors(step)
        reads = (*KEEPING, "query", "new_values")
        return any(s.op in reads for s in self.program.steps if s.id in above)

    def _strength(self, stream: str) -> int:
        if stream in self.strength:
            return self.strength[stream]
        return min(self._strength(one) for one in self.program.step(stream).of)


def _key(change: Change) -> tuple[str, str]:
    return change.table, change.op
