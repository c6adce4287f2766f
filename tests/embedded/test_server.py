from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper, running_server, service, zookeeper_service
from txn.embedded.folder import port_of
from txn.embedded.service import zookeeper_of_run
from txn.errors import LeaderExistsError, SetupError
from txn.zookeeper import ZooKeeperProgress

ROOT = Path(__file__).parents[2]

# Starts a server on the folder named, says where it is, and waits to be told or killed.
OWNER = """
import os, sys, time
from txn.embedded import EmbeddedZooKeeper
server = EmbeddedZooKeeper(sys.argv[1])
server.start()
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print(server.hosts, server.pid, server._child.supervisor, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs that own an embedded server; `.seen` has what each said."""
    started = []

    def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder), *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> tuple[str, int, int]:
    """(hosts, pid of the JVM, pid of the supervisor)."""
    assert process.stdout is not None
    hosts, pid, supervisor = process.stdout.readline().split()
    return hosts, int(pid), int(supervisor)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Poll until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_it_serves_on_the_loopback_interface_only(tmp_path: Path) -> None:
    """The port is bound to 127.0.0.1, and the server answers as ZooKeeper does."""
    with EmbeddedZooKeeper(tmp_path) as server:
        host, port = server.hosts.split(":")
        assert "127.0.0.1" == host
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(b"srvr")
            assert connection.makefile("rb").read().startswith(b"Zookeeper version: 3.9")
        tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        fields = [line.split() for line in tables.splitlines()]
        listening = {f[1] for f in fields if f[3] == "0A" and f[1].endswith(f":{int(port):04X}")}
        assert {"0100007F"} == {where.split(":")[0][-8:] for where in listening}


def test_it_starts_again_on_the_same_port_and_ends_when_told(tmp_path: Path) -> None:
    """The folder remembers its port; stop() waits for the end of the JVM."""
    server = EmbeddedZooKeeper(tmp_path)
    first, pid = server.start(), server.pid
    assert first == server.start()
    server.stop()
    server.stop()
    assert not alive(pid)
    with EmbeddedZooKeeper(tmp_path) as again:
        assert first == again.hosts


def test_it_takes_another_port_when_the_last_one_is_taken(tmp_path: Path) -> None:
    """A port that somebody took does not keep the server from starting; the new one stays."""
    with EmbeddedZooKeeper(tmp_path) as server:
        host, port = server.hosts.split(":")
    with socket.create_server((host, int(port))), EmbeddedZooKeeper(tmp_path) as again:
        assert f"{host}:{port}" != again.hosts
        other = again.hosts
    with EmbeddedZooKeeper(tmp_path) as third:
        assert other == third.hosts


def test_a_port_that_was_asked_for_and_is_taken_is_refused(tmp_path: Path) -> None:
    """No other port is taken behind the user's back."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"Port {port} on 127.0.0.1.* is in use"):
            EmbeddedZooKeeper(tmp_path, port=port).start()


def test_hosts_of_a_server_that_does_not_run_are_refused(tmp_path: Path) -> None:
    """There is no connect string to hand out."""
    with pytest.raises(SetupError, match="not running"):
        _ = EmbeddedZooKeeper(tmp_path).hosts


def test_a_killed_server_can_be_started_again(tmp_path: Path) -> None:
    """After a crash of the JVM, start() starts a new one on the same port."""
    with EmbeddedZooKeeper(tmp_path) as server:
        first, pid = server.hosts, server.pid
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not alive(pid))
        assert first == server.start()
        assert pid != server.pid


def test_it_says_nothing_on_the_screen(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]]
) -> None:
    """Neither the JVM's nor the logging libraries' words reach the user; they are in the folder."""
    process = owner(tmp_path)
    said(process)
    assert ("", "") == process.communicate("", timeout=20)
    assert "binding to port" in (tmp_path / "server.log").read_text()


def test_two_programs_on_one_folder_are_refused(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]]
) -> None:
    """The second one is told the process id and the connect string of the first."""
    process = owner(tmp_path)
    hosts, _, _ = said(process)
    with pytest.raises(SetupError, match=f"in use by process {process.pid}, at {hosts}"):
        EmbeddedZooKeeper(tmp_path).start()


def test_the_server_dies_with_a_killed_parent(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGKILL of the program ends supervisor and JVM, and the folder can be used again at once."""
    process = owner(tmp_path)
    hosts, jvm, supervisor = said(process)
    process.kill()
    process.wait()
    with EmbeddedZooKeeper(tmp_path) as server:
        assert hosts == server.hosts
        assert not alive(jvm)
        assert eventually(lambda: not alive(supervisor))


def test_the_server_dies_with_a_parent_whose_child_keeps_the_pipe(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]]
) -> None:
    """A process forked off the program inherits the pipe, and does not keep the server alive."""
    process = owner(tmp_path, "fork")
    _, jvm, _ = said(process)
    process.kill()
    process.wait()
    assert eventually(lambda: not alive(jvm))
    os.killpg(process.pid, signal.SIGKILL)


def test_the_server_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    """No JVM is ever left behind without anybody who would end it."""
    server = EmbeddedZooKeeper(tmp_path)
    server.start()
    jvm = server.pid
    os.kill(server._child.supervisor, signal.SIGKILL)
    assert eventually(lambda: not alive(jvm))
    server.stop()


def test_an_interrupt_at_the_terminal_does_not_reach_the_server(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]]
) -> None:
    """Ctrl-C goes to the whole foreground process group: the server is in another one."""
    process = owner(tmp_path)
    _, jvm, supervisor = said(process)
    assert {os.getpgid(supervisor)} == {os.getpgid(jvm)}
    assert os.getpgid(process.pid) != os.getpgid(jvm)


def test_a_folder_shows_the_server_that_runs_on_it(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]]
) -> None:
    """None before, the connect string while it runs, None once its program was killed."""
    folder = tmp_path / "zk"
    assert running_server(folder) is None
    process = owner(folder)
    hosts, jvm, _ = said(process)
    assert hosts == running_server(folder)
    process.kill()
    process.wait()
    assert eventually(lambda: not alive(jvm))
    assert running_server(folder) is None


def test_a_server_to_which_a_connection_stands_is_not_asked_again(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a folder every second costs two small files, while the address is the same."""
    process = owner(tmp_path)
    hosts, jvm, _ = said(process)
    asked: list[int] = []

    def serves(port: int) -> bool:
        asked.append(port)
        return True

    monkeypatch.setattr(service, "serves", serves)
    assert running_server(tmp_path, hosts) == hosts
    assert not asked
    assert running_server(tmp_path, "127.0.0.1:1") == hosts
    assert asked == [port_of(hosts)]
    process.kill()
    process.wait()
    assert eventually(lambda: running_server(tmp_path, hosts) is None)
    assert not alive(jvm)


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    """The error has the end of the server's log and the folder's name."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("in the way")
    with pytest.raises(SetupError, match=r"ended while it started[\s\S]*version-2"):
        EmbeddedZooKeeper(tmp_path).start()
    assert running_server(tmp_path) is None


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A file in its place is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be made"):
        EmbeddedZooKeeper(tmp_path / "file" / "zk").start()


def test_without_java_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing Java is an error of the machine's set-up, not a stack trace of subprocess."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SetupError, match="Java"):
        EmbeddedZooKeeper(tmp_path / "zk").start()


def test_a_service_of_hosts_starts_nothing() -> None:
    """The connect string comes back complete; whether anybody answers there is not asked."""
    with zookeeper_service("zk1,zk2:2182/x") as hosts:
        assert "zk1:2181,zk2:2182/x" == hosts


def test_a_service_starts_and_stops_an_embedded_server(tmp_path: Path) -> None:
    """The server lives as long as the context."""
    with zookeeper_service(f"embedded:{tmp_path}") as hosts:
        assert hosts == running_server(tmp_path)
    assert running_server(tmp_path) is None


def test_a_service_can_share_the_server_of_another_program(
    tmp_path: Path, owner: Callable[..., subprocess.Popen[str]]
) -> None:
    """share=True uses the running server and leaves it running; share=False is refused."""
    hosts, _, _ = said(owner(tmp_path))
    with zookeeper_service(f"embedded:{tmp_path}", share=True) as shared:
        assert hosts == shared
    assert hosts == running_server(tmp_path)
    with (
        pytest.raises(SetupError, match="in use by process"),
        zookeeper_service(f"embedded:{tmp_path}"),
    ):
        pass


def test_a_service_shares_by_starting_where_nothing_runs(tmp_path: Path) -> None:
    """share=True needs nobody to share with."""
    with zookeeper_service(f"embedded:{tmp_path}", share=True) as hosts:
        assert hosts == running_server(tmp_path)


def test_a_run_waits_for_a_page_that_has_the_folder_for_a_moment(tmp_path: Path) -> None:
    """A server that looks into a stopped topology takes seconds to start where much is going on."""
    spec = f"embedded:{tmp_path}"
    with contextlib.ExitStack() as moment:
        moment.enter_context(zookeeper_service(spec))
        threading.Timer(5.0, moment.close).start()
        with zookeeper_of_run(spec, "t", TopologyConfig()) as hosts:
            assert hosts == running_server(tmp_path)


def test_a_second_run_of_a_topology_is_refused_at_once(tmp_path: Path) -> None:
    """Not after the seconds that a page may have the folder: who leads it would not end so soon."""
    spec, config = f"embedded:{tmp_path}", TopologyConfig()
    began = time.monotonic()
    with (
        zookeeper_service(spec) as hosts,
        contextlib.closing(ZooKeeperProgress(hosts, "t", config)) as store,
    ):
        store.lead()
        served = time.monotonic() - began
        with pytest.raises(LeaderExistsError, match=f"'t' is led by process {os.getpid()} "):
            zookeeper_of_run(spec, "t", config).__enter__()
        assert time.monotonic() - began - served < 10.0


def test_a_service_that_must_exist_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at the state of nothing leaves nothing behind; who named a folder, as a program does,
    is not told to name one.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "zk"
    for spec, way_out in ((f"embedded:{folder}", "Run the topo"), ("embedded", "Name the prog")):
        with (
            pytest.raises(SetupError, match=f"no ZooKeeper data.*it\\. {way_out}"),
            zookeeper_service(spec, share=True, must_exist=True),
        ):
            pass
    assert list(tmp_path.iterdir()) == []


def test_importing_it_loads_neither_pyspark_nor_kazoo() -> None:
    """Finding pyspark's jars does not import pyspark."""
    code = (
        "import sys, txn.embedded, txn.embedded.files as e; e.class_path();"
        "print([m for m in ('pyspark', 'kazoo') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "[]" == done.stdout.strip()
