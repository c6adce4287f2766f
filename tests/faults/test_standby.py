"""Takeover by a standby: `txn run --standby` in processes of its own, killed and paused leaders.

Leader and standbys are on one machine here. Where `machine` differs, they do not know it: then it
is the session's end that makes room, as it is between two machines.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.faults.driver import CONF
from tests.faults.harness import (
    DEADLINE_SECS,
    ROOT,
    Spec,
    assert_totals_right,
    make_records,
    read_log,
    wait_for,
)
from tests.thorough import THOROUGH
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.zookeeper import ZooKeeperProgress

SESSION_SECS = 4.0
BOUND_SECS = SESSION_SECS + 5.0
SWIFT = {"zookeeper_timeout_secs": SESSION_SECS}
PACE = {"batch_emit_interval_ms": 3000, **SWIFT}
"""Slow enough that there is something left to do when a standby has come up."""

PROGRAM = """
import os
from pathlib import Path
import txn.machine.liveness
from {module} import build
from tests.faults.harness import Spec
machine = os.environ["TEST_MACHINE"]
if machine:
    txn.machine.liveness.machine_id = lambda: machine
topology = build(Spec.model_validate_json(Path("spec.json").read_text()))
"""


class Program:
    """`txn run` as a user starts it, with its events in a file."""

    def __init__(
        self, spec: Spec, *options: str, machine: str = "", module: str = "tests.faults.driver"
    ) -> None:
        folder = Path(spec.folder)
        (folder / "program.py").write_text(PROGRAM.format(module=module))
        (folder / "spec.json").write_text(spec.model_dump_json())
        self._number = len(list(folder.glob("events-*")))
        self.events_file = folder / f"events-{self._number}"
        self.errors_file = folder / f"errors-{self._number}"
        settings = [word for key, value in CONF.items() for word in ("--conf", f"{key}={value}")]
        with self.events_file.open("xb") as out, self.errors_file.open("xb") as err:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "txn", "run", "program.py:topology", "--json"),
                    *("--zookeeper", spec.zookeeper, "--until", str(spec.until)),
                    *("--master", "local[2]", *settings, *options),
                ],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT), "TEST_MACHINE": machine},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        return self.errors_file.read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one kind so far."""
        lines = self.events_file.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if event["event"] == kind]

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Its `count`-th event of a kind."""
        wait_for(
            lambda: len(self.events(kind)) >= count,
            what=lambda: f"{count} x {kind}: {self.events_file.read_text()[-2000:]}{self.errors}",
            gone=lambda: self.process.poll() is not None,
        )
        return self.events(kind)[count - 1]

    def wait(self) -> int:
        """Wait for its end; what is left to read takes minutes on a busy machine."""
        return self.process.wait(2 * DEADLINE_SECS)

    def end(self) -> None:
        """Kill what is left."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


Start = Callable[..., Program]


def started_at(committed: dict[str, Any]) -> float:
    """When START of a committed txid was durable: what comes after it is a batch's usual time."""
    order = list(committed["ms"])
    after = order[order.index("started") + 1 :]
    return float(committed["at"]) - sum(committed["ms"][station] for station in after) / 1000


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs; none outlives the test."""
    started: list[Program] = []

    def begin(*args: Any, **kwargs: Any) -> Program:
        started.append(Program(*args, **kwargs))
        return started[-1]

    yield begin
    for program in started:
        program.end()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper of this test alone, which outlives the programs."""
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as embedded:
        yield embedded


def status(folder: Path, hosts: str, *options: str) -> str:
    """What `txn status` prints."""
    return subprocess.run(
        [sys.executable, "-m", "txn", "status", "faults", "--zookeeper", hosts, *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=lambda s: s.name)
def test_a_standby_takes_over_from_a_leader_on_another_machine(
    start: Start, server: EmbeddedZooKeeper, tmp_path: Path, number: signal.Signals
) -> None:
    """A standby takes over within the session timeout plus five seconds after the leader dies.

    A fenced leader exits with code 3 and names the process that took over.
    """
    records = make_records(tmp_path, 90)
    spec = Spec(folder=str(tmp_path), zookeeper=server.hosts, config=PACE)
    leader = start(spec, machine="one")
    leader.wait_for("committed", 2)
    swift = spec.model_copy(update={"config": SWIFT})
    standby = start(swift, "--standby", machine="two")
    waiting = standby.wait_for("standby")
    assert (waiting["leader"]["pid"], waiting["leader"]["epoch"]) == (leader.pid, 1)
    assert abs(waiting["since"] - waiting["at"]) < 5
    told = json.loads(status(tmp_path, server.hosts, "--json"))
    assert (told["leader"]["pid"], [s["pid"] for s in told["standbys"]]) == (
        leader.pid,
        [standby.pid],
    )
    assert f"process {standby.pid} on " in status(tmp_path, server.hosts)

    died = time.time()
    os.kill(leader.pid, number)
    begun, committed = standby.wait_for("started"), standby.wait_for("committed")
    took = started_at(committed) - died
    print(f"{number.name}: START after {took:.1f} s, commit after {committed['at'] - died:.1f} s")
    assert begun["epoch"] == 2
    assert SESSION_SECS / 2 < took <= BOUND_SECS
    if number is signal.SIGSTOP:
        os.kill(leader.pid, signal.SIGCONT)
        assert leader.wait() == 3
        winner = f"process {standby.pid} on {socket.gethostname()} (leader since "
        assert winner in leader.errors
        assert "epoch 2)" in leader.errors
    assert standby.wait() == 0, standby.errors
    assert_totals_right(tmp_path, records)


def test_rolling_restarts(start: Start, server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    """Rolling restarts with standbys, by SIGTERM or SIGKILL, lose no record and double none."""
    records = make_records(tmp_path, 250 if THOROUGH else 80)
    spec = Spec(folder=str(tmp_path), zookeeper=server.hosts, until="forever", config=PACE)
    rounds = (signal.SIGTERM, signal.SIGKILL) * (2 if THOROUGH else 1)
    leader = start(spec, machine="0")
    leader.wait_for("committed")
    for turn, number in enumerate(rounds, 1):
        if turn == len(rounds):
            spec = spec.model_copy(update={"until": "caught_up", "config": SWIFT})
        standby = start(spec, "--standby", machine=str(turn))
        standby.wait_for("standby")
        os.kill(leader.pid, number)
        first = standby.wait_for("committed")
        assert leader.wait() == (0 if number is signal.SIGTERM else -number), leader.errors
        last = leader.events("committed")[-1]
        gap, pause = started_at(first) - last["at"], first["at"] - last["at"]
        print(f"restart {turn}, {number.name}: {gap:.1f} s to START, {pause:.1f} s to a commit")
        assert last["txid"] < first["txid"]
        assert gap <= BOUND_SECS
        leader = standby
    assert leader.wait() == 0, leader.errors
    assert_totals_right(tmp_path, records)
    # Each leader went on where the one before it had come to: with what it left, or the next txid.
    txids: dict[int, list[int]] = {}
    for publication in read_log(tmp_path / "rows"):
        txids.setdefault(publication.epoch, []).append(publication.txid)
    assert list(txids) == list(range(1, len(rounds) + 2))
    for epoch in range(2, len(rounds) + 2):
        assert txids[epoch][0] - txids[epoch - 1][-1] in (0, 1)


def test_a_standby_with_a_changed_program_changes_the_tables(
    start: Start, server: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """A standby that waits with another program shows it, and changes the tables when the leader is
    killed. The former program is refused by name from then on: at its start, and if it has waited
    since before the change, when it would lead.
    """
    make_records(tmp_path, 20)
    spec = Spec(folder=str(tmp_path), zookeeper=server.hosts, until="forever", config=PACE)
    programs = {"module": "tests.faults.programs"}
    leader = start(spec, machine="0", **programs)
    leader.wait_for("committed")
    newer = start(spec.model_copy(update={"program": 1}), "--standby", machine="1", **programs)
    newer.wait_for("standby")
    former = start(spec, "--standby", machine="2", **programs)
    former.wait_for("standby")
    told = json.loads(status(tmp_path, server.hosts, "--json"))["standbys"]
    assert [(one["pid"], one["changes_program"]) for one in told] == [
        (newer.pid, True),
        (former.pid, False),
    ]
    assert status(tmp_path, server.hosts).count("with another program") == 1
    # Only the newer one can take over: the other one sleeps meanwhile.
    os.kill(former.pid, signal.SIGSTOP)
    os.kill(leader.pid, signal.SIGKILL)
    newer.wait_for("started")
    os.kill(former.pid, signal.SIGCONT)
    refusal = "value 'least' of the table (added with txid"
    late = start(spec, "--standby", machine="3", **programs)
    assert late.wait() == 1
    assert (refusal in late.errors, late.events("standby")) == (True, [])
    os.kill(newer.pid, signal.SIGKILL)
    assert former.wait() == 1
    assert (refusal in former.errors, former.events("started")) == (True, [])
    assert "least" in [field.name for field in DeltaTable(tmp_path / "totals").schema().fields]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_standby_that_is_told_to_stop_ends_well(
    start: Start, server: EmbeddedZooKeeper, tmp_path: Path, number: signal.Signals
) -> None:
    """Exit code 0, nothing was run, and it is not listed any more."""
    make_records(tmp_path, 5)
    config = TopologyConfig(zookeeper_timeout_secs=SESSION_SECS)
    leader = ZooKeeperProgress(server.hosts, "faults", config)
    leader.lead()
    standby = start(Spec(folder=str(tmp_path), zookeeper=server.hosts), "--standby")
    assert standby.wait_for("standby")["leader"]["pid"] == os.getpid()
    standby.process.send_signal(number)
    assert (standby.wait(), standby.errors) == (0, "")
    (ended,) = standby.events("ended")
    assert (ended["ended"], ended["batches_committed"]) == ("stopped", 0)
    told = json.loads(status(tmp_path, server.hosts, "--json"))
    assert (told["standbys"], told["epoch"]) == ([], 1)
    assert not (tmp_path / "rows").exists()
    leader.close()
