"""The doctor asks a server at each address of its name, as kazoo connects."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from txn.config import TopologyConfig
from txn.doctor import zookeeper


def test_a_server_with_tls_is_asked_at_each_address_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name whose first address has no server is asked at its next one, as runs do."""
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    names = "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"
    files = "-keyout", key, "-out", certificate
    make = "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"
    subprocess.run([*make, *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    found = socket.getaddrinfo

    def dual_stack(host: str, *args: Any) -> list[Any]:
        if host != "localhost":
            return [*found(host, *args)]
        stream = socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
        return [
            (socket.AF_INET6, *stream, ("::1", port, 0, 0)),
            (socket.AF_INET, *stream, ("127.0.0.1", port)),
        ]

    def serve() -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
            assert connection.recv(4) == b"mntr"
            connection.sendall(b"zk_server_state\tleader\n")

    monkeypatch.setattr(socket, "getaddrinfo", dual_stack)
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    config = TopologyConfig(zookeeper_tls=True, zookeeper_ca=str(certificate))
    with listener:
        answer = zookeeper._ask_mntr(f"localhost:{port}", config)
        server.join(5)
    assert answer == {"zk_server_state": "leader"}
