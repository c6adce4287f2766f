"""TLS to a real server with a secure port: whom we trust, and how it knows us."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.security.nodes import acls, client, everything, walked
from tests.security.server import Certificates, free_port, running, secure_lines
from txn.config import TopologyConfig
from txn.errors import ProgressUnavailableError, SetupError, UserError
from txn.zookeeper import list_topologies, read_status

# kazoo leaves the socket of a handshake that failed to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <ssl.SSLSocket:ResourceWarning",
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for by the environment."""
    for name in [name for name in os.environ if name.startswith("TXN_ZOOKEEPER_")]:
        monkeypatch.delenv(name)


@dataclass(frozen=True)
class Secured:
    """A server with a secure port, and the files of its clients."""

    hosts: str
    by_address: str
    plain: str
    ca: str
    stranger: str
    certificate: str
    key: str
    locked: str

    def config(self, **more: Any) -> TopologyConfig:
        """Settings of a client that trusts the server and is known to it."""
        ours: dict[str, Any] = {
            "zookeeper_tls": True,
            "zookeeper_ca": self.ca,
            "zookeeper_certfile": self.certificate,
            "zookeeper_keyfile": self.key,
            "zookeeper_timeout_secs": 6.0,
            "zookeeper_deadline_secs": 20.0,
        }
        return TopologyConfig(**{**ours, **more})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server that wants a certificate of its clients; its own names localhost, no address."""
    folder = tmp_path_factory.mktemp("tls")
    made = Certificates(folder)
    ca, stranger = made.authority("ours"), made.authority("stranger")
    made.issue("server", "ours", "DNS:localhost")
    certificate, key = made.issue("client", "ours")
    port, plain = free_port(), free_port()
    lines = secure_lines(made, "server", "ours", port, "need")
    lines += [f"clientPort={plain}", "clientPortAddress=127.0.0.1"]
    with running(folder / "zookeeper", lines, port):
        yield Secured(
            f"localhost:{port}",
            f"127.0.0.1:{port}",
            f"localhost:{plain}",
            str(ca),
            str(stranger),
            str(certificate),
            str(key),
            str(made.locked("client", "sesame")),
        )


def test_a_client_certificate_owns_the_nodes(secured: Secured) -> None:
    """Over TLS everything works, and the nodes belong to the certificate that made them."""
    with everything(secured.hosts, "owned", secured.config()):
        status = read_status(secured.hosts, "owned", secured.config())
        assert status.progress.committed.txid == 1
        ours = {"use_ssl": True, "ca": secured.ca}
        ours |= {"certfile": secured.certificate, "keyfile": secured.key}
        with client(secured.hosts, **ours) as owner:
            assert acls(owner, walked(owner, "/txn")) == {("x509", "CN=client", 31)}
        with pytest.raises(SetupError, match="does not let these credentials"):
            read_status(secured.plain, "owned", TopologyConfig(zookeeper_timeout_secs=6.0))


def test_a_key_with_a_password(secured: Secured) -> None:
    """It is opened with `zookeeper_keyfile_password`; without it nobody is asked on a terminal."""
    locked = {"zookeeper_keyfile": secured.locked}
    opened = secured.config(**locked, zookeeper_keyfile_password=SecretStr("sesame"))
    assert isinstance(list_topologies(secured.hosts, opened), list)
    for wrong in ({}, {"zookeeper_keyfile_password": SecretStr("guess")}):
        with pytest.raises(UserError, match="zookeeper_keyfile.*cannot be used") as error:
            list_topologies(secured.hosts, secured.config(**locked, **wrong))
        assert "guess" not in str(error.value)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("signed by a stranger", "certificate verify failed"),
        ("another host", "not valid for '127.0.0.1'"),
        ("no TLS there", "WRONG_VERSION_NUMBER|wrong version|record layer|UNEXPECTED_EOF"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_refused(secured: Secured, case: str, says: str) -> None:
    """A server is not used if its certificate is untrusted or belongs to another host.

    It is refused at once, with the reason, and not tried until a deadline.
    """
    hosts, ours = secured.hosts, secured.config()
    if case == "signed by a stranger":
        ours = secured.config(zookeeper_ca=secured.stranger)
    elif case == "another host":
        hosts = secured.by_address
    else:
        hosts = secured.plain
    began = time.monotonic()
    with pytest.raises(SetupError, match=says) as error:
        list_topologies(hosts, ours)
    assert "No TLS connection to ZooKeeper" in str(error.value)
    assert time.monotonic() - began < 5


def test_the_host_name_may_be_left_unchecked(secured: Secured) -> None:
    """Where certificates do not name their hosts, that can be said."""
    ours = secured.config(zookeeper_check_hostname=False)
    assert isinstance(list_topologies(secured.by_address, ours), list)


def test_a_client_without_a_certificate_is_told(secured: Secured) -> None:
    """The server wants one; the error names the setting, or at least that TLS was the reason."""
    ours = secured.config(zookeeper_certfile=None, zookeeper_keyfile=None)
    with pytest.raises((SetupError, ProgressUnavailableError)) as error:
        list_topologies(secured.hosts, ours)
    assert "certificate" in str(error.value)


def test_a_client_without_tls_is_told(secured: Secured) -> None:
    """A plain client on the secure port ends with an error that says what it was told last."""
    plain = TopologyConfig(zookeeper_connect_secs=2.0)
    with pytest.raises(ProgressUnavailableError, match=r"the last try: .+"):
        list_topologies(secured.hosts, plain)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"zookeeper_ca": "missing.pem"}, "zookeeper_ca is 'missing.pem'"),
        ({"zookeeper_ca": __file__}, "holds no certificates"),
        ({"zookeeper_keyfile": None}, "go together"),
        ({"zookeeper_certfile": __file__}, "cannot be used"),
    ],
)
def test_files_that_are_none(secured: Secured, files: dict[str, str | None], says: str) -> None:
    """They are opened once before anything is tried, and named."""
    with pytest.raises(UserError, match=says):
        list_topologies(secured.hosts, secured.config(**files))


def test_a_certificate_that_the_server_does_not_look_at_owns_nothing(
    tmp_path: Path, secured: Secured
) -> None:
    """With ssl.clientAuth=none nobody would own the nodes: that is refused, not tried for ever."""
    made = Certificates(tmp_path)
    ca = made.authority("ours")
    made.issue("server", "ours", "DNS:localhost")
    certificate, key = made.issue("client", "ours")
    port = free_port()
    with running(tmp_path / "zookeeper", secure_lines(made, "server", "ours", port, "none"), port):
        ours = secured.config(
            zookeeper_ca=str(ca), zookeeper_certfile=str(certificate), zookeeper_keyfile=str(key)
        )
        with (
            pytest.raises(SetupError, match="cannot identify this client"),
            everything(f"localhost:{port}", "t", ours),
        ):
            pass
