"""Streams with event times for random programs: two or three sources, and what is made of them.

The generator's own steps may stand behind all of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tests.differential.columns import Columns
from tests.differential.declaration import Source, Step
from tests.differential.ending import WINDOW
from tests.differential.event_time import BEGIN, MINUTE, event_time_of, times_of
from tests.differential.time_joins import TIME_JOINS
from tests.differential.time_sessions import SESSION
from tests.differential.values import draw_type, draw_value, encode

__all__ = ["TimeStreams"]

NAMES = ("at", "paid")
DELAYS = (0, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE)
WITHIN = (0, 5 * MINUTE, 10 * MINUTE, 20 * MINUTE, 60 * MINUTE)
BEHIND = (-60, -40, -20, -15, -10, -5, -5, 0, 0, 5, 10)
"""Minutes from a txid's time; rows are often at a bound, and of one time."""
NEAR = (*[0] * 10, -1, 1)
"""Microseconds beside it."""


class Drawer(Protocol):
    """What the generator has, and draws."""

    draw: random.Random
    steps: list[Step]
    columns: dict[str, Columns]
    open: list[str]
    strength: dict[str, int]
    states: list[str]

    def add(
        self, op: str, of: tuple[str, ...], columns: Columns, args: dict[str, Any], least: int = 2
    ) -> str: ...

    def fresh(self, taken: Columns) -> str: ...

    def table(self, of: str, kind: str | None = None, keys: Sequence[str] = ()) -> None: ...

    def new_values(self, state: str) -> str | None: ...


class TimeStreams:
    """Draws streams with event times, and what counts in it."""

    def __init__(self, drawer: Drawer) -> None:
        self._drawer, self._draw = drawer, drawer.draw
        self._taken: set[tuple[str, str]] = set()
        """Kinds and keys of joins and sessions: kept rows of two would have one name."""
        self.makers: tuple[Callable[[], None], ...] = (
            self.join_in_time,
            self.join_in_time,
            self.sessions,
            self.state,
            self.state,
        )

    # --- sources -----------------------------------------------------------------------------

    def sources(self, txids: int) -> list[Source]:
        """Draw sources, of which each txid has one with something to read."""
        draw, taken = self._draw, dict.fromkeys(NAMES, "")
        keys: Columns = {}
        for _ in range(draw.choice((1, 1, 2))):
            keys[self._drawer.fresh(taken | keys)] = draw_type(draw)
        made: list[tuple[str, Columns]] = []
        for name, time in (("e0", NAMES[0]), ("e1", NAMES[1])):
            values = {self._drawer.fresh(taken | keys): draw_type(draw)}
            taken |= values
            made.append((name, {**keys, **values, time: "timestamp"}))
        if draw.random() < 0.3:  # to be merged with the first one
            made.append(("e2", made[0][1]))
        sources = [self._source(name, columns, txids) for name, columns in made]
        for txid in range(txids):  # or the run would be caught up before its end
            if all(source.batches[txid] is None for source in sources):
                one = draw.randrange(len(sources))
                batches = list(sources[one].batches)
                batches[txid] = self._batch(sources[one], txid)
                sources[one] = sources[one].model_copy(update={"batches": tuple(batches)})
        return sources

    def _source(self, name: str, columns: Columns, txids: int) -> Source:
        draw = self._draw
        source = Source(
            name=name,
            kind=draw.choice(("transactional", "opaque", "opaque")),
            partitions=draw.choice((0, 0, 0, 2, 3)),
            known=True,
            columns=tuple(columns.items()),
            batches=(),
        )
        batches = [None if draw.random() < 0.2 else self._batch(source, n) for n in range(txids)]
        return source.model_copy(update={"batches": tuple(batches)})

    def _batch(self, source: Source, txid: int) -> tuple[Any, ...]:
        """Rows of a txid, and other ones for its replays."""
        many = 1 if source.kind == "transactional" else self._draw.choice((1, 2, 2, 3))
        return tuple(self._variant(source, txid) for _ in range(many))

    def _variant(self, source: Source, txid: int) -> tuple[Any, ...]:
        parts = [
            tuple(self._row(source, txid) for _ in range(self._draw.choice((0, 1, 2, 4))))
            for _ in range(max(1, source.partitions))
        ]
        if source.partitions and not any(parts):
            parts[0] = (self._row(source, txid),)
        return tuple(parts)

    def _row(self, source: Source, txid: int) -> tuple[Any, ...]:
        draw = self._draw
        *others, _ = source.columns
        values = [encode(draw_value(draw, kind, few=True)) for _, kind in others]
        minutes = txid * 10 + draw.choice(BEHIND)
        time = BEGIN + minutes * MINUTE + draw.choice(NEAR)
        return (*values, None if draw.random() < 0.07 else time)

    # --- streams -----------------------------------------------------------------------------

    def watermarks(self, sources: list[Source]) -> None:
        """Give each source its event time, before anything else is made of it."""
        draw, drawer = self._draw, self._drawer
        common = draw.choice(
            ("keep", "drop", "drop", "drop", None)
        )  # often all late rows have one fate
        names, aside = [], False
        for source in sources:
            plain = all(kind.replace("_", "").isalnum() for _, kind in source.columns)
            fates = ("keep", "drop", "set_aside", "drop")[: 4 if plain and not aside else 2]
            late = common if common and draw.random() < 0.8 else draw.choice(fates)
            aside = aside or late == "set_aside"
            parts = [n for n, k in source.columns if k in ("string", "int", "bigint", "boolean")]
            args = {
                "name": "late",
                "column": source.columns[-1][0],
                "delay": draw.choice(DELAYS),
                "on_violation": late,
                "by": draw.choice(parts) if parts and draw.random() < 0.15 else None,
                "idle_after": draw.choice((None, None, 1, 2)),
            }
            columns = dict(source.columns)
            names.append(drawer.add("watermark", (source.name,), columns, args))
        if len(names) > 2:
            drawer.add("merge", (names[0], names[2]), drawer.columns[names[0]], {})

    def join_in_time(self) -> None:
        """Join two streams in time, and put the result into a table."""
        draw, drawer = self._draw, self._drawer
        timed = [(name, time) for name in drawer.open[-12:] if (time := self._time(name))]
        pairs = [(one, two) for one in timed for two in timed if one[1] != two[1]]
        draw.shuffle(pairs)
        for (left, at), (right, paid) in pairs:
            if self._brings_late_rows(left) or self._brings_late_rows(right):
                continue
            one, two = drawer.columns[left], drawer.columns[right]
            common = [n for n in one if two.get(n) == one[n]]
            hows = TIME_JOINS if self._guarded(left, right) else TIME_JOINS[:2]
            how = draw.choice(hows)
            on = draw.sample(common, min(len(common), draw.choice((1, 1, 2))))
            kept = how, _in_name(on)
            if not on or kept in self._taken or paid in one or at in two:
                continue
            self._taken.add(kept)
            right = self._without_clash(right, one, on)
            two = drawer.columns[right]
            args = {
                "on": on,
                "how": how,
                "within": draw.choice(WITHIN) + abs(draw.choice(NEAR)),
                "times": [at, paid],
                "sorted": how == "as_of",
            }
            columns = one if how in ("left_semi", "left_anti") else one | two
            drawer.table(drawer.add("join_in_time", (left, right), columns, args))
            return

    def sessions(self) -> None:
        """Give the rows of a stream their sessions, and put them into a table."""
        draw, drawer = self._draw, self._drawer
        timed = [(name, time) for name in drawer.open[-12:] if (time := self._time(name))]
        draw.shuffle(timed)
        for of, time in timed:
            columns = drawer.columns[of]
            able = [name for name in columns if name != time]
            keys = draw.sample(able, min(len(able), draw.choice((1, 1, 2))))
            kept = "sessions", _in_name(keys)
            taken = kept in self._taken or SESSION in {name.lower() for name in columns}
            if not keys or taken or self._brings_late_rows(of) or not self._guarded(of):
                continue
            self._taken.add(kept)
            gap = draw.choice(WITHIN[1:]) + draw.choice(NEAR)
            args = {"keys": keys, "time": time, "gap": gap}
            made = drawer.add("session_windows", (of,), columns | {SESSION: WINDOW}, args)
            if draw.random() < 0.5:
                whole = [*keys, SESSION]
                drawer.table(made, draw.choice(("upsert", "log")), whole)
            else:
                drawer.table(made)
            return

    def state(self) -> None:
        """Aggregate a stream by keys that may end, and perhaps hand on what changes."""
        draw, drawer = self._draw, self._drawer
        timed = [name for name in drawer.open[-12:] if self._time(name)]
        if not timed:
            return
        of = draw.choice(timed)
        time = self._time(of)
        keys: tuple[str, ...] = ()
        if draw.random() < 0.4:
            name = drawer.fresh(drawer.columns[of])
            columns = drawer.columns[of] | {name: WINDOW}
            of = drawer.add("window", (of,), columns, {"column": time, "name": name})
            keys = (name,)
        elif draw.random() < 0.3 and time is not None:
            keys = (time,)
        drawer.table(of, draw.choice(("upsert", "log")), keys)
        if draw.random() < 0.6 and (changed := drawer.new_values(drawer.states[-1])):
            drawer.table(changed)

    def _time(self, name: str) -> str | None:
        """Return the event time of a stream whose replays are safe."""
        drawer, able = self._drawer, self._drawer.strength[name]
        return event_time_of(drawer.steps, name, drawer.columns[name]) if able else None

    def _brings_late_rows(self, name: str) -> bool:
        step = next((step for step in self._drawer.steps if step.id == name), None)
        if step is None:
            return False
        if step.op == "session_windows" or step.args.get("expire_after") is not None:
            return True
        of = step.of[:1] if step.op == "query" else step.of
        return any(map(self._brings_late_rows, of))

    def _guarded(self, *names: str) -> bool:
        times = (times_of(self._drawer.steps, name) for name in names)
        return all(time is not None and time[1] != "keep" for some in times for time in some)

    def _without_clash(self, right: str, left: Columns, on: list[str]) -> str:
        """Rename the columns of a right side that the left one has, too."""
        columns = self._drawer.columns[right]
        clash = {n.lower() for n in left} & {n.lower() for n in columns if n not in on}
        if not clash:
            return right
        kept: Columns = {}
        for name, kind in columns.items():
            taken = left | kept | columns
            keeps = name in on or name.lower() not in clash
            kept[name if keeps else self._drawer.fresh(taken)] = kind
        pairs = [[*pair] for pair in zip(columns, kept, strict=True)]
        return self._drawer.add("select", (right,), kept, {"columns": pairs})


def _in_name(keys: Sequence[str]) -> str:
    """Columns, as the name of a table of kept rows has them."""
    return re.sub(r"[^\w.-]", "-", "_".join(keys)).lower()
