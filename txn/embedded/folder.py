"""The folder of an embedded server: its lock, owner, port, configuration and log.

`flock` on `FOLDER/lock` decides which process may use a folder. The supervisor and the JVM inherit
the lock, so it lasts exactly as long as a server may write to the folder, even when the program
that started it is gone. `FOLDER/server.json` names that program.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, Field

from txn.embedded.child import OUTPUT
from txn.embedded.files import LOG4J, ZOO_CFG
from txn.embedded.guard import CREDENTIAL, guard_setting
from txn.errors import SetupError
from txn.machine.listening import LOOPBACK
from txn.machine.liveness import is_running

__all__ = [
    "IN_USE",
    "Owner",
    "ServerFolder",
    "end_of_logs",
    "port_of",
    "require_free",
    "serves",
    "try_lock",
]

IN_USE = "TXN-205"
"""Number of the error for a folder that another process uses."""

# Below the range of ports for outgoing connections: there, on loopback, a client that retries a
# port without a server can end up connected to itself.
_PORTS = range(20000, 32000)

_LOCK_SECS = 5.0
_POLL_SECS = 0.01
_TAIL_LINES = 12


class Owner(BaseModel):
    """`server.json`: the process that started the server of a folder."""

    model_config = ConfigDict(frozen=True, strict=True)

    pid: int = Field(gt=0, lt=2**31)
    server_pid: int = 0
    """For people."""
    hosts: str = Field(pattern=r"^127\.0\.0\.1:[0-9]{1,5}$")
    """Connect string of its server."""


class ServerFolder:
    """The folder of a server's data, configuration and log; a private one is mode 700."""

    def __init__(self, path: str | Path, *, private: bool = False) -> None:
        self.path = Path(path).absolute()
        self._private = private

    def make(self) -> None:
        """Create the folder if necessary.

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

    # --- the owner ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[IO[bytes]]:
        """Hold the folder's lock during a start; then the server's processes hold it.

        Raises:
            SetupError: another process uses the folder.
        """
        deadline = time.monotonic() + _LOCK_SECS
        with (self.path / "lock").open("ab") as lock:
            while not try_lock(lock, fcntl.LOCK_EX):
                owner = self.owner()
                # Wait for two short-lived holders: a server whose owner has just died is about to
                # end, and `is_locked` takes the lock for a moment.
                if (owner and is_running(owner.pid)) or time.monotonic() >= deadline:
                    raise self._in_use(owner)
                time.sleep(_POLL_SECS)
            # Closing our descriptor does not unlock: the children share the lock.
            yield lock

    def is_locked(self) -> bool:
        """True if a process holds the folder's lock."""
        try:
            with (self.path / "lock").open("rb") as lock:
                return not try_lock(lock, fcntl.LOCK_SH)
        except OSError:
            return False

    def owner(self) -> Owner | None:
        """Return the recorded owner; None if there is none, or the file is invalid."""
        try:
            return Owner.model_validate_json((self.path / "server.json").read_bytes())
        except (OSError, ValueError):
            return None

    def write_owner(self, hosts: str, server_pid: int) -> None:
        """Record this process as the folder's owner."""
        owner = Owner(pid=os.getpid(), server_pid=server_pid, hosts=hosts)
        temporary = self.path / "server.json.new"
        temporary.write_text(owner.model_dump_json(), "ascii")
        temporary.replace(self.path / "server.json")

    def forget_owner(self) -> None:
        """Delete the record of `write_owner`."""
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

    # --- configuration and log ---------------------------------------------------------------

    def choose_port(self, requested: int | None) -> int:
        """Return `requested`, or else the folder's last port if free, or else another free one.

        Raises:
            SetupError: `requested` is in use, or all ports are.
        """
        if requested is not None:
            purpose = f"the ZooKeeper server in '{self.path}'"
            require_free(requested, purpose, "leave the port out")
            return requested
        with contextlib.suppress(OSError, ValueError):
            last = int((self.path / "port").read_text("ascii"))
            if _is_free(last):
                return last
        # Each folder starts at another port, so two that start at once seldom collide.
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
        """Write the configuration, and the port for the next start; no credential: it is open."""
        setting = guard_setting(credential) if credential else ""
        text = ZOO_CFG.format(host=LOOPBACK, port=port, guard=setting, peers="")
        (self.path / "zoo.cfg").write_text(text, "ascii")
        (self.path / "log4j2.properties").write_text(LOG4J, "ascii")
        (self.path / "port").write_text(str(port), "ascii")


def end_of_logs(folder: Path) -> list[str]:
    """Return the last lines of a server's output and log."""
    lines: list[str] = []
    for name in (OUTPUT, "server.log"):
        with contextlib.suppress(OSError):
            text = (folder / name).read_text("utf-8", "replace")
            # Leave out Java's stack traces, or they would fill the lines that are shown.
            words = [line for line in text.splitlines() if not line.startswith("\tat ")]
            lines += words[-_TAIL_LINES:]
    return lines


def require_free(port: int, purpose: str, way_out: str) -> None:
    """Check that nobody listens on a port of loopback.

    Args:
        purpose: the server that needs it: "the ZooKeeper server in '...'".
        way_out: the end of a message: what to do but to stop what uses it.

    Raises:
        SetupError: it is in use.
    """
    if not _is_free(port):
        raise SetupError(
            f"Port {port} on {LOOPBACK}, for {purpose}, is in use. Stop what uses it, or "
            f"{way_out}.",
            number="TXN-207",
        )


def port_of(hosts: str) -> int:
    """Return the port of a connect string with one server."""
    return int(hosts.rpartition(":")[2])


def serves(port: int) -> bool:
    """True if a ZooKeeper server serves there. Asks `srvr`: it answers `ruok` before it serves."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = connection.makefile("rb").read(100)
    except OSError:
        return False
    return answer.startswith(b"Zookeeper version")


def try_lock(lock: IO[bytes], kind: int) -> bool:
    """Return whether this process has the lock now (`fcntl.LOCK_EX` or `LOCK_SH`)."""
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
