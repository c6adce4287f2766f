"""Who this process is, and whether a process that ZooKeeper names still runs.

A crashed process's nodes outlive it by its session timeout. In the same boot and the same
process-id namespace the kernel knows better, and nobody has to wait.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NamedTuple

from txn.protocol.records import LeaderIdentity, StandbyIdentity

__all__ = ["ThisProcess", "is_alive", "is_running", "machine_id", "this_process"]


class ThisProcess(NamedTuple):
    """The identity that a leader or a standby writes about itself."""

    host: str
    pid: int
    machine: str
    """See `machine_id`."""


def this_process() -> ThisProcess:
    """Return who this process is."""
    return ThisProcess(socket.gethostname(), os.getpid(), machine_id())


def machine_id() -> str:
    """Name the running kernel and our process-id namespace; empty where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Return whether a process with that id runs on this machine, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and its parent has not asked how; False where nobody knows."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    # Its name stands before the state, in parentheses, and may contain some.
    return stat.rpartition(b")")[2].split()[:1] == [b"Z"]


def is_alive(identity: LeaderIdentity | StandbyIdentity | None) -> bool:
    """Return whether a process may still run. One of another machine may."""
    if identity is None:
        return False
    if not identity.machine or identity.machine != machine_id():
        return True
    return is_running(identity.pid)
