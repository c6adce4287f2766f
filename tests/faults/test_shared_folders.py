"""Executors that have another disk under a table's path: real ones, in mount namespaces."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from committers.append_table import AppendTable
from tests.faults.harness import Spec, drivers, make_records, read_tables, rows_expected, wait_for
from tests.faults.test_executor_loss import CLUSTER, CONF, executors
from txn.engine.base.shared_folders import local_tables
from txn.errors import TopologyError
from txn.machine.java import find_java
from txn.testing.recording_committer import RecordingCommitter

LAUNCHER = """#!/bin/sh
# Java, with a disk of its own mounted over a folder once FLAG is there.
if [ -e '{flag}' ]; then
    exec unshare -m sh -c 'mount -t tmpfs none "$0" && exec "$@"' '{folder}' '{java}' "$@"
fi
exec '{java}' "$@"
"""


def cluster(tmp_path: Path, flag: Path, **config: object) -> Spec:
    """A driver whose executors have a disk of their own at `rows` once `flag` is there."""
    make_records(tmp_path, 24)
    (tmp_path / "rows").mkdir()
    launcher = tmp_path / "java-home" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(
        LAUNCHER.format(flag=flag, folder=tmp_path / "rows", java=find_java().resolve())
    )
    launcher.chmod(0o755)
    home = {"spark.executorEnv.JAVA_HOME": str(launcher.parent.parent)}
    return Spec(
        folder=str(tmp_path),
        tables=("rows",),
        zookeeper=f"embedded:{tmp_path}/zookeeper",
        master=CLUSTER,
        conf={**CONF, **home},
        config={"shared_folders": [str(tmp_path)], "retry_backoff_ms": 0, **config},
    )


def test_a_folder_that_executors_do_not_share_is_refused(tmp_path: Path) -> None:
    """A table in a local folder that executors do not share is refused before the first txid."""
    flag = tmp_path / "flag"
    spec = cluster(tmp_path, flag)
    flag.touch()
    with drivers() as start:
        error = start(spec).error()
    assert error["error"] == "TopologyError"
    assert f"The folder of table '{tmp_path}/rows' is declared shared, but is not" in str(error)
    assert list((tmp_path / "rows").iterdir()) == []  # the folder itself was there before


def test_rows_that_executors_write_elsewhere_fail_the_batch(tmp_path: Path) -> None:
    """A batch fails if executors wrote its rows where the driver cannot see them."""
    flag = tmp_path / "flag"
    spec = cluster(tmp_path, flag, max_batch_attempts=3, max_group_processing=1)
    records = make_records(tmp_path, 400)
    with drivers() as start:
        driver = start(spec)
        driver.wait_for_point("after-committed", 2)
        wait_for(lambda: len(executors(driver)) == 2, what="two executors")
        flag.touch()
        for victim in executors(driver):
            os.kill(victim, signal.SIGKILL)
        error = driver.error()
    assert "A Spark executor wrote file data/" in error["message"], error
    assert "this process does not see it" in error["message"]
    image = read_tables(tmp_path)["rows"]
    assert len(image.final) >= 2
    assert image.rows == rows_expected(records, image.final)
    assert len(image.rows) == max(p.end for p in image.final)


class Own(RecordingCommitter):
    """A user's own, whose name is not a folder."""

    lies_in_folder = False


def test_a_local_table_of_a_cluster_has_to_be_declared_shared(tmp_path: Path) -> None:
    """A table in a local folder is refused with executors elsewhere, unless declared shared."""
    table = str(tmp_path / "lake" / "t")
    there = [RecordingCommitter("s3://lake/t"), AppendTable(table)]
    with pytest.raises(TopologyError, match="executors of master 'spark://h:7077'") as error:
        local_tables(there, [str(tmp_path / "la")], "spark://h:7077")
    assert f"shared_folders=('{tmp_path}/lake',)" in str(error.value)
    for shared in (str(tmp_path), f"file:{tmp_path}/lake/", table):
        assert local_tables(there, [shared], "yarn") == [table]


def test_a_name_that_is_no_folder_is_not_looked_for_on_disk() -> None:
    """A user's own committer may be called anything; only what lies in a folder is refused."""
    names = ["sales", "jdbc:postgresql://h/db.sales", "/etc"]
    assert local_tables([Own(name) for name in names], (), "yarn") == []
