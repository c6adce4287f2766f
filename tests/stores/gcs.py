"""Google's storage as object_store speaks to it: its XML API, over the S3 server of the tests.

    python -m tests.stores.gcs     # builds the server for Spark with Go, and fetches its connector
    python -m tests.stores.gcs URL FOLDER   # translates for the S3 server there, whose files are in
                                            # FOLDER/data; says its own URL in FOLDER/translator.url

No server that the registries have speaks that API: fake-gcs-server 1.56.1 refuses object_store's
PUT and its listings, and knows `x-goog-if-generation-match` on another way only. But Google has
built the API after S3's. So here a proxy translates the few headers that differ, and the S3 server
behind it decides who wins a race. What Google's own server does beside that is not shown by it.

Spark's connector speaks the JSON API, and that to fake-gcs-server over the same files. It sees
those that have its attribute, which the translator gives to what is put through it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path

from obstore.store import GCSStore

from tests.children import LOOPBACK, ChildServer, free_ports, listens, wait_until
from tests.stores.go import program
from tests.stores.proxy import Answer, Forward, Proxy, Request
from tests.stores.s3 import S3Server
from txn.errors import SetupError
from txn.machine.jars import package_jars

__all__ = ["GCS_PACKAGES", "GcsServer", "JsonServer", "spark_conf", "storage_options"]

GCS_PACKAGES = ("com.google.cloud.bigdataoss:gcs-connector:4.0.0:shaded",)
"""With which Spark reaches Google's storage."""
START_SECS = 60.0
ROOT = Path(__file__).parent.parent.parent
NUMBERS = {
    # Hadoop's own defaults of them are texts such as "64m", which the connector cannot read.
    "block.size": 64 << 20,
    "inputstream.inplace.seek.limit": 8 << 20,
    "inputstream.min.range.request.size": 2 << 20,
    "outputstream.buffer.size": 8 << 20,
    "rewrite.max.chunk.size": 512 << 20,
}
ASKED = {"x-goog-copy-source": "x-amz-copy-source"}


@dataclass(frozen=True)
class Translate:
    """Ask S3 what Google was asked; a generation is made of the ETag.

    A file that Spark has put there by way of the JSON API has none for the S3 server.

    Args:
        data: `<bucket>/<name>` below it.
    """

    data: Path

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        headers = [(ASKED.get(name.lower(), name), value) for name, value in request.headers]
        if request.is_conditional:
            headers.append(("If-None-Match", "*"))
        answer = await forward(replace(request, headers=tuple(headers)))
        if request.method == "PUT" and answer.status < HTTPStatus.BAD_REQUEST:
            self._show(request.path)
        told = {name.lower(): value for name, value in answer.headers}
        if request.method in ("GET", "HEAD") and "last-modified" in told and "etag" not in told:
            text = f"{request.path} {told['last-modified']}"
            tag = f'"{hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()}"'
            answer = replace(answer, headers=(*answer.headers, ("ETag", tag)))
        tags = [value for name, value in answer.headers if name.lower() == "etag"]
        generation = [("x-goog-generation", str(int(tag.strip('"')[:15], 16))) for tag in tags]
        return replace(answer, headers=(*answer.headers, *generation))

    def _show(self, path: str) -> None:
        file = self.data / path.lstrip("/")
        if file.is_file():
            at = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc).isoformat()
            said = {"Created": at, "Updated": at, "Generation": file.stat().st_mtime_ns}
            os.setxattr(file, "user.metadata", json.dumps(said).encode())


class GcsServer(ChildServer):
    """One server in a folder; `url` is that of the translating proxy.

    It is a process of its own, for clients that keep the interpreter to themselves while they wait.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = folder / "data"
        self._s3 = S3Server(folder, signed=False)

    def start(self) -> None:
        """Start both and wait until they listen."""
        self._s3.start()
        told = self.folder / "translator.url"
        command = [sys.executable, "-m", __name__, self._s3.url, str(self.folder)]
        self._child.start(command, {"PYTHONPATH": str(ROOT)})
        wait_until(told.exists, "the translator listens", START_SECS)
        self.url = told.read_text("ascii")

    def stop(self) -> None:
        """Stop both."""
        super().stop()
        self._s3.stop()

    def bucket(self, name: str) -> str:
        """Make an empty bucket named after a test; its name."""
        return self._s3.bucket(name)

    def store(self, bucket: str, *, url: str | None = None) -> GCSStore:
        """A client of ours, straight or by way of a proxy's `url`; it never retries."""
        return GCSStore(
            bucket,
            service_account_key=service_account(url or self.url),
            client_options={"allow_http": True, "timeout": "20s"},
            retry_config={"max_retries": 0},
        )


def service_account(url: str) -> str:
    """A key file that asks for no token, and says where the server is."""
    nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return json.dumps({"gcs_base_url": url, "disable_oauth": True, **nobody})


def storage_options(url: str) -> dict[str, str]:
    """What `deltalake` and every other client of object_store is given for a server or proxy."""
    return {"google_service_account_key": service_account(url), "allow_http": "true"}


class JsonServer(ChildServer):
    """What Spark asks: fake-gcs-server over the folder that another server's files are in.

    Args:
        folder: of its output.
        data: `<bucket>/<name>` below it.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        super().__init__(folder)
        self._data = data
        (self._port,) = free_ports(1)
        self.url = f"http://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        where = ["-scheme", "http", "-host", LOOPBACK, "-port", str(self._port)]
        self._child.start(
            [
                str(server_program()),
                *where,
                *("-public-host", f"{LOOPBACK}:{self._port}", "-external-url", self.url),
                *("-backend", "filesystem", "-filesystem-root", str(self._data)),
            ]
        )
        wait_until(lambda: listens(self._port), "the JSON API answers", START_SECS)


def server_program() -> Path:
    """The server's program, built if it is not there yet."""
    return program("github.com/fsouza/fake-gcs-server", "1.56.1")


def spark_conf(url: str) -> Mapping[str, str]:
    """Settings with which Spark reaches the JSON API, without credentials."""
    settings = {
        "impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "auth.type": "UNAUTHENTICATED",
        "project.id": "tests",
        "storage.root.url": url,
        **{name: str(size) for name, size in NUMBERS.items()},
    }
    return {f"spark.hadoop.fs.gs.{name}": value for name, value in settings.items()}


def translate(server: str, folder: Path) -> None:
    """Translate until this process is ended."""
    with Proxy(server) as proxy:
        proxy.inject(Translate(folder / "data"))
        half = folder / "translator.half"
        half.write_text(proxy.url, "ascii")
        half.rename(folder / "translator.url")
        threading.Event().wait()


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            translate(sys.argv[1], Path(sys.argv[2]))
        server_program()
        package_jars(GCS_PACKAGES)
    except SetupError as error:
        sys.exit(str(error))
