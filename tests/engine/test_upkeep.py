"""OPTIMIZE and VACUUM by schedule: when each begins, what is told, and how it ends with a run."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from committers.append_table import AppendTable
from tests.delta.owned_tables import WEEK, add_txids, make_table, put_file
from tests.faults.harness import wait_for
from tests.stores.s3 import storage_options
from txn.config import TopologyConfig
from txn.dataflow.graph import Sink
from txn.engine.loop import upkeep
from txn.engine.loop.upkeep import Upkeep
from txn.engine.reporting.broadcast import Broadcast

HOUR = 3600.0


class Schedule:
    """The upkeep of some tables, by a clock that the test sets."""

    def __init__(
        self, *tables: Path | str, options: Mapping[str, str] | None = None, **every: Any
    ) -> None:
        self.now = 0.0
        stream: Any = None
        sinks = [Sink(stream, AppendTable(table, storage_options=options)) for table in tables]
        self.told: list[Any] = []
        broadcast = Broadcast("orders", lambda: self.now)
        broadcast.read_by(self.told.append)
        self.upkeep = Upkeep("orders", sinks, TopologyConfig(**every), broadcast, lambda: self.now)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits now."""
        return self.upkeep._child is None and not self.upkeep._waiting

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Step again and again, as commits do, until a condition holds."""

        def stepped() -> bool:
            self.upkeep.step()
            return bool(condition())

        wait_for(stepped, what=what)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def files(table: Path) -> int:
    """The files of a table's newest version."""
    return len(DeltaTable(str(table)).file_uris())


@pytest.mark.parametrize("every", [{}, {"optimize_every_hours": 0.0, "vacuum_every_hours": 0.0}])
def test_it_is_off_unless_asked_for(tmp_path: Path, every: dict[str, float]) -> None:
    """Without a setting nothing is ever due."""
    assert not Schedule(tmp_path / "rows", **every).upkeep.is_on


def test_each_operation_has_its_own_interval(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first round is due at once, over all tables; the next one when its hours have passed."""
    one, two = tmp_path / "one", tmp_path / "two"
    for table in (one, two):
        make_table(table)
    left = put_file(one, "data/compaction-ab/part-0.parquet", 2 * WEEK)
    schedule = Schedule(one, two, optimize_every_hours=1, vacuum_every_hours=3)
    assert schedule.upkeep.is_on
    with caplog.at_level(logging.INFO, "txn"):
        schedule.until(lambda: files(one) == files(two) == 1 and not left.exists(), "a round")
        schedule.until(lambda: len(caplog.records) == 3, "all is told")
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith(f"[orders] OPTIMIZE of table {one}: 4 files (")
    assert told[0].endswith(") became 1")
    assert told[2] == f"[orders] VACUUM of table {one}: 1 files (4 bytes) deleted"
    add_txids(one, [5])
    schedule.now = HOUR - 1
    for _ in range(5):
        schedule.upkeep.step()
    assert files(one) == 2
    schedule.now = HOUR
    left = put_file(one, "data/compaction-ab/part-0.parquet", 2 * WEEK)
    schedule.until(lambda: files(one) == 1, "the next round")
    schedule.until(lambda: schedule.is_idle, "its end")
    assert left.exists()


def test_a_failure_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that cannot be read is in the log once, however often it is tried."""
    make_table(tmp_path / "rows")
    (tmp_path / "rows" / "_delta_log" / f"{4:020}.json").write_text("{broken")
    schedule = Schedule(tmp_path / "rows", optimize_every_hours=1)
    with caplog.at_level(logging.WARNING, "txn"):
        for schedule.now in (0.0, HOUR):
            schedule.upkeep.step()
            schedule.until(lambda: schedule.is_idle, "its end")
    (record,) = caplog.records
    assert record.getMessage().startswith("[orders] OPTIMIZE of table ")


def test_the_child_searches_the_folder_of_the_packages_first() -> None:
    """In the folder of txn itself, `txn.requests` would hide the package requests."""
    assert {"txn", "spouts", "committers"} <= {path.name for path in upkeep._PACKAGES.iterdir()}


def test_the_end_of_a_run_does_not_wait(silent: str) -> None:
    """What runs is ended at once, and nothing more begins; `step` itself never waits either."""
    options = storage_options(silent)
    schedule = Schedule("s3://lake/rows", options=options, optimize_every_hours=1)
    schedule.upkeep.step()
    schedule.upkeep.step()
    assert not schedule.is_idle
    schedule.upkeep.stop()
    assert schedule.is_idle
    schedule.now = HOUR
    schedule.upkeep.step()
    assert schedule.is_idle


def test_the_child_of_a_process_that_died_ends(silent: str) -> None:
    """Whoever started it is gone when the pipe is closed: then it ends, whatever it waits for."""
    order = {
        "operation": "vacuum",
        "topology": "orders",
        "location": "s3://lake/rows",
        "options": storage_options(silent),
        "least_hours": 1,
    }
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(
        [sys.executable, "-m", "txn.engine.loop.upkeep_child"], **pipes
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.stdin.close()
        assert process.wait(20) == 1
