"""A real ZooKeeper server as a child process, from the jars of pyspark.

For one machine: `txn` works without an installed ZooKeeper, with the coordinator's state in a
folder. It is the ordinary server (`ZooKeeperServerMain`), alone, on the loopback interface only,
and it syncs every write to disk.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import IO

from txn.embedded.child import OUTPUT, Child
from txn.embedded.files import JVM_FLAGS, class_path
from txn.embedded.folder import ServerFolder, end_of_logs, port_of, serves
from txn.embedded.guard import guard, make_credential, require_own_listener
from txn.errors import SetupError
from txn.machine.java import find_java, in_utf8
from txn.machine.listening import LOOPBACK
from txn.zookeeper.client.access import lend, take_back

__all__ = ["EmbeddedZooKeeper"]

_START_SECS = 30.0
_POLL_SECS = 0.01
_TRIES = 3


class EmbeddedZooKeeper:
    """An embedded ZooKeeper server with its folder. A context manager; may be started again.

    It dies with this process, SIGKILL included. Data stays in the folder.

    Args:
        folder: created if necessary; holds the data, the server's log and its configuration.
        port: TCP port on 127.0.0.1; None: the folder's last one if free, else another free one.
        protect: True: folder and nodes belong to the user alone, this process's connections have
            the credential, and open nodes are taken over. False, for tests:
            everybody who can reach the port may do everything.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        port: int | None = None,
        protect: bool = False,
    ) -> None:
        self._place = ServerFolder(folder, private=protect)
        self.folder = self._place.path
        self._port = port
        self._protect = protect
        self._credential: str | None = None
        self._child = Child(self.folder)
        self._hosts = ""

    @property
    def hosts(self) -> str:
        """The connect string of the running server.

        Raises:
            SetupError: it is not running.
        """
        if not self._hosts:
            raise SetupError(
                f"The ZooKeeper server in '{self.folder}' is not running. Call start() first.",
                number="TXN-208",
            )
        return self._hosts

    @property
    def pid(self) -> int:
        """Process id of the server's JVM.

        Raises:
            SetupError: it is not running. (Never 0: for `os.kill`, that is our own process group.)
        """
        _ = self.hosts
        return self._child.pid

    def start(self) -> str:
        """Start the server, wait until it serves, and return the connect string.

        Raises:
            SetupError: no Java, no pyspark, the folder or the port is in use, or the server ended
                (with the end of its log).
        """
        if self._hosts and serves(port_of(self._hosts)):
            return self._hosts
        self.stop()
        java, classpath = find_java(), class_path()
        self._place.make()
        with self._place.locked() as lock:
            self._place.forget_owner()
            self._credential = make_credential(self.folder) if self._protect else None
            for tries_left in reversed(range(_TRIES)):
                port = self._place.choose_port(self._port)
                self._place.configure(port, self._credential)
                self._launch(java, classpath, lock)
                if self._wait_until_serving(port, may_retry=tries_left > 0 and not self._port):
                    self._hosts = f"{LOOPBACK}:{port}"
                    self._claim()
                    self._place.write_owner(self._hosts, self._child.pid)
                    return self._hosts
        raise AssertionError("unreachable: the last try returns or raises")

    def stop(self) -> None:
        """Stop the server, if it runs, and wait for its end. Idempotent."""
        take_back(self._hosts)
        self._hosts = ""
        if self._child.supervisor:
            self._place.forget_owner()
            self._child.stop()

    def __enter__(self) -> EmbeddedZooKeeper:  # noqa: PYI034 - typing.Self is Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _claim(self) -> None:
        """Take ownership of everything in the server before its address is known."""
        if self._credential is None:
            return
        try:
            require_own_listener(port_of(self._hosts))
            guard(self._hosts, self._credential)
        except BaseException:
            self.stop()
            raise
        lend(self._hosts, self._credential)

    # --- the processes -----------------------------------------------------------------------

    def _launch(self, java: Path, classpath: str, lock: IO[bytes]) -> None:
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        (self.folder / OUTPUT).unlink(missing_ok=True)
        try:
            self._child.start(
                [str(java), *JVM_FLAGS, "-cp", classpath, main, "zoo.cfg"],
                environ=in_utf8(os.environ),
                keep_open=[lock.fileno()],
                umask=0o077 if self._protect else -1,
            )
        except ChildProcessError:
            raise self._failed("could not be started") from None

    def _wait_until_serving(self, port: int, *, may_retry: bool) -> bool:
        """Wait for the server; False if another process took the port, so try another one."""
        deadline = time.monotonic() + _START_SECS
        while not serves(port) or not self._child.is_alive:
            if not self._child.is_alive:
                failure = self._failed("ended while it started")
                if may_retry and "Address already in use" in str(failure):
                    return False
                raise failure
            if time.monotonic() >= deadline:
                raise self._failed(f"did not serve within {_START_SECS:g} s")
            time.sleep(_POLL_SECS)
        return True

    def _failed(self, problem: str) -> SetupError:
        self.stop()
        return SetupError(
            f"The ZooKeeper server in '{self.folder}' {problem}. The end of its log is below, "
            f"the whole is in '{self.folder / 'server.log'}'.\n"
            + "\n".join(f"  {line}" for line in end_of_logs(self.folder)),
            number="TXN-208",
        )
