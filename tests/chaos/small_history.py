"""A small run without a fault of the product, as a history that can be spoilt.

Made without the checker's own code: every table is a list of (number, txid), copied at each
version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.chaos.history import Event
from tests.chaos.records import digest_of, key_of, value_of

__all__ = ["SmallRun", "small_history"]

PARTS = {
    "kafka": {"records-0": range(0, 40, 2), "records-1": range(1, 40, 2)},
    "files": {"f0": range(7), "f1": range(7, 12), "f2": range(12, 30)},
}
TABLES = {
    "kafka_rows": {"stream": "kafka", "shape": "append", "semantics": "opaque"},
    "kafka_totals": {"stream": "kafka", "shape": "state", "semantics": "opaque"},
    "files_rows": {"stream": "files", "shape": "append", "semantics": "transactional"},
    "files_totals": {"stream": "files", "shape": "state", "semantics": "transactional"},
    "joined": {"stream": "kafka", "shape": "joined", "semantics": "opaque", "of": "files"},
    "seen": {"stream": "kafka", "shape": "seen", "semantics": "opaque", "of": "files"},
    "changes": {"stream": "files", "shape": "changes", "semantics": "transactional"},
    "queried": {"stream": "kafka", "shape": "queried", "semantics": "opaque", "of": "files"},
}

Reads = dict[str, list[list[Any]]]


class SmallRun:
    """Writes the history of tables that do what they should."""

    def __init__(self) -> None:
        self.events: list[Event] = [
            {"kind": "run", "at": 0.0, "tables": TABLES, "seed": 0, "command": "", "machine": {}}
        ]
        for stream, parts in PARTS.items():
            for part, numbers in parts.items():
                where = {"stream": stream, "part": part, "start": 0}
                what = {"first": numbers.start, "step": numbers.step, "count": len(numbers)}
                self.events.append({"kind": "input", **where, **what})
        self.held: dict[str, list[tuple[int, int]]] = {name: [] for name in TABLES}
        self.reads: dict[int, Reads] = {}
        """Of each txid that stands."""
        self.versions = dict.fromkeys(TABLES, -1)
        self.told: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in TABLES}
        self.epoch = 0
        self.at = 1.0

    def lead(self, life: int) -> None:
        """A new leader fences every table."""
        self.epoch += 1
        driver = {"kind": "driver", "life": life, "at": self.at}
        self.events.append({**driver, "what": "start"})
        self.events.append({**driver, "what": "leading", "epoch": self.epoch})
        for name in TABLES:
            self._version(name, None)

    def die(self, life: int, *, how: str = "driver_kill", error: str | None = None) -> None:
        """The driver of this life ends."""
        fault = {"kind": "fault", "fault": how, "life": life, "at": self.at, "until": self.at}
        self.events.append({**fault, "succeeded": how == "zombie", "led": True})
        end = {"code": 3 if error else -9, "error": error, "message": ""}
        self.events.append({"kind": "driver", "life": life, "what": "end", "at": self.at, **end})

    def publish(
        self, first: int, members: list[tuple[int, Reads]], tables: tuple[str, ...] = tuple(TABLES)
    ) -> None:
        """A version of each of these tables; (attempt, reads) of each txid from `first` on."""
        said = [
            {"txid": first + n, "attempt": attempt, "reads": reads}
            for n, (attempt, reads) in enumerate(members)
        ]
        self.reads = {txid: reads for txid, reads in self.reads.items() if txid < first}
        self.reads |= {member["txid"]: member["reads"] for member in said}
        for name in tables:
            stream = TABLES[name]["stream"]
            held = self.held[name]
            if TABLES[name]["semantics"] == "opaque":
                held = [row for row in held if row[1] < first]
            newest = max((txid for _, txid in held), default=0)
            for member in said:
                if member["txid"] > newest:
                    for part, start, end in member["reads"].get(stream, []):
                        numbers = PARTS[stream][part][start:end]
                        held = held + [(number, member["txid"]) for number in numbers]
            self.held[name] = held
            last = first + len(said) - 1
            self._version(name, {"first": first, "last": last, "members": said})

    def read(self, committed: int | None = None) -> None:
        """The reader reads every table."""
        for name, table in TABLES.items():
            read = {"kind": "read", "table": name, "version": self.versions[name]}
            read["committed"] = committed
            held = self.held[name]
            if table["shape"] != "state":
                read["txids"] = self._changes(name)
            else:
                rows = totals_of([number for number, _ in held])
                read["n"] = len(held)
                read["total"] = sum(value_of(number) for number, _ in held)
                read["keys"] = len(rows)
                read["digest"] = sum(digest_of(k, row) for k, *row in rows) % 2**64
            self.events.append(read)

    def end(self, committed: int) -> list[Event]:
        """What is left in the end; the whole history."""
        for name, table in TABLES.items():
            held = self.held[name]
            if table["shape"] != "state":
                for txid in sorted({txid for _, txid in held}):
                    rows = [[n, key_of(n), value_of(n)] for n, t in held if t == txid]
                    if table["shape"] != "append":
                        rows = [list(row) for row in self.below(name, txid)]
                    self.events.append({"kind": "rows", "table": name, "txid": txid, "rows": rows})
            else:
                rows = totals_of([number for number, _ in held])
                self.events.append({"kind": "state", "table": name, "rows": rows})
        state = {"epoch": self.epoch, "committed": committed, "open": [], "quarantined": []}
        self.events.append({"kind": "zookeeper", **state})
        self.events.append({"kind": "end", "at": self.at, "seconds": self.at})
        return self.events

    def below(self, name: str, txid: int) -> list[tuple[int, int]]:
        """The rows of a txid in a table below a join, a query or new values."""
        table = TABLES[name]
        own = self._numbers(table["stream"], [txid])
        others = self._numbers(table.get("of", "files"), range(1, txid))
        if table["shape"] == "joined":
            others = self._numbers(table["of"], [txid])
        if table["shape"] == "changes":
            keys = {key_of(number) for number in own}
            before = {key: [n for n in others if key_of(n) == key] for key in keys}
            after = {key: len(before[key]) + sum(key_of(n) == key for n in own) for key in keys}
            return [
                (int(key[1:]), after[key] * 4096 + (len(before[key]) or -1)) for key in sorted(keys)
            ]
        return [(n, sum(key_of(o) == key_of(n) for o in others) or -1) for n in own]

    def _numbers(self, stream: str, txids: Iterable[int]) -> list[int]:
        return [
            number
            for txid in txids
            for part, start, end in self.reads.get(txid, {}).get(stream, [])
            for number in PARTS[stream][part][start:end]
        ]

    def _version(self, name: str, publication: dict[str, Any] | None) -> None:
        self.at += 1.0
        self.versions[name] += 1
        version = {"kind": "version", "table": name, "version": self.versions[name]}
        own = json.loads(json.dumps(publication))  # each table has it by itself
        self.events.append({**version, "at": self.at, "epoch": self.epoch, "publication": own})

    def _changes(self, name: str) -> dict[str, list[int] | None]:
        now: dict[int, tuple[int, ...]] = {}
        for number, txid in self.held[name]:
            n, total, squares = now.get(txid, (0, 0, 0))
            now[txid] = (n + 1, total + number, squares + number * number)
        if TABLES[name]["shape"] not in ("append", "state"):
            for txid in now:
                rows = self.below(name, txid)
                ids = [number for number, _ in rows]
                met = (sum(x for _, x in rows), sum(number * x for number, x in rows))
                now[txid] = (len(rows), sum(ids), sum(i * i for i in ids), *met)
        told, self.told[name] = self.told[name], now
        changes: dict[str, list[int] | None] = {
            str(txid): list(sums) for txid, sums in now.items() if told.get(txid) != sums
        }
        return changes | {str(txid): None for txid in told if txid not in now}


def totals_of(numbers: list[int]) -> list[list[Any]]:
    """[key, n, total, top] of each key."""
    values: dict[str, list[int]] = {}
    for number in numbers:
        values.setdefault(key_of(number), []).append(value_of(number))
    return [[key, len(vs), sum(vs), max(vs)] for key, vs in sorted(values.items())]


def small_history() -> list[Event]:
    """Three leaders, a half published txid that is replayed with less, and a group."""
    run = SmallRun()
    run.lead(1)
    run.publish(
        1, [(0, {"kafka": [["records-0", 0, 5], ["records-1", 0, 5]], "files": [["f0", 0, None]]})]
    )
    run.read(1)
    # Half published, and then the driver is killed.
    early = {"kafka": [["records-0", 5, 12], ["records-1", 5, 10]], "files": [["f1", 0, None]]}
    run.publish(2, [(0, early)], ("kafka_rows", "kafka_totals", "files_rows", "joined"))
    run.read(1)
    run.die(1)
    run.lead(2)
    run.read(1)
    # The opaque source gives less; the transactional one the same, which its table has already.
    late = {"kafka": [["records-0", 5, 9]], "files": [["f1", 0, None]]}
    held = ("kafka_rows", "kafka_totals", "files_totals", "joined", "seen", "changes", "queried")
    run.publish(2, [(1, late)], held)
    run.read(2)
    run.die(2, how="zombie", error="FencedError")
    run.lead(3)
    group = [
        (0, {"kafka": [["records-0", 9, 20]]}),
        (0, {"kafka": [["records-1", 5, 20]], "files": [["f2", 0, None]]}),
    ]
    run.publish(3, group)
    run.read(4)
    return run.end(4)
