"""Real ZooKeeper servers with TLS or SASL, and certificates made for one test run."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from txn.embedded import supervisor
from txn.embedded.files import class_path
from txn.machine.java import find_java

CONFIGURATION = """\
dataDir={folder}/data
tickTime=500
minSessionTimeout=1000
admin.enableServer=false
4lw.commands.whitelist=ruok, srvr, mntr
"""
PASSWORD = "store-password"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(
    folder: Path, lines: Sequence[str], port: int, flags: Sequence[str] = ()
) -> Iterator[None]:
    """A server with some lines of configuration, once somebody listens on the port."""
    (folder / "data").mkdir(parents=True)
    (folder / "zoo.cfg").write_text(CONFIGURATION.format(folder=folder) + "\n".join(lines) + "\n")
    jars = str(Path(class_path().split(os.pathsep)[0]).parent / "*")
    java = [str(find_java()), "-Xmx256m", *flags, "-cp", jars]
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, *java, main, "zoo.cfg"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + 60
        while not listens(port):
            assert process.poll() is None, (folder / "out").read_text()[-3000:]
            assert time.monotonic() < deadline, (folder / "out").read_text()[-3000:]
            time.sleep(0.05)
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def listens(port: int) -> bool:
    """Whether a connection is taken."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@dataclass(frozen=True)
class Certificates:
    """Certificates in a folder, as OpenSSL makes them."""

    folder: Path

    def authority(self, name: str) -> Path:
        """A certificate authority of our own."""
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}",
        )  # fmt: skip
        return self.folder / f"{name}.pem"

    def issue(self, name: str, authority: str, *names: str) -> tuple[Path, Path]:
        """(certificate, key) for a name, signed by an authority."""
        self._openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key",
            "-out", f"{name}.csr", "-subj", f"/CN={name}",
        )  # fmt: skip
        (self.folder / f"{name}.ext").write_text(
            "keyUsage=digitalSignature,keyEncipherment\n"
            "extendedKeyUsage=serverAuth,clientAuth\n"
            + (f"subjectAltName={','.join(names)}\n" if names else "")
        )
        self._openssl(
            "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
            "-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem",
            "-extfile", f"{name}.ext",
        )  # fmt: skip
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"

    def store(self, name: str) -> Path:
        """Certificate and key as Java takes them."""
        self._openssl(
            "pkcs12", "-export", "-in", f"{name}.pem", "-inkey", f"{name}.key",
            "-out", f"{name}.p12", "-passout", f"pass:{PASSWORD}",
        )  # fmt: skip
        return self.folder / f"{name}.p12"

    def locked(self, name: str, password: str) -> Path:
        """The key of a certificate, encrypted."""
        self._openssl(
            "rsa", "-aes256", "-in", f"{name}.key", "-out", f"{name}.locked.key",
            "-passout", f"pass:{password}",
        )  # fmt: skip
        return self.folder / f"{name}.locked.key"

    def trust(self, name: str) -> Path:
        """A trust store of Java's, with one authority in it."""
        store = self.folder / f"{name}-trust.p12"
        subprocess.run(
            [
                "keytool", "-importcert", "-noprompt", "-alias", name, "-file", f"{name}.pem",
                "-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD,
            ],
            cwd=self.folder, check=True, capture_output=True,
        )  # fmt: skip
        return store

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


def secure_lines(
    certificates: Certificates, server: str, authority: str, port: int, clients: str
) -> list[str]:
    """Lines of zoo.cfg for a port with TLS.

    Args:
        clients: ZooKeeper's `ssl.clientAuth`: "need" or "none".
    """
    return [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"secureClientPort={port}",
        "secureClientPortAddress=127.0.0.1",
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        f"ssl.keyStore.location={certificates.store(server)}",
        f"ssl.keyStore.password={PASSWORD}",
        f"ssl.trustStore.location={certificates.trust(authority)}",
        f"ssl.trustStore.password={PASSWORD}",
        f"ssl.clientAuth={clients}",
    ]
