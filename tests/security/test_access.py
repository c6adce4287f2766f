"""Who may do what in ZooKeeper: digest, SASL, readers, and settings from the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl_credential
from pydantic import SecretStr, ValidationError

from tests.security.nodes import acls, allowed, client, everything, walked
from tests.security.server import free_port, running
from txn.config import TopologyConfig
from txn.embedded import EmbeddedZooKeeper
from txn.errors import ProgressUnavailableError, SetupError, UserError
from txn.zookeeper import ZooKeeperProgress, list_topologies, read_status
from txn.zookeeper.client.access import find_access

ROOT = Path(__file__).parents[2]
OWNER = ("digest", "me:sesame")
OWNER_ID = make_digest_acl_credential("me", "sesame")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for by the environment, but for what a test asks for."""
    for name in [name for name in os.environ if name.startswith("TXN_ZOOKEEPER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedZooKeeper]:
    """A server of the test's own that is open to everybody."""
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as embedded:
        yield embedded


def config(*auth: tuple[str, str], **more: Any) -> TopologyConfig:
    """Settings with credentials."""
    return TopologyConfig(
        zookeeper_auth=tuple((scheme, SecretStr(secret)) for scheme, secret in auth),
        zookeeper_timeout_secs=6.0,
        zookeeper_deadline_secs=20.0,
        **more,
    )


# --- whose the nodes are ---------------------------------------------------------------------


def test_without_the_credential_no_node_can_be_used(server: EmbeddedZooKeeper) -> None:
    """Nobody can list, read, change or delete any node of a topology without its credential.

    Credentials alone do it: nothing has to be said of ACLs.
    """
    with everything(server.hosts, "owned", config(OWNER)), client(server.hosts, OWNER) as owner:
        paths = walked(owner, "/txn")
        assert {"/txn/owned/leader", "/txn/owned/batches/2", "/txn/owned/quarantine/1"} < {*paths}
        assert len([path for path in paths if path.startswith("/txn/owned/parts/")]) > 1
        assert acls(owner, paths) == {("digest", OWNER_ID, 31)}
        for stranger in ((), (("digest", "me:guess"),)):
            with client(server.hosts, *stranger) as other:
                assert {path: allowed(other, path) for path in paths} == {p: [] for p in paths}
        assert walked(owner, "/txn") == paths


def test_readers_can_read_and_nothing_else(server: EmbeddedZooKeeper) -> None:
    """`zookeeper_readers` may see the status of a topology; they may change none of its nodes."""
    reader = ("digest", "monitor:look")
    ours = config(
        OWNER, zookeeper_readers=(("digest", make_digest_acl_credential("monitor", "look")),)
    )
    with everything(server.hosts, "watched", ours), client(server.hosts, reader) as other:
        assert read_status(server.hosts, "watched", config(reader)).progress.committed.txid == 1
        assert list_topologies(server.hosts, config(reader)) == ["watched"]
        able = {name for path in walked(other, "/txn") for name in allowed(other, path)}
        assert able == {"read", "list", "see who may"}


def test_without_credentials_the_log_warns_unless_it_is_meant_so(
    server: EmbeddedZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Without credentials anybody can use the nodes, and the log warns about it unless the
    configuration says that this is intended.
    """
    cases: tuple[tuple[dict[str, Any], int], ...] = (({}, 1), ({"zookeeper_acl": "open"}, 0))
    for settings, warnings in cases:
        caplog.clear()
        name = f"t{warnings}"
        with everything(server.hosts, name, config(**settings)), client(server.hosts) as other:
            assert acls(other, walked(other, f"/txn/{name}")) == {("world", "anyone", 31)}
        said = [r for r in caplog.records if "Everybody who reaches ZooKeeper" in r.getMessage()]
        assert (len(said), {r.levelname for r in said} <= {"WARNING"}) == (warnings, True)


def test_a_topology_of_somebody_else_is_refused_by_name(server: EmbeddedZooKeeper) -> None:
    """Another credential neither leads nor reads it, and is told what to set."""
    with everything(server.hosts, "owned", config(OWNER)):
        for other in (config(), config(("digest", "me:guess"))):
            store = ZooKeeperProgress(server.hosts, "owned", other)
            with pytest.raises(SetupError, match="TXN_ZOOKEEPER_AUTH_FILE.* to those of"):
                store.lead()
            store.close()
            with pytest.raises(SetupError, match="does not let these credentials use node"):
                read_status(server.hosts, "owned", other)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"zookeeper_acl": "creator"}, "there is no zookeeper_auth"),
        ({"zookeeper_acl": "open", "zookeeper_readers": (("ip", "::1"),)}, "who may only read"),
        ({"zookeeper_readers": (("ip", "::1"),)}, "who may only read"),
        ({"zookeeper_auth": (("sasl", "me"),)}, 'not "user:password"'),
        ({"zookeeper_auth": (("sasl", "a:b"), ("sasl", "c:d"))}, "two credentials for sasl"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], says: str) -> None:
    """They are refused before anything is sent."""
    with pytest.raises(UserError, match=says):
        find_access(TopologyConfig(**settings), "h:1")


def test_a_setting_in_the_wrong_place_is_not_repeated() -> None:
    """An error about `zookeeper_auth` does not show the credential; neither does repr."""
    with pytest.raises(ValidationError) as error:
        TopologyConfig(zookeeper_auth="digest:me:sesame")  # type: ignore[arg-type]
    assert "sesame" not in str(error.value) + repr(error.value)
    made = config(OWNER, zookeeper_keyfile_password=SecretStr("sesame"))
    shown = f"{made!r} {made} {made.model_dump_json()} {find_access(made, 'h:1')!r}"
    assert "sesame" not in shown


# --- the environment -------------------------------------------------------------------------


def test_commands_say_who_they_are_by_the_environment(
    server: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    """`txn status NAME` of an owned topology needs TXN_ZOOKEEPER_AUTH_FILE, and no program."""
    secret = tmp_path / "secret"
    secret.write_text("digest:me:sesame\n")
    command = [
        sys.executable,
        "-m",
        "txn",
        "status",
        "owned",
        "--zookeeper",
        server.hosts,
        "--json",
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with everything(server.hosts, "owned", config(OWNER)):
        stranger = subprocess.run(command, env=environ, capture_output=True, text=True)
        environ["TXN_ZOOKEEPER_AUTH_FILE"] = str(secret)
        owner = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (stranger.returncode, stranger.stdout) == (1, "")
    assert "TXN_ZOOKEEPER_AUTH_FILE" in stranger.stderr
    assert json.loads(owner.stdout)["committed_txid"] == 1


# --- SASL ------------------------------------------------------------------------------------

JAAS = """
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_me="sesame" user_you="open";
};
"""


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that knows two users by SASL with DIGEST-MD5."""
    folder = tmp_path_factory.mktemp("sasl")
    (folder / "jaas.conf").write_text(JAAS)
    port = free_port()
    lines = [
        f"clientPort={port}",
        "clientPortAddress=127.0.0.1",
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    ]
    flags = [f"-Djava.security.auth.login.config={folder}/jaas.conf"]
    with running(folder / "server", lines, port, flags):
        yield f"127.0.0.1:{port}"


def test_nodes_of_a_sasl_user_are_its_own(sasl: str) -> None:
    """With ("sasl", "user:password") the nodes are that user's alone."""
    options = {"mechanism": "DIGEST-MD5", "username": "me", "password": "sesame"}
    others = {**options, "username": "you", "password": "open"}
    with everything(sasl, "owned", config(("sasl", "me:sesame"))):
        with client(sasl, sasl_options=options) as owner:
            paths = walked(owner, "/txn")
            assert len(paths) > 8
            assert acls(owner, paths) == {("sasl", "me", 31)}
        with client(sasl) as nobody, client(sasl, sasl_options=others) as you:
            for path in paths:
                assert (allowed(nobody, path), allowed(you, path)) == ([], [])
        with pytest.raises(SetupError, match="does not let these credentials"):
            read_status(sasl, "owned", config(("sasl", "you:open")))


def test_a_wrong_sasl_password_is_refused_at_once(sasl: str) -> None:
    """The server says no, and that is told; the password is not."""
    with pytest.raises(SetupError, match="refused the credentials") as error:
        read_status(sasl, "owned", config(("sasl", "me:guess")))
    assert "guess" not in str(error.value)


def test_a_server_without_sasl_is_told_from_one_that_refuses(server: EmbeddedZooKeeper) -> None:
    """A server that knows nothing of SASL does not answer; the error says that this may be why."""
    with pytest.raises((ProgressUnavailableError, SetupError), match=r"SASL|refused the cred"):
        list_topologies(server.hosts, config(("sasl", "me:sesame")))


def test_the_package_for_sasl_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional; without it the error says what to install."""
    monkeypatch.setitem(sys.modules, "puresasl", None)
    with pytest.raises(SetupError, match=r"txn-spark\[sasl\]"):
        find_access(config(("sasl", "me:sesame")), "h:1")
