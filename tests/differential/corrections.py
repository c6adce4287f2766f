"""Random histories of rows that are set aside, corrected and replayed, while the program changes.

    make differential ARGS='--corrections --seeds 100'
    make differential ARGS='--corrections --seed 7'

Each history is one stream of files, rules before all or some of its tables, and a list of actions:
write files, run, export the open rows, correct some, replay them (killed on the way or not), and
move, add or remove rules. The model is plain Python over the records that the history wrote; it
uses neither Spark nor the product's parsers.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from committers.append_table import AppendTable
from spouts.files import FileSpout
from txn import Topology, TopologyConfig
from txn.backends import open_backend
from txn.errors import UserError
from txn.operations.rows import row_replays
from txn.zookeeper.backend import ZooKeeperBackend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["History", "corrections", "judged"]

SCHEMA = "k string, v int, w decimal(8,2), d date, t timestamp, b binary"
COLUMNS = ("k", "v", "w", "d", "t", "b")
TABLES = ("x", "y", "z")
UTC = dt.timezone.utc
TEXTS = ("a", "b,c", "ü 日本", "back\\slash", " lead", "trail ", "'", "end\\")
DATES = (dt.date(2024, 6, 1), dt.date(1969, 12, 31), dt.date(1582, 10, 15), dt.date(9999, 12, 31))
TIMES = (
    dt.datetime(2024, 6, 1, 12, 0, 0, 1, UTC),
    dt.datetime(1930, 1, 1, 0, 0, 0, 0, UTC),
    dt.datetime(1890, 7, 7, 7, 7, 7, 777777, UTC),
)
ZONES = ("UTC", "Europe/Amsterdam", "Asia/Kathmandu")


@dataclass(frozen=True)
class Record:
    """What one line of a file says; `values` is None if it does not parse."""

    text: str
    values: tuple[Any, ...] | None


@dataclass(frozen=True)
class Rule:
    """A rule over `v`, before every table or only before those of the branch."""

    name: str
    least: int
    everywhere: bool
    on_violation: str = "set_aside"


@dataclass(frozen=True)
class Aside:
    """A row that a rule set aside."""

    rule: str
    record: Record
    everywhere: bool
    """Whether the rule stood before every table by then."""


@dataclass
class History:
    """The model: what is written, what the tables hold, what is set aside and still open."""

    form: str
    tables: tuple[str, ...]
    branch: frozenset[str]
    """The tables before which a rule stands that does not stand before all of them."""
    rules: tuple[Rule, ...] = ()
    pending: list[list[Record]] = field(default_factory=list)
    held: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    aside: list[Aside] = field(default_factory=list)
    open: list[Aside] = field(default_factory=list)

    def run(self) -> None:
        """Every file that was written goes through the rules of now."""
        for records in self.pending:
            for record in records:
                self._take(record)
        self.pending = []

    def _take(self, record: Record) -> None:
        if record.values is None:
            self._set_aside("parses", record, everywhere=True)
            return
        stopped: frozenset[str] = frozenset()
        for rule in self.rules:
            tables = frozenset(self.tables) if rule.everywhere else self.branch
            # A rule is not asked about a row that broke one before it, on its own way.
            if tables - stopped and record.values[1] < rule.least:
                stopped |= tables
                if rule.on_violation == "set_aside":
                    self._set_aside(rule.name, record, everywhere=tables == set(self.tables))
        for table in self.tables:
            if table not in stopped:
                self.held.setdefault(table, []).append(record.values)

    def _set_aside(self, rule: str, record: Record, *, everywhere: bool) -> None:
        row = Aside(rule, record, everywhere)
        self.aside.append(row)
        self.open.append(row)


def line_of(form: str, values: tuple[Any, ...]) -> str:
    """A record as Python's own writers have it."""
    k, v, w, d, t, b = values
    stamp = t.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    if form == "json":
        import base64

        day = d.isoformat()
        made = {"k": k, "v": v, "w": f"{w:f}", "d": day, "t": stamp}
        text = json.dumps({**made, "b": base64.b64encode(b).decode()})
        return text.replace(f'"{w:f}"', f"{w:f}")
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([k, v, f"{w:f}", d.isoformat(), stamp, b.decode()])
    return out.getvalue()


class World:
    """The product beside the model: the same actions on both."""

    def __init__(self, seed: int, spark: SparkSession, hosts: str, folder: Path) -> None:
        self.draw = random.Random(f"corrections {seed}")
        self.spark, self.folder, self.name = spark, folder, f"c{seed}"
        self.hosts = f"{hosts}/corrections-{seed}-{os.getpid()}"
        tables = TABLES[: self.draw.choice((1, 2, 2, 3))]
        branch = self.draw.sample(tables, self.draw.randint(1, max(1, len(tables) - 1)))
        self.model = History(self.draw.choice(("csv", "json")), tables, frozenset(branch))
        self._set_rules([self._rule(n) for n in range(self.draw.choice((1, 1, 2)))])
        self.files = self.rows = self.exports = 0
        (folder / "in").mkdir(parents=True)

    # --- actions -----------------------------------------------------------------------------

    def act(self) -> str | None:
        """One action; a finding in words, or None."""
        chosen = self.draw.choice(
            (self.write, self.write, self.run, self.run, self.correct, self.correct, self.change)
        )
        return chosen()

    def write(self) -> None:
        """A file of records, some of which do not parse or break a rule."""
        records = [self._record() for _ in range(self.draw.randint(1, 5))]
        self.files += 1
        text = "".join(record.text + "\n" for record in records)
        (self.folder / "in" / f"{self.files:04}.{self.model.form}").write_text(text)
        self.model.pending.append(records)

    def run(self) -> str | None:
        """Run until all files are read, and compare."""
        self._topology().run(self.spark, zookeeper=self.hosts, until="caught_up", progress=False)
        self.model.run()
        return self.difference()

    def change(self) -> None:
        """Rules are added, moved, or removed."""
        rules = list(self.model.rules)
        if rules and self.draw.random() < 0.6:
            place = self.draw.randrange(len(rules))
            if self.draw.random() < 0.4:
                del rules[place]
            else:
                rules[place] = replace(rules[place], everywhere=not rules[place].everywhere)
        elif len(rules) < 3:
            names = {rule.name for rule in rules}
            number = next(n for n in range(9) if f"r{n}" not in names)
            rules.append(self._rule(number))
        self._set_rules(rules)

    def correct(self) -> str | None:
        """Export all open rows, correct some, and replay them."""
        path = self.folder / f"export-{self.exports}"
        self.exports += 1
        opened = list(self.model.open)
        due = all(row.everywhere for row in opened)
        try:
            with open_backend(self.hosts, TopologyConfig()) as backend:
                exported = row_replays.export_rows(self._topology(), backend, "s", path)
        except UserError as refusal:
            if not opened or not due:
                return None
            return f"export was refused, and every rule stood before all tables: {refusal}"
        if not opened or not due:
            return f"export gave {exported.rules}, and should have been refused"
        if sum(exported.rules.values()) != len(opened):
            return f"export gave {exported.rules} of {len(opened)} open rows"
        return self._replay(path, exported, opened)

    def _replay(self, path: Path, exported: Any, opened: list[Aside]) -> str | None:
        text = path.read_text()
        lines = text.splitlines()
        if len(lines) != len(opened):
            return f"the export has {len(lines)} lines for {len(opened)} rows: {text!r}"
        texts = Counter(row.record.text for row in opened if row.rule == "parses")
        if texts - Counter(lines):
            return f"{texts - Counter(lines)} was exported as something else: {lines}"
        by_key = {row.record.values[0]: row.record for row in opened if row.record.values}
        records = []
        for line in lines:
            record = Record(line, None)
            if texts[line]:
                texts[line] -= 1
            else:
                changed = self._with_v(line, by_key, self.draw.choice((-1, 4, 8, 8)))
                if changed is None:
                    return f"the export has {line!r}, which is no row of {list(by_key)}"
                record = changed
            fate = self.draw.choice(("as it is", "as it is", "another", "left out"))
            if fate != "left out":
                records.append(record if fate == "as it is" else self._record(good=True))
        path.write_text("".join(record.text + "\n" for record in records))
        given = {"number": exported.number, "up_to": exported.up_to}
        with open_backend(self.hosts, TopologyConfig()) as backend:
            if self.draw.random() < 0.5:
                with _killed(self.draw):
                    row_replays.replay_rows(self._topology(), backend, "s", path, **given)
            row_replays.replay_rows(self._topology(), backend, "s", path, **given)
        self.model.open = []
        self.model.pending.append(records)
        return self.run()

    def _with_v(self, line: str, records: dict[str, Record], v: int) -> Record | None:
        """A row of a rule of one's own, as it was exported, with another number."""
        if self.model.form == "json":
            text = re.sub(r'"v":-?\d+', f'"v":{v}', line)
            key = json.loads(line)["k"]
        else:
            (fields,) = csv.reader([line])
            key, fields[1] = fields[0], str(v)
            out = io.StringIO()
            csv.writer(out, lineterminator="").writerow(fields)
            text = out.getvalue()
        values = records[key].values if key in records else None
        if values is None:
            return None
        return Record(text, (values[0], v, *values[2:]))

    # --- the product -------------------------------------------------------------------------

    def _topology(self) -> Topology:
        config = TopologyConfig(retry_backoff_ms=1, zookeeper_acl="open")
        topology = Topology(self.name, config, bad_rows=AppendTable(self.folder / "bad"))
        pattern = f"{self.folder}/in/*.{self.model.form}"
        spout = FileSpout(
            pattern, format=self.model.form, schema=SCHEMA, bad_rows="set_aside", files_per_batch=2
        )
        stream = topology.stream("s", spout)
        branch = stream
        for rule in self.model.rules:
            behind = (stream if rule.everywhere else branch).expect(
                rule.name, f"v >= {rule.least}", rule.on_violation
            )
            stream, branch = (behind, behind) if rule.everywhere else (stream, behind)
        for table in self.model.tables:
            place = branch if table in self.model.branch else stream
            place.partition_persist(AppendTable(self.folder / table))
        return topology

    def difference(self) -> str | None:
        """What a table holds and should not, or lacks."""
        for table in self.model.tables:
            held, due = self._held(table), Counter(self.model.held.get(table, []))
            if held != due:
                return f"table {table} lacks {due - held} and has {held - due}"
        return self._aside_difference()

    def _held(self, table: str) -> Counter[tuple[Any, ...]]:
        path = self.folder / table
        if not (path / "_delta_log").exists():
            return Counter()
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        return Counter(tuple(row[name] for name in COLUMNS) for row in rows)

    def _aside_difference(self) -> str | None:
        path = self.folder / "bad"
        found: Counter[str] = Counter()
        if (path / "_delta_log").exists():
            found.update(DeltaTable(path).to_pyarrow_table()["rule"].to_pylist())
        due = Counter(row.rule for row in self.model.aside)
        return None if found == due else f"set aside are {dict(found)} and should be {dict(due)}"

    # --- draws -------------------------------------------------------------------------------

    def _rule(self, number: int) -> Rule:
        fate = self.draw.choice(("set_aside", "set_aside", "set_aside", "drop"))
        return Rule(f"r{number}", self.draw.choice((0, 3, 6)), self.draw.random() < 0.6, fate)

    def _set_rules(self, rules: list[Rule]) -> None:
        """Those before all tables are asked first."""
        self.model.rules = tuple(sorted(rules, key=lambda rule: not rule.everywhere))

    def _record(self, *, good: bool = False) -> Record:
        draw = self.draw
        self.rows += 1
        values = (
            f"{self.rows}{draw.choice(TEXTS)}",
            draw.randint(7, 9) if good else draw.randint(-3, 9),
            Decimal(draw.choice(("0.00", "-1.25", "275.00", "999999.99"))),
            draw.choice(DATES),
            draw.choice(TIMES),
            draw.choice((b"a", b"plain text", b"x y")),
        )
        text = line_of(self.model.form, values)
        if not good and draw.random() < 0.2:
            return Record(draw.choice((text[: len(text) // 2], f"word {self.rows}")), None)
        return Record(text, values)


class _KilledError(BaseException):
    """The command dies here."""


@contextmanager
def _killed(draw: random.Random) -> Iterator[None]:
    """Die before or after one of the steps of a replay."""
    owner, name = draw.choice(
        (
            (ZooKeeperBackend, "begin_row_replay"),
            (os, "link"),
            (ZooKeeperBackend, "settle_row_replay"),
        )
    )
    true: Callable[..., Any] = getattr(owner, name)
    after = draw.random() < 0.5

    def dies(*arguments: Any, **named: Any) -> None:
        if after:
            true(*arguments, **named)
        raise _KilledError

    setattr(owner, name, dies)
    try:
        yield
    except _KilledError:
        pass
    finally:
        setattr(owner, name, true)


def judged(seed: int, spark: SparkSession, hosts: str, folder: Path) -> str | None:
    """Live through the history of a seed; a finding in words, or None."""
    session = spark.newSession()
    zone = random.Random(f"zone {seed}").choice(ZONES)
    session.conf.set("spark.sql.session.timeZone", zone)
    world = World(seed, session, hosts, folder)
    try:
        for _ in range(world.draw.randint(6, 12)):
            if (finding := world.act()) is not None:
                return f"{world.model.form}, {zone}: {finding}"
        return world.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def corrections(seeds: Iterable[int], spark: SparkSession, folder: Path) -> int:
    """Run the histories of these seeds; 1 if there is a finding."""
    from txn.embedded import EmbeddedZooKeeper

    findings = histories = 0
    with EmbeddedZooKeeper(folder / "zookeeper") as server:
        for seed in seeds:
            histories += 1
            finding = judged(seed, spark, server.hosts, folder / str(seed))
            if finding is not None:
                findings += 1
                print(f"seed {seed}: {finding[:900]}", flush=True)
    print(f"{histories} histories, {findings} findings")
    return int(findings > 0)
