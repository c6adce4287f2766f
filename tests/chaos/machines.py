"""Machines of their own for the workers of a cluster: a network and folders that others lack.

Each is a network namespace on a bridge, and a mount namespace in which the folders of the driver
and its jars are empty. Needs root. The driver, the store and the broker have an address each, so
that a machine can be cut off from one of them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["BROKER", "DRIVER", "STORE", "Machine", "Network", "alone"]

_NET = "10.77.{0}"
DRIVER, STORE, BROKER = (_NET.format(f"0.{n}") for n in (1, 2, 3))
"""Addresses of this machine."""
_BRIDGE = "txn-chaos"
_ALONE = "TXN_CHAOS_ALONE"
_NOWHERE = "02:00:00:00:00:01"
"""No machine has this hardware address: what is sent to it is lost."""
_HIDE = 'for f in $HIDDEN; do mount -t tmpfs none "$f"; done; mkdir -p "$WORK"; cd "$WORK"'


class Machine:
    """One machine, with an address of its own.

    Args:
        number: from 1.
        hidden: folders that are empty there, and lost with the process that runs there.
    """

    def __init__(self, number: int, hidden: Sequence[Path]) -> None:
        self.host = _NET.format(f"1.{number}")
        self._name = f"{_BRIDGE}-{number}"
        self._inside, self._outside = f"txn-in-{number}", f"txn-out-{number}"
        self._hidden = hidden

    def command(self, command: Sequence[str], work: Path) -> list[str]:
        """Return the command that runs `command` there, as the same process, in the folder `work`.

        What it writes into a hidden folder is below /proc/PID/root.
        """
        folders = " ".join(shlex.quote(str(folder)) for folder in self._hidden)
        script = f'HIDDEN="{folders}" WORK={shlex.quote(str(work))}; {_HIDE}; exec "$@"'
        within = ["ip", "netns", "exec", self._name, "unshare", "-m", "sh", "-ec", script, "sh"]
        return [*within, *command]

    @contextlib.contextmanager
    def cut_off(self, *addresses: str) -> Iterator[None]:
        """Lose all that is sent from there to these addresses, for the time of the block."""
        for address in addresses:
            entry = ("lladdr", _NOWHERE, "dev", self._inside, "nud", "permanent")
            _ip("-n", self._name, "neigh", "replace", address, *entry)
        try:
            yield
        finally:
            for address in addresses:
                _ip("-n", self._name, "neigh", "del", address, "dev", self._inside)

    def _make(self) -> None:
        _ip("netns", "add", self._name)
        peer = ("type", "veth", "peer", "name", self._inside)
        _ip("link", "add", self._outside, *peer, "netns", self._name)
        _ip("link", "set", self._outside, "master", _BRIDGE, "up")
        _ip("-n", self._name, "addr", "add", f"{self.host}/16", "dev", self._inside)
        for device in (self._inside, "lo"):
            _ip("-n", self._name, "link", "set", device, "up")

    def _remove(self) -> None:
        _ip("netns", "del", self._name, check=False)  # with its devices, and their peers


class Network:
    """The bridge, this machine's addresses on it, and machines.

    Args:
        count: of machines.
        hidden: as for `Machine`.
    """

    def __init__(self, count: int, hidden: Sequence[Path]) -> None:
        self.machines = [Machine(number, hidden) for number in range(1, count + 1)]

    def __enter__(self) -> Network:  # noqa: PYI034 - typing.Self is Python 3.11
        self._remove()  # those of a run that was killed
        _ip("link", "add", _BRIDGE, "type", "bridge")
        for address in (DRIVER, STORE, BROKER):
            _ip("addr", "add", f"{address}/16", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for machine in self.machines:
            machine._make()
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _remove(self) -> None:
        for machine in self.machines:
            machine._remove()
        _ip("link", "del", _BRIDGE, check=False)


def alone(command: Sequence[str]) -> None:
    """Go on as `command` in a network of its own, unless this process is in one already.

    No packet of a run leaves that network, and its addresses are nobody else's.
    """
    if os.environ.get(_ALONE) == "1":
        _ip("link", "set", "lo", "up")
        return
    os.execvpe("unshare", ["unshare", "-n", *command], {**os.environ, _ALONE: "1"})


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
