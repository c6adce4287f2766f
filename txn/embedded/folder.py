"""Who has an embedded server's folder: its lock, who took it, and whether a server answers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = [
    "LOOPBACK",
    "Owner",
    "forget_owner",
    "port_of",
    "read_owner",
    "serves",
    "try_lock",
    "write_owner",
]

LOOPBACK = "127.0.0.1"

_FILE = "server.json"
_HOSTS = re.compile(r"127\.0\.0\.1:[0-9]{1,5}")


@dataclass(frozen=True)
class Owner:
    """The process that started the server of a folder."""

    pid: int
    hosts: str
    """Connect string of its server."""


def try_lock(lock: IO[bytes], kind: int) -> bool:
    """Take the lock, of kind `fcntl.LOCK_EX` or `LOCK_SH`, unless another process has it."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_owner(folder: Path) -> Owner | None:
    """Who wrote itself down; None: nobody, or the file holds something else."""
    try:
        said = json.loads((folder / _FILE).read_text("ascii"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    pid, hosts = said.get("pid"), said.get("hosts")
    if not isinstance(hosts, str) or not _HOSTS.fullmatch(hosts):
        return None
    return Owner(pid, hosts) if type(pid) is int and 0 < pid < 2**31 else None


def write_owner(folder: Path, owner: Owner, server_pid: int) -> None:
    """Write down who has the folder, and for people the process id of the server itself."""
    said = {"pid": owner.pid, "server_pid": server_pid, "hosts": owner.hosts}
    temporary = folder / f"{_FILE}.new"
    temporary.write_text(json.dumps(said), "ascii")
    temporary.replace(folder / _FILE)


def forget_owner(folder: Path) -> None:
    """Nobody has the folder any more."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _FILE).unlink()


def port_of(hosts: str) -> int:
    """The port of a connect string with one server."""
    return int(hosts.rpartition(":")[2])


def serves(port: int) -> bool:
    """Whether a ZooKeeper server answers there. Not `ruok`: that is answered before it serves."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = connection.makefile("rb").read(100)
    except OSError:
        return False
    return answer.startswith(b"Zookeeper version")
