from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.harness import wait_for
from txn.machine.liveness import is_alive, is_running, machine_id, this_process
from txn.protocol.records import LeaderIdentity, StandbyIdentity


@pytest.fixture(scope="module")
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def standby(pid: int, machine: str) -> StandbyIdentity:
    return StandbyIdentity(host="h", pid=pid, since="2026-01-01T00:00:00+00:00", machine=machine)


def test_a_process_runs_until_it_ends(ended: int) -> None:
    """The kernel knows; process 1, which may be another user's, runs as well."""
    assert [True, True, False] == [is_running(os.getpid()), is_running(1), is_running(ended)]


def test_a_process_that_nobody_has_asked_about_is_gone() -> None:
    """A killed leader whose parent does not wait for it still has its process id; Linux tells."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    if Path("/proc/self/stat").exists():
        wait_for(lambda: not is_running(process.pid), what="its end")
    os.kill(process.pid, 0)
    assert process.wait() == 0


def test_the_dead_are_known_on_their_own_machine_only(ended: int) -> None:
    """A process id means nothing elsewhere: whoever is there may be alive."""
    assert is_alive(standby(os.getpid(), machine_id()))
    assert not is_alive(standby(ended, machine_id()))
    assert is_alive(standby(ended, "another/machine"))
    assert is_alive(standby(ended, ""))
    assert not is_alive(None)


def test_a_leader_writes_down_this_process() -> None:
    """What a leader writes of itself is alive as long as it is."""
    leader = LeaderIdentity(
        **this_process(),
        started="2026-01-01T00:00:00+00:00",
        epoch=1,
        token="t",
    )
    assert (os.getpid(), machine_id()) == (leader.pid, leader.machine)
    assert is_alive(leader)
