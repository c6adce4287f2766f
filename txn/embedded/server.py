"""A real ZooKeeper server as a child process, out of the jars that pyspark brings along.

For one machine: `txn` works without anybody installing ZooKeeper, and the coordinator's state
lies in a folder. It is the same server as anywhere else (`ZooKeeperServerMain`), one of it, on the
loopback interface only, syncing every write to disk.

Who may use a folder is decided by `flock` on `FOLDER/lock`. The lock is handed down to the
supervisor and the JVM, so it lasts exactly as long as a server may write to the folder, also
when the program that started it is gone. `FOLDER/server.json` says who that is.

What is in it belongs to whoever may read `FOLDER/credential` (`txn.embedded.guard`): any user of
the machine can reach a port on the loopback interface.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from txn.embedded import supervisor
from txn.embedded.files import JARS, JVM_FLAGS, LOG4J, ZOO_CFG
from txn.embedded.guard import (
    CREDENTIAL,
    guard,
    guard_setting,
    make_credential,
    read_credential,
    require_own_listener,
)
from txn.errors import SetupError
from txn.machine.java import find_java
from txn.zookeeper.access import lend, take_back
from txn.zookeeper.location import DEFAULT_FOLDER, ZooKeeperSpec, resolve

__all__ = [
    "DEFAULT_FOLDER",
    "EmbeddedZooKeeper",
    "ZooKeeperSpec",
    "resolve",
    "running_server",
    "zookeeper_service",
]

LOOPBACK = "127.0.0.1"

# Below the range from which systems take ports for outgoing connections: there a client that keeps
# trying a port with no server behind it can, on loopback, end up connected to itself.
_PORTS = range(20000, 32000)

_START_SECS = 30.0
_LOCK_SECS = 5.0
_POLL_SECS = 0.01
_TRIES = 3
_TAIL_LINES = 12


class EmbeddedZooKeeper:
    """A ZooKeeper server of our own, in a folder. A context manager; may be started again.

    It dies with this process, SIGKILL included. Data stays in the folder.

    Args:
        folder: created if need be; holds the data, the server's log and its configuration.
        port: TCP port on 127.0.0.1; None: the folder's last one if it is free, else a free one.
        protect: True: folder and nodes are the user's alone, and this process's connections have
            the credential; nodes of an earlier release are taken over. False, for tests of other
            things: whoever reaches the port may do everything.
        sleep: used while waiting for the server.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        port: int | None = None,
        protect: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._port = port
        self._protect = protect
        self._credential: str | None = None
        self._sleep = sleep
        self._clock = clock
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._hosts = ""
        self._pid = 0

    @property
    def hosts(self) -> str:
        """The connect string of the server that runs.

        Raises:
            SetupError: none runs.
        """
        if not self._hosts:
            raise SetupError(
                f"The ZooKeeper server in '{self.folder}' is not running. Call start() first."
            )
        return self._hosts

    @property
    def pid(self) -> int:
        """Process id of the server's JVM.

        Raises:
            SetupError: none runs. (Not 0: that would be our own process group to `os.kill`.)
        """
        _ = self.hosts
        return self._pid

    def start(self) -> str:
        """Start the server and wait until it serves; the connect string.

        Raises:
            SetupError: no Java, no pyspark, the folder or the port is in use, or the server ended;
                then with the end of its log.
        """
        if self._hosts and _serves(_port_of(self._hosts)):
            return self._hosts
        self.stop()
        java, classpath = find_java(), _classpath()
        self._make_folder()
        with self._lock() as lock:
            _remove(self.folder / "server.json")
            self._credential = make_credential(self.folder) if self._protect else None
            for tries_left in reversed(range(_TRIES)):
                port = self._choose_port()
                self._write_configuration(port)
                self._launch(java, classpath, lock)
                if self._wait_until_serving(port, may_retry=tries_left > 0 and not self._port):
                    self._hosts = f"{LOOPBACK}:{port}"
                    self._claim()
                    self._write_owner(port)
                    return self._hosts
        raise AssertionError("unreachable: the last try returns or raises")

    def stop(self) -> None:
        """Stop the server, if it runs, and wait for its end. Idempotent."""
        take_back(self._hosts)
        process, self._supervisor, self._hosts, self._pid = self._supervisor, None, "", 0
        if process is None:
            return
        _remove(self.folder / "server.json")
        assert process.stdin is not None
        process.stdin.close()
        process.wait()

    def __enter__(self) -> EmbeddedZooKeeper:  # noqa: PYI034 - typing.Self is Python 3.11
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # --- the folder --------------------------------------------------------------------------

    def _claim(self) -> None:
        """Before anybody is told where the server is: everything in it becomes ours alone."""
        if self._credential is None:
            return
        try:
            require_own_listener(_port_of(self._hosts))
            guard(self._hosts, self._credential)
        except BaseException:
            self.stop()
            raise
        lend(self._hosts, self._credential)

    def _make_folder(self) -> None:
        try:
            (self.folder / "data").mkdir(parents=True, exist_ok=True)
            if self._protect:
                self.folder.chmod(0o700)
        except OSError as error:
            raise SetupError(
                f"The folder '{self.folder}' for ZooKeeper's data cannot be made: "
                f'{error.strerror}. Name another one: "embedded:FOLDER".'
            ) from error

    @contextlib.contextmanager
    def _lock(self) -> Iterator[IO[bytes]]:
        """Hold the folder's lock while starting; the server's processes then hold it on."""
        deadline = self._clock() + _LOCK_SECS
        with (self.folder / "lock").open("ab") as lock:
            while not _try_lock(lock, fcntl.LOCK_EX):
                owner = _owner(self.folder)
                # A server whose owner has just died is about to end, and `running_server` takes
                # the lock for a moment: neither is a reason to refuse.
                if (owner and _is_alive(owner["pid"])) or self._clock() >= deadline:
                    raise self._in_use(owner)
                self._sleep(_POLL_SECS)
            # Closing our descriptor does not unlock: the children's share the same lock.
            yield lock

    def _in_use(self, owner: dict[str, Any] | None) -> SetupError:
        by = f"process {owner['pid']}, at {owner['hosts']}" if owner else "another process"
        connect = (
            f', or connect to its server: zookeeper="{owner["hosts"]}", with the environment '
            f"variable TXN_ZOOKEEPER_AUTH_FILE={self.folder / CREDENTIAL}"
            if owner
            else ""
        )
        return SetupError(
            f"The ZooKeeper folder '{self.folder}' is in use by {by}. Stop that process, use "
            f'another folder ("embedded:FOLDER"){connect}.'
        )

    def _choose_port(self) -> int:
        if self._port is not None:
            if not _is_free(self._port):
                raise SetupError(
                    f"Port {self._port} on {LOOPBACK}, for the ZooKeeper server in "
                    f"'{self.folder}', is in use. Stop what uses it, or leave the port out."
                )
            return self._port
        with contextlib.suppress(OSError, ValueError):
            last = int((self.folder / "port").read_text("ascii"))
            if _is_free(last):
                return last
        # Each folder begins to look elsewhere, so that two that start at once seldom collide.
        digest = hashlib.sha256(os.fsencode(self.folder)).digest()
        first = int.from_bytes(digest[:4], "big") % len(_PORTS)
        for i in range(len(_PORTS)):
            if _is_free(port := _PORTS[(first + i) % len(_PORTS)]):
                return port
        raise SetupError(
            f"No port of {LOOPBACK} between {_PORTS.start} and {_PORTS.stop} is free for the "
            f"ZooKeeper server in '{self.folder}'. Stop what uses them, or name a port."
        )

    def _write_configuration(self, port: int) -> None:
        setting = guard_setting(self._credential) if self._credential else ""
        text = ZOO_CFG.format(host=LOOPBACK, port=port, guard=setting)
        (self.folder / "zoo.cfg").write_text(text, "ascii")
        (self.folder / "log4j2.properties").write_text(LOG4J, "ascii")
        (self.folder / "port").write_text(str(port), "ascii")

    def _write_owner(self, port: int) -> None:
        owner = {"pid": os.getpid(), "server_pid": self._pid, "hosts": f"{LOOPBACK}:{port}"}
        temporary = self.folder / "server.json.new"
        temporary.write_text(json.dumps(owner), "ascii")
        temporary.replace(self.folder / "server.json")

    # --- the processes -----------------------------------------------------------------------

    def _launch(self, java: Path, classpath: str, lock: IO[bytes]) -> None:
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        command = [str(java), *JVM_FLAGS, "-cp", classpath, main, "zoo.cfg"]
        with (self.folder / "server.out").open("wb") as out:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, *command],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                pass_fds=[lock.fileno()],
                # A Ctrl-C is for us: the server must outlive it until the topology has stopped.
                start_new_session=True,
                umask=0o077 if self._protect else -1,
            )
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as stdout:
            line = stdout.readline()
        if not line:
            raise self._failed("could not be started")
        self._pid = int(line)

    def _wait_until_serving(self, port: int, *, may_retry: bool) -> bool:
        """False: somebody else took the port meanwhile, and another one may be tried."""
        deadline = self._clock() + _START_SECS
        assert self._supervisor is not None
        while not _serves(port) or self._supervisor.poll() is not None:
            if self._supervisor.poll() is not None:
                failure = self._failed("ended while it started")
                if may_retry and "Address already in use" in str(failure):
                    return False
                raise failure
            if self._clock() >= deadline:
                raise self._failed(f"did not serve within {_START_SECS:g} s")
            self._sleep(_POLL_SECS)
        return True

    def _failed(self, how: str) -> SetupError:
        self.stop()
        lines: list[str] = []
        for name in ("server.out", "server.log"):
            with contextlib.suppress(OSError):
                text = (self.folder / name).read_text("utf-8", "replace")
                # Java's stack traces would push the words out of the part that is shown.
                words = [line for line in text.splitlines() if not line.startswith("\tat ")]
                lines += words[-_TAIL_LINES:]
        return SetupError(
            f"The ZooKeeper server in '{self.folder}' {how}. The end of its log is below, "
            f"the whole is in '{self.folder / 'server.log'}'.\n"
            + "\n".join(f"  {line}" for line in lines)
        )


def running_server(folder: str | Path) -> str | None:
    """The connect string of the server that some live process has on `folder`; None: no server.

    From then on this process's connections to it have the folder's credential.

    Raises:
        SetupError: the credential cannot be read, or another user listens on the server's port.
    """
    folder = Path(folder).absolute()
    try:
        with (folder / "lock").open("rb") as lock:
            if _try_lock(lock, fcntl.LOCK_SH):
                return None
    except OSError:
        return None
    owner = _owner(folder)
    if owner is None or not _serves(_port_of(owner["hosts"])):
        return None
    hosts = str(owner["hosts"])
    credential = read_credential(folder)
    if credential is not None:
        require_own_listener(_port_of(hosts))
        lend(hosts, credential)
    return hosts


@contextlib.contextmanager
def zookeeper_service(spec: str, *, share: bool = False, must_exist: bool = False) -> Iterator[str]:
    """A connect string for `spec`; starts and in the end stops an embedded server if need be.

    Args:
        spec: see `resolve`.
        share: True: use the server that another process already has on the folder, and leave it
            running; False: refuse then.
        must_exist: True: refuse a folder in which no server has ever been, instead of making it.

    Raises:
        UserError: the spec means nothing.
        SetupError: the embedded server could not be started, or its folder is in use.
    """
    where = resolve(spec)
    if where.folder is None:
        yield where.hosts
        return
    if must_exist and not _has_data(where.folder):
        raise SetupError(
            f"There is no ZooKeeper data in '{where.folder.absolute()}': no topology has been run "
            "with it. Go to the folder in which the topology was run, or name its folder: "
            '"embedded:FOLDER".'
        )
    with contextlib.ExitStack() as resources:
        yield _shared_or_own(where.folder, resources, share=share)


def _shared_or_own(folder: Path, resources: contextlib.ExitStack, *, share: bool) -> str:
    running = running_server(folder) if share else None
    if running is not None:
        return running
    try:
        return resources.enter_context(EmbeddedZooKeeper(folder, protect=True)).hosts
    except SetupError:
        # Another program may have been faster by a moment; its server will do as well.
        running = running_server(folder) if share else None
        if running is None:
            raise
        return running


def _has_data(folder: Path) -> bool:
    try:
        return (folder / "data").is_dir()
    except OSError as error:
        raise SetupError(
            f"The ZooKeeper folder '{folder.absolute()}' cannot be looked into: {error.strerror}. "
            "It is its owner's alone: run this as the user that runs the topology."
        ) from error


def _classpath() -> str:
    found = importlib.util.find_spec("pyspark")  # finds, and does not import it
    if found is None or not found.submodule_search_locations:
        raise SetupError(
            "The embedded ZooKeeper server is part of pyspark, which is not installed. "
            "Install it (`pip install pyspark`), or name the ZooKeeper that you have: "
            '"host:2181".'
        )
    home = Path(found.submodule_search_locations[0])
    if not (home / "jars").is_dir():
        # Under spark-submit pyspark is imported out of an archive; its jars are Spark's own.
        home = Path(os.environ.get("SPARK_HOME", home))
    folder = home / "jars"
    jars = sorted(str(jar) for jar in folder.glob("*.jar") if jar.name.startswith(JARS))
    needed = {next((p for p in JARS if Path(jar).name.startswith(p)), "") for jar in jars}
    if len(needed) < len(JARS):
        return str(folder / "*")  # another pyspark names them differently: take them all
    return os.pathsep.join(jars)


def _try_lock(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(folder: Path) -> dict[str, Any] | None:
    try:
        owner = json.loads((folder / "server.json").read_text("ascii"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(owner, dict):
        return None
    pid, hosts = owner.get("pid"), owner.get("hosts")
    meant = isinstance(hosts, str) and re.fullmatch(r"127\.0\.0\.1:[0-9]{1,5}", hosts)
    return owner if meant and type(pid) is int and 0 < pid < 2**31 else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _port_of(hosts: str) -> int:
    return int(hosts.rpartition(":")[2])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _serves(port: int) -> bool:
    """Whether a ZooKeeper server answers there. Not `ruok`: that is answered before it serves."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = connection.makefile("rb").read(100)
    except OSError:
        return False
    return answer.startswith(b"Zookeeper version")


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
