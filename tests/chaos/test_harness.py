"""The parts of the harness that a run relies on: links, disk, machines, plan."""

from __future__ import annotations

import os
import random
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.disk import Disk
from tests.chaos.links import Links, Session, Trouble
from tests.chaos.plan import (
    CLUSTER_FAULTS,
    DRIVER_FAULTS,
    FAULTS,
    OTHER_FAULTS,
    deck,
    fates,
    fault_decks,
    faults_of,
)
from tests.release.distribution import ROOT

ANSWER = b"".join(
    number.to_bytes(size, "big")
    for number, size in ((36, 4), (0, 4), (4000, 4), (0x1234, 8), (16, 4), (0xABCD, 16))
)
"""What a ZooKeeper server says to a connect: session 0x1234 and its password."""


class Echo(socketserver.BaseRequestHandler):
    """Says what a ZooKeeper server says at first, then what it hears."""

    def handle(self) -> None:
        self.request.sendall(ANSWER)
        while data := self.request.recv(1000):
            self.request.sendall(data)


@pytest.fixture
def links() -> Iterator[Links]:
    """Two slots of a link each, to a server that echoes."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        links = Links([server.server_address[1]], slots=2)
        links.start()
        yield links
        links.stop()
        server.shutdown()


def connected(links: Links, slot: int = 0) -> socket.socket:
    """A connection over a slot's link, after the server's first words."""
    client = socket.create_connection(("127.0.0.1", links.slots[slot].ports[0]), timeout=5)
    assert client.recv(1000) == ANSWER
    return client


def is_closed(client: socket.socket) -> bool:
    """Whether the other end closes the connection, in whatever way."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_link_passes_on_what_it_gets_and_learns_the_session(links: Links) -> None:
    """Both directions work, and the session's id and password are known afterwards."""
    with connected(links) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
    assert links.slots[0].session == Session(0x1234, (0xABCD).to_bytes(16, "big"))
    assert links.slots[1].session is None


def test_a_cut_link_is_closed_and_refused_until_it_is_healed(links: Links) -> None:
    """A cut closes what is open and what is opened; the other slot goes on; then all is well."""
    cut = links.trouble(links.slots[0], Trouble(cut=True))
    with connected(links) as client, connected(links, 1) as other, cut:
        assert is_closed(client)
        with socket.create_connection(("127.0.0.1", links.slots[0].ports[0]), timeout=5) as late:
            assert is_closed(late)
        other.sendall(b"on")
        assert other.recv(100) == b"on"
    with connected(links) as client:
        client.sendall(b"again")
        assert client.recv(100) == b"again"


def test_a_silent_link_says_nothing_until_it_is_healed(links: Links) -> None:
    """What was sent meanwhile comes when the trouble is over, and not before."""
    with connected(links) as client:
        with links.trouble(links.slots[0], Trouble(silent=True)):
            client.sendall(b"late")
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(100)
        client.settimeout(5)
        assert client.recv(100) == b"late"


def test_a_slow_link_takes_its_time(links: Links) -> None:
    """Each piece waits for the delay, on its way there and on its way back."""
    with connected(links) as client, links.trouble(links.slots[0], Trouble(delay_secs=0.2)):
        began = time.monotonic()
        client.sendall(b"slow")
        assert client.recv(100) == b"slow"
        assert time.monotonic() - began >= 0.4


def test_troubles_add_up(links: Links) -> None:
    """A link is well only when the last of its troubles is over."""
    slot = links.slots[0]
    one, two = Trouble(silent=True), Trouble(silent=True)
    with connected(links) as client:
        links.begin(slot, one)
        links.begin(slot, two)
        links.end(slot, one)
        client.sendall(b"x")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(100)
        links.end(slot, two)
        client.settimeout(5)
        assert client.recv(100) == b"x"


def test_a_full_disk_refuses_and_is_free_again(tmp_path: Path) -> None:
    """With the ballast nothing fits, without it all does; where a mount is refused, it says why."""
    with Disk(tmp_path / "disk", "1m") as disk:
        mounted = disk.folder.is_mount()
        assert mounted == (disk.why_not == "")
        if mounted:
            with disk.full(0), pytest.raises(OSError, match="No space left"):
                (disk.folder / "file").write_bytes(bytes(100_000))
        (disk.folder / "file").write_bytes(bytes(100_000))
        assert not disk.ballast.exists()
    assert not disk.folder.is_mount()


def test_a_disk_that_cannot_be_mounted_is_a_folder_and_says_why(tmp_path: Path) -> None:
    """Nothing is left out in silence: the report repeats the reason."""
    with Disk(tmp_path / "disk", "nonsense") as disk:
        assert disk.why_not
        (disk.folder / "file").write_bytes(b"x")
    assert (tmp_path / "disk" / "file").exists()


def test_the_same_seed_draws_the_same_faults() -> None:
    """Fates and faults depend on the seed alone."""
    for seed in range(3):
        assert list(islice(fates(seed), 200)) == list(islice(fates(seed), 200))
        for (one, _), (two, _) in zip(fault_decks(seed), fault_decks(seed), strict=True):
            assert list(islice(one, 200)) == list(islice(two, 200))
    assert list(islice(fates(1), 200)) != list(islice(fates(2), 200))


@pytest.mark.parametrize("kinds", OTHER_FAULTS, ids=lambda kinds: next(iter(kinds)))
def test_a_deck_begins_with_each_kind_once(kinds: dict[str, int]) -> None:
    """A short run meets every kind; a long one meets each as often as its weight says."""
    found = list(islice(deck(random.Random(4), kinds), len(kinds) + 10 * sum(kinds.values())))
    assert sorted(found[: len(kinds)]) == sorted(kinds)
    assert {kind: found.count(kind) for kind in kinds} == {k: 1 + 10 * n for k, n in kinds.items()}


def test_a_short_run_has_each_fault_once() -> None:
    """Each thread is done after one of each of its kinds."""
    for (drawn, _), kinds in zip(fault_decks(3, once=True), OTHER_FAULTS, strict=True):
        assert sorted(islice(drawn, 100)) == sorted(kinds)


def test_workers_on_machines_of_their_own_have_faults_of_their_own() -> None:
    """Pauses, cuts, decommissions and additions come only there."""
    more = set(faults_of("s3", cluster="isolated")) - set(faults_of("s3"))
    assert more == set(CLUSTER_FAULTS)
    drawn = [kind for kinds, _ in fault_decks(3, "s3", "isolated", once=True) for kind in kinds]
    assert {*drawn, *DRIVER_FAULTS} == set(faults_of("s3", cluster="isolated"))


MACHINES = """
import socket, subprocess, sys
from pathlib import Path
from tests.chaos.machines import DRIVER, STORE, Network, alone
alone([])
hidden = Path(sys.argv[1])
(hidden / "secret").write_text("of the driver")
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1)"
with Network(2, [hidden]) as network, socket.create_server((DRIVER, 0)) as driver:
    store = socket.create_server((STORE, 0))
    one, other = network.machines
    def run(machine, *words):
        command = machine.command(words, hidden / "work")
        return subprocess.run(command, capture_output=True, text=True)
    def reaches(machine, server):
        host, port = server.getsockname()
        return run(machine, sys.executable, "-c", CONNECT, host, str(port)).returncode == 0
    print(run(one, "sh", "-c", f"ls {hidden}; pwd").stdout.split())
    print(reaches(one, driver), reaches(one, store))
    with one.cut_off(STORE):
        print(reaches(one, driver), reaches(one, store), reaches(other, store))
    print(reaches(one, store))
print(subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split())
"""


def test_machines_share_neither_disk_nor_network(tmp_path: Path) -> None:
    """A folder of the driver's is empty there; one machine is cut off from one address alone."""
    command = [sys.executable, "-c", MACHINES, str(tmp_path)]
    ended = subprocess.run(
        ["unshare", "-n", *command],
        env=os.environ | {"TXN_CHAOS_ALONE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.splitlines() == [
        str(["work", str(tmp_path / "work")]),
        "True True",
        "True False True",
        "True",
        "[]",
    ], ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_drivers_die_in_every_way() -> None:
    """Among a run's drivers each way to die is met, zombies of both kinds included."""
    lives = list(islice(fates(0), 250))
    drawn = [fate.how for fate in lives]
    assert {fate.silent for fate in lives if fate.how == "zombie_cut"} == {True, False}
    assert set(drawn) == {"start", "time", "point", "zombie_stop", "zombie_cut"}
    assert drawn.count("zombie_stop") + drawn.count("zombie_cut") >= 10
    assert {"driver_kill", "zombie"} <= set(FAULTS)
