"""Who is answered, and with which headers."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from txn.dashboard.guard import COOKIE, HEADERS, LOOPBACK, Guard, _proof, host_name

TOKEN = "0123456789abcdef"


def client(
    token: str | None = None,
    hosts: frozenset[str] | None = LOOPBACK,
    base: str = "http://localhost",
) -> TestClient:
    async def hello(_: object) -> PlainTextResponse:
        return PlainTextResponse("hello")

    inner = Starlette(routes=[Route("/", hello), Route("/api/x", hello)])
    return TestClient(Guard(inner, hosts, token), base, follow_redirects=False)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(method: str) -> None:
    """Every other method is refused, with or without a token."""
    answer = client().request(method, "/")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert client().head("/").status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "0",
    ],
)
def test_another_name_of_this_machine_is_refused(host: str) -> None:
    """A site that lets its own name lead to 127.0.0.1 (DNS rebinding) gets nothing."""
    answer = client().get("/api/x", headers={"Host": host})
    assert (answer.status_code, "hello" in answer.text) == (421, False)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8321", "127.0.0.1:1", "[::1]:8321", "[::1]"]
)
def test_this_machine_by_its_own_names(host: str) -> None:
    """With any port, because a tunnel may have another one."""
    assert client().get("/", headers={"Host": host}).text == "hello"


def test_another_site_that_asks_through_a_browser_is_refused() -> None:
    """A browser says so in Sec-Fetch-Site; a link that somebody clicks on is fine."""
    for where in ("cross-site", "same-site"):
        assert client().get("/api/x", headers={"Sec-Fetch-Site": where}).status_code == 403
    assert client().get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
    assert client().get("/api/x", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_every_answer_has_the_headers() -> None:
    """Refusals too: no script but the page's own, no frame, no referrer."""
    for answer in (client().get("/"), client().post("/"), client(TOKEN).get("/")):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert not re.search(r"https?:|\*", policy)
    assert policy.startswith("default-src 'none'; script-src 'self'")


def test_a_token_is_shown_once() -> None:
    """The address with the token gives a cookie that is not the token, and leads on without."""
    one = client(TOKEN)
    assert one.get("/api/x").status_code == 401
    answer = one.get(f"/?token={TOKEN}&a=b%26c")
    assert (answer.status_code, answer.headers["location"]) == (303, "./?a=b%26c")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert one.get("/api/x").text == "hello"
    assert client(TOKEN).get("/", headers={"Authorization": f"Bearer {TOKEN}"}).text == "hello"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_token_may_have_any_characters(encoding: str) -> None:
    """Clients encode headers in two ways; neither lets a wrong token in."""
    one = client("sekret-tok-ümlaut")
    for token, expected in (("sekret-tok-ümlaut", 200), ("sekret-tok-ämlaut", 401), ("", 401)):
        shown = {b"Authorization": f"Bearer {token}".encode(encoding)}
        assert one.get("/", headers=shown).status_code == expected


def test_below_a_path_of_a_proxy_the_token_leads_back_to_it() -> None:
    """The proxy takes its path off the request, so the answer must not name one from the root."""
    where = client(TOKEN).get(f"/?token={TOKEN}").headers["location"]
    assert urljoin("https://example.com/flights/txn/", where) == "https://example.com/flights/txn/"
    named = client(TOKEN).get(f"/api/x?token={TOKEN}&q=1").headers["location"]
    assert urljoin("https://example.com/txn/api/x", named) == "https://example.com/txn/api/x?q=1"


def test_two_pages_on_one_machine_do_not_shut_each_other_out() -> None:
    """A browser sends cookies to every port of a host: each token has a cookie of its own."""
    first, second = client(TOKEN), client(TOKEN[::-1])
    for page, token in ((first, TOKEN), (second, TOKEN[::-1])):
        page.get(f"/?token={token}")
    for name, value in second.cookies.items():
        first.cookies.set(name, value, domain="localhost.local")
    assert (first.get("/api/x").status_code, second.get("/api/x").status_code) == (200, 200)


def test_a_name_may_be_given_with_its_port() -> None:
    """As it stands in the address of a browser."""
    names = ["txn.example.com", "TXN.example.com:8443", "[::1]:80"]
    assert [host_name(name) for name in names] == ["txn.example.com", "txn.example.com", "[::1]"]


@pytest.mark.parametrize(
    "shown",
    [
        {"params": {"token": ""}},
        {"params": {"token": TOKEN[:-1]}},
        {"params": {"token": TOKEN + "x"}},
        {"headers": {"Authorization": f"Basic {TOKEN}"}},
        {"headers": {"Authorization": "Bearer"}},
        {"headers": {"Cookie": f"{COOKIE}={TOKEN}"}},
        {"headers": {"Cookie": f"{COOKIE}_{_proof(TOKEN)[:8]}={TOKEN}"}},
        {"headers": {"Cookie": f'{COOKIE}="; \\'}},
        {"headers": {"Cookie": "=;;=\x7f"}},
    ],
    ids=str,
)
def test_anything_but_the_token_is_refused(shown: dict[str, dict[str, str]]) -> None:
    """Parts of it, the token as a cookie, and what is no cookie at all."""
    assert client(TOKEN).get("/", **shown).status_code == 401  # type: ignore[arg-type]


def test_with_a_token_every_name_may_be_right() -> None:
    """Where the server listens everywhere, its names are unknown, and a cookie goes by its name."""
    found = client(TOKEN, None, "http://alpha.example")
    assert found.get("/").status_code == 401
    assert found.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
