from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from pydantic import SecretStr

from tests.zookeeper.progress_store import expire
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.errors import (
    FencedError,
    LeaderExistsError,
    ProgressUnavailableError,
    ProgressUnreadableError,
    SetupError,
    UserError,
)
from txn.logs import WAITING
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.zookeeper import ZooKeeperProgress, list_topologies, read_status

ROOT = Path(__file__).parents[2]
CONFIG = TopologyConfig(zookeeper_timeout_secs=2.0, zookeeper_deadline_secs=20.0)

# Leads the topology named, says its epoch, and then does what each line on stdin says.
LEADER = """
import sys
from txn.config import TopologyConfig
from txn.protocol.records import BatchRecord, CommittedRecord
from txn.zookeeper import ZooKeeperProgress
hosts, name = sys.argv[1:]
config = TopologyConfig(zookeeper_timeout_secs=2.0, zookeeper_deadline_secs=20.0)
progress = ZooKeeperProgress(hosts, name, config)
epoch = progress.lead()
progress.load()
print(epoch, flush=True)
acts = {
    "start": lambda: progress.persist_start(BatchRecord(txid=1, attempt=0, epoch=epoch)),
    "committed": lambda: progress.persist_committed(CommittedRecord(txid=1, epoch=epoch)),
    "assert": progress.assert_leading,
    "load": progress.load,
}
for line in sys.stdin:
    try:
        acts[line.strip()]()
        print("done", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Program:
    """A leader in a process of its own."""

    def __init__(self, hosts: str, topology: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEADER, hosts, topology],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, what: str) -> str:
        """Have it do something; what came of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> None:
        """SIGKILL, reaped."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(zookeeper: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> Iterator[Program]:
    """A leader of the test's topology in another process."""
    running = Program(zookeeper.hosts, request.node.name)
    yield running
    running.end()


@pytest.fixture
def contender(
    zookeeper: EmbeddedZooKeeper, request: pytest.FixtureRequest
) -> Iterator[Callable[..., ZooKeeperProgress]]:
    """Makes stores of the test's own topology."""
    made = []

    def make(config: TopologyConfig = CONFIG, hosts: str = "") -> ZooKeeperProgress:
        made.append(ZooKeeperProgress(hosts or zookeeper.hosts, request.node.name, config))
        return made[-1]

    yield make
    for store in made:
        store.close()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Poll until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_epochs_grow_from_one(contender: Callable[..., ZooKeeperProgress]) -> None:
    """Every new leader has a higher epoch, and close() makes room for it at once."""
    epochs = []
    for _ in range(3):
        store = contender()
        epochs.append(store.lead())
        store.close()
    assert [1, 2, 3] == epochs


def test_an_epoch_can_be_raised_above_what_the_tables_know(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """at_least is a lower bound, never a way back."""
    first, second = contender(), contender()
    assert 7 == first.lead(at_least=7)
    first.close()
    assert 8 == second.lead(at_least=3)


def test_a_second_leader_is_refused_and_told_who_leads(
    program: Program, contender: Callable[..., ZooKeeperProgress]
) -> None:
    """The message names host, process and since when."""
    program.hear()
    pid, host = program.process.pid, os.uname().nodename
    with pytest.raises(
        LeaderExistsError, match=rf"process {pid} on {host} \(leader since 2\d{{3}}-"
    ):
        contender().lead()


def test_a_second_leader_in_the_same_process_is_refused(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """It is the object that leads, not the process."""
    contender().lead()
    with pytest.raises(LeaderExistsError, match=f"process {os.getpid()} "):
        contender().lead()


def test_a_standby_takes_over_when_the_leader_is_killed(
    program: Program, contender: Callable[..., ZooKeeperProgress]
) -> None:
    """wait=True tells once whom it waits for, and leads with the next epoch after a SIGKILL."""
    assert "1" == program.hear()
    told: list[object] = []
    looks: list[int] = []
    result: list[int] = []
    standby = contender()
    genuine = standby._leadership._wait_for_change
    standby._leadership._wait_for_change = lambda end: looks.append(1) or genuine(end)  # type: ignore[func-returns-value,method-assign]
    thread = threading.Thread(
        target=lambda: result.append(standby.lead(wait=True, on_waiting=told.append))
    )
    thread.start()
    assert eventually(lambda: len(looks) >= 3)
    program.end()
    thread.join(20)
    assert [2] == result
    assert 1 == len(told)
    assert f"process {program.process.pid} on" in str(told[0])


def test_a_standby_takes_over_when_the_leader_ends_well(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """The watch on the leader's node wakes it."""
    leader, standby = contender(), contender()
    leader.lead()
    told = threading.Event()
    result: list[int] = []
    thread = threading.Thread(
        target=lambda: result.append(standby.lead(wait=True, on_waiting=lambda _: told.set()))
    )
    thread.start()
    assert told.wait(20)
    leader.close()
    thread.join(20)
    assert [2] == result


def test_of_several_standbys_one_takes_over_and_the_others_go_on_waiting(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """One after the other leads, each told of by the others, and nobody is left waiting."""
    leader = contender()
    leader.lead()
    standbys = [contender() for _ in range(5)]
    told: dict[ZooKeeperProgress, list[int]] = {store: [] for store in standbys}
    won: list[ZooKeeperProgress] = []

    def wait(store: ZooKeeperProgress) -> None:
        store.lead(wait=True, on_waiting=lambda one: told[store].append(one.epoch if one else 0))
        won.append(store)

    threads = [threading.Thread(target=wait, args=(store,)) for store in standbys]
    for thread in threads:
        thread.start()
    hosts = leader._connection.servers
    assert eventually(lambda: len(read_status(hosts, leader._topology, CONFIG).standbys) == 5)
    for number in range(5):
        (won[-1] if won else leader).close()
        assert eventually(lambda n=number: len(won) == n + 1)
        waiting = [store for store in standbys if store not in won]
        epoch = number + 2
        assert eventually(lambda w=waiting, e=epoch: all(told[store][-1] == e for store in w))
        assert epoch == won[-1].epoch
    for thread in threads:
        thread.join(20)
    assert () == read_status(hosts, leader._topology, CONFIG).standbys
    assert [1, 2, 3, 4, 5] == told[won[-1]]


def test_status_tells_who_waits_and_since_when(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """A standby's node goes with its wait, and is made again after a lost session."""
    leader, standby = contender(), contender()
    leader.lead()
    hosts, name = leader._connection.servers, leader._topology
    thread = threading.Thread(target=lambda: standby.lead(wait=True))
    thread.start()

    def standbys() -> list[int]:
        return [one.pid for one, _ in read_status(hosts, name, CONFIG).standbys]

    assert eventually(lambda: standbys() == [os.getpid()])
    (before,) = read_status(hosts, name, CONFIG).standbys
    assert f"process {os.getpid()} on {os.uname().nodename} (waiting since 2" in str(before[0])
    expire(standby)
    assert eventually(lambda: standby._connection.generation >= 2 and standbys() == [os.getpid()])
    assert read_status(hosts, name, CONFIG).standbys == (before,)
    leader.close()
    thread.join(20)
    assert [] == standbys()


def test_a_standby_waits_on_while_zookeeper_is_away(tmp_path: Path) -> None:
    """It says so, goes on waiting past its deadline, and says whom it waits for afterwards."""
    config = TopologyConfig(zookeeper_timeout_secs=20.0, zookeeper_deadline_secs=60.0)
    impatient = TopologyConfig(zookeeper_timeout_secs=4.0, zookeeper_deadline_secs=2.0)
    with EmbeddedZooKeeper(tmp_path) as server:
        leader = ZooKeeperProgress(server.hosts, "t", config)
        standby = ZooKeeperProgress(server.hosts, "t", impatient)
        leader.lead()
        told: list[int | None] = []
        epochs: list[int] = []

        def wait() -> None:
            tell = lambda one: told.append(one and one.epoch)  # noqa: E731
            epochs.append(standby.lead(wait=True, on_waiting=tell))

        thread = threading.Thread(target=wait)
        thread.start()
        assert eventually(lambda: told == [1])
        server.stop()
        assert eventually(lambda: told == [1, None])
        server.start()
        leader.assert_leading()
        assert eventually(lambda: told == [1, None, 1])
        assert [] == epochs
        leader.close()
        thread.join(20)
        assert [2] == epochs
        standby.close()


def test_a_standby_can_be_stopped(contender: Callable[..., ZooKeeperProgress]) -> None:
    """close() from another thread ends the wait with an error, not with leadership."""
    contender().lead()
    standby = contender()
    told = threading.Event()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            standby.lead(wait=True, on_waiting=lambda _: told.set())
        except ProgressUnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert told.wait(20)
    standby.close()
    thread.join(20)
    assert 1 == len(errors)


def test_a_leader_that_was_killed_on_this_machine_does_not_block_its_successor(
    program: Program, contender: Callable[..., ZooKeeperProgress]
) -> None:
    """Its session lasts on for its timeout, but the kernel says that the process is gone."""
    program.hear()
    program.end()
    status = read_status(contender()._connection.servers, contender()._topology, CONFIG)
    assert status.leader is not None
    assert 2 == contender().lead()


def test_a_paused_leader_writes_nothing_after_it_was_succeeded(
    program: Program, contender: Callable[..., ZooKeeperProgress]
) -> None:
    """SIGSTOP past its session, a successor, SIGCONT: every write and check raises FencedError."""
    assert "1" == program.hear()
    assert "done" == program.tell("start")
    os.kill(program.process.pid, signal.SIGSTOP)
    successor = contender()
    try:
        assert 2 == successor.lead(wait=True)
        before = successor.load()
    finally:
        os.kill(program.process.pid, signal.SIGCONT)
    for act in ("start", "committed", "assert", "load"):
        outcome = program.tell(act)
        assert outcome.startswith("FencedError"), (act, outcome)
        assert f"epoch 2, taken by process {os.getpid()} " in outcome
    assert before == successor.load()
    successor.persist_start(BatchRecord(txid=1, attempt=1, epoch=2))


def test_a_lost_session_that_nobody_succeeded_goes_on(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """The epoch stays the same, the leader's node is taken again, and writes go on."""
    store = contender()
    epoch = store.lead()
    store.load()
    expire(store)
    store.assert_leading()
    store.persist_start(BatchRecord(txid=1, attempt=0, epoch=epoch))
    store.persist_committed(CommittedRecord(txid=1, epoch=epoch))
    assert store.leading
    with pytest.raises(LeaderExistsError):
        contender().lead()
    assert (epoch, 1) == (store.epoch, store.load().committed.txid)


def test_an_idle_leader_takes_its_node_again(contender: Callable[..., ZooKeeperProgress]) -> None:
    """Nobody has to write for a lost session to be replaced."""
    store, other = contender(), contender()
    store.lead()
    expire(store)
    assert eventually(lambda: store._leadership._held == 2 and store.leading)
    with pytest.raises(LeaderExistsError):
        other.lead()


def test_a_lost_session_is_told_by_another_thread_than_kazoos(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """on_lost is called once per lost session, where requests to ZooKeeper may be made."""
    store = contender()
    store.lead()
    threads: list[str] = []

    def on_lost() -> None:
        store.assert_leading()
        threads.append(threading.current_thread().name)

    store.on_lost = on_lost
    expire(store)
    assert eventually(lambda: len(threads) == 1)
    expire(store)
    assert eventually(lambda: len(threads) == 2)
    store.close()
    assert ["txn-zk-session"] * 2 == threads


def test_an_observer_that_fails_does_not_end_the_watch(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """The next lost session is told and mended all the same."""
    store = contender()
    store.lead()
    calls: list[int] = []

    def on_lost() -> None:
        calls.append(1)
        raise ValueError("the observer's own fault")

    store.on_lost = on_lost
    for n in (1, 2):
        expire(store)
        assert eventually(lambda n=n: len(calls) == n)
        store.assert_leading()


def test_a_leader_whose_successor_came_while_its_session_was_lost_is_fenced(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """Between the loss and the new session somebody else took the epoch."""
    store, successor = contender(), contender()
    store.lead()
    store.load()
    # The keeper is at once to take the node again; it is kept from it as long as it has no turn.
    with store._lock:
        expire(store)
        assert 2 == successor.lead(wait=True)
    with pytest.raises(FencedError, match="epoch 2"):
        store.persist_start(BatchRecord(txid=1, attempt=0, epoch=1))
    assert not store.leading


def test_commits_wait_while_the_server_is_away(tmp_path: Path) -> None:
    """Leading turns False at once, assert_leading returns when the server is back, same epoch."""
    with EmbeddedZooKeeper(tmp_path) as server:
        store = ZooKeeperProgress(server.hosts, "away", CONFIG)
        epoch = store.lead()
        assert store.leading
        os.kill(server.pid, signal.SIGKILL)
        assert eventually(lambda: not store.leading)
        with pytest.raises(ProgressUnavailableError, match="did not answer within the deadline"):
            store.assert_leading(0.2)
        starter = threading.Timer(1.0, server.start)
        starter.start()
        store.assert_leading()
        starter.join()
        assert (epoch, True) == (store.epoch, store.leading)
        store.close()


def test_a_leader_that_is_cut_off_is_told_before_the_server_is_back(tmp_path: Path) -> None:
    """on_lost is called once the session may have ended; then the leader goes on as before."""
    with EmbeddedZooKeeper(tmp_path) as server:
        store = ZooKeeperProgress(server.hosts, "cut", CONFIG)
        told: list[bool] = []
        store.on_lost = lambda: told.append(store.leading)
        epoch = store.lead()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert eventually(lambda: bool(told))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        store.assert_leading()
        assert ([False], epoch, True) == (told, store.epoch, store.leading)
        store.close()


def test_a_server_that_lost_its_data_is_not_written_to(tmp_path: Path) -> None:
    """A server that came back empty refuses a client that has seen more; nothing begins anew."""
    config = CONFIG.model_copy(update={"zookeeper_deadline_secs": 2.0})
    with EmbeddedZooKeeper(tmp_path / "a") as server:
        port = int(server.hosts.split(":")[1])
        store = ZooKeeperProgress(server.hosts, "wiped", config)
        store.lead()
        store.load()
        server.stop()
        with EmbeddedZooKeeper(tmp_path / "b", port=port) as empty:
            with pytest.raises(ProgressUnavailableError, match="its data is older"):
                store.persist_start(BatchRecord(txid=1, attempt=0, epoch=1))
            store.close()
            assert [] == list_topologies(empty.hosts, config)


def test_an_epoch_that_vanished_under_a_leader_is_noticed(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """A deleted `epoch` stops every write, and is not taken for a new beginning."""
    store = contender()
    store.lead()
    store.load()
    vandal = KazooClient(store._connection.servers)
    vandal.start()
    vandal.delete(store._paths.epoch)
    vandal.stop()
    vandal.close()
    for act in (
        store.assert_leading,
        lambda: store.persist_start(BatchRecord(txid=1, attempt=0, epoch=1)),
    ):
        with pytest.raises(ProgressUnreadableError, match="/epoch' is missing"):
            act()


def test_a_first_connection_is_waited_for_half_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """However long later writes may be retried: one line after 2 s, an error after 30 s."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    store = ZooKeeperProgress(
        "127.0.0.1:1", "nowhere", TopologyConfig(), sleep=sleep, clock=lambda: now[0]
    )
    with pytest.raises(ProgressUnavailableError, match=r"did not answer within 30 s"):
        store.lead()
    store.close()
    (waiting,) = [r.getMessage() for r in caplog.records if r.name == WAITING]
    assert re.fullmatch(r"Waiting for ZooKeeper at 127\.0\.0\.1:1, .*: 28 s more\.", waiting)


def test_no_server_at_all_is_said_within_the_deadline() -> None:
    """A wrong address ends with an error that names it."""
    config = TopologyConfig(zookeeper_deadline_secs=0.3)
    store = ZooKeeperProgress("127.0.0.1:1", "nowhere", config)
    with pytest.raises(ProgressUnavailableError, match=r"ZooKeeper at 127\.0\.0\.1:1 did not"):
        store.lead()
    store.close()


def test_a_closed_store_refuses(contender: Callable[..., ZooKeeperProgress]) -> None:
    """After close() nothing is read or written."""
    store = contender()
    store.lead()
    store.close()
    store.close()
    assert not store.leading
    with pytest.raises(ProgressUnavailableError, match="closed"):
        store.assert_leading()


def test_without_leadership_nothing_can_be_done(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """lead() comes first, then load(); a record of another epoch is a mistake of the caller."""
    store = contender()
    assert not store.leading
    for act in (store.load, store.assert_leading, lambda: store.epoch):
        with pytest.raises(RuntimeError, match=r"lead\(\) comes first"):
            act()
    store.lead()
    with pytest.raises(RuntimeError, match=r"load\(\) comes first"):
        store.persist_start(BatchRecord(txid=1, attempt=0, epoch=1))
    store.load()
    with pytest.raises(ValueError, match="has epoch 2, and this leader has 1"):
        store.persist_start(BatchRecord(txid=1, attempt=0, epoch=2))


def owned(password: str) -> TopologyConfig:
    """Settings with digest credentials and nodes that belong to them."""
    return CONFIG.model_copy(
        update={
            "zookeeper_auth": (("digest", SecretStr(f"me:{password}")),),
            "zookeeper_acl": "creator",
        }
    )


def test_nodes_belong_to_their_creator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """zookeeper_acl="creator" guards every node, others are refused, and no secret is logged."""
    caplog.set_level(1)
    with EmbeddedZooKeeper(tmp_path) as server:
        store = ZooKeeperProgress(server.hosts, "owned", owned("sesame"))
        epoch = store.lead()
        store.load()
        store.persist_start(
            BatchRecord(txid=1, attempt=0, epoch=epoch, spouts={"s": "x" * 1_000_000})
        )
        anybody = KazooClient(server.hosts, auth_data=[("digest", "me:sesame")])
        anybody.start()
        paths = ["/txn"]
        for path in paths:
            paths += [f"{path}/{child}" for child in anybody.get_children(path)]
        acls = {path: anybody.get_acls(path)[0] for path in paths}
        anybody.stop()
        anybody.close()
        assert len(paths) > 8
        assert {("digest", 31)} == {(a.id.scheme, a.perms) for acl in acls.values() for a in acl}
        for config in (CONFIG, owned("guess")):
            with pytest.raises(SetupError, match="does not let these credentials use node"):
                read_status(server.hosts, "owned", config)
        ours = [r.getMessage() for r in caplog.records if r.name.startswith("txn")]
        assert ours
        assert not any("sesame" in message or "guess" in message for message in ours)
        store.close()


def test_an_unknown_way_to_authenticate_is_refused(
    contender: Callable[..., ZooKeeperProgress],
) -> None:
    """The server's refusal ends the wait at once."""
    config = CONFIG.model_copy(update={"zookeeper_auth": (("nonsense", SecretStr("x")),)})
    with pytest.raises(SetupError, match="refused the credentials"):
        contender(config).lead()


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """An owner's ACL without an owner, and a TLS file that is not there."""
    with pytest.raises(UserError, match="no zookeeper_auth"):
        ZooKeeperProgress("h:1", "t", TopologyConfig(zookeeper_acl="creator"))
    config = TopologyConfig(zookeeper_tls=True, zookeeper_ca=str(tmp_path / "ca.pem"))
    with pytest.raises(UserError, match=r"zookeeper_ca is '.*ca\.pem'"):
        ZooKeeperProgress("h:1", "t", config)
