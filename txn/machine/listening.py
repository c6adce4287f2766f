"""The address on which a server of ours listens: HOST:PORT, as a user writes it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from typing import NamedTuple

from txn.errors import SetupError

__all__ = [
    "LOOPBACK",
    "Address",
    "is_any",
    "is_loopback",
    "listens",
    "parse_address",
    "reached_at",
    "refusal",
]

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]/\s]*|\[[0-9A-Fa-f:.%a-z]+\]):)?(?P<port>[0-9]{1,5})")


class Address(NamedTuple):
    """A host, without brackets, and a port."""

    host: str
    port: int
    """0: any free one."""

    def __str__(self) -> str:
        """Return the address as a part of a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, example: int = 8321) -> Address:
    """Parse "HOST:PORT", ":PORT" or "PORT"; the default host is loopback.

    Args:
        example: the port in the examples of the message.

    Raises:
        SetupError: it is none of them.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise SetupError(
            f"{text!r} is not an address to listen on. Write HOST:PORT, such as "
            f"{LOOPBACK}:{example} or [::1]:{example}, or a port alone, which is then open to this "
            "machine only.",
            number="TXN-217",
        )
    return Address((match["host"] or LOOPBACK).strip("[]"), int(match["port"]))


def listens(port: int, host: str = LOOPBACK) -> bool:
    """Return whether somebody accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def refusal(error: OSError | UnicodeError, ways_out: str) -> str:
    """Return why a server cannot listen there, and what to do; `UnicodeError`: an invalid host.

    Args:
        ways_out: the advice for another port.
    """
    reason = getattr(error, "strerror", None) or str(error)
    is_foreign_address = getattr(error, "errno", None) == errno.EADDRNOTAVAIL
    if is_foreign_address or isinstance(error, socket.gaierror | UnicodeError):
        return f"{reason}. It is the host: name an address of this machine, {LOOPBACK} or 0.0.0.0."
    return f"{reason}. {ways_out}"


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_any(host: str) -> bool:
    """True if a server that listens there listens on all addresses of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def reached_at(host: str) -> str:
    """Return the host by which others reach a server that listens on `host`.

    If it listens on all addresses: the address with which this machine reaches others; loopback
    without a network.
    """
    if not is_any(host):
        return host
    ways = ((socket.AF_INET6, "2001:db8::1"), (socket.AF_INET, "198.51.100.1"))
    for family, far in ways if ":" in host else ways[1:]:
        # connect() of a datagram socket sends nothing: it asks the routing table.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((far, 9))
            return str(asking.getsockname()[0])
    return LOOPBACK
