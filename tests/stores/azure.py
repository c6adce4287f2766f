"""A real server of Azure's Blob API (Azurite) as a child process; Node 20 or newer runs it.

python -m tests.stores.azure     # installs it by npm into the cache of the user, and Spark's jars
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from xml.sax.saxutils import escape

from obstore.store import AzureStore
from typing_extensions import Self

from tests.children import LOOPBACK, ChildServer, free_ports, listens, wait_until
from tests.npm import installed
from tests.stores.proxy import Answer, Forward, Proxy, Request, lists
from txn.errors import SetupError
from txn.machine.jars import package_jars

__all__ = [
    "ABFS_PACKAGES",
    "ACCOUNT",
    "SECRET",
    "AzureServer",
    "server_program",
    "spark_conf",
    "storage_options",
]

VERSION = "3.35.0"
ACCOUNT = "writer"
SECRET = base64.b64encode(b"open-sesame-4711").decode()
API = "2021-12-02"
START_SECS = 60.0
ABFS_PACKAGES = ("org.apache.hadoop:hadoop-azure:3.5.0",)
"""With which Spark reaches Azure."""


def server_program() -> Path:
    """The server's program, installed if it is not there yet."""
    return installed("azurite", VERSION) / "dist" / "src" / "blob" / "main.js"


@dataclass(frozen=True)
class StartFrom:
    """A listing starts where it was asked to start."""

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        answer = await forward(request)
        start = escape(request.query.get("startFrom", "")).encode()

        def kept(found: re.Match[bytes]) -> bytes:
            return found[0] if found[1] >= start else b""

        body = re.sub(rb"<Blob><Name>(.*?)</Name>.*?</Blob>", kept, answer.body, flags=re.DOTALL)
        return replace(answer, body=body)


class AzureServer(ChildServer):
    """One server in a folder, with one account; `url` is that of the proxy before it.

    `straight` is the server's own: delta-rs may keep the GIL while it waits for an answer, so a
    test that reads tables by it must not ask a proxy of its own process.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self.straight = f"http://{LOOPBACK}:{self._port}"
        self._proxy = Proxy(self.straight)
        self._containers = 0

    def __enter__(self) -> Self:
        self.start()
        self._proxy.__enter__()
        self._proxy.inject(StartFrom(), lists())
        self.url = self._proxy.url
        return self

    def __exit__(self, *error: object) -> None:
        self._proxy.__exit__(None, None, None)
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        where = ("--blobHost", LOOPBACK, "--blobPort", str(self._port), "--location", "data")
        program = ("node", str(server_program()), *where, "--silent", "--disableTelemetry")
        # The newest client speaks a version of the API that the server does not know yet.
        accounts = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{SECRET}"}
        self._child.start([*program, "--skipApiVersionCheck"], accounts)
        wait_until(self._answers, "the Azure server answers", START_SECS)

    def bucket(self, name: str) -> str:
        """Make an empty container named after a test; its name, as Azure allows it."""
        self._containers += 1
        tidy = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50]
        container = f"{tidy}-{self._containers}"
        self._put(f"/{ACCOUNT}/{container}")
        return container

    def store(self, container: str, *, url: str | None = None, secret: str = SECRET) -> AzureStore:
        """A client of ours, straight or by way of a proxy's `url`; it never retries."""
        return AzureStore(
            container,
            account_name=ACCOUNT,
            account_key=secret,
            endpoint=f"{url or self.url}/{ACCOUNT}",
            client_options={"allow_http": True, "timeout": "20s"},
            retry_config={"max_retries": 0},
        )

    def _put(self, path: str) -> None:
        """Make a container: object_store has no call for it."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": API}
        lines = [f"{name}:{value}" for name, value in sorted(headers.items())]
        named = [f"/{ACCOUNT}{path}", "restype:container"]
        text = "\n".join(["PUT", *[""] * 11, *lines, *named])
        mac = hmac.new(base64.b64decode(SECRET), text.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac.digest()).decode()}"
        url = f"{self.url}{path}?restype=container"
        with urllib.request.urlopen(urllib.request.Request(url, None, headers, method="PUT")):
            pass

    def _answers(self) -> bool:
        self._child.check()
        return listens(self._port)


def storage_options(url: str) -> dict[str, str]:
    """What `deltalake` and every other client of object_store is given for a server or proxy."""
    return {
        "azure_storage_endpoint": f"{url}/{ACCOUNT}",
        "azure_allow_http": "true",
        "azure_storage_account_name": ACCOUNT,
        "azure_storage_account_key": SECRET,
    }


def spark_conf(host: str) -> Mapping[str, str]:
    """What Spark has to be told of an Azure that is no Azure: all but who asks.

    Args:
        host: `HOST:PORT`, where TLS is spoken.
    """
    settings = {
        "abfs.endpoint": host,
        # It has no hierarchical namespace, which asks another API.
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
        "ssl.channel.mode": "Default_JSSE",
    }
    return {f"spark.hadoop.fs.azure.{name}": value for name, value in settings.items()}


if __name__ == "__main__":
    try:
        server_program()
        package_jars(ABFS_PACKAGES)
    except SetupError as error:
        sys.exit(str(error))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"Azurite {VERSION} could not be installed by npm (Node 20 or newer): {error}")
