from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.delta.publishing import publish
from txn.cli.app import cli
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.zookeeper import ZooKeeperProgress

ROOT = Path(__file__).parents[2]

PROGRAM = """
from committers.aggregates import Count, Sum
from committers.append_table import AppendTable
from committers.state_table import StateTable
from spouts.files import FileSpout
from txn import Topology

topology = Topology("orders")
orders = topology.stream(
    "orders", FileSpout("in/*.csv", format="csv", schema="item string, n int", header=True)
)
orders.group_by("item").persistent_aggregate(StateTable("tables/items"), n=Sum("n"))
orders.partition_persist(AppendTable("tables/orders"))

nothing = Topology("nothing")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user, with a program and two files to read."""
    (tmp_path / "program.py").write_text(PROGRAM)
    add_file(tmp_path, 1)
    add_file(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def add_file(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    hidden = folder / "in" / f".{number}"
    hidden.write_text(f"item,n\nnut,{number}\nbolt,10\n")
    hidden.rename(folder / "in" / f"{number}.csv")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def txn(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`txn` as a user starts it, in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "txn", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_txn(folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """(stdout, stderr) of a command that ends with the given code."""
    process = txn(folder, *arguments)
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    return out, err


RUN = ("run", "program.py:topology", "--master", "local[2]", "--conf", "spark.driver.memory=1g")


# --- mistakes on the command line ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing.py:topology"), "no file 'nothing.py'"),
        (("run", "program.py:orderz"), "it has: nothing, topology"),
        (("run", "program.py:topology", "--until", "0"), "neither forever"),
        (("run", "program.py:topology", "--until", "later"), "neither forever"),
        (("run", "program.py:topology", "--conf", "spark.x"), "not KEY=VALUE"),
        (("history", "orders", "--limit", "0"), "0 is not in the range"),
        (("recover", "orders"), "orders"),
        (("walk",), "No such command"),
    ],
)
def test_mistakes_are_told_and_end_with_2(
    program: Path, arguments: tuple[str, ...], message: str
) -> None:
    """A mistake on the command line ends with code 2 and says what is wrong, and no more."""
    result = invoke(*arguments)
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert message in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "program.py:nothing"), "ends nowhere"),
        (("status", "orders"), "There is no ZooKeeper data in"),
        (("history", "program.py:topology"), "no Delta table at 'tables/items'"),
        (("recover", "program.py:topology"), "no Delta table at 'tables/items'"),
        (("recover", "program.py:nothing"), "ends nowhere"),
    ],
)
def test_errors_are_one_paragraph_and_end_with_1(
    program: Path, arguments: tuple[str, ...], message: str
) -> None:
    """An error ends with code 1 and is one paragraph that begins with the word error."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert not (program / ".txn").exists()  # nothing was started for it


def test_traceback_is_shown_on_demand(program: Path) -> None:
    """With --traceback an error is shown with where it came from, and then as ever."""
    result = invoke("run", "program.py:nothing", "--traceback")
    assert result.exit_code == 1
    assert "Traceback" in result.output
    assert result.output.splitlines()[-1].startswith("error: Topology 'nothing'")


def test_version() -> None:
    """`txn --version` says which version it is."""
    assert invoke("--version").output == "txn, version 0.2.0.dev0\n"


def test_usage_loads_neither_spark_nor_zookeeper() -> None:
    """Help and usage errors come at once: neither pyspark nor kazoo is loaded for them."""
    code = (
        "import sys, txn.cli\n"
        "print([m for m in ('pyspark', 'kazoo', 'deltalake') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"


# --- status, history and recover without Spark -----------------------------------------------


@pytest.fixture
def hosts(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """A ZooKeeper of one test: a chroot of its own."""
    return f"{zookeeper.hosts}/{tmp_path.name}"


def lead(hosts: str) -> ZooKeeperProgress:
    store = ZooKeeperProgress(hosts, "orders", TopologyConfig())
    store.lead()
    store.load()
    return store


def test_status_tells_leader_batches_and_tables(hosts: str) -> None:
    """Status has committed txid, epoch, the living leader, open batches, metadata and versions."""
    store = lead(hosts)
    tables = {"tables/items": 4}
    committed = CommittedRecord(txid=3, epoch=1, spouts={"orders": {"at": 3}}, tables=tables)
    store.persist_committed(committed)
    store.persist_start(BatchRecord(txid=4, attempt=2, epoch=1, spouts={"orders": {"at": 4}}))
    told = json.loads(invoke("status", "orders", "--zookeeper", hosts, "--json").output)
    text = invoke("status", "orders", "--zookeeper", hosts).output
    store.close()
    assert (told["committed_txid"], told["epoch"], told["tables"]) == (3, 1, tables)
    assert told["spouts"] == {"orders": {"at": 3}}
    assert [(batch["txid"], batch["attempt"]) for batch in told["batches"]] == [(4, 2)]
    assert (told["leader"]["pid"], told["leader"]["alive"]) == (os.getpid(), True)
    assert f"process {os.getpid()}" in text
    assert "{at: 4}" in text
    after = json.loads(invoke("status", "orders", "--zookeeper", hosts, "--json").output)
    assert (after["leader"], after["last_leader"]["pid"]) == (None, os.getpid())


def test_unknown_topology_lists_those_there_are(hosts: str) -> None:
    """A name that ZooKeeper does not know is answered with the names that it does know."""
    lead(hosts).close()
    result = invoke("status", "odors", "--zookeeper", hosts)
    assert result.exit_code == 1
    assert "It knows orders." in result.output


def test_the_page_of_an_unknown_topology_says_so_on_the_terminal(hosts: str) -> None:
    """It opens nevertheless: the topology may begin later. Its process steps back behind a run."""
    lead(hosts).close()
    command = ["dashboard", "odors", "--port", "0", "--zookeeper", hosts]
    with subprocess.Popen(
        [sys.executable, "-m", "txn", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as page:
        assert page.stdout is not None
        assert page.stderr is not None
        assert page.stdout.readline().startswith("The page is at http://")
        told = page.stderr.readline()
        priorities = [os.getpriority(os.PRIO_PROCESS, process) for process in (page.pid, 0)]
        page.terminate()
    assert priorities[0] == max(priorities[1], 5)
    assert "knows no topology 'odors'. It knows orders. " in told
    assert told.endswith(" The page goes on looking.\n")


@pytest.mark.parametrize("command", ["dashboard", "status"])
def test_a_file_in_place_of_a_name_is_a_mistake(program: Path, command: str) -> None:
    """It is answered with what to write, as by `txn run`."""
    result = invoke(command, str(program / "program.py"))
    assert result.exit_code == 2
    assert "names no topology. Write " in result.output
    assert "[TXN-117]" in result.output


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (("new", "Sales"), "TXN-104"),
        (("plan", "program.py:topology", "--set", "x=1"), "TXN-119"),
        (("run", "program.py:topology", "--metrics", "abc"), "TXN-217"),
        (("status", "orders", "--zookeeper", "zk://a"), "TXN-601"),
        (("run", "program.py:topology", "--standby"), "TXN-608"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_a_mistake(
    program: Path, arguments: tuple[str, ...], number: str
) -> None:
    """It ends with the exit code of a mistake on the command line, whoever finds it."""
    result = invoke(*arguments)
    assert (result.exit_code, f"[{number}]" in result.output) == (2, True), result.output
    assert [file.name for file in program.iterdir() if file.name not in (".txn", "in")] == [
        "program.py"
    ]


def test_history_reads_the_tables_that_zookeeper_names(program: Path, hosts: str) -> None:
    """History by name finds the tables through ZooKeeper and reads their logs."""
    publish(program / "tables/items", 1, topology="orders")
    store = lead(hosts)
    store.persist_committed(CommittedRecord(txid=1, epoch=1, tables={"tables/items": 0}))
    store.close()
    told = json.loads(invoke("history", "orders", "--zookeeper", hosts, "--json").output)
    (entry,) = told["txids"]
    assert (entry["txid"], entry["attempt"], entry["epoch"]) == (1, 0, 1)
    assert (entry["committed"], entry["tables"]) == (True, {"tables/items": 0})
    text = invoke("history", "orders", "--zookeeper", hosts).output
    assert "items 10 (v0)" in text


def half_published(folder: Path) -> None:
    """Tables in which txid 2 is in one, and not yet in the other."""
    for txid in (1, 2):
        publish(folder / "tables/items", txid, topology="orders", spouts={"orders": txid}, epoch=7)
    publish(folder / "tables/orders", 1, topology="orders", spouts={"orders": 1}, epoch=7)


def recover(hosts: str, *more: str) -> Result:
    return invoke("recover", "program.py:topology", "--zookeeper", hosts, *more)


def test_recover_rebuilds_from_the_tables(program: Path, hosts: str) -> None:
    """Recovery writes what the tables tell, under an epoch above all that they have seen."""
    half_published(program)
    written = json.loads(recover(hosts, "--yes", "--json").output)
    assert (written["written"], written["epoch"]) == (True, 8)
    told = json.loads(invoke("status", "orders", "--zookeeper", hosts, "--json").output)
    assert (told["committed_txid"], told["spouts"], told["epoch"]) == (1, {"orders": 1}, 8)
    assert [(batch["txid"], batch["spouts"]) for batch in told["batches"]] == [(2, {"s": 2})]


def test_recover_shows_its_plan_and_writes_only_when_told_to(program: Path, hosts: str) -> None:
    """Without --yes and without anybody to ask, the plan is shown and nothing is written."""
    half_published(program)
    result = recover(hosts)
    assert result.exit_code == 2
    assert re.search(r"to replay +2:0 ", result.output)
    assert "add --yes" in result.output
    assert "no topology at all" in invoke("status", "orders", "--zookeeper", hosts).output


def test_recover_has_nothing_to_do_twice(program: Path, hosts: str) -> None:
    """Where ZooKeeper and tables agree nothing is written."""
    half_published(program)
    assert recover(hosts, "--yes").exit_code == 0
    again = recover(hosts, "--yes")
    assert (again.exit_code, "agree" in again.output) == (0, True)


def test_recover_refuses_while_a_leader_lives(program: Path, hosts: str) -> None:
    """Under a running leader nothing is rebuilt; the code is that of leadership."""
    half_published(program)
    store = lead(hosts)
    results = [recover(hosts, "--yes"), recover(hosts)]
    store.close()
    assert [result.exit_code for result in results] == [3, 3]
    assert all(f"process {os.getpid()}" in result.output for result in results)


def test_recover_refuses_a_zookeeper_that_is_ahead(program: Path, hosts: str) -> None:
    """Tables that know less than ZooKeeper were replaced or restored: nothing is overwritten."""
    half_published(program)
    store = lead(hosts)
    store.persist_committed(CommittedRecord(txid=5, epoch=1))
    store.close()
    result = recover(hosts, "--yes")
    assert (result.exit_code, "txid 5" in result.output) == (1, True)


def test_recover_refuses_tables_that_do_not_belong_together(program: Path, hosts: str) -> None:
    """Tables more than one txid apart are refused by name."""
    half_published(program)
    publish(program / "tables/items", 3, topology="orders")
    result = recover(hosts, "--yes")
    assert result.exit_code == 1
    assert "'tables/items' holds txid 3, but 'tables/orders' holds txid 1" in result.output


# --- with everything -------------------------------------------------------------------------


def events(process: subprocess.Popen[str], until: int) -> list[dict[str, Any]]:
    """The events of `txn run --json` up to the commit of a txid, but for the start and waits."""
    assert process.stdout is not None
    seen: list[dict[str, Any]] = []
    for event in map(json.loads, process.stdout):
        if event["event"] in ("starting", "waiting"):
            continue
        seen.append(event)
        if seen[-1].get("txid") == until and seen[-1]["event"] == "committed":
            return seen
    raise AssertionError(f"ended before txid {until}: {seen} {process.stderr.read()}")


def test_life_of_a_topology(program: Path) -> None:
    """It runs, is looked at meanwhile, refuses a second one, stops cleanly, recovers, goes on."""
    running = txn(program, *RUN, "--json")
    started, *committed = events(running, until=2)
    assert (started["event"], started["epoch"], started["until"]) == ("started", 1, "forever")
    assert [(e["txid"], e["attempt"]) for e in committed] == [(1, 0), (2, 0)]
    assert committed[0]["rows"] == {"tables/items": 2, "tables/orders": 2}

    told = json.loads(run_txn(program, "status", "orders", "--json")[0])
    assert (told["committed_txid"], told["leader"]["pid"]) == (2, running.pid)
    out, err = run_txn(program, *RUN, code=3)
    assert out == "program.py:topology: loading the program\n"
    assert (err.count("\n"), f"process {running.pid}" in err) == (1, True)

    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, "")
    ended = json.loads(out.splitlines()[-1])
    assert (ended["event"], ended["ended"], ended["committed_txid"]) == ("ended", "stopped", 2)

    history = json.loads(run_txn(program, "history", "orders", "--json")[0])
    assert [(e["txid"], e["read"]) for e in history["txids"]] == [
        (2, {"orders": "2.csv, 21 bytes"}),
        (1, {"orders": "1.csv, 21 bytes"}),
    ]

    (program / ".txn/zookeeper").rename(program / "lost")
    run_txn(program, "recover", "program.py:topology", "--yes")
    add_file(program, 3)
    out, err = run_txn(program, *RUN, "--until", "caught_up", "--log-format", "json")
    *starting, first, second, held, last = out.splitlines()
    assert starting == [
        "program.py:topology: loading the program",
        "orders: starting Spark (Java takes some seconds) and ZooKeeper",
        "orders: checking columns, tables and progress",
    ]
    assert held.startswith("orders: held up by ")
    assert (first.startswith("orders: running, epoch 3, from txid 3"), err) == (True, "")
    folder = program / ".txn/zookeeper"
    assert first.endswith(f"until caught_up, zookeeper {folder}")
    read_and_staged = r"read 21 bytes; items 2 rows \(v\d\), orders 2 rows \(v\d\)"
    assert re.match(f"orders: committed 3:0: {read_and_staged}; processing ", second)
    assert last.startswith("orders: caught up. Committed txid 3;")
    # A file is of one format.
    before, logged = (
        (program / ".txn/logs" / name).read_text().splitlines()
        for name in ("orders.log.1", "orders.log")
    )
    assert any(line.endswith("INFO txn [orders 2:0] started") for line in before)
    found = [json.loads(line) for line in logged]
    (line,) = [line for line in found if line["message"].startswith("[orders 3:0] committed")]
    assert [line[name] for name in ("topology", "epoch", "txid", "attempt")] == ["orders", 3, 3, 0]


def test_a_project_is_the_same_from_wherever_it_is_started(tmp_path: Path) -> None:
    """`txn new` names tables and files by its own folder: there is one progress, beside it, and a
    moved project goes on when it says where it was.
    """
    run_txn(tmp_path, "new", "shop")
    (tmp_path / "elsewhere").mkdir()
    session = RUN[2:]
    out, _ = run_txn(tmp_path, "run", "shop/shop.py:topology", *session, "--until", "caught_up")
    assert f"zookeeper {tmp_path}/shop/.txn/zookeeper" in out
    shop = [sys.executable, str(tmp_path / "shop/shop.py")]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
    subprocess.run(shop, cwd=tmp_path / "elsewhere", env=environ, check=True, capture_output=True)
    made = sorted(path.parent for path in tmp_path.rglob(".txn"))
    assert made == [tmp_path / "shop"]
    status = json.loads(run_txn(tmp_path / "shop/data", "status", "shop", "--json")[0])
    assert (status["committed_txid"], status["epoch"]) == (2, 2)

    (tmp_path / "shop").rename(tmp_path / "moved")
    out, err = run_txn(
        tmp_path, "run", "moved/shop.py:topology", *session, "--until", "caught_up", code=1
    )
    program = tmp_path / "moved/shop.py"
    advice = re.search(r"moved_from='[^']+'", err)
    assert advice is not None
    text = program.read_text("utf-8")
    program.write_text(text.replace("header=True", f"header=True, {advice[0]}"), "utf-8")
    out, _ = run_txn(tmp_path, "run", "moved/shop.py:topology", *session, "--until", "caught_up")
    assert "this run committed 0 batches" in out


def test_a_program_that_does_not_fit_is_refused_before_spark_is_up(program: Path) -> None:
    """The refusal interrupts Java's start, and a program that reads JSON gets its last event."""
    run_txn(program, *RUN, "--until", "caught_up")
    text = (program / "program.py").read_text("utf-8")
    renamed = text.replace('"orders", FileSpout', '"parcels", FileSpout')
    (program / "program.py").write_text(renamed, "utf-8")
    planned = invoke("plan", "program.py:topology", "--zookeeper", "embedded")
    out, err = run_txn(program, *RUN, "--json", code=1)
    *steps, ended = map(json.loads, out.splitlines())
    assert [event["step"].split()[0] for event in steps] == ["loading", "starting"]
    assert (ended["event"], ended["ended"], ended["number"]) == ("ended", "error", "TXN-806")
    message = ended["error"].removeprefix("RecoveryRefusedError: ")
    assert err == f"error: {message} [TXN-806]\n"
    assert message in " ".join(planned.output.split())


def test_a_refused_start_ends_with_an_event(program: Path) -> None:
    """A mistake in the program, too: what reads `txn run --json` need not read stderr."""
    result = invoke("run", "program.py:nothing", "--json")
    starting, ended = map(json.loads, result.stdout.splitlines())
    assert (starting["event"], starting["step"]) == ("starting", "loading the program")
    assert (ended["ended"], ended["number"], ended["batches_committed"]) == ("error", "TXN-105", 0)
    assert ended["error"].partition(": ")[2] in result.stderr


def test_the_first_word_waits_for_no_library() -> None:
    """Commands load slow libraries only after they print their first line."""
    code = (
        "import sys; from txn.cli.app import cli\n"
        "for name in ('run', 'preview', 'plan'): cli.get_command(None, name)\n"
        "print(*{'pydantic', 'pyspark', 'kazoo', 'deltalake', 'rich'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


def test_interrupt_during_the_start(program: Path) -> None:
    """Ctrl-C before the topology runs ends the command with 130 and leaves no server behind."""
    starting = txn(program, *RUN, "--json")
    deadline = time.monotonic() + 60
    while not (program / ".txn/zookeeper/zoo.cfg").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    starting.send_signal(signal.SIGINT)
    out, err = starting.communicate(timeout=60)
    # When the signal hits an eval() of some import, Python ends itself by SIGINT in the end, which
    # a shell tells as 130 as well.
    code = starting.returncode if starting.returncode >= 0 else 128 - starting.returncode
    assert (code, err.splitlines()[-1]) == (130, "error: interrupted.")
    ended = json.loads(out.splitlines()[-1])
    assert (ended["event"], ended["ended"]) == ("ended", "stopped")
    run_txn(program, "status", "orders", code=1)
