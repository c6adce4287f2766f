"""The tables that a program must end with, computed from its declaration alone. No Spark.

Nothing is incremental here: a state is an aggregate over all rows that ever came, so that it has
no guards, partials or replays that could go wrong in the same way as the product's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.differential.aggregation import aggregated
from tests.differential.changes import always_there, programs_of, renamed
from tests.differential.columns import Columns, columns_of, streams_of
from tests.differential.declaration import Change, Program, Source, Step
from tests.differential.duplicates import Repeats
from tests.differential.ending import Ends
from tests.differential.event_time import EventTime
from tests.differential.time_joins import HANDS_ON_LATER, JoinedInTime
from tests.differential.time_sessions import InSessions
from tests.differential.values import decode, group_key, order_key, text_of

__all__ = ["Expected", "emptied", "expected_tables"]

Row = dict[str, Any]
HOUR = 3600 * 1_000_000
WINDOW_LIMITS = (-62000000000000000, 253000000000000000)


@dataclass
class Expected:
    """One table: for an append table `rows`, for a state its keys and values."""

    rows: list[Row] = field(default_factory=list)
    former: dict[int, tuple[list[Row], Columns]] = field(default_factory=dict)
    """The last txid before a change -> what a reader as of that txid sees, with its columns."""
    as_of: dict[int, list[Row]] = field(default_factory=dict)
    """Some txids of a state whose keys end -> what a reader as of that txid sees."""


@dataclass
class _State:
    """All rows of each key, by txid; what `remove_where` takes away, or ends, begins anew."""

    keys: tuple[str, ...]
    aggregates: Mapping[str, list[Any]]
    columns: Columns
    remove: list[Any] | None
    layout: str = "upsert"
    shown: dict[Any, Row] = field(default_factory=dict)
    batches: dict[Any, list[tuple[int, list[Row]]]] = field(default_factory=dict)
    touched: list[tuple[Row, Row | None, Row | None]] = field(default_factory=list)
    """Keys, values before and values after, of what the newest txid touched."""
    since: dict[str, int] = field(default_factory=dict)
    """Values that were added later -> their first txid."""
    ends: Ends | None = None
    marks: dict[int, int | None] = field(default_factory=dict)
    """The watermark of each txid."""

    @classmethod
    def of_step(cls, step: Step, columns: Columns) -> _State:
        """The state of a table or of an aggregate of one batch."""
        args = step.args
        keys, where = tuple(args["keys"]), args.get("remove_where")
        state = cls(keys, args["aggregates"], columns, where, args.get("layout", "upsert"))
        state.ends = Ends.of_step(step)
        return state

    def apply(
        self, rows: list[Row], txid: int, *, active: bool, watermark: int | None = None
    ) -> None:
        groups: dict[Any, list[Row]] = {} if self.keys or not active else {(): []}
        for row in rows:
            groups.setdefault(_key(row, self.keys), []).append(row)
        self.touched = []
        self.marks[txid] = watermark
        for key, batch in groups.items():
            before = self.shown.get(key)
            if self._has_ended(key, txid):
                del self.batches[key]
            self.batches.setdefault(key, []).append((txid, batch))
            values = self._row(key)
            keys = {name: values[name] for name in self.keys}
            after: Row | None = values
            if self.remove is not None and _holds(self.remove, values):
                after = None
                del self.batches[key]
            elif self._has_ended(key, txid):
                after = None
            if after is None:
                self.shown.pop(key, None)
            else:
                self.shown[key] = values
            if before is not None or after is not None:
                self.touched.append((keys, before, after))
        for key in [key for key in self.shown if self._has_ended(key, txid)]:
            before = self.shown.pop(key)
            self.touched.append(({name: before[name] for name in self.keys}, before, None))

    def _has_ended(self, key: Any, txid: int) -> bool:
        if self.ends is None or key not in self.batches:
            return False
        return self.ends.has_ended(self.batches[key], self.marks, txid)

    def _row(self, key: Any) -> Row:
        """Keys and values as readers see them."""
        batches = self.batches[key]
        first = next((row for _, rows in batches for row in rows), {})
        keys = {name: _zero(first[name]) for name in self.keys}
        return keys | {name: self._value(name, batches) for name in self.aggregates}

    def _value(self, name: str, batches: list[tuple[int, list[Row]]]) -> Any:
        known = [rows for txid, rows in batches if txid >= self.since.get(name, 0)]
        spec = self.aggregates[name]
        if not known:  # no row since the value is there
            return 0 if self.layout == "log" and spec[0] == "Count" else None
        return aggregated(spec, known, self.columns)

    def change(self, change: Change, txid: int) -> None:
        """Note a change of names or values; a value that is new counts from `txid` on."""
        args = change.args
        if change.op == "add_value":
            self.since[args["name"]] = txid
        elif change.op == "rename_value" and args["old"] in self.since:
            self.since[args["new"]] = self.since.pop(args["old"])
        elif change.op == "rename_key":
            for batches in self.batches.values():
                for _, rows in batches:
                    rows[:] = [row | {args["new"]: row[args["old"]]} for row in rows]

    def become(self, step: Step, columns: Columns) -> None:
        """Become the table of a changed step, after all of its changes.

        Args:
            columns: of the stream before the table.
        """
        self.keys, self.aggregates = tuple(step.args["keys"]), step.args["aggregates"]
        self.remove, self.layout = step.args.get("remove_where"), step.args["layout"]
        self.columns = columns
        merged: dict[Any, list[tuple[int, list[Row]]]] = {}
        for batches in self.batches.values():
            for at, rows in batches:
                key = _key(rows[0], self.keys) if rows else ()
                merged.setdefault(key, []).append((at, rows))
        self.batches = {key: sorted(found, key=lambda b: b[0]) for key, found in merged.items()}
        now = max(self.marks, default=0)
        self.ends = Ends.of_step(step)
        self.shown = {key: self._row(key) for key in self.batches if not self._has_ended(key, now)}

    def changes(self) -> list[Row]:
        """What `new_values` hands on."""
        return [
            keys
            | {name: None if after is None else after[name] for name in self.aggregates}
            | {f"prev_{name}": None if before is None else before[name] for name in self.aggregates}
            for keys, before, after in self.touched
        ]


class _Run:
    """A program, txid by txid."""

    def __init__(
        self,
        program: Program,
        attempts: Mapping[int, int],
        quarantined: Collection[int],
        boundaries: Sequence[int] = (),
    ) -> None:
        self.attempts, self.quarantined = attempts, quarantined
        program = always_there(program)
        programs = programs_of(program)
        self.coming = [
            (boundary, changed, life.changes)
            for boundary, changed, life in zip(boundaries, programs, program.lives, strict=False)
            if life.changes
        ]
        """Programs of later lives, each with the last txid before it."""
        self.emptied = emptied(program) | set(quarantined)
        self.sources = {source.name: source for source in program.sources}
        self.event_time = EventTime(program)
        self.tables: dict[str, Expected] = {}
        self.repeats: dict[str, Repeats] = {}
        self.joined: dict[str, JoinedInTime] = {}
        self.sessions: dict[str, InSessions] = {}
        self.bad: dict[str, list[Row]] = {}
        """Rule -> the rows that broke it, with their txids."""
        self.states: dict[str, _State] = {}
        self.begin(program)

    def begin(self, program: Program, changes: Sequence[Change] = (), txid: int = 1) -> None:
        """Go on with this program at a txid."""
        for change in changes:
            if change.table in self.states and change.op != "drop_table":
                table = self.tables[change.table]
                table.former.setdefault(txid - 1, (table.rows, self.columns[change.table]))
        self.program = program
        self.columns = columns_of(program)
        self.streams = {step.id: streams_of(program, step.id) for step in program.steps}
        self.in_any_txid = _in_any_txid(program)
        steps = {step.id: step for step in program.tables}
        for name, step in steps.items():
            if name not in self.tables:
                self.tables[name] = Expected()
                if step.op == "state":
                    self.states[name] = _State.of_step(step, self.columns[step.of[0]])
        for change in changes:
            step = steps.get(change.table)
            if step is None or change.op == "add_table":
                continue
            if step.op == "append":
                _change_rows(self.tables[step.id].rows, change)
            else:
                self.states[step.id].change(change, txid)
        for name in {change.table for change in changes} & steps.keys() & self.states.keys():
            state, step = self.states[name], steps[name]
            state.become(step, self.columns[step.of[0]])
            self.tables[name].rows = list(state.shown.values())
        for change in changes:
            if change.op == "refill" and change.args["how"] == "beside":
                self.refill(change.table, txid)

    def refill(self, name: str, txid: int) -> None:
        """Let a table have what the present program would have given it before a txid."""
        program = self.program.model_copy(update={"lives": ()})
        run = _Run(program, self.attempts, self.quarantined)
        for former in range(1, txid):
            run.txid(former)
        self.tables[name].rows = run.tables[name].rows
        if name in self.states:
            self.states[name] = run.states[name]

    def txid(self, txid: int) -> None:
        self.change(txid)
        attempt = self.attempts.get(txid, 0)
        rows: dict[str, list[Row]] = {}
        active = set()
        for name, source in self.sources.items():
            found = None if txid in self.emptied else _read(source, txid, attempt)
            rows[name] = found or []
            if found is not None:
                active.add(name)
        # A query sees the states as txid - 1 left them, wherever it stands among the steps.
        before = {name: list(state.shown.values()) for name, state in self.states.items()}
        for step in self.program.steps:
            alive = step.id in self.in_any_txid or bool(active & self.streams[step.id])
            if step.op == "append":
                if alive:
                    self.tables[step.id].rows += [{**row, "txid": txid} for row in rows[step.of[0]]]
            elif step.op == "state":
                state = self.states[step.id]
                into = rows[step.of[0]] if alive else []
                state.apply(into, txid, active=alive, watermark=self.event_time.watermark(txid))
                self.tables[step.id].rows = list(state.shown.values())
                if state.ends and state.batches and txid % 3 == self.program.seed % 3:
                    self.tables[step.id].as_of[txid] = list(state.shown.values())
            elif step.op in ("expect", "watermark"):
                into = rows[step.of[0]]
                broken = [row for row in into if self._breaks(step, row, txid)]
                is_kept = step.args["on_violation"] == "keep"
                kept = [row for row in into if is_kept or not self._breaks(step, row, txid)]
                rows[step.id] = kept
                bad = self.bad.setdefault(step.id, [])
                bad += [{"txid": txid} | row for row in broken if alive]
            elif step.op == "drop_duplicates":
                repeats = self.repeats.setdefault(step.id, Repeats())
                names, mark = [*self.columns[step.of[0]]], self.event_time.watermark(txid)
                rows[step.id] = repeats.passing(step, names, rows[step.of[0]], mark)
                if alive:
                    repeats.keep(step, rows[step.id])
            else:
                rows[step.id] = self._stream(step, rows, before, txid)

        self.event_time.take(txid, rows)

    def _breaks(self, rule: Step, row: Row, txid: int) -> bool:
        if rule.op == "expect":
            return not _holds(rule.args["where"], row)
        at, watermark = row[rule.args["column"]], self.event_time.watermark(txid)
        return at is None or (watermark is not None and at <= watermark)

    def change(self, txid: int) -> None:
        """Take the changes before a txid."""
        while self.coming and self.coming[0][0] < txid:
            _, program, changes = self.coming.pop(0)
            self.begin(program, changes, txid)

    def _stream(
        self, step: Step, rows: dict[str, list[Row]], before: dict[str, list[Row]], txid: int
    ) -> list[Row]:
        args = step.args
        match step.op:
            case "new_values":
                return self.states[step.of[0]].changes()
            case "query":
                state = self.states[step.of[1]]
                return _queried(rows[step.of[0]], before[step.of[1]], state)
            case "join":
                left, right = rows[step.of[0]], rows[step.of[1]]
                kinds = self.columns[step.of[0]], self.columns[step.of[1]]
                return _joined(left, right, args["on"], args["how"], kinds)
            case "join_in_time":
                left, right = (rows[one] for one in step.of)
                if step.id not in self.joined:
                    kinds = self.columns[step.of[0]], self.columns[step.of[1]]
                    self.joined[step.id] = JoinedInTime(step, kinds)
                marks = (self.event_time.watermark(txid), self.event_time.watermark(txid - 1))
                return self.joined[step.id].rows(txid, left, right, *marks)
            case "session_windows":
                sessions = self.sessions.setdefault(step.id, InSessions(step))
                return sessions.rows(rows[step.of[0]], self.event_time.watermark(txid))
            case "merge":
                return [row for one in step.of for row in rows[one]]
            case "aggregate":
                state = _State.of_step(step, self.columns[step.of[0]])
                state.apply(rows[step.of[0]], txid, active=True)
                return list(state.shown.values())
        return [made for row in rows[step.of[0]] for made in _row(step, row, txid)]


def _in_any_txid(program: Program) -> set[str]:
    """Return the steps that may get rows in a txid in which none of their sources is read."""
    found: set[str] = set()
    for step in program.steps:
        later = step.op == "session_windows"
        if step.op == "join_in_time":
            later = step.args["how"] in HANDS_ON_LATER
        if step.op == "new_values":
            later = program.step(step.of[0]).args.get("expire_after") is not None
        if later or found & set(step.of[:1] if step.op == "query" else step.of):
            found.add(step.id)
    return found


def emptied(program: Program) -> set[int]:
    """The txids that are set aside, because they fail whatever is tried."""
    most = program.config.get("max_batch_attempts", 5)
    return {
        step.args["txid"]
        for step in program.steps
        if step.op == "fail" and step.args["attempts"] >= most
    }


def expected_tables(
    program: Program,
    attempts: Mapping[int, int],
    quarantined: Collection[int] = (),
    boundaries: Sequence[int] = (),
) -> tuple[dict[str, Expected], dict[str, list[Row]]]:
    """Table -> what it must hold, duplicates included; and rule -> the rows that break it.

    Args:
        attempts: txid -> the attempt that stands.
        quarantined: txids that the run committed empty beside those that must fail.
        boundaries: the newest txid before each life.

    Raises:
        OutOfRangeError: a value leaves the range of its type.
    """
    run = _Run(program, attempts, quarantined, boundaries)
    for txid in range(1, program.txids + 1):
        run.txid(txid)
    run.change(program.txids + 1)
    return run.tables, run.bad


def _change_rows(rows: list[Row], change: Change) -> None:
    """Give rows that an append table holds their new columns."""
    args = change.args
    for place, row in enumerate(rows):
        if change.op == "add_column":
            rows[place] = {**row, args["name"]: None}
        elif change.op == "drop_column":
            rows[place] = {name: value for name, value in row.items() if name != args["name"]}
        elif change.op == "rename_column":
            rows[place] = renamed(row, args["old"], args["new"])


def _read(source: Source, txid: int, attempt: int) -> list[Row] | None:
    batch = source.batches[txid - 1] if txid <= len(source.batches) else None
    if batch is None:
        return None
    variant = batch[min(attempt, len(batch) - 1)]
    return [
        {name: decode(value, kind) for (name, kind), value in zip(source.columns, row, strict=True)}
        for part in variant
        for row in part
    ]


def _key(row: Row, names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(group_key(row[name]) for name in names)


def _zero(value: Any) -> Any:
    """A key as it is shown: grouping makes one zero of both."""
    if isinstance(value, float):
        return value + 0.0
    return tuple(_zero(one) for one in value) if isinstance(value, tuple) else value


def _row(step: Step, row: Row, txid: int) -> Iterable[Row]:
    args = step.args
    match step.op:
        case "select":
            yield {new: row[old] for old, new in args["columns"]}
        case "derive":
            yield {**row, args["name"]: _expression(args["expression"], row, txid)}
        case "filter":
            if _holds(args["where"], row):
                yield row
        case "window":
            time = row[args["column"]]
            if time is not None and WINDOW_LIMITS[0] < time < WINDOW_LIMITS[1]:
                start = time // HOUR * HOUR
                yield {**row, args["name"]: (start, start + HOUR)}
        case "double":
            yield row
            yield row
        case "half":
            if args["low"]:  # chance decides; the judge puts both halves together
                yield row
        case _:  # "fail"
            yield row


def _expression(expression: list[Any], row: Row, txid: int) -> Any:
    match expression:
        case ["literal", kind, value]:
            return decode(value, kind)
        case ["copy", name]:
            return row[name]
        case ["text", name]:
            return None if row[name] is None else text_of(row[name])
        case ["length", name]:
            return None if row[name] is None else len(row[name])
        case ["is_null", name]:
            return row[name] is None
        case ["pair", left, right]:
            return (row[left], row[right])
        case ["list", name]:
            return (row[name],)
        case ["mod", name, divisor]:
            return None if row[name] is None else row[name] % divisor
    return txid


def _holds(where: list[Any], row: Row) -> bool:
    match where:
        case ["never"]:
            return False
        case ["not_null", name]:
            return row[name] is not None
        case ["null", name]:
            return row[name] is None
    operator, name, kind, literal = where
    value, other = row[name], decode(literal, kind)
    if value is None or other is None:
        return False
    one, two = order_key(value), order_key(other)
    return one < two if operator == "less" else group_key(value) == group_key(other)


def _joined(
    left: list[Row], right: list[Row], on: list[str], how: str, kinds: tuple[Columns, Columns]
) -> list[Row]:
    def key(row: Row) -> tuple[Any, ...] | None:
        return None if any(row[name] is None for name in on) else _key(row, on)

    by_key: dict[Any, list[int]] = {}
    for number, row in enumerate(right):
        if (found := key(row)) is not None:
            by_key.setdefault(found, []).append(number)
    matched: set[int] = set()
    result: list[Row] = []
    no_left = dict.fromkeys(kinds[0])
    no_right = dict.fromkeys(name for name in kinds[1] if name not in on)
    for row in left:
        numbers = by_key.get(key(row), []) if key(row) is not None else []
        matched.update(numbers)
        if how == "left_semi":
            result += [row] if numbers else []
        elif how == "left_anti":
            result += [] if numbers else [row]
        else:
            for number in numbers:
                other = {n: v for n, v in right[number].items() if n not in on}
                keys = {n: right[number][n] for n in on} if how == "right" else {}
                result.append({**row, **other, **keys})
            if not numbers and how in ("left", "full"):
                result.append({**row, **no_right})
    if how in ("right", "full"):
        result += [{**no_left, **row} for number, row in enumerate(right) if number not in matched]
    return result


def _queried(rows: list[Row], shown: list[Row], state: _State) -> list[Row]:
    by_key = {_key(row, state.keys): row for row in shown}
    nothing = dict.fromkeys(state.aggregates)
    return [
        row | {name: by_key.get(_key(row, state.keys), nothing)[name] for name in state.aggregates}
        for row in rows
    ]
