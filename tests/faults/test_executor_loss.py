"""A real executor process is killed in the middle of a batch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.harness import (
    Driver,
    Spec,
    drivers,
    make_records,
    read_tables,
    rows_expected,
    totals_expected,
    wait_for,
)
from tests.thorough import SHORT_LIVED

CLUSTER = "local-cluster[2,1,512]"
"""Two workers, each with one executor JVM of one core and 512 MB."""
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def executors(driver: Driver) -> list[int]:
    """Process ids of the executors of a driver: they are of its process group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            of_driver = os.getpgid(int(process.name)) == driver.pid
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if of_driver and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(process.name))
    return sorted(found)


def kill_executor(driver: Driver) -> int:
    """Kill -9 one executor, as soon as there are two."""
    wait_for(lambda: len(executors(driver)) == 2, what="two executors")
    victim = executors(driver)[0]
    os.kill(victim, signal.SIGKILL)
    return victim


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_totals_are_right_after_executors_are_killed_in_mid_batch(
    tmp_path: Path, kind: str
) -> None:
    """Totals are right after executors are killed in the middle of a batch."""
    records = make_records(tmp_path, 24)
    spec = Spec(
        folder=str(tmp_path),
        kind=kind,
        zookeeper=f"embedded:{tmp_path}/zookeeper",
        master=CLUSTER,
        conf=CONF,
        # The executors are other processes of this machine.
        config={"shared_folders": [str(tmp_path)]},
    )
    with drivers() as start:
        driver = start(spec)
        victims = []
        for count in (2, 7):
            driver.wait_for_point("mid-processing", count)
            victims.append(kill_executor(driver))
        report = driver.report()
    assert len(set(victims)) == 2
    assert report["ended"] == "caught_up"
    images = read_tables(tmp_path)
    assert images["rows"].rows == rows_expected(records, images["rows"].final)
    assert images["totals"].rows == totals_expected(records)
    assert images["totals"].end == len(records)
