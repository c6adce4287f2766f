"""Google's storage as object_store speaks to it: its XML API, over the S3 server of the tests.

No server that the registries have speaks that API: fake-gcs-server 1.56.1 refuses object_store's
PUT and its listings, and knows `x-goog-if-generation-match` on another way only. But Google has
built the API after S3's. So here a proxy translates the few headers that differ, and the S3 server
behind it decides who wins a race. What Google's own server does beside that is not shown by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from obstore.store import GCSStore

from tests.stores.proxy import Answer, Forward, Proxy, Request
from tests.stores.s3 import S3Server

__all__ = ["GcsServer", "storage_options"]

ASKED = {"x-goog-copy-source": "x-amz-copy-source"}


@dataclass(frozen=True)
class Translate:
    """Ask S3 what Google was asked; a generation is made of the ETag."""

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        headers = [(ASKED.get(name.lower(), name), value) for name, value in request.headers]
        if request.is_conditional:
            headers.append(("If-None-Match", "*"))
        answer = await forward(replace(request, headers=tuple(headers)))
        tags = [value for name, value in answer.headers if name.lower() == "etag"]
        generation = [("x-goog-generation", str(int(tag.strip('"')[:15], 16))) for tag in tags]
        return replace(answer, headers=(*answer.headers, *generation))


class GcsServer:
    """One server in a folder; `url` is that of the translating proxy."""

    def __init__(self, folder: Path) -> None:
        self._s3 = S3Server(folder, signed=False)
        self._proxy = Proxy(self._s3.url)

    def __enter__(self) -> GcsServer:  # noqa: PYI034 - typing.Self is Python 3.11
        self._s3.start()
        self._proxy.__enter__()
        self._proxy.inject(Translate())
        self.url = self._proxy.url
        return self

    def __exit__(self, *error: object) -> None:
        self._proxy.__exit__(None, None, None)
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
