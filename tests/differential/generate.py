"""Makes a random program out of a seed. Everything is drawn here; nothing else is random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.committers.aggregates.cases import OF_A_COLUMN
from tests.differential.columns import Columns, aggregate_type, expression_type
from tests.differential.declaration import Life, Program, Source, Step
from tests.differential.duplicates import with_repeats
from tests.differential.ending import draw_ends
from tests.differential.event_time import times_of, with_watermarks
from tests.differential.evolution import with_changes
from tests.differential.rules import with_rules
from tests.differential.time_streams import TimeStreams
from tests.differential.values import (
    draw_type,
    draw_value,
    element_of,
    encode,
    fields_of,
    is_integer,
)

__all__ = ["CHANGING", "generate"]

CHANGING = 0.3
"""The share of programs that change between their lives."""
IN_TIME = 0.45
"""The share of programs that join in time, or have states that end."""

NAMES = (
    "a",
    "b",
    "c",
    "d",
    "v",
    "w",
    "Upper",
    "dot.ted",
    "ünï",
    "select",
    "a-b",
    "日本",
    "😀",
    "_x",
)
BAD_NAMES = ("with space", "com,ma", "bra(cket", "eq=ual")
JOINS = ("inner", "left", "right", "full", "left_semi", "left_anti")
POINTS = (
    "after-plan",
    "after-start",
    "mid-processing",
    "after-staging",
    "before-publish",
    "between-publications",
    "after-publish",
    "before-committed",
    "after-committed",
    "during-clean-up",
)
SETTINGS = {
    "spark.sql.ansi.enabled": ("false", "true"),
    "spark.sql.session.timeZone": ("America/New_York", "Asia/Kathmandu", "UTC", "+14:00"),
    "spark.sql.caseSensitive": ("true", "false"),
    "spark.sql.timestampType": ("TIMESTAMP_NTZ",),
    "spark.sql.adaptive.enabled": ("false",),
    "spark.sql.autoBroadcastJoinThreshold": ("-1",),
    "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MILLIS"),
    "spark.sql.mapKeyDedupPolicy": ("LAST_WIN",),
    "spark.sql.legacy.timeParserPolicy": ("LEGACY",),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("false",),
    "spark.sql.legacy.sizeOfNull": ("true",),
    "spark.sql.storeAssignmentPolicy": ("LEGACY",),
    "spark.sql.parquet.datetimeRebaseModeInWrite": ("LEGACY", "EXCEPTION"),
    "spark.sql.parquet.compression.codec": ("zstd", "gzip"),
    "spark.sql.shuffle.partitions": ("1", "3"),
    "spark.sql.parquet.writeLegacyFormat": ("true",),
    "spark.sql.legacy.setCommandRejectsSparkCoreConfs": ("false",),
}


def generate(seed: int, share: float = CHANGING) -> Program:
    """The program of a seed.

    Args:
        share: how many of all programs change between their lives.
    """
    return _Generator(seed).program(share)


class _Generator:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.steps: list[Step] = []
        self.columns: dict[str, Columns] = {}
        self.open: list[str] = []
        """Streams, the newest last."""
        self.strength: dict[str, int] = {}
        """Stream -> 2 transactional, 1 opaque, 0 neither."""
        self.states: list[str] = []
        self.late: set[str] = set()
        self.clean = self.draw.random() < 0.9
        """Whether every name can be stored."""
        self.faults = self.draw.random() < 0.6
        self.count = 0
        self.pending = self.draw.choice((1, 3, 8))
        self.most_attempts = 5

    def program(self, share: float) -> Program:
        draw = self.draw
        txids = draw.randint(1, 5)
        names = [f"s{n}" for n in range(draw.choice((1, 1, 2, 2, 3)))]
        time_streams, timed = TimeStreams(self), []
        if random.Random(f"event time {self.seed}").random() < IN_TIME:
            names, txids = names[: draw.choice((0, 0, 1))], draw.randint(4, 7)
            timed = time_streams.sources(txids)
            self.pending = draw.choice((1, 1, 2, 3))  # or no watermark is reached
        sources = self._sources(names, txids) + timed
        for source in sources:
            self.columns[source.name] = dict(source.columns)
            self.open.append(source.name)
            kinds = ("non_transactional", "opaque", "transactional")
            self.strength[source.name] = kinds.index(source.kind)
        made = ["stream"] * draw.randint(1, 8) + ["table"] * draw.randint(1, 3)
        draw.shuffle(made)
        if timed:
            time_streams.watermarks(timed)
            made = made[: draw.choice((1, 2, 4))] + ["in time"] * draw.choice((1, 2, 2, 3))
            draw.shuffle(made)
        for what in made:
            if what == "table":
                newest = draw.random() < 0.6
                self.table(self.open[-1] if newest else draw.choice(self.open[-4:]))
            elif what == "in time":
                draw.choice(time_streams.makers)()
            else:
                self._stream()
        if made[-1] == "stream":
            self.table(self.open[-1])
        self._use_everything(sources)
        lives = self._lives(txids)
        program = Program(
            seed=self.seed,
            config=self._config(),
            conf=self._conf(),
            compiled=draw.random() < 0.125,
            large=self.seed % 2 == 0,
            sources=tuple(sources),
            steps=tuple(self.steps),
            lives=lives,
        )
        strength = {**self.strength, "fails": 0}
        program = with_rules(program, strength)
        program = with_repeats(with_watermarks(program, strength))
        self.draw = random.Random(f"changes {self.seed}")  # a seed keeps its program
        return with_changes(program, strength, self) if self.draw.random() < share else program

    # --- sources -----------------------------------------------------------------------------

    def _sources(self, names: list[str], txids: int) -> list[Source]:
        draw = self.draw
        shared = self._source_columns()
        weak = not self.faults and draw.random() < 0.15
        made = []
        for name in names:
            columns = shared if draw.random() < 0.5 else self._source_columns()
            kind = draw.choice(
                ("transactional", "opaque", "non_transactional" if weak else "opaque")
            )
            partitions = draw.choice((0, 0, 0, 2, 3))
            if kind == "non_transactional":
                partitions = 0
            known = draw.random() < 0.85
            late = draw.choice((0, 0, 0, 1, 2) if known else (0, 1, 1, 2))
            few = {column: draw.random() < 0.5 for column, _ in columns}
            batches = [
                None
                if txid < late or draw.random() < 0.2
                else self._batch(columns, kind, partitions, few)
                for txid in range(txids)
            ]
            made.append((name, kind, partitions, known, columns, few, batches))
        for txid in range(txids if made else 0):  # or the run would be caught up before its end
            if all(batches[txid] is None for *_, batches in made):
                _, kind, partitions, _, columns, few, batches = draw.choice(made)
                batches[txid] = self._batch(columns, kind, partitions, few)
        return [
            Source(
                name=name,
                kind=kind,
                partitions=partitions,
                known=known,
                columns=columns,
                batches=tuple(batches),
            )
            for name, kind, partitions, known, columns, few, batches in made
        ]

    def _source_columns(self) -> tuple[tuple[str, str], ...]:
        draw = self.draw
        names = NAMES if self.clean else NAMES + BAD_NAMES + ("A", "upper")
        chosen = draw.sample(names, draw.randint(2, 5))
        return tuple((name, draw_type(draw)) for name in chosen)

    def _batch(
        self, columns: tuple[tuple[str, str], ...], kind: str, partitions: int, few: dict[str, bool]
    ) -> tuple[Any, ...]:
        variants = 1 if kind == "transactional" else self.draw.choice((1, 2, 3))
        return tuple(self._variant(columns, partitions, few) for _ in range(variants))

    def _variant(
        self, columns: tuple[tuple[str, str], ...], partitions: int, few: dict[str, bool]
    ) -> tuple[Any, ...]:
        parts = [self._rows(columns, few) for _ in range(max(1, partitions))]
        if partitions and not any(parts):
            parts[0] = (self._row(columns, few),)
        return tuple(parts)

    def _rows(self, columns: tuple[tuple[str, str], ...], few: dict[str, bool]) -> tuple[Any, ...]:
        return tuple(self._row(columns, few) for _ in range(self.draw.choice((0, 1, 2, 4, 7))))

    def _row(self, columns: tuple[tuple[str, str], ...], few: dict[str, bool]) -> tuple[Any, ...]:
        return tuple(encode(draw_value(self.draw, kind, few[name])) for name, kind in columns)

    # --- streams -----------------------------------------------------------------------------

    def _stream(self) -> None:
        draw = self.draw
        makers = [
            self._filter,
            self._derive,
            self._derive,
            self._select,
            self._merge,
            self._join,
            self._join,
            self._aggregate,
            self._window,
            self._double,
            self._query,
            self._query,
            self._new_values,
            self._new_values,
        ]
        of = self.open[-1] if draw.random() < 0.4 else draw.choice(self.open)
        draw.choice(makers)(of)

    def add(
        self, op: str, of: tuple[str, ...], columns: Columns, args: dict[str, Any], least: int = 2
    ) -> str:
        """Add a step that makes a stream; return its name."""
        self.count += 1
        name = f"n{self.count}"
        self.steps.append(Step(id=name, op=op, of=of, args=args))
        self.columns[name] = columns
        self.strength[name] = min(least, *(self.strength[one] for one in of))
        if any(one in self.late for one in of):
            self.late.add(name)
        self.open.append(name)
        return name

    def fresh(self, taken: Columns) -> str:
        lower = {name.lower() for name in taken}
        for name in self.draw.sample(NAMES, len(NAMES)):
            if name.lower() not in lower:
                return name
        self.count += 1
        return f"f{self.count}"

    def _some(self, columns: Columns, wanted: Any) -> str | None:
        found = [name for name, kind in columns.items() if wanted(kind)]
        return self.draw.choice(found) if found else None

    def _condition(self, columns: Columns) -> list[Any]:
        draw = self.draw
        name = draw.choice(list(columns))
        if _is_simple(columns[name]) and draw.random() < 0.6:
            value = draw_value(draw, columns[name], few=True)
            if value is not None:
                how = draw.choice(("less", "equal"))
                if columns[name] in ("boolean", "binary"):
                    how = "equal"
                return [how, name, columns[name], encode(value)]
        return draw.choice((["not_null", name], ["null", name], ["not_null", name], ["never"]))

    def _filter(self, of: str) -> None:
        columns = self.columns[of]
        self.add("filter", (of,), columns, {"where": self._condition(columns)})

    def _double(self, of: str) -> None:
        self.add("double", (of,), self.columns[of], {})

    def _derive(self, of: str) -> None:
        draw, columns = self.draw, self.columns[of]
        expressions: list[list[Any]] = [["txid"], ["is_null", draw.choice(list(columns))]]
        kind = draw_type(draw, nested=False)
        expressions.append(["literal", kind, encode(draw_value(draw, kind, few=False))])
        expressions.append(["copy", draw.choice(list(columns))])
        if name := self._some(columns, is_integer):
            expressions += [["mod", name, draw.choice((2, 3))]] * 2
        if name := self._some(columns, lambda k: is_integer(k) or k in ("boolean", "string")):
            expressions.append(["text", name])
        if name := self._some(columns, lambda k: k == "string"):
            expressions.append(["length", name])
        if name := self._some(columns, _is_simple):
            expressions += [["pair", name, draw.choice(list(columns))], ["list", name]]
        expression = draw.choice(expressions)
        if expression[0] == "pair" and not _is_simple(columns[expression[2]]):
            expression = ["txid"]
        name = self.fresh(columns)
        made = columns | {name: expression_type(expression, columns)}
        self.add("derive", (of,), made, {"name": name, "expression": expression})

    def _select(self, of: str) -> None:
        draw, columns = self.draw, self.columns[of]
        kept = draw.sample(list(columns), draw.randint(1, len(columns)))
        renamed: list[list[str]] = []
        made: Columns = {}
        for old in kept:
            taken = made | dict.fromkeys(kept, "")
            new = self.fresh(taken) if draw.random() < 0.3 else old
            renamed.append([old, new])
            made[new] = columns[old]
        self.add("select", (of,), made, {"columns": renamed})

    def _merge(self, of: str) -> None:
        others = [
            name for name in self.open if self.columns[name] == self.columns[of] and name != of
        ]
        if others:
            more = self.draw.sample(others, self.draw.randint(1, min(2, len(others))))
            self.add("merge", (of, *more), self.columns[of], {})

    def _join(self, of: str) -> None:
        draw = self.draw
        other = draw.choice(self.open)
        left, right = self.columns[of], self.columns[other]
        common = [n for n in left if right.get(n) == left[n] and _is_groupable(left[n])]
        if not common:
            pairs = [
                (n, m)
                for n in left
                for m in right
                if left[n] == right[m] and _is_groupable(left[n])
            ]
            if not pairs:
                return
            one, two = draw.choice(pairs)
            key = self.fresh({})
            of = self.add("select", (of,), {key: left[one]}, {"columns": [[one, key]]})
            renames = [[two, key]]
            made: Columns = {key: right[two]}
            other = self.add("select", (other,), made, {"columns": renames})
            left, right, common = self.columns[of], made, [key]
        on = draw.sample(common, draw.randint(1, min(2, len(common))))
        how = draw.choice(JOINS)
        clash = {n.lower() for n in left} & {n.lower() for n in right if n not in on}
        if clash and how not in ("left_semi", "left_anti"):
            kept: Columns = {}
            for n, kind in right.items():
                taken = left | kept | right
                kept[n if n in on or n.lower() not in clash else self.fresh(taken)] = kind
            pairs = list(zip(right, kept, strict=True))
            other = self.add("select", (other,), kept, {"columns": [list(p) for p in pairs]})
            right = kept
        semi = how in ("left_semi", "left_anti")
        columns = left if semi else left | right
        self.add("join", (of, other), columns, {"on": on, "how": how})

    def _window(self, of: str) -> None:
        columns = self.columns[of]
        if time := self._some(columns, lambda kind: kind == "timestamp"):
            name = self.fresh(columns)
            made = columns | {name: "struct<start:timestamp,end:timestamp>"}
            self.add("window", (of,), made, {"column": time, "name": name})

    def _aggregate(self, of: str) -> None:
        keys, aggregates = self._grouping(of, stored=False)
        columns = {key: self.columns[of][key] for key in keys}
        columns |= {n: aggregate_type(s, self.columns[of]) for n, s in aggregates.items()}
        self.add("aggregate", (of,), columns, {"keys": keys, "aggregates": aggregates})

    def _query(self, of: str) -> None:
        draw = self.draw
        if not self.states:
            return
        state = draw.choice(self.states)
        step = next(one for one in self.steps if one.id == state)
        as_of = draw.choice(("committed", "txid-1"))
        if as_of == "committed" and self.pending > 1:
            as_of = "txid-1"
        own, theirs = self.columns[of], self.columns[state]
        keys = step.args["keys"]
        columns: list[list[str]] = []
        for key in keys:
            same = [n for n in own if own[n] == theirs[key]]
            if not same:
                return
            columns.append([draw.choice(same), key])
        made = {key: theirs[key] for key in keys}
        lower = {name.lower() for name in theirs}
        for n, kind in own.items():
            if n.lower() not in lower:
                columns.append([n, n])
                made[n] = kind
        if not made:
            return
        of = self.add("select", (of,), made, {"columns": columns})
        least = 1 if as_of == "committed" else 2
        found = self.add("query", (of, state), made | theirs, {"on": keys, "as_of": as_of}, least)
        if as_of == "txid-1":
            self.late.add(found)

    def _new_values(self, of: str) -> None:
        if self.states:
            self.new_values(self.draw.choice(self.states))

    def new_values(self, state: str) -> str | None:
        """Add the changes of a state, unless a name would be there twice; return their name."""
        step = next(one for one in self.steps if one.id == state)
        columns = self.columns[state]
        values = [name for name in columns if name not in step.args["keys"]]
        made = columns | {f"prev_{name}": columns[name] for name in values}
        if len({name.lower() for name in made}) < len(made):
            return None
        name = self.add("new_values", (state,), made, {})
        self.late.add(name)
        return name

    # --- tables ------------------------------------------------------------------------------

    def _use_everything(self, sources: list[Source]) -> None:
        """A source that reaches no table is refused."""
        used: set[str] = set()
        stack = [one for step in self.steps if step.op in ("append", "state") for one in step.of]
        by_id = {step.id: step for step in self.steps}
        while stack:
            name = stack.pop()
            used.add(name)
            if name in by_id:
                stack += by_id[name].of
        self.steps = [
            step for step in self.steps if step.id in used or step.op in ("append", "state")
        ]
        for source in sources:
            if source.name not in used:
                self.table(source.name)
        if self.faults and self.draw.random() < 0.3:
            self._fail(self.draw.choice(sources))

    def _fail(self, source: Source) -> None:
        """One of its txids fails a few times, or whatever is tried."""
        txid, attempts = self.draw.randint(2, 4), self.draw.choice((1, 2, 99))
        if txid > len(source.batches) or source.batches[txid - 1] is None:
            return  # what has nothing to read may not even be computed
        args: dict[str, Any] = {"txid": txid, "attempts": attempts}
        if any(step.op in ("join_in_time", "session_windows") for step in self.steps):
            args["passes_empty"] = self.most_attempts  # it computes what is set aside, too
        step = Step(id="fails", op="fail", of=(source.name,), args=args)
        below = [
            one.model_copy(update={"of": tuple("fails" if n == source.name else n for n in one.of)})
            for one in self.steps
        ]
        self.steps = [step, *below]

    def _semantics(self, of: str) -> str:
        names = ["non_transactional", "opaque", "transactional"]
        able = names[: self.strength[of] + 1]
        if self.faults:  # it would hold rows twice
            able = able[1:]
        return self.draw.choice(able[-2:])

    def table(self, of: str, kind: str | None = None, keys: Sequence[str] = ()) -> None:
        """Put a stream into a table: "append", "upsert" or "log".

        Args:
            keys: some that a state has.
        """
        draw = self.draw
        self.count += 1
        name = f"t{self.count}"
        kind = kind or draw.choice(("append", "append", "upsert", "upsert", "log"))
        semantics = self._semantics(of)
        if kind == "append":
            if any(n.lower() == "txid" for n in self.columns[of]):
                return
            self.steps.append(Step(id=name, op="append", of=(of,), args={"semantics": semantics}))
            return
        keys, aggregates = self._grouping(of, stored=True, layout=kind, among=keys)
        args: dict[str, Any] = {
            "layout": kind,
            "semantics": semantics,
            "keys": keys,
            "aggregates": aggregates,
        }
        if kind == "log":
            args["compact_files"] = draw.choice((None, 2, 3))
        else:
            args["buckets"] = draw.choice((1, 2, 3))
        columns = {key: self.columns[of][key] for key in keys}
        columns |= {n: aggregate_type(s, self.columns[of]) for n, s in aggregates.items()}
        if keys and kind == "upsert" and draw.random() < 0.2:
            counts = [n for n, s in aggregates.items() if s[0] == "Count"]
            if counts:
                limit = draw.choice((1, 2, 3))
                args["remove_where"] = ["equal", counts[0], "bigint", limit]
        may_end = semantics != "non_transactional" and None not in times_of(self.steps, of)
        if may_end and draw.random() < 0.7:
            args |= draw_ends(draw, self.steps, of, self.columns[of], keys)
        self.steps.append(Step(id=name, op="state", of=(of,), args=args))
        self.columns[name] = columns
        self.strength[name] = self.strength[of] if semantics != "non_transactional" else 0
        if of in self.late:
            self.late.add(name)
        self.states.append(name)

    def _grouping(
        self, of: str, *, stored: bool, layout: str = "upsert", among: Sequence[str] = ()
    ) -> tuple[list[str], dict[str, list[Any]]]:
        draw, columns = self.draw, self.columns[of]
        reserved = ("txid", "prev_txid")
        groupable = [
            n for n, kind in columns.items() if _is_groupable(kind) and n.lower() not in reserved
        ]
        keys = draw.sample(groupable, min(len(groupable), draw.choice((0, 1, 1, 1, 2))))
        keys = [*dict.fromkeys((*keys[: 2 - len(among)], *among))]
        aggregates: dict[str, list[Any]] = {}
        for _ in range(draw.randint(1, 3)):
            taken = dict.fromkeys([*keys, *aggregates, *(f"prev_{n}" for n in aggregates)], "")
            spec = self.spec(columns, stored=stored, layout=layout)
            aggregates[self.fresh(taken)] = spec
        return keys, aggregates

    def spec(self, columns: Columns, *, stored: bool, layout: str) -> list[Any]:
        draw = self.draw
        name = draw.choice(list(columns))
        kind = columns[name]
        able: list[list[Any]] = [["Count"]]
        order = self._some(columns, _is_simple)
        for other, case in OF_A_COLUMN.items():
            if case.takes(kind) and (_is_simple(kind) or other == "Count"):
                able += [[other, name, *draw.choice(case.arguments)]] * case.weight
        if order is not None and _is_simple(kind):
            able += [["First", name, order], ["Last", name, order]]
            able += [["FirstN", 2, order, name], ["LastN", 2, order, name]]
        folded = is_integer(kind) or kind in ("string", "boolean")
        if folded and order is not None and layout == "upsert":
            able.append(["Fold", order, name])
        return draw.choice(able)

    # --- around it ---------------------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        draw = self.draw
        config: dict[str, Any] = {
            "max_spout_pending": self.pending,
            "retry_backoff_ms": 1,
            "max_batch_attempts": self.most_attempts,
            "on_exhausted": "quarantine",
            "zookeeper_acl": "open",
            "message_timeout_secs": 15.0,
        }
        if draw.random() < 0.3:
            config["max_group_commit"] = draw.choice((1, 2))
        if draw.random() < 0.3:
            config["max_group_processing"] = draw.choice((1, 2))
        if draw.random() < 0.15:
            config["verify"] = "rows"
        if draw.random() < 0.1:
            config["ackers"] = 0
        return config

    def _conf(self) -> dict[str, str]:
        draw = self.draw
        if draw.random() < 0.4:
            return {}
        names = draw.sample(list(SETTINGS), draw.randint(1, 4))
        conf = {name: draw.choice(SETTINGS[name]) for name in names}
        means = {step.id for step in self.steps if "Avg" in str(step.args.get("aggregates"))}
        reads = {"query", "new_values"}
        if any(
            means
            & ({step.id} if step.op == "aggregate" else {*step.of} if step.op in reads else set())
            for step in self.steps
        ):
            # A mean in a stream is computed in the user's session: this says which type it has.
            conf.pop("spark.sql.decimalOperations.allowPrecisionLoss", None)
        return conf

    def _lives(self, txids: int) -> tuple[Life, ...]:
        draw = self.draw
        lives: list[Life] = []
        reached = 0
        for _ in range(draw.choice((0, 1, 1, 2))):
            if self.faults and draw.random() < 0.6:
                lives.append(Life(crash=draw.choice(POINTS), nth=draw.randint(1, 6)))
            elif reached + 1 < txids:
                reached = draw.randint(reached + 1, txids - 1)
                then = draw.choice(((), ("optimize",), ("vacuum",), ("optimize", "vacuum")))
                lives.append(Life(until=reached, then=then))
        return (*lives, Life())


def _is_simple(kind: str) -> bool:
    return element_of(kind) is None and fields_of(kind) is None


def _is_groupable(kind: str) -> bool:
    return True
