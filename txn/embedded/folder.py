"""The folder of an embedded server: who has it, its port, its configuration, the end of its log.

Who may use a folder is decided by `flock` on `FOLDER/lock`. The lock is handed down to the
supervisor and the JVM, so it lasts exactly as long as a server may write to the folder, also
when the program that started it is gone. `FOLDER/server.json` says who that is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from txn.embedded.files import LOG4J, ZOO_CFG
from txn.embedded.guard import CREDENTIAL, guard_setting
from txn.errors import SetupError
from txn.zookeeper.liveness import is_running

__all__ = ["IN_USE", "LOOPBACK", "Owner", "ServerFolder", "port_of", "serves"]

IN_USE = "TXN-205"
"""Number of the error that another process has the folder."""
LOOPBACK = "127.0.0.1"

# Below the range from which systems take ports for outgoing connections: there a client that keeps
# trying a port with no server behind it can, on loopback, end up connected to itself.
_PORTS = range(20000, 32000)

_HOSTS = re.compile(r"127\.0\.0\.1:[0-9]{1,5}")
_LOCK_SECS = 5.0
_POLL_SECS = 0.01
_TAIL_LINES = 12


@dataclass(frozen=True)
class Owner:
    """The process that started the server of a folder."""

    pid: int
    hosts: str
    """Connect string of its server."""


class ServerFolder:
    """Where one server has its data, its configuration and its log.

    Args:
        private: whether it is to be the user's alone.
    """

    def __init__(self, path: str | Path, *, private: bool = False) -> None:
        self.path = Path(path).absolute()
        self._private = private

    def make(self) -> None:
        """Create the folder if need be.

        Raises:
            SetupError: it cannot be made.
        """
        try:
            (self.path / "data").mkdir(parents=True, exist_ok=True)
            if self._private:
                self.path.chmod(0o700)
        except OSError as error:
            raise SetupError(
                f"The folder '{self.path}' for ZooKeeper's data cannot be made: "
                f'{error.strerror}. Name another one: "embedded:FOLDER".',
                number="TXN-206",
            ) from error

    # --- who has it --------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[IO[bytes]]:
        """Hold the folder's lock while starting; the server's processes then hold it on.

        Raises:
            SetupError: another process has the folder.
        """
        deadline = time.monotonic() + _LOCK_SECS
        with (self.path / "lock").open("ab") as lock:
            while not _try_lock(lock, fcntl.LOCK_EX):
                owner = self.owner()
                # A server whose owner has just died is about to end, and `is_locked` takes the
                # lock for a moment: neither is a reason to refuse.
                if (owner and is_running(owner.pid)) or time.monotonic() >= deadline:
                    raise self._in_use(owner)
                time.sleep(_POLL_SECS)
            # Closing our descriptor does not unlock: the children's share the same lock.
            yield lock

    def is_locked(self) -> bool:
        """Return whether a process holds the folder's lock."""
        try:
            with (self.path / "lock").open("rb") as lock:
                return not _try_lock(lock, fcntl.LOCK_SH)
        except OSError:
            return False

    def owner(self) -> Owner | None:
        """Return who wrote itself down; None: nobody, or the file holds something else."""
        try:
            said = json.loads((self.path / "server.json").read_text("ascii"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(said, dict):
            return None
        pid, hosts = said.get("pid"), said.get("hosts")
        if not isinstance(hosts, str) or not _HOSTS.fullmatch(hosts):
            return None
        return Owner(pid, hosts) if type(pid) is int and 0 < pid < 2**31 else None

    def write_owner(self, hosts: str, server_pid: int) -> None:
        """Write down that this process owns the folder; the server's process id is for people."""
        said = {"pid": os.getpid(), "server_pid": server_pid, "hosts": hosts}
        temporary = self.path / "server.json.new"
        temporary.write_text(json.dumps(said), "ascii")
        temporary.replace(self.path / "server.json")

    def forget_owner(self) -> None:
        """Delete what `write_owner` wrote."""
        (self.path / "server.json").unlink(missing_ok=True)

    def _in_use(self, owner: Owner | None) -> SetupError:
        by = f"process {owner.pid}, at {owner.hosts}" if owner else "another process"
        connect = (
            f', or connect to its server: zookeeper="{owner.hosts}", with the environment '
            f"variable TXN_ZOOKEEPER_AUTH_FILE={self.path / CREDENTIAL}"
            if owner
            else ""
        )
        return SetupError(
            f"The ZooKeeper folder '{self.path}' is in use by {by}. Stop that process, use "
            f'another folder ("embedded:FOLDER"){connect}.',
            number=IN_USE,
        )

    # --- what the server is started with, and what it wrote ----------------------------------

    def choose_port(self, wanted: int | None) -> int:
        """The port that is wanted; else the folder's last one if it is free, else a free one.

        Raises:
            SetupError: the port that is wanted is in use, or all are.
        """
        if wanted is not None:
            if not _is_free(wanted):
                raise SetupError(
                    f"Port {wanted} on {LOOPBACK}, for the ZooKeeper server in "
                    f"'{self.path}', is in use. Stop what uses it, or leave the port out.",
                    number="TXN-207",
                )
            return wanted
        with contextlib.suppress(OSError, ValueError):
            last = int((self.path / "port").read_text("ascii"))
            if _is_free(last):
                return last
        # Each folder begins to look elsewhere, so that two that start at once seldom collide.
        digest = hashlib.sha256(os.fsencode(self.path)).digest()
        first = int.from_bytes(digest[:4], "big") % len(_PORTS)
        for i in range(len(_PORTS)):
            if _is_free(port := _PORTS[(first + i) % len(_PORTS)]):
                return port
        raise SetupError(
            f"No port of {LOOPBACK} between {_PORTS[0]} and {_PORTS[-1]} is free for the "
            f"ZooKeeper server in '{self.path}'. Stop what uses them, or name a port.",
            number="TXN-207",
        )

    def configure(self, port: int, credential: str | None) -> None:
        """Write the server's configuration, and the port for the next start.

        Args:
            credential: whose the server is; None: anybody's.
        """
        setting = guard_setting(credential) if credential else ""
        text = ZOO_CFG.format(host=LOOPBACK, port=port, guard=setting)
        (self.path / "zoo.cfg").write_text(text, "ascii")
        (self.path / "log4j2.properties").write_text(LOG4J, "ascii")
        (self.path / "port").write_text(str(port), "ascii")

    def end_of_log(self) -> list[str]:
        """The last lines that the server wrote."""
        lines: list[str] = []
        for name in ("server.out", "server.log"):
            with contextlib.suppress(OSError):
                text = (self.path / name).read_text("utf-8", "replace")
                # Java's stack traces would push the words out of the part that is shown.
                words = [line for line in text.splitlines() if not line.startswith("\tat ")]
                lines += words[-_TAIL_LINES:]
        return lines


def port_of(hosts: str) -> int:
    """The port of a connect string with one server."""
    return int(hosts.rpartition(":")[2])


def serves(port: int) -> bool:
    """Return whether a ZooKeeper server serves there. It answers `ruok` before it serves."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = connection.makefile("rb").read(100)
    except OSError:
        return False
    return answer.startswith(b"Zookeeper version")


def _try_lock(lock: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
