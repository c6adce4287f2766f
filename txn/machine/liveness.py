"""The identity of this process, and a check if another process still runs.

In ZooKeeper, the nodes of a crashed process outlive it by its session timeout. In the same boot and
the same process-id namespace the kernel knows sooner, so no wait is necessary.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from txn.protocol.records import LeaderIdentity, StandbyIdentity

__all__ = ["is_alive", "is_running", "machine_id", "this_process"]


def this_process() -> dict[str, Any]:
    """Return the fields `host`, `pid` and `machine` of an identity of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "machine": machine_id()}


def machine_id() -> str:
    """Return an id of the running kernel and our process-id namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """True if a process with that id runs on this machine, under any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is another user's
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """True if the process has ended and waits for its parent; False if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    # The process name precedes the state, in parentheses, and may contain parentheses.
    return stat.rpartition(b")")[2].split()[:1] == [b"Z"]


def is_alive(identity: LeaderIdentity | StandbyIdentity | None) -> bool:
    """True if a process may still run. A process of another machine always may."""
    if identity is None:
        return False
    if not identity.machine or identity.machine != machine_id():
        return True
    return is_running(identity.pid)
