"""`txn plan` and `txn run` over tables that a changed program does not fit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txn.operations.loading import load_topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology

topology = Topology("sales")
orders = topology.stream("orders", FileSpout("in/*.csv", format="csv", schema="k string, v int"))
orders.partition_persist(AppendTable("orders"))
orders.group_by("k").persistent_aggregate(StateTable("totals"), n=Count(), s=Sum("v"))
"""
WITHOUT_S = PROGRAM.replace(', s=Sum("v")', "")
OTHER = WITHOUT_S.replace('StateTable("totals")', 'StateTable("totals", buckets=2)')
MORE = PROGRAM.replace("n=Count()", "n=Count(), again=Count()")
REBUILD = (
    "To write the table's rows anew in the other shape, set "
    "TopologyConfig(rebuilt_tables=('totals',)), or --set rebuilt_tables=totals. To do so beside "
    "the running topology, set backfilled_tables after `txn backfill FILE.py:TOPOLOGY --table "
    "totals --from totals`. Or restore the former definition."
)
DROP = (
    "A program that does not know 's' would end it: run the program that does. To give it up, set "
    "TopologyConfig(dropped_columns=('totals:s',)), or --set dropped_columns=totals:s."
)


class World:
    """A folder in which a topology has committed txid 1."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.folder, self.zookeeper = folder, zookeeper

    def txn(
        self, command: str, program: str, *arguments: str, java: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """A command over a program, on a machine where no Java can start unless `java`."""
        (self.folder / "sales.py").write_text(program)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if not java:
            environment["JAVA_HOME"] = "/nothing/here"
        return subprocess.run(
            [sys.executable, "-m", "txn", command, "sales.py:topology", *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment,
            timeout=300,
        )

    def changes(self, program: str, *arguments: str) -> tuple[int, list[str]]:
        """The exit code of `txn plan`, and its section "changes"."""
        ended = self.txn("plan", program, *arguments)
        lines = ended.stdout.splitlines()
        begin = next(n for n, line in enumerate(lines) if line.startswith("changes"))
        return ended.returncode, lines[begin:]


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """The tables of one run, and a ZooKeeper that knows it."""
    folder = tmp_path_factory.mktemp("sales")
    (folder / "in").mkdir()
    (folder / "in/1.csv").write_text("a,1\nb,2\n")
    (folder / "sales.py").write_text(PROGRAM)
    hosts = f"{zookeeper.hosts}/{folder.name}"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        load_topology("sales.py:topology").run(spark, zookeeper=hosts, until="caught_up")
    return World(folder, hosts)


def test_nothing_differs_in_one_line(world: World) -> None:
    """The exit code is 0, with the ensemble and without, and it is said which was compared."""
    asked = world.changes(PROGRAM, "--zookeeper", world.zookeeper)
    assert asked == (0, ["changes: nothing differs (txid 1 is committed)"])
    assert world.changes(PROGRAM) == (
        0,
        [
            (
                "changes: nothing differs (by the tables' logs alone: streams, and tables that are "
                "new or gone, were not compared; no embedded ZooKeeper of it runs; "
                "--zookeeper SPEC names or starts one)"
            )
        ],
    )


def test_each_difference_has_its_verdict_and_its_way_out(world: World) -> None:
    """What a run would refuse ends with exit code 1; each setting is named as it is written."""
    size = sum(file.stat().st_size for file in (world.folder / "totals").rglob("*.parquet"))
    assert world.changes(OTHER, "--zookeeper", world.zookeeper) == (
        1,
        [
            "changes (txid 1 is committed)",
            (
                "  totals  needs a rebuild  its buckets change from 4 to 2 "
                f"(2 rows, {size / 1000:.1f} kB, roughly 1.0 s)"
            ),
            f"    {REBUILD} [TXN-304]",
            "  totals  needs a choice   value 's' of the table is not in the program",
            f"    {DROP} [TXN-304]",
            "  `txn run` refuses to start.",
        ],
    )


def test_another_spout_under_the_same_name_is_a_choice(world: World) -> None:
    """The plan has the words that exchange it, with exit code 1; a new name and the setting carry
    it out.
    """
    spout = 'FileSpout("in/*.csv", format="csv", schema="k string, v int")'
    memory = 'MemoryTransactionalSpout([[("c", 3)]], "k string, v int")'
    exchanged = PROGRAM.replace(spout, memory).replace(
        "from txn import", "from spouts.memory import MemoryTransactionalSpout\nfrom txn import"
    )
    code, lines = world.changes(exchanged, "--zookeeper", world.zookeeper)
    assert code == 1
    assert lines[1].startswith("  orders  needs a choice ")
    words = " ".join(lines)
    assert "[TXN-416]" in words
    assert "To exchange the spout, give the stream a new name and set" in words
    assert "--set dropped_streams=orders: the new spout begins at its own beginning" in words
    renamed = exchanged.replace('stream("orders"', 'stream("orders2"')
    settings = ("--zookeeper", world.zookeeper, "--set", "dropped_streams=orders")
    code, lines = world.changes(renamed, *settings)
    assert code == 0
    assert [line.split()[0] for line in lines[1:]] == ["orders", "orders2"]


def test_what_the_settings_allow_is_shown_with_its_txid(world: World) -> None:
    """The exit code is 0: the run would make the changes."""
    settings = ("--set", "rebuilt_tables=totals", "--set", "dropped_columns=totals:s")
    code, lines = world.changes(OTHER, "--zookeeper", world.zookeeper, *settings)
    assert (code, len(lines)) == (0, 3)
    assert lines[1].startswith("  totals  needs a rebuild (2)  its buckets")
    assert lines[2].startswith("  totals  needs a choice (2)   value 's'")
    code, lines = world.changes(MORE, "--zookeeper", world.zookeeper)
    assert (code, lines[1:]) == (0, ["  totals  from the next txid (2)  value 'again' is new"])
    assert world.changes(MORE)[1][1:] == ["  totals  from the next txid  value 'again' is new"]
    assert [line.split("  ")[2] for line in world.changes(OTHER, *settings)[1][1:]] == [
        "needs a rebuild (allowed)",
        "needs a choice (allowed)",
    ]


def test_a_next_generation_is_planned(world: World) -> None:
    """What takes the table's place is told with its newest txid, and refused if it does not fit."""
    more = MORE.replace('StateTable("totals")', 'StateTable("totals", buckets=2)')
    java = ("--zookeeper", world.zookeeper, "--master", "local[1]")
    options = ("--zookeeper", world.zookeeper, "--set", "backfilled_tables=totals")
    filled = world.txn("backfill", more, "--from", "totals", *java, java=True)
    assert "Table totals is filled up to txid 1." in filled.stdout, filled.stderr
    assert world.changes(more, *options) == (
        0,
        [
            "changes (txid 1 is committed)",
            (
                "  totals  needs a rebuild (2)     its buckets change from 4 to 2, in its next "
                "generation"
            ),
            "  totals  from the next txid (2)  value 'again' is new, in its next generation",
            (
                "  totals  from the next txid (2)  its next generation, which is filled up to txid "
                "1, takes its place"
            ),
        ],
    )
    code, lines = world.changes(PROGRAM, "--zookeeper", world.zookeeper)
    waits = "totals  carries on  its next generation, which is filled up to txid 1, waits: "
    assert (code, lines[1].strip().startswith(waits)) == (0, True)
    misspelt = ("--set", "rebuilt_tables=totls")
    run = world.txn("run", PROGRAM, "--zookeeper", world.zookeeper, *misspelt)
    assert "Note: rebuilt_tables names 'totls', which is no table of the program; " in run.stderr
    assert "did you mean 'totals'?" in run.stderr
    assert "Table totals: its next generation, which is filled up to txid 1, waits" in run.stderr
    folder = world.folder / "totals" / "generation-1"
    code, lines = world.changes(PROGRAM, *options)
    assert (code, lines[1].split("  ")[2]) == (1, "refused")
    assert "filled by another program: its buckets change from 2 to 4; value 'again'" in lines[1]
    assert f"delete the folder {folder}, ".replace(f"{world.folder}/", "") in lines[2]
    shutil.rmtree(folder)


def test_columns_are_compared_with_spark(world: World) -> None:
    """A column of the source that the append table lacks shows only with --columns."""
    wider = PROGRAM.replace("v int", "v int, w double")
    options = ("--json", "--columns", "--master", "local[1]")
    told = json.loads(world.txn("plan", wider, *options, java=True).stdout)
    assert [(c["subject"], c["what"]) for c in told["changes"]] == [("orders", "column 'w' is new")]
    assert told["columns"]["orders"] == {"k": "string", "v": "int", "w": "double"}
    assert world.changes(wider)[1][0].startswith("changes: nothing differs")


def test_json_lists_the_changes(world: World) -> None:
    """Each difference is an object; the committed txid is there if the ensemble was asked."""
    ended = world.txn("plan", WITHOUT_S, "--zookeeper", world.zookeeper, "--json")
    plan = json.loads(ended.stdout)
    assert (ended.returncode, plan["committed_txid"], plan["topology"]) == (1, 1, "sales")
    assert plan["changes"] == [
        {
            "subject": "totals",
            "what": "value 's' of the table is not in the program",
            "verdict": "needs a choice",
            "allowed": False,
            "way_out": DROP,
            "number": "TXN-304",
            "from_txid": None,
            "rows": None,
            "bytes": None,
            "seconds": None,
        }
    ]
    assert json.loads(world.txn("plan", WITHOUT_S, "--json").stdout)["committed_txid"] is None


def test_an_ensemble_that_does_not_answer_is_named(world: World) -> None:
    """The tables' logs are compared all the same."""
    code, lines = world.changes(
        PROGRAM, "--zookeeper", "127.0.0.1:1", "--set", "zookeeper_connect_secs=1"
    )
    assert code == 0
    assert lines[0].startswith("changes: nothing differs (by the tables' logs alone: ")
    assert "127.0.0.1:1" in lines[0]


def test_a_run_is_refused_before_spark(world: World) -> None:
    """Java cannot start here, and the refusal is that of the tables, with all differences."""
    refused = world.txn("run", OTHER, "--zookeeper", world.zookeeper)
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
        1,
        (
            "error: Table totals differs from the program: its buckets change from 4 to 2; value "
            f"'s' of the table is not in the program. {REBUILD} {DROP} Nothing was changed. "
            "[TXN-304]"
        ),
    )
    without_java = world.txn("run", PROGRAM, "--zookeeper", world.zookeeper)
    assert (without_java.returncode, "JAVA_HOME" in without_java.stderr) == (1, True)
