"""Judges a run: a pure function from the recorded history to what is wrong with it.

It knows nothing of the product's code, runs nothing and asks nobody. From the input it computes
what each table must hold after each of its versions, and compares: with the logs, with what the
reader saw at that version, with the rows in the end, and with ZooKeeper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.derived import DERIVED, States
from tests.chaos.expected import Expected, Part
from tests.chaos.history import Event
from tests.chaos.records import key_of, value_of

__all__ = ["RULES", "Violation", "check"]

RULES = {
    "lost": "a record of the input is in no table row, or in no committed txid",
    "doubled": "a record is in several rows, or in several txids",
    "altered": "a row that no record of the input is, or that its txid did not read",
    "totals": "a state table's row is not what the input gives",
    "derived": "a row below a join, a query or new values is not what its txid gives",
    "order": "txids do not strictly increase, or come again without a newer attempt",
    "fenced": "a publication of an epoch older than one that stood in the log already",
    "partial": "the reader saw something else than whole transactions",
    "back": "the reader saw totals, versions or committed rows go back",
    "together": "two tables of a stream disagree about what a txid read",
    "zookeeper": "ZooKeeper and the tables disagree in the end",
    "driver": "a driver ended for no reason, or a zombie went on",
    "history": "the history itself is not whole: nothing can be concluded",
}

EXECUTORS = ("executor_kill", "worker_kill")
ZOOKEEPER = (
    "zookeeper_kill",
    "zookeeper_stop",
    "zookeeper_majority",
    "link_delay",
    "link_cut",
    "session_expiry",
)
CAUSES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "BatchError": {
        "No space left": ("disk_full",),
        "ENOSPC": ("disk_full",),
        "executor": EXECUTORS,
        "FetchFailed": EXECUTORS,
        "kafka": ("broker_kill",),
    },
    "AppendFailedError": {"": ("disk_full",)},
    "SourceUnavailableError": {"kafka": ("broker_kill",)},
    "ProgressUnavailableError": {"": ZOOKEEPER},
}
"""How a driver may end by itself: its error, a word of the message -> which faults are its cause.
Such an error is a violation unless one of these faults struck while the driver lived, at its end
or so many seconds before it."""
LATE_SECS = 5.0
LATE_EXECUTORS_SECS = 60.0
"""What is tried again for lost executors ends when all attempts are used up."""
SEEN_BACK = 100
"""A query as of a committed txid sees one of so many before its own: more than are ever open."""


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong."""

    rule: str
    where: str
    what: str
    count: int = 1


@dataclass
class _Table:
    """What the history has of one table."""

    name: str
    stream: str
    shape: str
    semantics: str
    of: str = ""
    versions: list[Event] = field(default_factory=list)
    reads: list[Event] = field(default_factory=list)
    rows: dict[int, list[Sequence[int | str]]] = field(default_factory=dict)
    state: list[Sequence[int | str]] | None = None


class _Sorted:
    """The history, sorted out."""

    def __init__(self, history: Iterable[Event]) -> None:
        self.tables: dict[str, _Table] = {}
        self.inputs: dict[str, dict[str, Part]] = {}
        self.drivers: list[Event] = []
        self.faults: list[Event] = []
        self.zookeeper: Event | None = None
        self.ended = False
        for event in history:
            self._take(event)
        for table in self.tables.values():
            table.versions.sort(key=lambda event: event["version"])

    def _take(self, event: Event) -> None:
        match event["kind"]:
            case "run":
                for name, table in event["tables"].items():
                    self.tables[name] = _Table(name, **table)
            case "input":
                part = Part(event["start"], event["first"], event["step"], event["count"])
                self.inputs.setdefault(event["stream"], {})[event["part"]] = part
            case "version":
                self.tables[event["table"]].versions.append(event)
            case "read":
                self.tables[event["table"]].reads.append(event)
            case "rows":
                rows = self.tables[event["table"]].rows
                rows.setdefault(event["txid"], []).extend(event["rows"])
            case "state":
                self.tables[event["table"]].state = event["rows"]
            case "driver":
                self.drivers.append(event)
            case "fault":
                self.faults.append(event)
            case "zookeeper":
                self.zookeeper = event
            case "end":
                self.ended = True


def check(history: Iterable[Event]) -> list[Violation]:
    """Everything that is wrong with a run; an empty list is what is hoped for."""
    found = _Sorted(history)
    violations = list(_whole(found))
    if any(violation.rule == "history" for violation in violations):
        return violations
    walked = {}
    for table in found.tables.values():
        expected = Expected(table.semantics, table.stream, found.inputs, table.shape, table.of)
        violations += _walk(table, expected)
        violations += _final(table, expected, found.inputs.get(table.stream, {}))
        walked[table.name] = expected
    violations += _together(found, walked)
    violations += _zookeeper(found, walked)
    violations += _drivers(found)
    return violations


def _whole(found: _Sorted) -> Iterator[Violation]:
    if not found.tables:
        yield Violation("history", "run", "it names no table")
    if not found.ended:
        yield Violation("history", "run", "it has no end")
    if found.zookeeper is None:
        yield Violation("history", "ZooKeeper", "its end state was not recorded")
    for table in found.tables.values():
        if not found.inputs.get(table.stream):
            yield Violation("history", table.stream, "no input was recorded")
        numbers = [event["version"] for event in table.versions]
        if numbers != list(range(len(numbers))) or not numbers:
            yield Violation("history", table.name, f"its log is not whole: {len(numbers)} versions")
        if not table.reads:
            yield Violation("history", table.name, "the reader never read it")
        if table.shape == "state" and table.state is None:
            yield Violation("history", table.name, "its rows were not recorded")


# --- version by version ----------------------------------------------------------------------


def _walk(table: _Table, expected: Expected) -> Iterator[Violation]:
    """Along the log: what is published, and what the reader saw of each version."""
    yield from _reads_in_order(table)
    by_version: dict[int, list[Event]] = {}
    for read in table.reads:
        by_version.setdefault(read["version"], []).append(read)
    unknown = [v for v in by_version if v >= len(table.versions)]
    if unknown:
        yield Violation("back", table.name, f"read at version {unknown[0]}, which is gone")
    epoch = 0
    seen = _Reader(table)
    for event in table.versions:
        where = f"{table.name} version {event['version']}"
        if event["epoch"] is not None and event["epoch"] < epoch:
            yield Violation("fenced", where, f"epoch {event['epoch']} after epoch {epoch}")
        epoch = max(epoch, event["epoch"] or 0)
        if event["publication"] is not None:
            for rule, what in expected.publish(event["publication"], event["epoch"]):
                yield Violation(rule, where, what)
        for read in by_version.get(event["version"], ()):
            yield from seen.compare(read, expected, where)


def _reads_in_order(table: _Table) -> Iterator[Violation]:
    before = -1
    for read in table.reads:
        if read["version"] < before:
            what = f"version {read['version']} was read after version {before}"
            yield Violation("back", table.name, what)
        before = max(before, read["version"])


class _Reader:
    """What the reader has seen of a table so far."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._txids: dict[int, tuple[int, ...]] = {}
        self._n = 0
        self._settled = 0
        self._settled_n = 0
        self._reverts = 0

    def compare(self, read: Event, expected: Expected, where: str) -> Iterator[Violation]:
        if self._table.shape != "state":
            yield from self._append(read, expected, where)
            n = sum(sums[0] for sums in self._txids.values())
        else:
            yield from self._state(read, expected, where)
            n = read["n"]
        if n < self._n and (self._reverts == expected.reverts or self._table.semantics != "opaque"):
            yield Violation("back", where, f"{self._n} records were read before, and {n} now")
        if n < self._settled_n:
            what = f"{self._settled_n} committed records were read before, and {n} records now"
            yield Violation("back", where, what)
        committed = read.get("committed")
        if committed is not None and expected.last < committed:
            what = f"txid {committed} was committed, and the table is at {expected.last}"
            yield Violation("back", where, what)
        self._n, self._reverts = n, expected.reverts
        self._settled, self._settled_n = expected.settled, expected.settled_n

    def _append(self, read: Event, expected: Expected, where: str) -> Iterator[Violation]:
        for name, sums in read["txids"].items():
            txid = int(name)
            if txid <= self._settled:
                yield Violation("back", where, f"rows of the committed txid {txid} changed")
            if sums is None:
                self._txids.pop(txid, None)
            else:
                # What a query as of a committed txid has met is looked at in the end.
                self._txids[txid] = tuple(sums[:3] if self._table.shape == "seen" else sums)
        if self._txids != expected.sums:
            wrong = [
                txid
                for txid in sorted(self._txids.keys() | expected.sums.keys())
                if self._txids.get(txid) != expected.sums.get(txid)
            ]
            what = (
                f"txid {wrong[0]} was read as {self._txids.get(wrong[0])} and is "
                f"{expected.sums.get(wrong[0])} (records, sum, sum of squares)"
            )
            yield Violation("partial", where, what, len(wrong))

    def _state(self, read: Event, expected: Expected, where: str) -> Iterator[Violation]:
        totals = expected.totals
        saw = (read["n"], read["total"], read["keys"], read["digest"])
        meant = (totals.n, totals.total, len(totals.rows), totals.digest)
        if saw != meant:
            what = f"read as {saw}, and is {meant} (records, sum, keys, digest)"
            yield Violation("partial", where, what)


# --- in the end ------------------------------------------------------------------------------


def _final(table: _Table, expected: Expected, parts: Mapping[str, Part]) -> Iterator[Violation]:
    """All input in exactly one txid, and the rows as the input says."""
    wanted = Counter(number for part in parts.values() for number in part.numbers())
    planned = Counter(n for numbers in expected.standing.values() for n in numbers)
    yield from _once(f"{table.name}, txids", wanted, planned)
    if table.shape in DERIVED:
        yield from _derived(table, expected)
    elif table.shape == "append":
        rows = [row for rows in table.rows.values() for row in rows]
        yield from _once(f"{table.name}, rows", wanted, Counter(int(row[0]) for row in rows))
        yield from _unaltered(table, expected)
    else:
        yield from _totals(table, expected)


def _once(where: str, wanted: Counter[int], found: Counter[int]) -> Iterator[Violation]:
    if found == wanted:
        return
    for rule, numbers in (
        ("lost", [n for n in wanted if n not in found]),
        ("doubled", [n for n in found if found[n] > max(1, wanted[n])]),
        ("altered", [n for n in found if n not in wanted]),
    ):
        if numbers:
            yield Violation(rule, where, f"records {_some(numbers)}", len(numbers))


def _unaltered(table: _Table, expected: Expected) -> Iterator[Violation]:
    wrong = [
        row
        for rows in table.rows.values()
        for row in rows
        if (row[1], row[2]) != (key_of(int(row[0])), value_of(int(row[0])))
    ]
    if wrong:
        yield Violation("altered", table.name, f"rows {_some(wrong)}", len(wrong))
    txids = {txid: sorted(int(row[0]) for row in rows) for txid, rows in table.rows.items() if rows}
    planned = {txid: sorted(numbers) for txid, numbers in expected.standing.items() if numbers}
    differ = [t for t in sorted(txids.keys() | planned.keys()) if txids.get(t) != planned.get(t)]
    if differ:
        what = f"rows of txids {_some(differ)} are not what those txids read"
        yield Violation("altered", table.name, what, len(differ))


def _derived(table: _Table, expected: Expected) -> Iterator[Violation]:
    states = States(expected.others)
    wrong = []
    for txid in sorted(table.rows.keys() | expected.rows.keys()):
        rows = Counter((int(row[0]), int(row[1])) for row in table.rows.get(txid, ()))
        if table.shape == "seen":
            numbers = expected.standing.get(txid, [])
            possible = (
                Counter(states.rows(numbers, seen))
                for seen in range(txid - 1, max(-1, txid - 1 - SEEN_BACK), -1)
            )
        else:
            possible = iter([Counter(expected.rows.get(txid, []))])
        if rows not in possible:
            wrong.append(txid)
    if wrong:
        what = f"rows of txids {_some(wrong)} are not what these txids give"
        yield Violation("derived", table.name, what, len(wrong))


def _totals(table: _Table, expected: Expected) -> Iterator[Violation]:
    assert table.state is not None
    keys = Counter(row[0] for row in table.state)
    twice = [key for key, count in keys.items() if count > 1]
    if twice:
        yield Violation("totals", table.name, f"several rows of keys {_some(twice)}", len(twice))
    found = {row[0]: tuple(row[1:]) for row in table.state}
    rows = expected.totals.rows
    wrong = [key for key in rows.keys() | found.keys() if found.get(key) != rows.get(key)]
    if wrong:
        key = min(wrong)
        what = f"key {key} is {found.get(key)} and should be {rows.get(key)}"
        yield Violation("totals", table.name, what, len(wrong))


def _together(found: _Sorted, walked: Mapping[str, Expected]) -> Iterator[Violation]:
    by_stream: dict[str, list[str]] = {}
    for table in found.tables.values():
        by_stream.setdefault(table.stream, []).append(table.name)
    for stream, names in by_stream.items():
        first, *others = names
        one = {txid: numbers for txid, numbers in walked[first].standing.items() if numbers}
        for other in others:
            two = {txid: numbers for txid, numbers in walked[other].standing.items() if numbers}
            differ = [t for t in sorted(one.keys() | two.keys()) if one.get(t) != two.get(t)]
            if differ:
                what = f"txids {_some(differ)} read other records in {first} than in {other}"
                yield Violation("together", stream, what, len(differ))


def _zookeeper(found: _Sorted, walked: Mapping[str, Expected]) -> Iterator[Violation]:
    state = found.zookeeper
    assert state is not None
    for name, expected in walked.items():
        if expected.last != state["committed"]:
            what = f"{state['committed']} is committed, and the table is at {expected.last}"
            yield Violation("zookeeper", name, what)
    for table in found.tables.values():
        newest = max((event["epoch"] or 0 for event in table.versions), default=0)
        if newest > state["epoch"]:
            what = f"epoch {state['epoch']} in ZooKeeper, {newest} in the log"
            yield Violation("zookeeper", table.name, what)
    if state["open"]:
        yield Violation("zookeeper", "batches", f"txids {_some(state['open'])} are still open")
    if state["quarantined"]:
        what = f"txids {_some(state['quarantined'])} are set aside"
        yield Violation("lost", "quarantine", what, len(state["quarantined"]))


# --- the drivers -----------------------------------------------------------------------------


def _drivers(found: _Sorted) -> Iterator[Violation]:
    epoch = 0
    for event in found.drivers:
        if event["what"] == "leading":
            if event["epoch"] <= epoch:
                what = f"it leads with epoch {event['epoch']}, after epoch {epoch}"
                yield Violation("fenced", f"life {event['life']}", what)
            epoch = max(epoch, event["epoch"])
    killed = {fault["life"] for fault in found.faults if fault["fault"] == "driver_kill"}
    zombies = {
        fault["life"]
        for fault in found.faults
        if fault["fault"].startswith("zombie") and fault.get("succeeded")
    }
    ends = {event["life"]: event for event in found.drivers if event["what"] == "end"}
    for life, end in ends.items():
        if life in zombies:
            if end["error"] != "FencedError" and life not in killed:
                what = f"a zombie ended with {end['error'] or 'no error'}: {end['message']}"
                yield Violation("driver", f"life {life}", what)
        elif life not in killed and end["code"] != 0 and not _is_explained(end, found):
            what = f"ended with code {end['code']}, {end['error']}: {end['message']}"
            yield Violation("driver", f"life {life}", what)
    for life in sorted(zombies - ends.keys()):
        yield Violation("driver", f"life {life}", "a zombie did not end")


def _is_explained(end: Event, found: _Sorted) -> bool:
    """Whether the schedule, or another driver, is the cause of an error."""
    others = [
        event
        for event in found.drivers
        if event["what"] == "leading" and event["life"] != end["life"]
    ]
    own = [event for event in found.drivers if event["life"] == end["life"]]
    if end["error"] == "LeaderExistsError":
        return any(event["at"] <= end["at"] for event in others)
    if end["error"] == "FencedError":
        epoch = max((event["epoch"] for event in own if event["what"] == "leading"), default=0)
        return any(e["epoch"] > epoch and e["at"] <= end["at"] + LATE_SECS for e in others)
    if end["error"] == "SourceUnavailableError" and not _has_run(found, end["at"]):
        return True  # the very first run asks the brokers once (docs/kafka.md)
    began = min(event["at"] for event in own)
    struck = {
        fault["fault"]
        for fault in found.faults
        if fault["at"] <= end["at"]
        and fault["until"] + LATE_SECS >= began
        and fault["until"] >= end["at"] - _lateness(fault["fault"])
    }
    return any(
        word.lower() in end["message"].lower() and not struck.isdisjoint(causes)
        for word, causes in CAUSES.get(end["error"], {}).items()
    )


def _has_run(found: _Sorted, until: float) -> bool:
    """Whether anything was published by then."""
    versions = (version for table in found.tables.values() for version in table.versions)
    return any(version["publication"] and version["at"] <= until for version in versions)


def _lateness(fault: str) -> float:
    return LATE_EXECUTORS_SECS if fault in EXECUTORS else LATE_SECS


def _some(items: Iterable[object]) -> str:
    listed = [str(item) for item in items]
    shown = ", ".join(listed[:5])
    return shown if len(listed) <= 5 else f"{shown} and {len(listed) - 5} more"
