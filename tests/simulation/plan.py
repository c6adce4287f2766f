"""What one seed is about: topology, settings, and which faults strike how often.

Each seed leaves most kinds of faults out and makes the others frequent (swarm testing: Groce et
al., ISSTA 2012): a run in which everything goes wrong at once gets nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from txn.config import TopologyConfig
from txn.interfaces import Expiry

__all__ = [
    "CHANGING",
    "Plan",
    "Release",
    "TableKind",
    "draw_plan",
    "owner_of",
    "with_ends",
    "with_event_time",
    "with_release",
]

COMMON = {
    "crash": (0.0005, 0.006),
    "pause": (0.0003, 0.003),
    "zk request lost": (0.005, 0.06),
    "zk answer lost": (0.01, 0.12),
    "zk write late": (0.01, 0.12),
    "zk session expired": (0.0003, 0.003),
    "zk away": (0.0002, 0.0015),
    "zk server behind": (0.05, 0.4),
    "append refused": (0.01, 0.15),
    "append answer lost": (0.01, 0.15),
    "append late": (0.01, 0.2),
    "job failed": (0.01, 0.15),
    "job hangs": (0.005, 0.03),
    "batch failed": (0.005, 0.08),
    "source away": (0.005, 0.05),
    "part not read": (0.01, 0.06),
    "staged file gone": (0.1, 0.5),
    "poison": (0.01, 0.1),
    "storage away": (0.0005, 0.005),
    "vacuum": (0.2, 0.8),
    "log cleaned": (0.2, 0.8),
    "stale listing": (0.02, 0.3),
    "other ensemble": (0.05, 0.3),
    "zk restored": (0.2, 0.6),
    "optimize": (0.1, 0.5),
    "table properties": (0.02, 0.1),
    "rival": (0.3, 1.0),
    "stop": (0.1, 0.4),
    "zk node damaged": (0.2, 0.6),
}
"""Fault -> least and greatest rate where a seed has it. What an occasion is, says who asks."""
JOINS = ("join inner", "join left", "join full")
FEEDS = (*JOINS, "query committed", "query txid-1", "new values")
"""One more, "final values", only `with_ends` draws."""
CHANGING = (7, 12, 15)
"""Of 16 seeds, those that have a second program: none of them is a recorded one of a mutant of
before there were changes."""
OFTEN = (
    "zk answer lost",
    "zk write late",
    "append answer lost",
    "append late",
    "append refused",
    "pause",
)
"""In half of the seeds: whether a write has happened is what most of the protocol is about."""
ALONE: tuple[tuple[str, ...], ...] = (
    ("other ensemble",),
    ("append refused", "append answer lost"),
    ("append refused", "zk answer lost", "poison"),
    ("staged file gone", "append refused"),
)
"""Faults that have a seed to themselves at times: what they need to come about, others prevent."""


@dataclass(frozen=True)
class TableKind:
    """One table of a topology."""

    kind: str
    semantics: str
    streams: tuple[int, ...]
    """Whose records its rows are made of."""
    feed: str = "rows"
    """`rows`: of all its streams; else one of `FEEDS`, into an append table."""
    of: str = ""
    """The state table that a query asks, or whose new values it takes."""
    since: int = 0
    """The first release of the program that has it."""
    ends: Expiry | None = None
    """When the keys of a state end."""


@dataclass(frozen=True)
class Release:
    """The second program of a run."""

    at: float
    """When the first process starts that has it."""
    how: str
    """How it gets its turn: `stop`, `kill` or `pause` the leader, kill it with an `append` under
    way, or wait `beside` it."""
    extended: frozenset[str]
    """Tables that get a column."""
    rebuilt: frozenset[str]
    """Tables whose rows are written anew: a renamed column or key, or more buckets."""
    fills: int
    """How often the late table, and next generations, are filled beside a leader."""
    refilled: frozenset[str] = frozenset()
    """Tables that get a next generation, if it is filled."""
    is_stale: bool = False
    """Whether the former program fills next generations, too."""


@dataclass(frozen=True)
class Timed:
    """The watermark of each stream."""

    delay: int
    idle_after: int | None
    late: str
    """What becomes of late rows: "keep" or "drop"."""


@dataclass(frozen=True)
class Plan:
    """Everything about a run that does not happen in it."""

    kinds: tuple[str, ...]
    """Kind of the spout of each stream."""
    tables: dict[str, TableKind]
    config: TopologyConfig
    records: tuple[int, ...]
    """Of each stream, in the end."""
    most_records: int
    """A batch reads, of a stream."""
    keys: int
    buckets: int
    slots: int
    knows_schema: tuple[bool, ...]
    """Of each stream: whether its spout names its columns when it is opened."""
    rates: dict[str, float]
    calm_at: float
    ends_by: float
    until: str
    standby: bool
    same_machine: bool
    release: Release | None = None
    timed: Timed | None = None

    def kind(self, table: str) -> TableKind:
        """The kind of a table, or of a next generation."""
        return self.tables[owner_of(table)]

    def extends(self, table: str, release: int) -> bool:
        """Whether a table has one column more in a release of the program."""
        return bool(release and self.release and owner_of(table) in self.release.extended)

    def rebuilds(self, table: str, release: int) -> bool:
        """Whether a table has its other shape in a release of the program."""
        return bool(release and self.release and owner_of(table) in self.release.rebuilt)

    def buckets_of(self, table: str, release: int) -> int:
        return self.buckets + 2 * self.rebuilds(table, release)

    def timed_streams(self, release: int) -> set[int]:
        """The streams with a watermark: those whose rows go to a table of the program."""
        tables = [t for t in self.tables.values() if t.feed == "rows" and t.since <= release]
        return {stream for table in tables for stream in table.streams} if self.timed else set()

    @property
    def opaque(self) -> bool:
        return "opaque" in self.kinds


def owner_of(table: str) -> str:
    """The table whose next generation this is, or the table itself."""
    return table.split("/", 1)[0]


def draw_plan(random: Random) -> Plan:
    """The plan of a seed."""
    kinds = _kinds(random)
    tables = {f"t{n}": _table(random, kinds) for n in range(random.choice((1, 2, 2, 2, 3)))}
    read = sorted({stream for table in tables.values() for stream in table.streams})
    for stream in range(len(kinds)):
        if stream not in read:
            first = tables["t0"]
            tables["t0"] = TableKind(
                first.kind, _semantics(random, kinds), tuple(sorted({*first.streams, stream}))
            )
    tables.update(_derived(random, kinds, tables))
    calm = random.choice((1.0, 2.0, 4.0))
    records = tuple(random.randint(5, 16) for _ in kinds)
    rates = _rates(random)
    config = _config(random, poisoned="poison" in rates, garbled="append garbled" in rates)
    if config.ackers == 0:
        # Nobody looks whether what was planned was read, or what was staged is published.
        rates.pop("part not read", None)
        rates.pop("append garbled", None)
    return Plan(
        kinds=kinds,
        tables=tables,
        config=config,
        records=records,
        most_records=random.choice((1, 2, 2, 3, 4)),
        keys=random.choice((2, 3, 7)),
        buckets=random.choice((1, 3, 7)),
        slots=random.choice((1, 2, 4)),
        knows_schema=tuple(_knows_schema(random, kind, config, tables) for kind in kinds),
        rates=rates,
        calm_at=calm,
        ends_by=calm + 90.0,
        until=random.choice(("forever", "caught_up")),
        standby=random.random() < 0.5,
        same_machine=random.random() < 0.5,
    )


def with_release(plan: Plan, random: Random) -> Plan:
    """The plan, with a second program that changes tables or has one more.

    Args:
        random: of its own: what else is drawn stays as it is without the second program.
    """
    if "append garbled" in plan.rates:
        return plan
    tables, rates = dict(plan.tables), dict(plan.rates)
    fills = 0
    if random.random() < 0.5:
        tables["late"] = replace(_table(random, plan.kinds), since=1)
        fills = random.choice((0, 1, 1, 2))
        rates.pop("log cleaned", None)  # what the txids read must be known
    # Whoever has set any property is taken for the one who made the difference, and refused.
    rates.pop("table properties", None)
    rates["former program"] = random.uniform(0.1, 0.5)
    some = random.uniform(0.2, 1)
    release = Release(
        at=random.uniform(0.1, plan.calm_at),
        how=random.choice(("stop", "kill", "pause", "append", "append", "beside")),
        extended=frozenset(name for name in plan.tables if random.random() < some),
        rebuilt=frozenset(name for name in plan.tables if random.random() < some / 2),
        fills=fills,
    )
    if "late" in tables and random.random() < 0.5:
        # The former program may lead again, as long as COMMITTED does not name the late table.
        release = replace(release, extended=frozenset(), rebuilt=frozenset())
        rates["former program"] = 0.5
    elif random.random() < 0.6:
        own = [name for name, table in plan.tables.items() if table.feed == "rows"]
        refilled = frozenset(random.sample(own, random.randint(1, len(own))))
        is_stale, fills = random.random() < 0.3, release.fills + random.choice((1, 2, 3))
        release = replace(release, refilled=refilled, is_stale=is_stale, fills=fills)
        rates.pop("log cleaned", None)
    if "late" in tables and plan.config.ackers and random.random() < 0.35:
        rates["part not read"] = 0.15
    return replace(plan, tables=tables, rates=rates, release=release)


def with_event_time(plan: Plan, random: Random) -> Plan:
    """The plan, with watermarks or without.

    Args:
        random: of its own, as for `with_release`.
    """
    if random.random() < 0.6:
        return plan
    idle_after = random.choice((None, None, 1, 3))
    timed = Timed(random.choice((0, 20, 50)), idle_after, random.choice(("keep", "drop")))
    return replace(plan, timed=timed)


def with_ends(plan: Plan, random: Random) -> Plan:
    """The plan, with keys that end, and tables that are told of each end.

    Args:
        random: of its own, as for `with_release`.
    """
    if plan.timed is None:
        return plan
    tables = dict(plan.tables)
    for name, table in plan.tables.items():
        if table.feed != "rows" or table.kind == "append":
            continue
        if random.random() < 0.7:
            by = random.choice(("last event", "last event", "key"))
            after = random.choice((0, 10, 40))
            ends = Expiry("key", after, "key") if by == "key" else Expiry("last event", after, "at")
            table = tables[name] = replace(table, ends=ends)
        feeds = ["new values"] if table.ends else []
        feeds += ["final values"] if plan.timed.late == "drop" else []
        if feeds and not table.since and random.random() < 0.6:
            # Whether a table is opaque follows from its state's streams alone.
            feed, own = random.choice(feeds), [plan.kinds[stream] for stream in table.streams]
            semantics = _semantics(random, tuple(own))
            tables[f"e-{name}"] = TableKind("append", semantics, table.streams, feed, of=name)
    return replace(plan, tables=tables)


def _kinds(random: Random) -> tuple[str, ...]:
    count = random.choice((1, 1, 1, 2))
    return tuple(random.choice(("opaque", "transactional")) for _ in range(count))


def _table(random: Random, kinds: tuple[str, ...]) -> TableKind:
    streams = tuple(range(len(kinds)))
    if len(kinds) > 1 and random.random() < 0.4:
        streams = (random.randrange(len(kinds)),)
    own = tuple(kinds[stream] for stream in streams)
    return TableKind(
        random.choice(("append", "upsert", "log", "log")), _semantics(random, own), streams
    )


def _derived(
    random: Random, kinds: tuple[str, ...], tables: dict[str, TableKind]
) -> dict[str, TableKind]:
    """Up to two append tables that are fed by a join, a query or new values."""
    found: dict[str, TableKind] = {}
    if len(kinds) == 2 and random.random() < 0.4:
        both = random.choice(((0, 1), (1, 0)))
        feed = random.choice(JOINS)
        found["j"] = TableKind("append", _semantics(random, kinds), both, feed)
    states = [name for name, table in tables.items() if table.kind != "append"]
    if states and random.random() < 0.35:
        of = random.choice(states)
        feeds = FEEDS[len(JOINS) :] if tables[of].kind == "upsert" else FEEDS[len(JOINS) : -1]
        feed = random.choice(feeds)
        streams = tables[of].streams if feed == "new values" else (random.randrange(len(kinds)),)
        own = tuple(kinds[stream] for stream in streams)
        semantics = "opaque" if feed == "query committed" else _semantics(random, own)
        found["q"] = TableKind("append", semantics, streams, feed, of)
    return found


def _knows_schema(
    random: Random, kind: str, config: TopologyConfig, tables: dict[str, TableKind]
) -> bool:
    """Whether a spout names its columns when it is opened.

    What a transactional spout has fixed may wait for columns for ever: until somebody declares
    them. An opaque one is asked again, and reads from the other stream as soon as it can, unless
    all that the other stream had was set aside.
    """
    may_wait = kind == "transactional" or config.on_exhausted == "quarantine"
    joined = any(table.feed in JOINS for table in tables.values())
    asked = any(
        table.feed.startswith("query ") and not {*tables[table.of].streams} <= {*table.streams}
        for table in tables.values()
    )
    return (joined and may_wait) or random.random() < 0.6 or (asked and may_wait)


def _semantics(random: Random, kinds: tuple[str, ...]) -> str:
    if "opaque" in kinds:
        return "opaque"
    return random.choice(("transactional", "opaque"))


def _config(random: Random, *, poisoned: bool, garbled: bool) -> TopologyConfig:
    attempts = (2, 2, 3) if poisoned else (2, 3, 5)
    return TopologyConfig(
        max_spout_pending=random.choice((1, 2, 3, 5, 5)),
        max_group_commit=random.choice((1, 2, 4, 8, 8, 8)),
        max_group_processing=random.choice((1, 2, 4)),
        max_processing_jobs=random.choice((1, 2)),
        message_timeout_secs=2.0,
        ackers=random.choice((1, 1, 1, 1, 1, 0)),
        # What a turn's ledger found is not known any more after the run has given up.
        max_batch_attempts=20 if garbled else random.choice(attempts),
        on_exhausted="quarantine" if poisoned else random.choice(("stop", "quarantine")),
        retry_backoff_ms=random.choice((0, 20, 100, 400)),
        zookeeper_timeout_secs=1.0,
        zookeeper_deadline_secs=4.0,
    )


def _rates(random: Random) -> dict[str, float]:
    if random.random() < 0.03:
        # Nothing but the ledger of the commit turn sees it, and who dies in between loses that.
        return {"append garbled": 0.2, "batch failed": 0.05, "job failed": 0.05}
    if random.random() < 0.15:
        return {fault: COMMON[fault][1] * random.uniform(0.5, 2) for fault in random.choice(ALONE)}
    share = random.choice((0.15, 0.3, 0.5))
    rates = {
        fault: random.uniform(*bounds)
        for fault, bounds in COMMON.items()
        if random.random() < (max(share, 0.45) if fault in OFTEN else share)
    }
    if "crash" not in rates and random.random() < 0.7:
        rates["crash"] = random.uniform(*COMMON["crash"])
    return rates
