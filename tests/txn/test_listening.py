"""Where servers listen: one spelling for all of them."""

from __future__ import annotations

import pytest

from txn.errors import SetupError
from txn.listening import LOOPBACK, Address, is_loopback, parse_address


@pytest.mark.parametrize(
    ("text", "meant", "shown"),
    [
        ("9464", (LOOPBACK, 9464), "127.0.0.1:9464"),
        (":9464", (LOOPBACK, 9464), "127.0.0.1:9464"),
        (" 8321 ", (LOOPBACK, 8321), "127.0.0.1:8321"),
        ("localhost:0", ("localhost", 0), "localhost:0"),
        ("0.0.0.0:1", ("0.0.0.0", 1), "0.0.0.0:1"),
        ("[::1]:9464", ("::1", 9464), "[::1]:9464"),
        ("driver.example:80", ("driver.example", 80), "driver.example:80"),
    ],
)
def test_an_address_is_on_loopback_unless_it_says_otherwise(
    text: str, meant: tuple[str, int], shown: str
) -> None:
    """HOST:PORT, with an IPv6 address in brackets; a port alone is open to this machine only."""
    found = parse_address(text)
    assert (found, str(found)) == (Address(*meant), shown)


@pytest.mark.parametrize(
    "text",
    ["", "localhost", "host:", "70000", "host:70000", "a:-1", "a:b", "http://x:1", "::1:1", "٣"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """With examples of one, and a number of its own."""
    with pytest.raises(SetupError, match=r"not an address to listen on.*127\.0\.0\.1:8321") as no:
        parse_address(text)
    assert no.value.number == "TXN-217"


def test_loopback_is_told_from_the_rest() -> None:
    """By name and by number."""
    assert [
        is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")
    ] == [True] * 5
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")))
