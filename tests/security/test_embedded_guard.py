"""The embedded server: on loopback only, and its user's alone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl_credential

from tests.security.nodes import acls, allowed, client, everything, walked
from tests.zookeeper.progress_store import leading
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper, running_server, zookeeper_service
from txn.embedded.guard import CREDENTIAL, read_credential, require_own_listener
from txn.errors import SetupError
from txn.protocol.records import CommittedRecord
from txn.zookeeper import read_status

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for by the environment."""
    for name in [name for name in os.environ if name.startswith("TXN_ZOOKEEPER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the server is to be; everybody may go there."""
    tmp_path.chmod(0o755)
    return tmp_path / "zookeeper"


@pytest.fixture
def hosts(folder: Path) -> Iterator[str]:
    """An embedded server as `txn run` has it."""
    with zookeeper_service(f"embedded:{folder}") as served:
        yield served


def owner_of(folder: Path) -> tuple[str, str]:
    """Credential for kazoo."""
    credential = read_credential(folder)
    assert credential is not None
    return ("digest", credential)


def test_nobody_without_the_credential_can_do_anything(hosts: str, folder: Path) -> None:
    """Another user of the machine can do nothing on an embedded server, not even add a node."""
    with everything(hosts, "t", TopologyConfig()), client(hosts, owner_of(folder)) as owner:
        paths = walked(owner, "/txn")
        user, _, password = owner_of(folder)[1].partition(":")
        ours = ("digest", make_digest_acl_credential(user, password), 31)
        assert acls(owner, ["/", *paths, "/zookeeper", "/zookeeper/quota"]) == {ours}
        assert len(paths) > 8
        with client(hosts) as stranger:
            able = {path: allowed(stranger, path) for path in [*reversed(paths), "/"]}
        assert able == {path: [] for path in [*paths, "/"]}


def test_an_open_acl_is_for_other_servers(hosts: str, folder: Path) -> None:
    """`zookeeper_acl="open"`, said with an ensemble in mind, does not open an embedded server."""
    with (
        everything(hosts, "t", TopologyConfig(zookeeper_acl="open")),
        client(hosts, owner_of(folder)) as owner,
    ):
        assert {scheme for scheme, _, _ in acls(owner, walked(owner, "/txn"))} == {"digest"}


def test_folder_and_files_are_the_users_alone(hosts: str, folder: Path) -> None:
    """Mode 700 and 600, whatever the umask; the password is in one file, and no command line."""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / CREDENTIAL).stat().st_mode) == 0o600
    data = [path for path in (folder / "data").rglob("*") if path.is_file()]
    assert data
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in data} == {0}
    password = owner_of(folder)[1].partition(":")[2].encode()
    holding = [p.name for p in folder.rglob("*") if p.is_file() and password in p.read_bytes()]
    assert holding == [CREDENTIAL]
    lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not any(password in line for line in lines)


def as_somebody_else(*command: str) -> subprocess.CompletedProcess[str]:
    """A command of another user of the machine; of our own user, who is shut out, unless root."""
    other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(command, capture_output=True, text=True, cwd="/", **other)  # type: ignore[call-overload,no-any-return]


def test_another_user_cannot_read_the_credential(hosts: str, folder: Path) -> None:
    """The kernel says no: to the file, to the folder, and to the server's data."""
    if os.geteuid() != 0:
        folder.chmod(0o000)  # what it is to others
    try:
        for command in (
            ("cat", str(folder / CREDENTIAL)),
            ("ls", str(folder)),
            ("cat", str(folder / "zoo.cfg")),
        ):
            said = as_somebody_else(*command)
            assert (said.returncode != 0, said.stdout) == (True, "")
            assert "Permission denied" in said.stderr
    finally:
        folder.chmod(0o700)


def sockets_of(pid: int) -> set[str]:
    """Addresses (hexadecimal, with port) on which a process listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in tables.splitlines()]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def test_the_server_listens_on_loopback_and_nowhere_else(folder: Path) -> None:
    """One port, on 127.0.0.1: no admin server, no JMX, no metrics."""
    with EmbeddedZooKeeper(folder, protect=True) as server:
        port = int(server.hosts.partition(":")[2])
        listening = sockets_of(server.pid)
        assert len(listening) == 1
        address = listening.pop()
        assert (address[-13:-5].lstrip("F"), int(address[-4:], 16)) == ("0100007F", port)


def test_a_folder_of_an_earlier_release_is_taken_over(folder: Path) -> None:
    """Nodes that everybody could change are ours alone after the next start; nothing is lost."""
    with (
        EmbeddedZooKeeper(folder) as old,
        everything(old.hosts, "t", TopologyConfig(zookeeper_acl="open")),
        client(old.hosts) as anybody,
    ):
        assert acls(anybody, walked(anybody, "/txn")) == {("world", "anyone", 31)}
        before = read_status(old.hosts, "t", TopologyConfig()).progress
    with zookeeper_service(f"embedded:{folder}", must_exist=True) as hosts:
        assert read_status(hosts, "t", TopologyConfig()).progress == before
        with client(hosts, owner_of(folder)) as owner:
            paths = [path for path in walked(owner, "/txn") if not path.endswith("/leader")]
            assert {scheme for scheme, _, _ in acls(owner, ["/", *paths])} == {"digest"}
        with everything(hosts, "u", TopologyConfig()):
            assert read_status(hosts, "u", TopologyConfig()).epoch == 1


def run_txn(cwd: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`txn` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "txn", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_commands_find_the_credential_by_themselves(hosts: str, folder: Path) -> None:
    """`txn status --zookeeper embedded:FOLDER` works while the server runs, and by its address.

    By the address alone it is a stranger; the file of the folder is what makes it the owner.
    """
    with everything(hosts, "t", TopologyConfig()):
        status = ("status", "t", "--json", "--zookeeper")
        found = run_txn(folder.parent, *status, f"embedded:{folder}")
        assert json.loads(found.stdout)["committed_txid"] == 1, found.stderr
        stranger = run_txn(folder.parent, *status, hosts)
        assert (stranger.returncode, stranger.stdout) == (1, "")
        told = run_txn(
            folder.parent, *status, hosts, TXN_ZOOKEEPER_AUTH_FILE=str(folder / CREDENTIAL)
        )
        assert json.loads(told.stdout)["committed_txid"] == 1, told.stderr


def test_a_credential_that_was_lost_is_made_anew(folder: Path) -> None:
    """A new one takes over what the old one owned: it is the server's superuser."""
    where = f"embedded:{folder}"
    with zookeeper_service(where) as hosts, everything(hosts, "t", TopologyConfig()):
        before = read_status(hosts, "t", TopologyConfig()).progress
    old = owner_of(folder)
    (folder / CREDENTIAL).unlink()
    with zookeeper_service(where) as hosts:
        assert owner_of(folder) != old
        assert read_status(hosts, "t", TopologyConfig()).progress == before
        with leading(hosts, "t") as store:
            assert store.load() == before
            store.persist_committed(CommittedRecord(txid=2, epoch=store.epoch))


def test_a_credential_that_is_none_is_refused_by_name(folder: Path) -> None:
    """It is never replaced without a word, and what the file holds is not repeated."""
    with zookeeper_service(f"embedded:{folder}"):
        pass
    (folder / CREDENTIAL).write_text("digest:txn:canary\n")
    with (
        pytest.raises(SetupError, match=f"{CREDENTIAL}' no longer holds a credential") as error,
        zookeeper_service(f"embedded:{folder}"),
    ):
        pass
    assert "canary" not in str(error.value)


FAKE = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"Zookeeper version: 3.9.4-fake")
"""


def test_the_credential_is_not_sent_to_another_users_server(folder: Path) -> None:
    """Somebody else who has taken the server's port is told nothing; the kernel knows whose it is.

    A server of another user answers like ours; and the same from a table in the kernel's form.
    """
    line = "  0: 0100007F:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {} 0 1"
    for uid, refused in ((os.geteuid(), False), (os.geteuid() + 1, True)):
        table = "head\n" + line.format(4711, uid)
        with pytest.raises(SetupError, match="Another user") if refused else nullcontext():
            require_own_listener(4711, [table])
        require_own_listener(4712, [table])
    other = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
    fake = subprocess.Popen(
        ["python3", "-c", FAKE],
        stdout=subprocess.PIPE,
        cwd="/",
        text=True,
        **other,  # type: ignore[call-overload]
    )
    try:
        port = int(fake.stdout.readline())
        with EmbeddedZooKeeper(folder, protect=True):
            owner = json.loads((folder / "server.json").read_text())
            (folder / "server.json").write_text(json.dumps({**owner, "hosts": f"127.0.0.1:{port}"}))
            with pytest.raises(SetupError, match="Nothing was sent") if other else nullcontext():
                running_server(folder)
    finally:
        fake.kill()
        fake.communicate()
