"""SIGKILL while a changed program gives its tables another shape; real processes, one warehouse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.faults.harness import Driver, Publication, Spec, drivers, make_records, read_log
from tests.logs import commits
from tests.thorough import by_turns

KINDS = by_turns(("transactional", "opaque"))
TABLES = ("rows", "totals", "log")


class ProgramDriver(Driver):
    """A process that runs one of the programs."""

    module = "tests.faults.programs"


class Warehouse:
    """Three tables, and the processes that run over them one after the other."""

    def __init__(self, folder: Path, kind: str, start: Any) -> None:
        self.folder = folder
        self._kind = kind
        self._start = start
        self.records = make_records(folder, 60)

    def start(self, program: int, **more: Any) -> Driver:
        """Start a process."""
        spec = Spec(
            folder=str(self.folder),
            kind=self._kind,  # type: ignore[arg-type]
            program=program,
            zookeeper=f"embedded:{self.folder}/zookeeper",
            fresh=True,
            config={"max_spout_pending": 2, "batch_emit_interval_ms": 1, "max_group_commit": 1},
            **more,
        )
        driver: Driver = self._start(spec, warm=True)
        return driver

    def run(self, program: int, until: str | int) -> None:
        """Run a program until a txid, or to the end."""
        self.start(program, until=until).report()

    def kill(self, program: int, at: str, times: int) -> None:
        """Run a program so many times, and kill it at the same point each time."""
        for _ in range(times):
            driver = self.start(program, at=at)
            assert driver.wait() == -9, driver.stderr()[-2000:]
            assert driver.points()[-1][0] == "SIGKILL"

    def refused(self, program: int) -> str:
        """Run a program that ends with an error; its message."""
        return self.start(program).error()["message"]

    def marks(self, table: str) -> list[tuple[int, list[str]]]:
        """(committed txid, what was changed) of every change of a table's shape."""
        infos = [
            json.loads(line).get("commitInfo", {})
            for _, commit in commits(self.folder / table, None)
            for line in commit.splitlines()
        ]
        found = [info["txn_change"] for info in infos if "txn_change" in info]
        return [(mark["txid"], mark["changes"]) for mark in found]

    def columns(self, table: str, version: int | None = None) -> list[str]:
        """The columns of a table."""
        read = deltalake.DeltaTable(str(self.folder / table), version=version)
        return [field.name for field in read.schema().fields]

    def values(self, table: str, *names: str) -> dict[str, tuple[Any, ...]]:
        """Key -> (count, sum, greatest, least), whatever the layout."""
        rows = deltalake.DeltaTable(str(self.folder / table)).to_pyarrow_table().to_pylist()
        parts: dict[str, list[tuple[Any, ...]]] = {}
        for row in rows:
            parts.setdefault(row["k"], []).append(tuple(row[name] for name in names))
        return {
            key: (
                sum(part[0] for part in of_key),
                sum(part[1] for part in of_key),
                max(part[2] for part in of_key),
                min((part[3] for part in of_key if part[3] is not None), default=None),
            )
            for key, of_key in parts.items()
        }

    def expected(self, since: int) -> dict[str, tuple[Any, ...]]:
        """The same, of all records; the least one of those that came with `since` or later."""
        groups: dict[str, list[tuple[int, int]]] = {}
        for txid, publication in self.final().items():
            for key, value in self.records[publication.start : publication.end]:
                groups.setdefault(key, []).append((txid, value))
        return {
            key: (
                len(of_key),
                sum(value for _, value in of_key),
                max(value for _, value in of_key),
                min((value for txid, value in of_key if txid >= since), default=None),
            )
            for key, of_key in groups.items()
        }

    def final(self) -> dict[int, Publication]:
        """Txid -> the publication of "rows" that stands."""
        found: dict[int, Publication] = {}
        for one in read_log(self.folder / "rows"):
            found = {t: p for t, p in found.items() if t < one.first}
            found[one.txid] = one
        return found


@pytest.fixture(params=KINDS)
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    """An empty one, for each kind of spout and table."""
    with drivers(ProgramDriver) as start:
        yield Warehouse(tmp_path, request.param, start)


def test_a_changed_program_is_taken_over_exactly_whatever_is_killed(warehouse: Warehouse) -> None:
    """A change of a program's tables lands between the same two txids in all of them, whatever is
    killed meanwhile, and every total stays exact.

    The program is changed three times. Each time its process is killed after every table that has
    got its new shape. A process of the former program is refused by name, and one of the next
    program waits until half a txid is whole.
    """
    warehouse.run(0, until=4)
    warehouse.kill(1, "shape-changed", times=len(TABLES))
    assert "value 'least' of the table" in warehouse.refused(0)
    warehouse.run(1, until=8)
    warehouse.kill(2, "shape-staged", times=1)
    warehouse.kill(2, "shape-changed", times=2)
    assert "its buckets change from 3 to 2" in warehouse.refused(1)
    warehouse.kill(2, "between-publications", times=1)
    assert "(--until 9)" in warehouse.refused(3)
    warehouse.run(2, until=9)
    warehouse.kill(3, "shape-changed", times=2)
    warehouse.run(3, until="caught_up")
    _assert_one_boundary(warehouse)
    assert [p.end for p in warehouse.final().values()][-1] == len(warehouse.records)
    rows = deltalake.DeltaTable(str(warehouse.folder / "rows")).to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["v"], row["txid"]) for row in rows) == sorted(
        (*record, txid)
        for txid, publication in warehouse.final().items()
        for record in warehouse.records[publication.start : publication.end]
    )
    assert warehouse.columns("rows") == ["k", "v", "txid"]
    expected = warehouse.expected(since=5)
    assert warehouse.values("totals", "n", "total", "top", "least") == expected
    assert warehouse.values("log", "n", "sum", "top", "least") == expected


def _assert_one_boundary(warehouse: Warehouse) -> None:
    """Each program has changed each table once, all of them behind the same txid."""
    marks = {table: warehouse.marks(table) for table in TABLES}
    assert {table: [txid for txid, _ in found] for table, found in marks.items()} == {
        "rows": [4, 8],
        "totals": [4, 8, 9],
        "log": [4, 8, 9],
    }
