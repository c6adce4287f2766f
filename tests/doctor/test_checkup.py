"""`txn doctor`: what it finds where all is well, and where something is not."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from pydantic import SecretStr

from tests.delta.publishing import append
from tests.zookeeper.progress_store import leading
from txn.cli.app import cli
from txn.config import TopologyConfig
from txn.delta.definition import TableDefinition
from txn.delta.durations import duration_secs
from txn.delta.topology_table import refuse_features
from txn.doctor import machine as doctor_machine
from txn.doctor import tables as doctor_tables
from txn.doctor import zookeeper as doctor_zookeeper
from txn.doctor.checkup import diagnose, look
from txn.doctor.findings import Finding
from txn.doctor.machine import check_disk, check_machine, fits
from txn.doctor.tables import check_storage, check_table, check_writers
from txn.doctor.zookeeper import check_zookeeper
from txn.embedded import EmbeddedZooKeeper, zookeeper_service
from txn.errors import SetupError, TableRefusedError
from txn.interfaces import Semantics
from txn.spark.versions import LINES, running_spark
from txn.storage.storage import Storage

ROOT = Path(__file__).parents[2]
PROGRAM = """
from committers.append_table import AppendTable
from spouts.rate import RateSpout
from txn import Topology

topology = Topology("t")
topology.stream("rows", RateSpout(1, total=1)).partition_persist(AppendTable("tables/rows"))
"""
CONFIG = TopologyConfig(zookeeper_timeout_secs=6.0)


def by_check(findings: Iterator[Finding]) -> dict[str, Finding]:
    """Check -> finding."""
    return {finding.check: finding for finding in findings}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a program, and nothing asked for by the environment."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TXN_ZOOKEEPER_")]:
        monkeypatch.delenv(name)
    return tmp_path


def everything(folder: Path) -> dict[str, float]:
    """Every file below a folder, and when it was changed; not what the server itself writes."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime
        for path in folder.rglob("*")
        if path.is_file() and ".txn" not in path.parts and "__pycache__" not in path.parts
    }


# --- as a command ----------------------------------------------------------------------------


def test_all_is_well_before_the_first_run(program: Path) -> None:
    """Without ZooKeeper data and tables nothing is wrong: exit code 0, and nothing is left."""
    before = everything(program)
    result = CliRunner().invoke(cli, ["doctor", "program.py:topology"])
    assert result.exit_code == 0, result.output
    assert "no errors" in result.output
    assert re.search(r"ok +put-if-absent +in 5 of 5 races one writer was refused", result.output)
    assert everything(program) == before
    assert not (program / ".txn").exists()


def test_it_looks_at_an_embedded_server_that_runs_and_at_one_that_does_not(program: Path) -> None:
    """Both are found by their folder, with the credential in it; as JSON for programs."""
    with zookeeper_service("embedded") as hosts, leading(hosts, "t", CONFIG):
        running = CliRunner().invoke(cli, ["doctor", "program.py:topology", "--json"])
    stopped = CliRunner().invoke(cli, ["doctor", "program.py:topology", "--json"])
    for result in (running, stopped):
        told = json.loads(result.output)
        assert (result.exit_code, told["errors"]) == (0, 0), result.output
        found = {(f["area"], f["check"]): f for f in told["findings"]}
        zookeeper = {check: f for (area, check), f in found.items() if area.startswith("zookeeper")}
        assert zookeeper["ACL"]["level"] == "ok"
        assert re.match("none of [1-9][0-9]* nodes may be read", zookeeper["ACL"]["found"])
        assert zookeeper["session timeout"]["found"] == "10 s, as asked"
        assert "100 versioned writes" in zookeeper["latency"]["found"]
        assert zookeeper["snapshots"]["level"] == "ok"
        assert {f["level"] for f in told["findings"]} <= {"ok", "note", "warning"}
    with zookeeper_service("embedded") as hosts, leading(hosts, "u", CONFIG) as store:
        assert [] == [c for c in store._connection.children("/", 9e9) or [] if "doctor" in c]


def test_an_error_ends_with_1(program: Path) -> None:
    """A server that does not answer is one, and the rest is looked at all the same."""
    result = CliRunner().invoke(
        cli, ["doctor", "program.py:topology", "--zookeeper", "127.0.0.1:1"]
    )
    assert result.exit_code == 1
    assert "127.0.0.1:1 did not answer" in result.output.replace("\n", " ")
    assert "1 error," in result.output
    assert "put-if-absent" in result.output


def test_a_mistake_on_the_command_line_is_one(program: Path) -> None:
    """A connect string or a program that means nothing ends like in every other command."""
    assert CliRunner().invoke(cli, ["doctor", "nothing.py:x"]).exit_code == 2
    result = CliRunner().invoke(cli, ["doctor", "--zookeeper", "zk://x"])
    assert (result.exit_code, "no scheme" in result.output) == (2, True)


def test_a_check_that_fails_does_not_keep_the_others(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries raise what they like; it becomes a finding."""

    def broken() -> Iterator[Finding]:
        raise RuntimeError("no such luck")
        yield

    monkeypatch.setattr("txn.doctor.checkup.check_machine", broken)
    found = list(diagnose(None, "embedded"))
    assert found[0].found == "RuntimeError: no such luck"
    assert len(found) > 2


# --- ZooKeeper -------------------------------------------------------------------------------


def test_an_open_server_is_told(zookeeper: EmbeddedZooKeeper, request: Any) -> None:
    """Nodes that everybody may change: a warning if that was asked for, else an error."""
    name = request.node.name
    opened = TopologyConfig(zookeeper_acl="open", zookeeper_timeout_secs=6.0)
    owned = TopologyConfig(
        zookeeper_auth=(("digest", SecretStr("me:sesame")),),
        zookeeper_acl="creator",
        zookeeper_timeout_secs=6.0,
    )
    with leading(zookeeper.hosts, name, opened):
        asked = by_check(check_zookeeper("z", zookeeper.hosts, None, name, opened))
        not_asked = by_check(check_zookeeper("z", zookeeper.hosts, None, name, owned))
    assert (asked["ACL"].level, asked["credentials"].level) == ("warning", "warning")
    assert not_asked["ACL"].level == "error"
    assert f"/txn/{name}" in not_asked["ACL"].found
    assert not_asked["credentials"].level == "ok"
    assert asked["quorum"].level == "warning"
    assert "standalone" in asked["quorum"].found


def test_a_session_timeout_that_the_server_changed(zookeeper: EmbeddedZooKeeper) -> None:
    """The server's limit is 1 s below and 120 s above: what it grants is told."""
    asked = TopologyConfig(zookeeper_timeout_secs=500.0, zookeeper_acl="open")
    finding = by_check(check_zookeeper("z", zookeeper.hosts, None, None, asked))["session timeout"]
    assert (finding.level, finding.found) == ("warning", "120 s instead of 500")


def test_a_clock_that_differs_and_a_slow_disk(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper's clock is read off a node that it writes; a batch waits for its writes."""
    monkeypatch.setattr(doctor_zookeeper, "_SLOW_MS", 0.0)
    opened = TopologyConfig(zookeeper_acl="open", zookeeper_timeout_secs=6.0)
    import time

    late = check_zookeeper(
        "z", zookeeper.hosts, None, None, opened, wall=lambda: time.time() - 3600
    )
    found = by_check(late)
    assert found["clock"].level == "warning"
    assert re.match(r"36\d\d\.\d s ahead of", found["clock"].found)
    assert found["latency"].level == "warning"


def test_a_topology_that_cannot_be_read(zookeeper: EmbeddedZooKeeper, request: Any) -> None:
    """The node is named, as `txn run` would."""
    name = request.node.name
    opened = TopologyConfig(zookeeper_acl="open", zookeeper_timeout_secs=6.0)
    with leading(zookeeper.hosts, name, opened) as store:
        store._connection.multi([doctor_zookeeper.Put(f"/txn/{name}/committed", b"{", 0)], 9e9)
        finding = by_check(check_zookeeper("z", zookeeper.hosts, None, name, opened))["nodes"]
    assert finding.level == "error"
    assert f"/txn/{name}/committed' does not hold JSON" in finding.found


@pytest.mark.parametrize(("topology", "told"), [(None, False), ("nobody-made-it", True)])
def test_a_server_without_the_topology(
    zookeeper: EmbeddedZooKeeper, topology: str | None, told: bool
) -> None:
    """Nodes are looked at when a topology is named; that there are none yet is no mistake."""
    opened = TopologyConfig(zookeeper_acl="open", zookeeper_timeout_secs=6.0)
    found = by_check(check_zookeeper("z", zookeeper.hosts, None, topology, opened))
    assert ("nodes" in found) == told
    assert "ACL" not in found
    assert all(finding.level != "error" for finding in found.values())


def test_snapshots_that_were_not_purged(tmp_path: Path) -> None:
    """They are counted in an embedded server's folder."""
    folder = tmp_path / "data" / "version-2"
    folder.mkdir(parents=True)
    assert doctor_zookeeper._snapshots("z", tmp_path).level == "ok"
    for number in range(11):
        (folder / f"snapshot.{number}").touch()
    assert doctor_zookeeper._snapshots("z", tmp_path).level == "warning"


def test_half_of_what_zookeeper_can_keep_is_a_warning(
    zookeeper: EmbeddedZooKeeper, request: Any
) -> None:
    """The positions of a txid, and all nodes of the ensemble, in bytes."""
    name = request.node.name
    with leading(zookeeper.hosts, name, CONFIG):
        found = by_check(check_zookeeper("z", zookeeper.hosts, None, name, CONFIG))
    assert re.fullmatch(r"\d+ bytes of positions with each txid", found["positions"].found)
    assert found["data"].level == "ok"
    half = 32 * 1024 * 1024
    levels = [doctor_zookeeper._positions("z", length).level for length in (half - 1, half)]
    levels += [doctor_zookeeper._data("z", length).level for length in (499_999_999, 500_000_000)]
    assert levels == ["ok", "warning"] * 2


def test_a_server_of_an_ensemble_that_is_away(zookeeper: EmbeddedZooKeeper) -> None:
    """Each server that was named is asked by itself."""
    servers = f"{zookeeper.hosts},127.0.0.1:1"
    found = by_check(doctor_zookeeper._quorum("z", servers, None, TopologyConfig()))
    assert found["server 127.0.0.1:1"].level == "error"


# --- tables and storage ----------------------------------------------------------------------


def table(folder: Path, **properties: str) -> str:
    """A table that a topology called t has made, with further properties."""
    path = folder / "rows"
    append(path, None, None)
    own = {"txn.topology": "t", "txn.kind": "append", "txn.semantics": "transactional"}
    delta = DeltaTable(str(path))
    delta.alter.set_table_properties({**own, **properties}, raise_if_not_exists=False)
    return str(path)


@pytest.mark.parametrize(
    ("properties", "check", "level"),
    [
        ({}, "owner", "ok"),
        ({"txn.topology": "other"}, "owner", "error"),
        ({"delta.enableDeletionVectors": "true"}, "features", "error"),
        ({"delta.columnMapping.mode": "name"}, "features", "error"),
        ({"txn.kind": "upsert", "delta.enableChangeDataFeed": "true"}, "features", "error"),
        ({"delta.enableChangeDataFeed": "true"}, "features", "ok"),
        ({"delta.appendOnly": "true"}, "features", "ok"),
        ({"delta.appendOnly": "true", "txn.semantics": "opaque"}, "features", "error"),
        ({"delta.logRetentionDuration": "interval 30 days"}, "log retention", "ok"),
        ({"delta.logRetentionDuration": "interval 1 day"}, "log retention", "warning"),
        ({"delta.deletedFileRetentionDuration": "interval 1 week"}, "file retention", "ok"),
        (
            {"delta.deletedFileRetentionDuration": "interval 10 minutes"},
            "file retention",
            "warning",
        ),
        ({"delta.checkpointInterval": "25"}, "checkpoints", "ok"),
    ],
)
def test_a_table_is_looked_at(
    tmp_path: Path, properties: dict[str, str], check: str, level: str
) -> None:
    """Owner, features and retention; what is refused, and what hurts later."""
    try:
        path = table(tmp_path, **properties)
    except DeltaError:
        # delta-rs does not write what it does not honour either; Spark does.
        path = table(tmp_path)
        log = sorted((tmp_path / "rows/_delta_log").glob("*.json"))[-1]
        text = log.read_text()
        more = "".join(f'"{k}":"{v}",' for k, v in properties.items())
        log.write_text(text.replace('"configuration":{', '"configuration":{' + more))
    found = by_check(check_table(path, "t", TopologyConfig()))
    assert found[check].level == level, found[check]


def test_missing_checkpoints_are_told(tmp_path: Path) -> None:
    """Each start goes through all commits since the last one."""
    path = table(tmp_path, **{"delta.checkpointInterval": "1"})
    (tmp_path / "rows/_delta_log/_last_checkpoint").unlink(missing_ok=True)
    for _ in range(12):
        append(tmp_path / "rows", None, None)
        (tmp_path / "rows/_delta_log/_last_checkpoint").unlink(missing_ok=True)
    assert by_check(check_table(path, "t", TopologyConfig()))["checkpoints"].level == "warning"


def test_half_of_the_files_that_a_table_may_have_is_a_warning(tmp_path: Path) -> None:
    """Counted from the log, whoever wrote it."""
    path = table(tmp_path)
    assert by_check(check_table(path, "t", TopologyConfig()))["files"].found == "1 active"
    log = tmp_path / "rows" / "_delta_log"
    add = {"partitionValues": {}, "size": 9, "modificationTime": 1, "dataChange": True}
    lines = (json.dumps({"add": {"path": f"{n}.parquet", **add}}) for n in range(49_999))
    newest = DeltaTable(path).version()
    (log / f"{newest + 1:020}.json").write_text("\n".join(lines), "utf-8")
    found = by_check(check_table(path, "t", TopologyConfig()))["files"]
    assert (found.level, found.found) == ("warning", "50,000 active")
    assert "txn optimize" in found.do


UNKNOWN = (
    '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,'
    '"readerFeatures":[],"writerFeatures":["madeUpNextYear"]}}\n'
)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.alter.add_constraint({"positive": "x > 0"}), "delta.constraints.positive"),
        (
            lambda t: t.alter.add_columns([Field("y", "long", metadata={"CURRENT_DEFAULT": "1"})]),
            "column defaults",
        ),
        (None, "'madeUpNextYear'"),
    ],
    ids=["constraint", "default", "unknown"],
)
def test_the_doctor_refuses_what_a_run_refuses(
    tmp_path: Path, change: Callable[[DeltaTable], object] | None, named: str
) -> None:
    """A feature that `txn run` refuses is an error here, in the same words, unknown ones too."""
    path = table(tmp_path)
    if change is not None:
        change(DeltaTable(path))
    else:  # what no writer of today knows
        version = DeltaTable(path).version() + 1
        (tmp_path / "rows/_delta_log" / f"{version:020d}.json").write_text(UNKNOWN)
    found = by_check(check_table(path, "t", TopologyConfig()))["features"]
    assert (found.level, named in found.found) == ("error", True), found
    with pytest.raises(TableRefusedError, match=named):
        refuse_features(
            TableDefinition.of(DeltaTable(path)), path, "append", Semantics.TRANSACTIONAL
        )


@pytest.mark.parametrize(
    ("place", "told"),
    [("s3://lake/t", True), ("S3A://lake/t", True), ("gs://lake/t", False), ("t", False)],
)
def test_other_writers_of_tables_on_s3(place: str, told: bool) -> None:
    """Spark's OPTIMIZE may overwrite a commit there, and the doctor says what to use instead."""
    found = list(check_writers(place))
    assert [(f.level, f.check) for f in found] == [("warning", "other writers")] * told
    assert all("OPTIMIZE" in f.means and "deltalake" in f.do for f in found)


def test_a_storage_that_lets_two_writers_win_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race is real: without put-if-absent both writers of a version are told that they won."""
    assert [f.level for f in check_storage(str(tmp_path))] == ["ok"]

    def forgetful(storage: Storage, path: str, data: bytes) -> bool:
        """A store that writes whatever it is given."""
        storage.write(path, data)
        return True

    monkeypatch.setattr(Storage, "put_if_absent", forgetful)
    found = list(check_storage(str(tmp_path)))
    assert [f.level for f in found] == ["error"]
    assert "both writers were" in found[0].found
    assert os.listdir(tmp_path) == []


def test_both_writers_of_the_race_try_the_same_version(tmp_path: Path) -> None:
    """One wins and one loses, each time, and the loser's reason is the storage's."""
    DeltaTable.create(str(tmp_path / "t"), doctor_tables._schema())
    storage = Storage(str(tmp_path / "t"))
    for version in range(1, 6):
        ended = doctor_tables._race(storage, version)
        assert sorted(what == "won" for what in ended) == [False, True]
        assert DeltaTable(str(tmp_path / "t")).version() == version
    assert threading.active_count() < 50


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """It is told, and nothing is left."""
    (tmp_path / "file").touch()
    found = list(check_storage(str(tmp_path / "file" / "below")))
    assert [f.level for f in found] == ["ok"]  # beside the file, in the folder that there is
    found = list(check_storage("/proc/1/tables"))
    assert [(f.check, f.level) for f in found] == [("put-if-absent", "error")]
    assert os.listdir(tmp_path) == ["file"]


# --- the machine -----------------------------------------------------------------------------


def test_the_machine_of_this_test_is_good_enough() -> None:
    """Java, Python and the packages that this release was checked with."""
    found = list(check_machine())
    assert {"version", "architecture", "deltalake", "kazoo", "memory", "open files"} <= {
        f.check for f in found
    }
    assert [f for f in found if f.level == "error"] == []


def test_no_java_no_spark_and_other_versions_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with what to do."""

    def none() -> Path:
        raise SetupError("No Java was found")

    monkeypatch.setattr(doctor_machine, "find_java", none)
    monkeypatch.setenv("SPARK_HOME", "/nowhere")
    monkeypatch.setattr(doctor_machine, "_required", lambda: {"kazoo": "==1.0.0"})
    monkeypatch.setattr(doctor_machine, "_LEAST_MEMORY", 10**18)
    monkeypatch.setattr(doctor_machine, "_memory_bytes", lambda: 2**30)
    found = by_check(check_machine())
    assert found["kazoo"].level == "warning"
    assert "checked with ==1.0.0" in found["kazoo"].found
    assert found["memory"].level == "warning"
    assert {f.area for f in check_machine() if f.level == "error"} == {"java", "spark"}
    (spark,) = [f for f in check_machine() if f.area == "spark"]
    assert spark.found.startswith("SPARK_HOME is '/nowhere', and /nowhere/bin/spark-submit cannot")
    assert spark.do == ""  # the refusal has its way out


def test_a_java_that_a_run_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of the refusal; it is no warning that Spark may not start."""
    spark = replace(running_spark(), version="4.1.4", line=LINES["4.1"])
    monkeypatch.setattr(doctor_machine, "running_spark", lambda: spark)
    monkeypatch.setattr("txn.machine.java.java_version", lambda _: "25.0.3")
    monkeypatch.setattr(doctor_machine, "java_version", lambda _: "25.0.3")
    (found,) = [f for f in check_machine() if (f.area, f.check) == ("spark", "Java")]
    assert found.level == "error"
    assert found.found == (
        "Java 25.0.3 is too new for Spark 4.1.4, which runs on Java 17 and 21. Install one of "
        "these and point JAVA_HOME at it, or use Spark 4.2."
    )


def test_spark_connect_by_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start refuses it, so `doctor` does; there is nothing to say without it."""
    checks = [f.check for f in check_machine() if f.area == "spark"]
    assert "settings" not in checks
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    (found,) = [f for f in check_machine() if (f.area, f.check) == ("spark", "settings")]
    assert found.level == "error"
    assert found.found.startswith("SPARK_REMOTE is 'sc://host': Spark Connect is not supported")
    assert found.found.endswith("Unset SPARK_REMOTE for that.")


def test_a_python_on_which_a_spark_was_not_run_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no warning: it may well work."""
    spark = running_spark()
    this = sys.version_info.minor
    for newest in (this, this - 1):
        line = replace(spark.line, python=newest)
        monkeypatch.setattr(
            doctor_machine, "running_spark", lambda line=line: replace(spark, line=line)
        )
        found = [f for f in check_machine() if (f.area, f.check) == ("spark", "Python")]
        told = (
            f"Python 3.{this}, and this release was run on Spark {spark.minor} with Python 3.10 to"
        )
        assert [(f.level, f.found) for f in found] == (
            [("note", f"{told} 3.{newest}")] if newest < this else []
        )


@pytest.mark.parametrize(
    ("version", "specifiers", "expected"),
    [
        ("4.2.0", "==4.2.0", True),
        ("4.2", "==4.2.0", True),
        ("4.2.1", "==4.2.0", False),
        ("1.6.10", ">=1.6.6,<1.7", True),
        ("1.7.0", ">=1.6.6,<1.7", False),
        ("1.6.5", "<1.7,>=1.6.6", False),
        ("3.0.0rc1", ">=2.11,<3", False),
        ("2.11", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, specifiers: str, expected: bool) -> None:
    """1.6.10 comes after 1.6.6."""
    assert fits(version, specifiers) is expected


def test_what_is_checked_is_what_the_project_asks_for() -> None:
    """The versions come out of pyproject.toml, by way of what is installed."""
    text = (ROOT / "pyproject.toml").read_text()
    for name, specifiers in doctor_machine._required().items():
        parts = [part for part in specifiers.split(",") if part]
        line = next(line for line in text.splitlines() if line.startswith(f'  "{name}'))
        assert all(part in line for part in parts), (name, line)


@pytest.mark.parametrize(
    ("free", "level"), [(2 * 2**30, "ok"), (2**29, "warning"), (2**20, "error")]
)
def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    """Once per file system."""
    usage = SimpleNamespace(total=2**40, free=free)
    monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda _: usage)
    found = list(check_disk([tmp_path, tmp_path / "not" / "there"]))
    assert [f.level for f in found] == [level]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 30 days", 30 * 86_400),
        ("INTERVAL 1 WEEK", 7 * 86_400),
        ("interval 1 day 12 hours", 129_600),
        ("interval 90 fortnights", None),
        ("soon", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    """As Delta writes them."""
    assert duration_secs(text) == seconds


def test_a_look_writes_nothing(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """For a page that only shows: no table beside the topology's, and no node in ZooKeeper."""
    with leading(zookeeper.hosts, "looked-at"):
        append(tmp_path / "table", None, None)
        before = sorted(tmp_path.rglob("*"))
        tables = {str(tmp_path / "table"): None}
        found = list(look("looked-at", CONFIG, tables, (zookeeper.hosts, zookeeper.hosts)))
        assert sorted(tmp_path.rglob("*")) == before
    checks = {finding.check for finding in found}
    assert {"version", "nodes", "owner", "session timeout"} <= checks
    assert not {"put-if-absent", "latency", "clock"} & checks
    without = {finding.area for finding in look("looked-at", CONFIG, tables, None)}
    assert not any(area.startswith("zookeeper") for area in without)
