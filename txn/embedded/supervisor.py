"""Run one child process, and end it when the parent is gone, for whatever reason.

`txn.embedded.child` starts it by path, `python -I -S supervisor.py COMMAND...`, so it imports
nothing of this project. It writes the child's process id to its standard output, waits, and exits
with the child's exit code. The parent is gone when

- standard input, a pipe whose other end only the parent has, reaches its end (also on SIGKILL), or
- the process id of the parent changes, in case a process forked by the parent keeps the pipe open.

If the supervisor itself is killed, Linux kills the child with it. PR_SET_PDEATHSIG alone, set by
the parent, would not suffice: it is bound to the *thread* that started the child, and only Linux
has it. This process has one thread.

`systemctl stop` sends SIGTERM to every process of a service, including these two. The parent needs
its server until it has stopped, so both ignore SIGTERM and SIGINT, and SIGHUP ends the child.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

__all__ = ["main"]

POLL_SECS = 0.25
GRACE_SECS = 3.0
PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run `command` until it ends or the parent does, and return its exit code."""
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the child inherits it
    # Inherit every file descriptor of the parent: so the folder's lock lasts as long as the server,
    # whatever happens to the processes above it.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,  # our standard output carries only the process id
        close_fds=False,
        preexec_fn=_prepare,  # noqa: PLW1509 - there are no threads here
    )
    try:
        os.write(1, f"{child.pid}\n".encode("ascii"))
    except OSError:  # the parent was gone before it could read
        return _end(child)
    os.close(1)
    while child.poll() is None:
        readable, _, _ = select.select([0], [], [], POLL_SECS)
        if (readable and not os.read(0, 1)) or os.getppid() != parent:
            return _end(child)
    return child.returncode


def _end(child: subprocess.Popen[bytes]) -> int:
    child.send_signal(signal.SIGHUP)  # Java shuts down cleanly on it, as on SIGTERM
    try:
        return child.wait(GRACE_SECS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _prepare() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under `nohup` it would be ignored
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
