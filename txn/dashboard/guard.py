"""Check requests, and restrict what a browser may do with answers. Plain ASGI, in front of all.

The page changes nothing, so the dangers are that a stranger reads it, that a web site reads it
through its visitor's browser (DNS rebinding, cross-site requests), and that text from a table runs
as a script.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["COOKIE", "HEADERS", "LOOPBACK", "Guard", "host_name"]

COOKIE = "txn_dashboard"
"""Prefix of the names of cookies."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names by which a browser on this machine may ask."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Refuses forbidden requests, and adds `HEADERS` to every answer.

    Args:
        hosts: names in a request's Host header that are answered; None: all, which is safe only
            with a token, because a browser sends its cookie only to the name that set it.
        token: the token that a browser shows once, as `?token=`, and a program as a bearer token;
            None: no token is needed.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str] | None, token: str | None = None
    ) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(hosts)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        asked = HTTPConnection(scope)
        headers = asked.headers
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page only shows.\n", 405, {"Allow": "GET, HEAD"})
        if self._hosts is not None and host_name(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse(
                "This name of the server is not known. Ask by localhost, or start the page with "
                "--allow-host NAME.\n",
                421,
            )
        if scope["path"].startswith("/api/") and headers.get("sec-fetch-site", "none") not in (
            "none",
            "same-origin",
        ):
            return PlainTextResponse("Another site asks; it gets nothing.\n", 403)
        return None if self._token is None else self._without_token(asked, self._token)

    def _without_token(self, asked: HTTPConnection, token: str) -> Response | None:
        """Return the answer to a request without the token; None: the token was shown."""
        proof = _proof(token)
        # Cookies belong to a host, not a port: each page on a machine has a cookie of its own name.
        cookie = f"{COOKIE}_{proof[:8]}"
        if _equal(asked.cookies.get(cookie, ""), proof):
            return None
        kind, _, shown = asked.headers.get("authorization", "").partition(" ")
        # Headers are decoded as Latin-1; clients encode them as Latin-1 or UTF-8.
        either = shown, shown.encode("latin-1").decode("utf-8", "replace")
        if kind.lower() == "bearer" and any(_equal(candidate, token) for candidate in either):
            return None
        query = asked.query_params.multi_items()
        if any(name == "token" and _equal(value, token) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # Relative: a proxy may serve the page below a path of its own.
            here = f"./{quote(asked.scope['path'].rpartition('/')[2])}"
            answer = RedirectResponse(f"{here}?{rest}" if rest else here, 303)
            answer.set_cookie(cookie, proof, httponly=True, samesite="strict", path="/")
            return answer
        return PlainTextResponse(
            "Open the page by the address that `txn dashboard` has printed: it has a token.\n", 401
        )


def host_name(host: str) -> str:
    """Return a Host header in lower case without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _proof(token: str) -> str:
    """Return the cookie's value: it proves that the browser had the token, and is not the token."""
    return hmac.new(token.encode(), b"txn dashboard", hashlib.sha256).hexdigest()


def _equal(shown: str, expected: str) -> bool:
    return hmac.compare_digest(shown.encode(), expected.encode())
