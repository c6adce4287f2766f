"""`txn trial`: a real ensemble and a real broker, started by the command as a user does."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from tests.children import ENSEMBLE_PORTS, LOOPBACK, port_below, wait_until
from txn.embedded.trial import TrialServer
from txn.errors import SetupError

LINE = re.compile(r"(?:ZooKeeper server \d|Kafka broker) at 127\.0\.0\.1:\d+, process (\d+)")


class Trial:
    """A `txn trial` that runs in a folder; what it prints is read line by line."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "txn", "trial", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids: list[int] = []

    def wait(self, last: str) -> None:
        """Read until a line of its use has come; the process ids of the servers are known then."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.pids += [int(pid) for pid in LINE.findall(line)]
            if last in line:
                return
        raise AssertionError(self.process.stderr.read() if self.process.stderr else "")

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Its exit code after a signal, and what it wrote to stderr."""
        self.process.send_signal(number)
        _, text = self.process.communicate(timeout=60)
        return self.process.returncode, text


@pytest.fixture
def trials() -> Iterator[list[Trial]]:
    """Trials that end with the test, whatever it did."""
    started: list[Trial] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.communicate()


def alive(pid: int) -> bool:
    """Whether the process runs."""
    return Path(f"/proc/{pid}").exists()


def refusal(folder: Path, *arguments: str) -> str:
    """The error of a trial that is refused, in one line."""
    trial = Trial(folder, *arguments)
    _, stderr = trial.process.communicate(timeout=60)
    assert trial.process.returncode == 1
    return " ".join(stderr.partition("\n")[2].split())


def connected(hosts: str, folder: Path | None) -> KazooClient:
    """A connected client, with the credential in a trial's folder, or with none."""
    auth = (folder / "credential").read_text("ascii").strip() if folder else ""
    scheme, _, secret = auth.partition(":")
    client = KazooClient(hosts, auth_data=[(scheme, secret)] if auth else None, timeout=5)
    client.start(30)
    return client


def test_an_ensemble_for_trials_outlives_one_server_and_keeps_its_data(
    tmp_path: Path, trials: list[Trial]
) -> None:
    """Three servers; nobody without the credential gets in; one is killed; all end with Ctrl-C."""
    port = port_below(*ENSEMBLE_PORTS)
    hosts = ",".join(f"{LOOPBACK}:{port + n}" for n in range(3))
    folder = tmp_path / ".txn-trial" / "zookeeper"
    arguments = ("zookeeper", "--port", str(port))
    trials.append(Trial(tmp_path, *arguments))
    trials[0].wait(f"txn run FILE.py:TOPOLOGY --zookeeper {hosts}")
    assert len(trials[0].pids) == 3

    stranger = connected(hosts, None)
    with pytest.raises(NoAuthError):
        stranger.create("/mine", b"")
    stranger.stop()
    client = connected(hosts, folder)
    client.create("/kept", b"1")
    os.kill(trials[0].pids[1], signal.SIGKILL)
    client.retry(client.set, "/kept", b"2")
    client.stop()
    log = folder / "server-2" / "server.log"
    assert trials[0].process.stderr is not None
    assert f"The ZooKeeper server 2 at {LOOPBACK}:{port + 1} has ended: {log}\n" in iter(
        trials[0].process.stderr.readline, ""
    )
    assert trials[0].end()[0] == 0
    assert not any(alive(pid) for pid in trials[0].pids)

    trials.append(Trial(tmp_path, *arguments))
    trials[1].wait("txn run")
    client = connected(hosts, folder)
    assert client.get("/kept")[0] == b"2"
    client.stop()
    for pid in trials[1].pids:
        os.kill(pid, signal.SIGKILL)
    _, stderr = trials[1].process.communicate(timeout=60)
    assert trials[1].process.returncode == 1
    assert "No server is left" in stderr

    assert refusal(tmp_path, *arguments, "--servers", "1") == (
        f"error: The folder '{folder}' has the data of 3 ZooKeeper servers, not of 1 ZooKeeper "
        "server. Name another one: --folder. [TXN-206]"
    )


def test_a_port_in_use_is_named_and_nothing_is_left_running(
    tmp_path: Path,
) -> None:
    """The second server's port is taken: one paragraph, and no folder was made."""
    port = port_below(*ENSEMBLE_PORTS)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, port + 1))
        taken.listen()
        words = refusal(tmp_path, "zookeeper", "--port", str(port))
    assert f"Port {port + 1} on {LOOPBACK}, for a ZooKeeper server for trials, is in use." in words
    assert "name another first one: --port. [TXN-207]" in words
    assert not (tmp_path / ".txn-trial").exists()


def test_a_folder_belongs_to_one_trial_at_a_time(tmp_path: Path, trials: list[Trial]) -> None:
    """ZooKeeper itself would let two servers write to one log; a folder of others is left alone."""
    trials.append(Trial(tmp_path, "zookeeper", "--servers", "1", "--port", str(port_below())))
    trials[0].wait("txn run")
    again = ("zookeeper", "--servers", "1", "--port", str(port_below()))
    assert "zookeeper' is in use by another process." in refusal(tmp_path, *again)
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine" / "file").touch()
    words = refusal(tmp_path, *again, "--folder", "mine")
    assert "has other files in it, and is no folder of a trial." in words
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755
    # A killed command's server ends within the time for which the next one waits.
    trials[0].process.kill()
    trials.append(Trial(tmp_path, *again))
    trials[1].wait("txn run")
    assert trials[1].end()[0] == 0


def test_an_answer_of_another_server_does_not_make_a_dead_one_serve(tmp_path: Path) -> None:
    """It ends at once, while somebody else listens at its port."""
    server = TrialServer("broker", tmp_path)
    with (tmp_path / "lock").open("ab") as lock:
        server.start(["false"], os.environ, lock)
        with pytest.raises(SetupError, match="The broker ended during its start"):
            server.wait(lambda: not server.is_alive, 30)


def test_a_broker_for_trials_makes_topics_and_keeps_records(
    tmp_path: Path, trials: list[Trial]
) -> None:
    """A record for a topic that is not there makes it, with four partitions; SIGTERM ends it."""
    port = port_below(1)
    servers = f"{LOOPBACK}:{port}"
    for _ in range(2):
        trials.append(Trial(tmp_path, "kafka", "--port", str(port)))
        trials[-1].wait(f"bootstrap.servers={servers}")
        if len(trials) == 1:
            producer = Producer({"bootstrap.servers": servers})
            producer.produce("clicks", b"one")
            assert producer.flush(60) == 0
            assert len(producer.list_topics("clicks", 30).topics["clicks"].partitions) == 4
        else:
            consumer = Consumer(
                {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
            )
            consumer.subscribe(["clicks"])
            deadline = time.monotonic() + 60
            while (message := consumer.poll(1)) is None:
                assert time.monotonic() < deadline
            assert message.value() == b"one"
            consumer.close()
        assert trials[-1].end(signal.SIGTERM)[0] == 0
        wait_until(lambda: not alive(trials[-1].pids[0]), "the broker has ended")
