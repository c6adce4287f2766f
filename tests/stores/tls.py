"""TLS before a server or proxy that speaks plain HTTP: Hadoop's client of Azure asks no other."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from urllib.parse import urlsplit

from tests.children import LOOPBACK
from tests.security.server import PASSWORD, Certificates

__all__ = ["TlsFront"]

_BUFFER = 1 << 16


class TlsFront:
    """Hands on to `url` what comes in by TLS at `host` (`127.0.0.1:PORT`); in a thread of its own.

    Args:
        folder: for its certificate; fronts of one folder have one, so a JVM trusts all of them.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._to = urlsplit(url).port
        certificates = Certificates(folder)
        chain, trust = folder / "server.pem", folder / "authority-trust.p12"
        if not trust.exists():
            certificates.authority("authority")
            certificates.issue("server", "authority", f"IP:{LOOPBACK}")
            certificates.trust("authority")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(chain, folder / "server.key")
        self.java_options = (
            f"-Djavax.net.ssl.trustStore={trust} -Djavax.net.ssl.trustStorePassword={PASSWORD}"
        )
        """With which a JVM trusts it."""
        self.host = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tls", daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> TlsFront:  # noqa: PYI034 - typing.Self is Python 3.11
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._begin())
        self._ready.set()
        self._loop.run_forever()
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    async def _begin(self) -> None:
        server = await asyncio.start_server(self._client, LOOPBACK, 0, ssl=self._context)
        self.host = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection(LOOPBACK, self._to)
        await asyncio.gather(_pour(reader, behind[1]), _pour(behind[0], writer))


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either side ends, which then ends for the other one, too."""
    with contextlib.suppress(OSError, ssl.SSLError):
        while data := await reader.read(_BUFFER):
            writer.write(data)
            await writer.drain()
    writer.close()
