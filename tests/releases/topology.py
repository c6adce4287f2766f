"""The topologies whose state every release leaves behind, their input, and the rows of its end.

Tables, files and patterns are named relative to the working directory, so the state belongs to no
machine. The records below belong to what is kept in tests/releases: a change of them needs new
state, which only the release itself can write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from committers.aggregates import Count, Max, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import FailedException, Topology, TopologyConfig, TransactionAttempt
from txn.interfaces import Spout, SpoutKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "CHECKPOINTED",
    "COLUMNS",
    "CORRECTED",
    "EVENTS",
    "FILES",
    "NAME",
    "NOTES",
    "REMOVING",
    "STATES",
    "expected_rows",
    "removing",
    "topology",
    "upgraded",
]

NAME = "upgraded"
REMOVING = "removing"
"""The names of the two topologies."""
FILES = (
    "a,1 b,x c,-3",
    "a,4",
    "b,2 a,7",
    "c,5 d,y",
    "d,-6 a,10",
    "e,8",
)
"""The lines of each CSV file; "x" and "y" do not parse, and negative numbers break a rule."""
CORRECTED = ("b,20 c,30", "d,40 d,60")
"""The lines of the first and of the second file of corrected rows."""
EVENTS = tuple(("fgh"[number % 3], number) for number in range(26))
"""Two of them are one batch."""
POISONED = frozenset({6, 8, 10})
"""Events that cannot be read until they are mended: the quarantined batches."""
DROPPED = frozenset({10, 11})
"""The events of the quarantined batch that is given up."""
NOTES = 8
"""One of them is one batch."""
LARGE_NOTE, LARGE = 6, 400_000
"""The note whose START needs more than one node of ZooKeeper, and its characters."""
COLUMNS = {
    "rows": ("k", "v"),
    "totals": ("k", "n", "total", "top"),
    "log": ("k", "n", "total", "top"),
    "events": ("k", "v"),
    "event_totals": ("k", "n", "total"),
    "event_log": ("k", "n", "total"),
    "balances": ("k", "balance"),
    "balance_log": ("k", "balance"),
    "notes": ("number", "characters"),
    "bad": ("stream", "rule", "row"),
}
"""Table -> the columns that are compared."""
STATES = ("totals", "log", "event_totals", "event_log", "balances", "balance_log")
"""The last two drop a key whose balance is 0."""
CHECKPOINTED = ("totals", "log", "balances", "balance_log")
"""The tables whose logs have checkpoints."""


class Span(BaseModel):
    """Records [start, end)."""

    start: int
    end: int


class Note(BaseModel):
    """One note: a batch of its own, whose text is in the metadata alone."""

    number: int
    text: str


class Events(Spout[Span]):
    """The first `count` events, two in a batch, planned anew for each attempt."""

    kind = SpoutKind.OPAQUE
    metadata_type = Span

    def __init__(self, count: int, *, mended: bool) -> None:
        self._count = count
        self._poisoned = frozenset() if mended else POISONED

    def open(self, spark: SparkSession, previous: Span | None) -> StructType:
        """Return the schema."""
        return spark.sql("SELECT 'k' AS k, 1L AS v").schema

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Span | None
    ) -> Span | None:
        """Return the next two events; None at the end."""
        start = 0 if previous is None else previous.end
        return Span(start=start, end=start + 2) if start < self._count else None

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Span
    ) -> DataFrame:
        """Return the planned events."""
        if bad := self._poisoned & {*range(metadata.start, metadata.end)}:
            raise FailedException(f"event {min(bad)} is poisoned")
        events = EVENTS[metadata.start : metadata.end]
        values = ", ".join(f"('{key}', {value}L)" for key, value in events)
        return spark.sql(f"SELECT * FROM VALUES {values} AS events(k, v)")

    def notices(self) -> Sequence[str]:
        """Return a notice, so that the run leaves a record of one."""
        return [f"{self._count} events are here"]


class Notes(Spout[Note]):
    """The first `count` notes, whose text exists only in ZooKeeper once it is planned."""

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = Note

    def __init__(self, count: int) -> None:
        self._count = count

    def open(self, spark: SparkSession, previous: Note | None) -> StructType:
        """Return the schema."""
        return spark.sql("SELECT 1L AS number, 1L AS characters").schema

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: Note | None
    ) -> Note | None:
        """Return the next note; None at the end."""
        number = 0 if previous is None else previous.number + 1
        return Note(number=number, text="x" * _characters(number)) if number < self._count else None

    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: Note
    ) -> DataFrame:
        """Return the note's number and length."""
        return spark.sql(
            f"SELECT {metadata.number}L AS number, {len(metadata.text)}L AS characters"
        )


def upgraded(
    events: int = len(EVENTS), notes: int = NOTES, *, mended: bool = True, **config: Any
) -> Topology:
    """Return the topology over the first events and notes, and the files of the folder `in`."""
    settings: dict[str, Any] = {
        "max_batch_attempts": 1,
        "on_exhausted": "quarantine",
        "retry_backoff_ms": 1,
        "zookeeper_acl": "open",
        **config,
    }
    bad = AppendTable("tables/bad", "transactional")
    made = Topology(NAME, TopologyConfig(**settings), bad_rows=bad)
    source = FileSpout(
        "in/*.csv", format="csv", schema="k string, v int", bad_rows="set_aside", header=True
    )
    rows = made.stream("files", source).expect("positive", "v > 0", "set_aside")
    rows.partition_persist(AppendTable("tables/rows", "transactional"))
    for state in _states("totals", "log", "transactional"):
        values = {"n": Count(), "total": Sum("v"), "top": Max("v")}
        rows.group_by("k").persistent_aggregate(state, **values)
    stream = made.stream("events", Events(events, mended=mended))
    stream.partition_persist(AppendTable("tables/events", "opaque"))
    for state in _states("event_totals", "event_log", "opaque"):
        stream.group_by("k").persistent_aggregate(state, n=Count(), total=Sum("v"))
    texts = made.stream("notes", Notes(notes))
    texts.partition_persist(AppendTable("tables/notes", "transactional"))
    return made


def removing(events: int = len(EVENTS)) -> Topology:
    """Return the topology whose states drop keys, so that it has no groups, over the first events.

    A balance is what its changes add up to, however often its key was dropped in between.
    """
    made = Topology(REMOVING, TopologyConfig(zookeeper_acl="open"))
    changes = made.stream("events", Events(events, mended=True)).transform(_changes)
    for state in _states("balances", "balance_log", "opaque", remove_where="balance = 0"):
        changes.group_by("k").persistent_aggregate(state, balance=Sum("change"))
    return made


def _changes(events: DataFrame) -> DataFrame:
    """Turn events into changes of a balance, which often becomes 0."""
    return events.selectExpr("k", "IF(v % 8 < 4, 1L, -1L) AS change")


def _states(
    upsert: str, log: str, semantics: str, remove_where: str | None = None
) -> tuple[StateTable, StateTable]:
    """Return a state in each layout."""
    one: dict[str, Any] = {"semantics": semantics, "remove_where": remove_where}
    return (
        StateTable(f"tables/{upsert}", **one, buckets=1),
        StateTable(f"tables/{log}", **one, layout="log", compact_files=2, compact_share=1),
    )


def topology() -> Topology:
    """Return the topology over all input, for commands that name it."""
    return upgraded()


def _characters(number: int) -> int:
    return LARGE if number == LARGE_NOTE else number


# --- the rows that must be there at the end, by plain Python ---------------------------------


def expected_rows() -> dict[str, list[list[Any]]]:
    """Return the rows of each table when everything is read, replayed and corrected."""
    parsed = [*_parsed(FILES)]
    good = [(key, value) for key, value in parsed if isinstance(value, int) and value > 0]
    corrected = [(key, int(value)) for key, value in _parsed(CORRECTED)]
    events = [event for event in EVENTS if event[1] not in DROPPED]
    totals = [[k, len(v), sum(v), max(v)] for k, v in _by_key([*good, *corrected]).items()]
    event_totals = [[k, len(v), sum(v)] for k, v in _by_key(events).items()]
    changes = _by_key([(key, 1 if value % 8 < 4 else -1) for key, value in EVENTS])
    balances = [(key, sum(values)) for key, values in changes.items() if sum(values)]
    tables = {
        "rows": [*good, *corrected],
        "totals": totals,
        "log": totals,
        "events": events,
        "event_totals": event_totals,
        "event_log": event_totals,
        "balances": balances,
        "balance_log": balances,
        "notes": [(number, _characters(number)) for number in range(NOTES)],
        "bad": [_bad(key, value) for key, value in parsed if (key, value) not in good],
    }
    return {name: sorted([*row] for row in rows) for name, rows in tables.items()}


def _parsed(files: Sequence[str]) -> Iterator[tuple[str, int | str]]:
    for line in " ".join(files).split():
        key, _, value = line.partition(",")
        yield key, value if value.isalpha() else int(value)


def _by_key(rows: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    values: dict[str, list[int]] = {}
    for key, value in rows:
        values.setdefault(key, []).append(value)
    return values


def _bad(key: str, value: int | str) -> tuple[str, str, str]:
    if isinstance(value, int):
        return ("files", "positive", f'{{"k":"{key}","v":{value}}}')
    return ("files", "parses", f"{key},{value}")
