"""Where servers listen: one spelling for all of them."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from txn.errors import SetupError
from txn.machine.listening import (
    LOOPBACK,
    Address,
    is_any,
    is_loopback,
    parse_address,
    reached_at,
    refusal,
)


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


def test_the_example_is_of_whoever_listens() -> None:
    """That of metrics has another port than the page's."""
    with pytest.raises(SetupError, match=r"127\.0\.0\.1:9464 or \[::1\]:9464"):
        parse_address("abc", example=9464)


@pytest.mark.parametrize(
    ("error", "is_of_host"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), True),
        (UnicodeError("label empty or too long"), True),
        (OSError(errno.EADDRINUSE, "Address already in use"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_another_port_is_advised_only_where_it_helps(
    error: OSError | UnicodeError, is_of_host: bool
) -> None:
    """A host that this machine does not have is the host's fault, whatever the port."""
    said = refusal(error, "Give another port.")
    assert (error.args[-1] in said, "It is the host" in said) == (True, is_of_host)
    assert ("Give another port." in said) is not is_of_host


def test_loopback_is_told_from_the_rest() -> None:
    """By name and by number."""
    assert [
        is_loopback(host) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")
    ] == [True] * 5
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")))


def test_all_addresses_are_told_from_one() -> None:
    """By both of their spellings; a name is one address."""
    assert [is_any(host) for host in ("0.0.0.0", "::", "0:0::0")] == [True] * 3
    assert not any(map(is_any, (LOOPBACK, "::1", "localhost", "10.0.0.1", "")))


def test_others_reach_a_server_by_an_address_of_this_machine() -> None:
    """On all addresses: by that of the default route, or by loopback if there is none."""
    found = reached_at("0.0.0.0")
    routes = Path("/proc/net/route").read_text("ascii").splitlines()[1:]
    assert is_loopback(found) == all(line.split()[1] != "00000000" for line in routes)
    with socket.create_server((found, 0)):
        assert reached_at("::")
    for host in ("localhost", "::1", "10.0.0.1", "driver.example"):
        assert reached_at(host) == host
