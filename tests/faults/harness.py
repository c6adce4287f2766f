"""Starting, killing and judging the driver processes of the fault tests.

The judge knows nothing of the product's code: it reads each table's log and its Parquet files, and
compares them with what plain Python makes of the same records.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import deltalake
from pydantic import BaseModel, ConfigDict, Field

from tests.faults.warm import WarmJvm
from tests.logs import commits
from tests.thorough import THOROUGH

__all__ = [
    "ROOT",
    "SCHEMA",
    "Driver",
    "Publication",
    "Spec",
    "TableImage",
    "assert_totals_right",
    "changes_expected",
    "drivers",
    "file_of",
    "make_records",
    "planned_end",
    "read_log",
    "read_table",
    "read_tables",
    "rows_expected",
    "totals_expected",
    "wait_for",
]

ROOT = Path(__file__).parents[2]
SCHEMA = "k string, v bigint"
DEADLINE_SECS = float(os.environ.get("TXN_TEST_DEADLINE_SECS", "120"))
"""How long anything may take; more is needed on a machine with other work to do."""

Record = tuple[str, int]


class Spec(BaseModel):
    """What one driver process is to do."""

    model_config = ConfigDict(frozen=True)

    folder: str
    warehouse: str = ""
    """Where the tables lie; empty: in `folder`."""
    storage_options: dict[str, str] = Field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """With which Spark reaches the location."""
    kind: Literal["transactional", "opaque"] = "transactional"
    stream: str = "records"
    was: str | None = None
    """The former name of the stream."""
    source: Literal["log", "files"] = "log"
    """Records out of the folder, or files below the location: see `file_of`."""
    tables: tuple[str, ...] = ("rows", "totals")
    """The order in which the tables are declared, and so published. "changes", what each txid does
    to "totals", comes after it."""
    program: int = 0
    """Which of the programs of `tests.faults.programs` it runs; 0: the first one."""
    zookeeper: str
    until: str | int = "caught_up"
    at: str | None = None
    """The point at which the process sends itself `signal`."""
    fresh: bool = False
    """True: at the first batch that comes to the point; False: after this run's first commit."""
    group: int = 0
    """The first commit turn of the run is held until so many txids behind it are processed."""
    signal: str = "SIGKILL"
    master: str = "local[2]"
    config: dict[str, Any] = Field(default_factory=dict)
    conf: dict[str, str] = Field(default_factory=dict)

    @property
    def root(self) -> str:
        """Where the tables lie."""
        return self.warehouse or self.folder


def planned_end(start: int, txid: int, attempt_id: int) -> int:
    """Where the batch of an attempt that begins at `start` ends: 1 to 4 records later."""
    return start + 1 + (txid + attempt_id) % 4


def make_records(folder: Path, count: int, seed: int = 0) -> list[Record]:
    """`count` records over 5 keys, written to `folder/records.json`."""
    draw = random.Random(seed)
    records = [(draw.choice("abcde"), draw.randint(-100, 100)) for _ in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "records.json").write_text(json.dumps(records))
    return records


def file_of(records: Sequence[Record], start: int, end: int) -> tuple[str, bytes]:
    """A file of the records [start, end): its name, which says which they are, and its content."""
    lines = (f"{key},{value}\n" for key, value in records[start:end])
    return f"{start:06}-{end:06}.csv", "".join(lines).encode()


# --- processes -------------------------------------------------------------------------------


class Driver:
    """One driver process, its output in files of the folder."""

    module = "tests.faults.driver"

    def __init__(self, spec: Spec, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self.folder = Path(spec.folder)
        number = len(list(self.folder.glob("stdout-*")))
        self._stdout = (self.folder / f"stdout-{number}").open("xb")
        self._stderr = (self.folder / f"stderr-{number}").open("xb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, spec.model_dump_json()],
            cwd=ROOT,
            env=os.environ | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id, which is also that of its process group."""
        return self.process.pid

    def wait(self, seconds: float = DEADLINE_SECS) -> int:
        """Wait for its end; the exit code as `subprocess` has it."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver did not end:\n{self.stderr()[-4000:]}") from None

    def report(self) -> dict[str, Any]:
        """Wait for a good end; the run's report."""
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.stderr()[-4000:]}"
        report: dict[str, Any] = json.loads(self._read(self._stdout).splitlines()[-1])
        return report

    def error(self) -> dict[str, str]:
        """Wait for an end with an error of the product's own; its name and message."""
        code = self.wait()
        assert code == 3, f"exit code {code}:\n{self.stderr()[-4000:]}"
        error: dict[str, str] = json.loads(self.stderr().splitlines()[-1])
        return error

    def points(self) -> list[tuple[str, str]]:
        """(point, attempt) of everything that this process has come to so far."""
        path = self.folder / "points.log"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(line[1], line[2]) for line in lines if len(line) == 3 and line[0] == str(self.pid)]

    def wait_for_point(self, point: str, count: int = 1) -> None:
        """Wait until the process has come to `point` that many times."""
        wait_for(
            lambda: [p for p, _ in self.points()].count(point) >= count,
            what=lambda: f"{count} x {point}, saw {self.points()[-5:]}\n{self.stderr()[-4000:]}",
            gone=lambda: self.process.poll() is not None,
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, number)

    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return self._read(self._stderr)

    def end(self) -> None:
        """Kill the whole process group, if anything of it still lives."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._stdout.close()
        self._stderr.close()

    @staticmethod
    def _read(file: Any) -> str:
        return Path(file.name).read_text(errors="replace")


@contextmanager
def drivers(kind: type[Driver] = Driver) -> Iterator[Callable[..., Driver]]:
    """A function that starts drivers; none of them outlives the block.

    With `warm=True` a driver uses a JVM that is up already and outlives it, unless the tests are to
    be thorough: then each has its own, which dies too.
    """
    started: list[tuple[Driver, WarmJvm | None]] = []

    def give_back() -> None:
        for number, (driver, jvm) in enumerate(started):
            if jvm and driver.process.poll() is not None:
                jvm.give_back()
                started[number] = driver, None

    def start(spec: Spec, *, warm: bool = False) -> Driver:
        give_back()
        jvm = WarmJvm.lend(spec.packages) if warm and not THOROUGH else None
        started.append((kind(spec, jvm.environment if jvm else {}), jvm))
        return started[-1][0]

    try:
        yield start
    finally:
        for driver, _ in started:
            driver.end()
        give_back()


def wait_for(
    condition: Callable[[], bool],
    *,
    what: Callable[[], str] | str,
    gone: Callable[[], bool] = lambda: False,
    seconds: float = DEADLINE_SECS,
) -> None:
    """Poll until `condition` holds; fail when the deadline passes, or `gone` holds first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if gone() and not condition():
            raise AssertionError(f"gone before: {what() if callable(what) else what}")
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(0.02)


# --- tables ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Publication:
    """One txid of a publication, as the table's log has it."""

    version: int
    txid: int
    attempt: int
    epoch: int
    timestamp: int
    """Milliseconds since 1970, by Delta's commitInfo."""
    start: int
    end: int
    """The records that it read, [start, end)."""
    first: int
    """The first txid of its version: another one than its own in a group."""

    @property
    def order(self) -> tuple[int, int, int]:
        """What must strictly increase from one publication to the next."""
        return (self.txid, self.epoch, self.attempt)


@dataclass(frozen=True)
class TableImage:
    """A table as any reader sees it."""

    rows: list[tuple[Any, ...]]
    """With the columns that `COLUMNS` names; sorted."""
    publications: list[Publication]
    """All of them, by version."""
    files: list[tuple[int, int]]
    """(txid, attempt) of the job that wrote it, for each file that a reader reads."""

    @property
    def final(self) -> list[Publication]:
        """The publication that stands, of each txid: a replay takes back all that was beyond."""
        found: dict[int, Publication] = {}
        for one in self.publications:
            found = {t: p for t, p in found.items() if t < one.first or p.version == one.version}
            found[one.txid] = one
        return list(found.values())

    @property
    def is_in_order(self) -> bool:
        """Whether txids follow each other, and one that comes again has a newer attempt."""
        seen: dict[int, tuple[int, int]] = {}
        for p in self.publications:
            newer = p.txid in seen and (p.epoch, p.attempt) > seen[p.txid]
            if not newer and (p.txid in seen or p.txid != max(seen, default=0) + 1):
                return False
            seen[p.txid] = (p.epoch, p.attempt)
        return True

    @property
    def end(self) -> int:
        """How many records the table accounts for; the last txids may have found none to read."""
        return max((p.end for p in self.final), default=0)


COLUMNS = {
    "rows": ("k", "v", "txid"),
    "totals": ("k", "n", "total", "top"),
    "log": ("k", "n", "total", "top"),
    "changes": ("txid", "k", "n", "prev_n", "total", "prev_total", "top", "prev_top"),
}


def read_tables(
    root: Path | str,
    names: Sequence[str] = ("rows", "totals"),
    options: Mapping[str, str] | None = None,
) -> dict[str, TableImage]:
    """The tables of a driver.

    Args:
        root: a folder, or the location of the driver's `Spec`.
        options: how a location is reached.
    """
    images = {name: read_table(f"{root}/{name}", COLUMNS[name], options) for name in names}
    if "log" in images:
        images["log"] = replace(images["log"], rows=_put_together(images["log"].rows))
    return images


def _put_together(partials: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """One row per key, out of partial aggregates."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for key, *values in partials:
        found.setdefault(key, []).append(tuple(values))
    return sorted(
        (key, sum(n for n, _, _ in parts), sum(t for _, t, _ in parts), max(m for _, _, m in parts))
        for key, parts in found.items()
    )


def read_table(
    path: Path | str, columns: tuple[str, ...], options: Mapping[str, str] | None = None
) -> TableImage:
    """Read a table without Spark and without the product; empty when there is none."""
    own = dict(options or {})
    if not deltalake.DeltaTable.is_deltatable(str(path), own):
        return TableImage([], [], [])
    table = deltalake.DeltaTable(str(path), storage_options=own)
    found = table.to_pyarrow_table(columns=list(columns)).to_pylist()
    folders = [uri.removeprefix(f"{path}/").split("/")[1] for uri in table.file_uris()]
    # What compaction wrote is of no attempt.
    files = [name.split("-")[:2] for name in folders if re.match(r"\d+-\d+-", name)]
    return TableImage(
        sorted(tuple(row[column] for column in columns) for row in found),
        # What lands while this reads belongs to the next image.
        [one for one in read_log(path, own) if one.version <= table.version()],
        sorted((int(txid), int(attempt)) for txid, attempt in files),
    )


def read_log(path: Path | str, options: Mapping[str, str] | None = None) -> list[Publication]:
    """Every publication in a table's log, by version."""
    return [
        publication
        for version, commit in commits(path, options)
        for line in commit.splitlines()
        for publication in _publications(version, json.loads(line).get("commitInfo", {}))
    ]


def _publications(version: int, info: dict[str, Any]) -> Iterator[Publication]:
    if "txn" not in info:
        return
    txn = json.loads(info["txn"]) if isinstance(info["txn"], str) else info["txn"]
    alone = {**txn, "txid": txn["last_txid"]}
    for member in txn.get("members") or [alone]:
        start, end = _span(next(iter(member["read"].values()), None) or {})
        yield Publication(
            version,
            member["txid"],
            member["attempt_id"],
            txn["epoch"],
            info["timestamp"],
            start,
            end,
            txn["first_txid"],
        )


def _span(read: dict[str, Any]) -> tuple[int, int]:
    """Which records a batch read: as its spout says, or as the names of its files."""
    if "files" not in read:
        return read.get("start", 0), read.get("end", 0)
    names = [Path(file["path"]).stem.split("-") for file in read["files"]]
    assert all(one[1] == other[0] for one, other in pairwise(names)), names
    return (int(names[0][0]), int(names[-1][1])) if names else (0, 0)


def rows_expected(records: list[Record], publications: list[Publication]) -> list[tuple[Any, ...]]:
    """What "rows" must hold: every record once, with the txid whose batch it was in."""
    return sorted((*record, p.txid) for p in publications for record in records[p.start : p.end])


def totals_expected(records: list[Record]) -> list[tuple[Any, ...]]:
    """What "totals" must hold after these records."""
    values: dict[str, list[int]] = {}
    for key, value in records:
        values.setdefault(key, []).append(value)
    return sorted((key, len(vs), sum(vs), max(vs)) for key, vs in values.items())


def changes_expected(
    records: list[Record], publications: list[Publication]
) -> list[tuple[Any, ...]]:
    """What "changes" must hold: every key that a txid touched, before and after it."""
    values: dict[str, list[int]] = {}
    changes: list[tuple[Any, ...]] = []
    for p in publications:
        before = {key: (len(vs), sum(vs), max(vs)) for key, vs in values.items()}
        for key, value in records[p.start : p.end]:
            values.setdefault(key, []).append(value)
        for key in {key for key, _ in records[p.start : p.end]}:
            vs, old = values[key], before.get(key, (None, None, None))
            changes.append((p.txid, key, len(vs), old[0], sum(vs), old[1], max(vs), old[2]))
    return sorted(changes, key=lambda row: row[:2])


def assert_totals_right(folder: Path, records: list[Record]) -> None:
    """Both tables equal what plain Python makes of all records, and no txid came out of order."""
    images = read_tables(folder)
    assert images["rows"].rows == rows_expected(records, images["rows"].final)
    assert images["totals"].rows == totals_expected(records)
    for image in images.values():
        assert image.is_in_order
        assert image.end == len(records)
