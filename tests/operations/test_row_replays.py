"""`txn rows export` and `txn rows replay`: rows that were set aside go in again, exactly once."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from click.testing import CliRunner

from tests.faults.harness import ROOT, wait_for
from tests.faults.support import rows_of
from txn.backends import open_backend
from txn.cli.app import cli
from txn.errors import UserError
from txn.operations.loading import load_topology
from txn.operations.rows.row_replays import Exported, Replayed, export_rows, replay_rows
from txn.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

PROGRAM = """
from committers.append_table import AppendTable
from spouts.files import FileSpout
from spouts.memory import MemoryTransactionalSpout
from txn import Topology, TopologyConfig

config = TopologyConfig(retry_backoff_ms=1, zookeeper_acl="open")
topology = Topology("{name}", config, bad_rows=AppendTable("{folder}/bad"))
spout = FileSpout(
    "in/*.{form}", format="{form}", schema="k string, v int", bad_rows="set_aside", {options}
)
rows = topology.stream("s", spout).expect("positive", "v > 0", "set_aside")
rows.partition_persist(AppendTable("{folder}/rows"))
"""
FILES = {
    "csv": {
        "1.csv": ["k,v", "a,1", '"b ""\\""",x', "c,-3", '"d, or e",-4'],
        "2.csv": ["k,v", "f,6", "g", ",-8"],
    },
    "json": {
        "1.json": ['{"k":"a","v":1}', '{"k":"b","v":"x"}', '{"k":"c","v":-3}', '{"v":-4,"k":"d"}'],
        "2.json": ['{"k":"f","v":6}', "word", '{"v":-8}'],
    },
}


class World:
    """A program in a folder of its own, whose topology the shared Spark session runs."""

    def __init__(self, folder: Path, spark: SparkSession, hosts: str, name: str) -> None:
        self.folder, self.spark, self.hosts, self.name = folder, spark, hosts, name
        (folder / "in").mkdir()
        self.form = "csv"
        self.program()

    def program(self, text: str = PROGRAM, form: str = "csv", **more: str) -> None:
        """Write the program anew."""
        self.form = form
        given = {"options": "header=True" if form == "csv" else "", **more}
        text = text.format(name=self.name, folder=self.folder, form=form, **given)
        (self.folder / "program.py").write_text(text)

    def write(self, name: str, lines: list[str]) -> None:
        """A file of the source."""
        (self.folder / "in" / name).write_text("\n".join([*lines, ""]))

    @property
    def topology(self) -> Topology:
        """The program's."""
        return load_topology("program.py:topology")

    def run(self) -> int:
        """Run until caught up; the newest committed txid."""
        return self.topology.run(
            self.spark, zookeeper=self.hosts, until="caught_up", progress=False
        ).committed_txid

    def export(self, name: str = "bad.csv", stream: str = "s", **given: Any) -> Exported:
        """Export the open rows of a stream."""
        with open_backend(self.hosts, self.topology.settings) as backend:
            return export_rows(self.topology, backend, stream, self.folder / name, **given)

    def replay(
        self, name: str, number: int, up_to: int, stream: str = "s", **given: Any
    ) -> Replayed:
        """Replay a file of the folder."""
        path = self.folder / name
        with open_backend(self.hosts, self.topology.settings) as backend:
            return replay_rows(
                self.topology, backend, stream, path, number=number, up_to=up_to, **given
            )

    def txn(self, *arguments: str) -> str:
        """What `txn rows` prints."""
        done = CliRunner().invoke(cli, ["rows", *arguments, "--zookeeper", self.hosts])
        assert done.exit_code == 0, done.output
        return done.output

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The table of good rows."""
        return rows_of(self.folder / "rows", "k", "v", "txid", key=str)

    @property
    def bad(self) -> list[tuple[Any, ...]]:
        """(txid, rule, name of the file, row) of the table of bad rows."""
        found = rows_of(self.folder / "bad", "txid", "rule", "position", "row")
        return [(t, rule, unquote(at).rpartition("/")[2], row) for t, rule, at, row in found]


def ran(world: World, form: str = "csv") -> World:
    """With two files read: five rows are set aside in two txids."""
    world.program(form=form)
    for name, lines in FILES[form].items():
        world.write(name, lines)
    assert world.run() == 2
    return world


CORRECTED = {
    "csv": ["k,v", "b,2", "g,7", "c,3", "d,4", "h,8"],
    "json": [
        json.dumps({"k": k, "v": v}) for k, v in (("b", 2), ("g", 7), ("c", 3), ("d", 4), ("h", 8))
    ],
}
GOOD = [("a", 1, 1), ("f", 6, 2)]
AGAIN = [("b", 2, 3), ("c", 3, 3), ("d", 4, 3), ("g", 7, 3), ("h", 8, 3)]


def test_a_file_that_cannot_be_read_is_named_and_not_exported(world: World) -> None:
    """Its row stands for no record: it would be one of the file to replay."""
    world.program()
    world.write("1.csv", ["k,v", "a,x"])
    packed = gzip.compress(b"k,v\nb,2\n")
    (world.folder / "in" / "2.csv").write_bytes(packed)
    world.run()
    assert len(world.bad) == 2
    said = world.txn("export", "program.py:topology", "--stream", "s", "bad.csv")
    named = f"files that cannot be read: in/2.csv ({len(packed)} bytes). Put a whole file"
    assert named in said
    assert (world.folder / "bad.csv").read_text() == "k,v\na,x\n"


@pytest.mark.parametrize("form", ["csv", "json"])
def test_corrected_rows_go_in_again(world: World, form: str) -> None:
    """Rows that were set aside and then corrected are read again exactly once, in a later txid.

    The commands print what comes next, and the table of bad rows keeps what it has.
    """
    aside = ran(world, form).bad
    said = world.txn("export", "program.py:topology", "--stream", "s", "open")
    assert "'open' has the open rows of stream 's' up to txid 2: " in said
    assert "2 of rule 'parses'" in said
    assert "3 of rule 'positive'" in said
    lines = (world.folder / "open").read_text().splitlines()
    raw = [line for name in sorted(FILES[form]) for line in FILES[form][name]]
    if form == "csv":
        assert lines == ["k,v", '"b ""\\""",x', "g", "c,-3", '"d, or e",-4', ",-8"]
    else:
        assert lines[:2] == [raw[1], raw[5]]
        assert [json.loads(line)["v"] for line in lines[2:]] == [-3, -4, -8]
    assert rules(world) == {"parses": (2, None, 2), "positive": (3, None, 3)}

    (world.folder / "open").write_text("\n".join([*CORRECTED[form], ""]))
    command = shlex.split(said.splitlines()[-1])
    assert command[:3] == ["txn", "rows", "replay"]
    done = CliRunner().invoke(cli, command[1:])
    (put,) = (world.folder / "in").glob(f"txn-rows-s-0001-????????.{form}")
    assert done.output == (
        "Replay 1 of stream 's' stands for 5 rows that were set aside: rule 'parses' up to txid 2, "
        f"rule 'positive' up to txid 2.\nThe corrected file is '{put}'. A running topology reads "
        "it with one of its next batches, a stopped one when it runs again.\n"
    )
    assert rules(world) == {"parses": (2, 2, 0), "positive": (3, 2, 0)}
    assert world.run() == 3
    again = CliRunner().invoke(cli, command[1:])
    assert "It was made before" in again.output
    assert world.run() == 3
    assert world.rows == GOOD[:1] + AGAIN[:3] + GOOD[1:] + AGAIN[3:]
    assert world.bad == aside
    assert sorted(path.name for path in (world.folder / "in").iterdir()) == [
        *sorted(FILES[form]),
        put.name,
    ]


def test_rows_of_a_renamed_stream_go_in_again_once(world: World) -> None:
    """Rows that were set aside before a stream was renamed are replayed with those after it, and a
    replay from before counts; what was replayed is never open again, with and without `was=`.
    """
    exported = ran(world).export(rule="parses")
    world.write("../parses.csv", ["k,v", "b,2", "g,7"])
    world.replay("parses.csv", exported.number, exported.up_to, rule="parses")
    assert world.run() == 3
    for was in ('was="s"', ""):
        world.program(PROGRAM.replace('stream("s", spout)', f'stream("t", spout, {was})'))
        if was:
            world.write("4.csv", ["k,v", "i,-9"])
            assert world.run() == 4
            with pytest.raises(UserError, match="has no stream 's'"):
                world.export("open.csv", "s")
            exported = world.export("open.csv", "t")
            assert (exported.number, exported.rules, exported.up_to) == (2, {"positive": 4}, 4)
            world.write("../done.csv", ["k,v", "c,3", "d,4", "h,8", "i,9"])
            for again in (False, True):
                done = world.replay("done.csv", 2, 4, stream="t")
                assert (done.again, done.rows) == (again, 4)
            assert world.run() == 5
        with pytest.raises(UserError, match="not yet replayed"):
            world.export("none.csv", "t")
        listed = json.loads(world.txn("list", world.name, "--json"))["rules"]
        assert {(one["stream"], one["rule"]): one["still_open"] for one in listed} == {
            ("s", "parses"): 0,
            ("s", "positive"): 0,
            ("t", "positive"): 0,
        }
    assert sorted(row[:2] for row in world.rows) == [
        *(("a", 1), ("b", 2), ("c", 3), ("d", 4)),
        *(("f", 6), ("g", 7), ("h", 8), ("i", 9)),
    ]


def rules(world: World) -> dict[str, tuple[Any, ...]]:
    """What `txn rows list` tells: rows, replayed up to, still open."""
    told = json.loads(world.txn("list", "program.py:topology", "--json"))["rules"]
    names = ("rows", "replayed_up_to", "still_open")
    return {rule["rule"]: tuple(rule[name] for name in names) for rule in told}


KILLED = """
import os, signal, sys
from txn.cli.app import cli
import {module}

true = {module}.{name}

def killed(*arguments, **named):
    if {after}:
        true(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)

{module}.{name} = killed
cli(sys.argv[1:], prog_name="txn")
"""
POINTS = {
    "before the ledger": ("txn.zookeeper.backend", "ZooKeeperBackend.begin_row_replay", False),
    "after the ledger": ("txn.zookeeper.backend", "ZooKeeperBackend.begin_row_replay", True),
    "before the file": ("os", "link", False),
    "after the file": ("os", "link", True),
    "before the end": ("txn.zookeeper.backend", "ZooKeeperBackend.settle_row_replay", False),
}


@pytest.mark.parametrize("point", POINTS)
def test_the_same_command_completes_a_replay_that_was_killed(world: World, point: str) -> None:
    """SIGKILL between any two steps of a replay: the same command again completes it, once."""
    exported = ran(world).export()
    world.write("../bad.csv", CORRECTED["csv"])
    command = ["rows", "replay", "program.py:topology", "--stream", "s", "--zookeeper", world.hosts]
    command += ["--number", str(exported.number), "--up-to", str(exported.up_to), "bad.csv"]
    module, name, after = POINTS[point]
    program = KILLED.format(module=module, name=name, after=after)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", program, *command], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    before = point in ("before the ledger", "after the ledger", "before the file")
    assert len(list((world.folder / "in").glob("txn-rows-*"))) == (not before)
    if point == "after the file":
        assert world.run() == 3
    for _ in range(2):
        assert CliRunner().invoke(cli, command).exit_code == 0
    assert world.run() == 3
    assert world.rows == GOOD[:1] + AGAIN[:3] + GOOD[1:] + AGAIN[3:]
    assert [p.name for p in (world.folder / "in").glob(".*")] == []


def test_a_replay_that_is_half_done_is_completed_before_another(world: World) -> None:
    """Other content is refused, and so is the next replay; both name the copy that completes it."""
    exported = ran(world).export(rule="parses")
    world.write("../bad.csv", ["k,v", "b,2", "g,7"])
    killed = KILLED.format(module="os", name="link", after=False)
    command = ["rows", "replay", "program.py:topology", "--stream", "s", "--zookeeper", world.hosts]
    command += ["--rule", "parses", "--number", "1", "--up-to", "2", "bad.csv"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", killed, *command], env=environment, check=False)
    (copy,) = (world.folder / "in").glob(".*.tmp")
    world.write("../bad.csv", ["k,v", "b,2", "g,8"])
    with pytest.raises(UserError, match=r"Replay 1 .* was begun with other content") as refused:
        world.replay("bad.csv", exported.number, exported.up_to, rule="parses")
    assert str(copy) in str(refused.value)
    with pytest.raises(UserError, match=r"Replay 1 of stream 's' is half done") as refused:
        world.replay("bad.csv", 2, 2, rule="positive")
    assert str(copy) in str(refused.value)
    kept = copy.read_bytes()
    (world.folder / "kept").write_bytes(kept)
    assert Path(world.replay("kept", 1, 2, rule="parses").file).read_bytes() == kept
    assert not copy.exists()
    with pytest.raises(UserError, match=r"was begun with other content .* Nothing was changed"):
        world.replay("bad.csv", 1, 2, rule="parses")


def test_corrected_rows_go_in_while_the_topology_runs(world: World) -> None:
    """A running topology reads the file with one of its next batches."""
    exported = ran(world).export()
    world.write("../bad.csv", CORRECTED["csv"])
    running = world.topology.start(world.spark, zookeeper=world.hosts)
    try:
        world.replay("bad.csv", exported.number, exported.up_to)
        wait_for(lambda: len(world.rows) == 7, what="the corrected rows")
    finally:
        running.stop()
    assert world.run() == 3
    assert world.rows == GOOD[:1] + AGAIN[:3] + GOOD[1:] + AGAIN[3:]


def test_corrected_rows_that_are_still_bad_are_set_aside_again(world: World) -> None:
    """Their position is the new file, and they are open again: the next replay stands for them."""
    aside = ran(world).bad
    exported = world.export()
    world.write("../bad.csv", ["k,v", "b,x", "g,7", "c,-3", "d,4", "h,8"])
    name = Path(world.replay("bad.csv", exported.number, exported.up_to).file).name
    assert world.run() == 3
    assert world.bad == [
        *aside,
        (3, "parses", name, "b,x"),
        (3, "positive", name, '{"k":"c","v":-3}'),
    ]
    assert rules(world) == {"parses": (3, 2, 1), "positive": (4, 2, 1)}
    again = world.export("still.csv")
    assert (again.number, again.up_to, again.rules) == (2, 3, {"parses": 1, "positive": 1})
    assert (world.folder / "still.csv").read_text() == "k,v\nb,x\nc,-3\n"
    world.write("../still.csv", ["k,v", "b,2", "c,3"])
    world.replay("still.csv", 2, 3)
    assert world.run() == 4
    assert [row[:2] for row in world.rows] == [(*row[:2],) for row in sorted([*GOOD, *AGAIN])]


def test_a_replay_stands_for_what_was_exported(world: World) -> None:
    """Rows that were set aside after an export stay open; a file of before a replay is refused."""
    first = ran(world).export("first.csv")
    world.write("3.csv", ["k,v", "i,-9"])
    assert world.run() == 3
    second = world.export("second.csv")
    assert (second.number, second.up_to) == (1, 3)
    world.write("../first.csv", CORRECTED["csv"])
    assert world.replay("first.csv", first.number, first.up_to).rows == 5
    assert rules(world) == {"parses": (2, 2, 0), "positive": (4, 2, 1)}
    world.write("../second.csv", [*CORRECTED["csv"], "i,9"])
    with pytest.raises(UserError, match="Replay 1 of stream 's' was begun with other content"):
        world.replay("second.csv", second.number, second.up_to)
    with pytest.raises(UserError, match="The next replay of stream 's' is number 2, not 3"):
        world.replay("second.csv", 3, 3)
    with pytest.raises(UserError, match="was begun with other rules or txids"):
        world.replay("first.csv", 1, 3)
    with pytest.raises(UserError, match="Txid 4 of topology 'ruled' is not committed"):
        world.replay("second.csv", 2, 4)
    with pytest.raises(UserError, match="No rows of stream 's' are set aside and not yet replayed"):
        world.replay("second.csv", 2, 2)
    with pytest.raises(UserError, match=r"There is a file '.*first.csv' already"):
        world.export("first.csv")


BEHIND = PROGRAM.replace(
    '.expect("positive", "v > 0", "set_aside")',
    """.transform(lambda df: df.selectExpr("k", "-v AS w"))
rows = rows.expect("negative", "w < 0", "set_aside")
rows = rows.transform(lambda df: df.selectExpr("k", "-w AS v"))""",
)


def test_rows_behind_a_transform(world: World) -> None:
    """They are exported as they stood at the rule, with a sentence that says so, and on their own.

    The file to replay has the source's columns.
    """
    ran(world)
    world.program(BEHIND)
    world.write("3.csv", ["k,v", "i,-9"])
    assert world.run() == 3
    export = ["export", "program.py:topology", "--stream", "s", "--rule"]
    said = world.txn(*export, "negative", "behind")
    assert "Their columns are not those of the source" in said
    assert (world.folder / "behind").read_text() == '{"k":"i","w":9}\n'
    with pytest.raises(UserError, match=r"do not fit into one file. Name one rule with --rule"):
        world.export("all")
    # What form a row has belongs to its txid: a rule of that name may stand elsewhere by now.
    assert "Their columns are" not in world.txn(*export, "positive", "gone")
    assert (world.folder / "gone").read_text() == 'k,v\nc,-3\n"d, or e",-4\n,-8\n'
    world.program(PROGRAM.replace("positive", "negative"))
    assert "Their columns are not" in world.txn(*export, "negative", "moved")
    assert (world.folder / "moved").read_text() == '{"k":"i","w":9}\n'
    world.write("../behind.csv", ["k,v", "i,9"])
    world.replay("behind.csv", 1, 3, rule="negative")
    assert world.run() == 4
    assert rows_of(world.folder / "rows", "k", "txid")[-1] == ("i", 4)


Change = Callable[[World], None]


def other_stream(world: World) -> None:
    """Another stream that reads the same folder."""
    spout = 'FileSpout("{folder}/in/*", format="text")'
    more = f'topology.stream("t", {spout}).partition_persist(AppendTable("{{folder}}/t"))\n'
    world.program(PROGRAM + more)


def pattern(text: str) -> Change:
    """Another pattern of the spout."""
    return lambda world: world.program(PROGRAM.replace("in/*.{form}", text))


def header(world: World) -> None:
    """The header is gone from the corrected file."""
    world.write("../bad.csv", CORRECTED["csv"][1:])


def stranger(world: World) -> None:
    """A file of a replay of which ZooKeeper knows nothing."""
    world.write("txn-rows-s-0001-12345678.csv", ["k,v"])


def memory(world: World) -> None:
    """A spout that reads no files."""
    world.program(
        PROGRAM.replace(
            'stream("s", spout)', "stream(\"s\", MemoryTransactionalSpout([], 'v int'))"
        )
    )


REFUSED: dict[str, tuple[Change, str]] = {
    "another stream": (other_stream, "Stream 't' would read '.*' as well, and have its rows twice"),
    "a single file": (pattern("in/1.csv"), "matches no file like 'txn-rows-s-0001-.* Give the"),
    "a short pattern": (pattern("in/?.csv"), "matches no file like 'txn-rows-s-0001-"),
    "compressed files": (pattern("in/*.csv.gz"), "reads compressed files"),
    "remote files": (pattern("s3://bucket/*.csv"), "reads remote storage"),
    "another folder": (pattern("on/*.csv"), "There is no folder '.*/on/', in which"),
    "no header": (header, "first line of the file is not 'k,v' but 'b,2'"),
    "a file of an unknown replay": (stranger, "looks like the file of a replay, and ZooKeeper"),
    "another spout": (memory, "a MemoryTransactionalSpout, which takes no files: .* KafkaSpout"),
}


@pytest.fixture(scope="module")
def aside(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, zookeeper: EmbeddedZooKeeper
) -> World:
    """A world with rows set aside, for tests that replay nothing."""
    folder = tmp_path_factory.mktemp("refused")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return ran(World(folder, spark, f"{zookeeper.hosts}/{folder.name}", "ruled"))


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_go_in_once_is_refused(
    aside: World, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names what is wrong and the way out, and leaves everything as it was."""
    monkeypatch.chdir(aside.folder)
    aside.program()
    aside.write("../bad.csv", CORRECTED["csv"])
    change, said = REFUSED[case]
    change(aside)
    with pytest.raises(UserError, match=said):
        aside.replay("bad.csv", 1, 2)
    stray = aside.folder / "in" / "txn-rows-s-0001-12345678.csv"
    stray.unlink(missing_ok=True)
    aside.program()
    assert rules(aside) == {"parses": (2, None, 2), "positive": (3, None, 3)}
    assert sorted(path.name for path in (aside.folder / "in").iterdir()) == ["1.csv", "2.csv"]


def test_streams_that_are_not_one_source(aside: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown stream is told from one whose rows came from several."""
    monkeypatch.chdir(aside.folder)
    twice = 'topology.stream("t", spout).partition_persist(AppendTable("{folder}/t"))\n'
    aside.program(PROGRAM + twice)
    for stream, said in (("x", "has no stream 'x'. It has: s, t"), ("s+t", "from several streams")):
        with pytest.raises(UserError, match=said):
            aside.export("none", stream=stream)


def test_formats_that_are_not_written(aside: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet, and JSON of one document a file, are refused by name, with the way out."""
    monkeypatch.chdir(aside.folder)
    for change, said in (
        (('format="{form}"', 'format="json", multiLine=True'), "reads json of whole files"),
        (('format="{form}", ', 'format="parquet", '), "reads parquet, which `txn rows export`"),
    ):
        text = PROGRAM.replace(*change)
        if "parquet" in change[1]:
            text = text.replace('bad_rows="set_aside", {options}', "")
        aside.program(text, options="")
        with pytest.raises(UserError, match=said):
            aside.export("none", rule="positive")
        assert not (aside.folder / "none").exists()


BESIDE = PROGRAM.replace("topology.stream", "raw = topology.stream").replace(
    'spout).expect("positive"', 'spout)\nrows = raw.expect("positive"'
)
BESIDE += 'raw.partition_persist(AppendTable("{folder}/raw"))\n'
MOVED = PROGRAM + 'rows.partition_persist(AppendTable("{folder}/raw"))\n'
GONE = BESIDE.replace('rows = raw.expect("positive", "v > 0", "set_aside")', "rows = raw")
REMOVED = PROGRAM.replace('.expect("positive", "v > 0", "set_aside")', "")
SAID = r"Table '.*raw' takes rows of stream 's' that in txid 1 were not asked about rule 'positive'"


@pytest.mark.parametrize("today", [BESIDE, MOVED, GONE], ids=["as it was", "moved", "removed"])
def test_a_table_that_was_not_asked_refuses_a_replay_for_ever(world: World, today: str) -> None:
    """Which tables a rule stood before belongs to the txid that set its rows aside."""
    world.program(BESIDE)
    world.write("1.csv", FILES["csv"]["1.csv"])
    assert world.run() == 1
    world.program(today)
    with pytest.raises(UserError, match=SAID):
        world.export(rule="positive")
    world.write("../negative.csv", ["k,v", "c,3", "d,4"])
    with pytest.raises(UserError, match=SAID):
        world.replay("negative.csv", 1, 1, rule="positive")
    # The other rule stood before both.
    world.export("parses.csv", rule="parses")
    world.write("../parses.csv", ["k,v", "b,2"])
    world.replay("parses.csv", 1, 1, rule="parses")
    assert world.run() == 2
    assert rows_of(world.folder / "raw", "k", "v", key=str) == [
        ("a", 1),
        ("b", 2),
        ("c", -3),
        ("d, or e", -4),
    ]


@pytest.mark.parametrize(
    ("today", "tables"),
    [(REMOVED, 1), (MOVED, 2), (BESIDE, 2)],
    ids=["removed", "a table more", "moved"],
)
def test_a_rule_that_stood_before_all_tables_may_change(
    world: World, today: str, tables: int
) -> None:
    """No table has its rows, wherever it stands by now: each gets them once."""
    ran(world)
    new = 'ms=1, new_tables=("{folder}/raw",),' if tables > 1 else "ms=1,"
    world.program(today.replace("ms=1,", new))
    world.export("negative.csv", rule="positive")
    world.write("../negative.csv", ["k,v", "c,3"])
    world.replay("negative.csv", 1, 2, rule="positive")
    assert world.run() == 3
    for table in ("rows", "raw")[:tables]:
        assert ("c", 3, 3) in rows_of(world.folder / table, "k", "v", "txid")


@pytest.mark.parametrize(
    ("today", "said"),
    [
        (MOVED, None),
        (BESIDE, SAID),
        (REMOVED, "has no rule 'positive' of stream 's' any more, and"),
    ],
    ids=["before all", "beside", "removed"],
)
def test_a_log_that_does_not_say_what_a_rule_stood_before(
    world: World, today: str, said: str | None
) -> None:
    """Then the program of today says it, if it has the rule."""
    ran(world)
    for commit in (world.folder / "bad" / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            publication = line.get("commitInfo", {}).get("txn", {})
            for record in (publication, *publication.get("members", ())):
                record.pop("unasked", None)
                record.pop("forms", None)
        commit.write_text("\n".join(map(json.dumps, lines)))
    world.program(today)
    if said is None:
        assert world.export(rule="positive").rules == {"positive": 3}
        return
    with pytest.raises(UserError, match=said):
        world.export(rule="positive")


TIMED = """
from committers.append_table import AppendTable
from spouts.files import FileSpout
from txn import Topology, TopologyConfig

config = TopologyConfig(retry_backoff_ms=1, zookeeper_acl="open", max_spout_pending=1)
topology = Topology("{name}", config, bad_rows=AppendTable("{folder}/bad"))
spout = FileSpout("in/*.csv", format="csv", schema="k string, at timestamp", header=True)
rows = topology.stream("s", spout).watermark("at", "1 minute", late="{late}")
rows.partition_persist(AppendTable("{folder}/rows"))
"""


def test_late_rows_count_once_they_are_kept(world: World) -> None:
    """docs/time.md: a late row that is replayed is late once more, unless the program keeps it."""
    world.program(TIMED, late="set_aside")
    times = {"1.csv": ["10:00", "9:00"], "2.csv": ["9:58", "10:01"], "3.csv": ["10:02"]}
    for name, minutes in times.items():
        lines = [f"{name[0]}-{at},2026-03-01 {at.zfill(5)}:00" for at in minutes]
        world.write(name, ["k,at", *lines])
        world.run()
    assert [row[:2] for row in world.bad] == [(2, "late")]
    done = world.export("late.csv")
    assert world.replay("late.csv", done.number, done.up_to).rows == 1
    assert world.run() == 4
    assert [row[:2] for row in world.bad] == [(2, "late"), (4, "late")]
    world.program(TIMED, late="keep")
    done = world.export("again.csv")
    assert world.replay("again.csv", done.number, done.up_to).rows == 1
    assert world.run() == 5
    found = rows_of(world.folder / "rows", "txid", "k")
    assert found == [(1, "1-10:00"), (1, "1-9:00"), (2, "2-10:01"), (3, "3-10:02"), (5, "2-9:58")]
