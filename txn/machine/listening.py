"""Where a server of ours listens: HOST:PORT, as a user writes it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from typing import NamedTuple

from txn.errors import SetupError

__all__ = ["LOOPBACK", "Address", "is_any", "is_loopback", "parse_address", "reached_at", "refusal"]

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]/\s]*|\[[0-9A-Fa-f:.%a-z]+\]):)?(?P<port>[0-9]{1,5})")


class Address(NamedTuple):
    """A host, without brackets, and a port."""

    host: str
    port: int
    """0: any that is free."""

    def __str__(self) -> str:
        """As a part of a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, example: int = 8321) -> Address:
    """Understand "HOST:PORT", ":PORT" or "PORT"; loopback if no host is named.

    Args:
        example: a port for whoever wrote something else.

    Raises:
        SetupError: it is none of them.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65535:
        raise SetupError(
            f"{text!r} is not an address to listen on. Write HOST:PORT, such as "
            f"{LOOPBACK}:{example} or [::1]:{example}, or a port alone, which is then open to this "
            "machine only.",
            number="TXN-217",
        )
    return Address((found["host"] or LOOPBACK).strip("[]"), int(found["port"]))


def refusal(error: OSError | UnicodeError, ways_out: str) -> str:
    """Why nobody can listen there, and what to do; a `UnicodeError` is of no name of a host.

    Args:
        ways_out: how a port is given.
    """
    why = getattr(error, "strerror", None) or str(error)
    not_here = getattr(error, "errno", None) == errno.EADDRNOTAVAIL
    if not_here or isinstance(error, socket.gaierror | UnicodeError):
        return f"{why}. It is the host: name an address of this machine, {LOOPBACK} or 0.0.0.0."
    return f"{why}. {ways_out}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_any(host: str) -> bool:
    """Return whether a server that listens there listens on all addresses of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def reached_at(host: str) -> str:
    """The host by which others reach a server that listens on `host`.

    If it listens on all addresses: the one by which this machine reaches others; loopback if it
    reaches nobody.
    """
    if not is_any(host):
        return host
    ways = ((socket.AF_INET6, "2001:db8::1"), (socket.AF_INET, "198.51.100.1"))
    for family, far in ways if ":" in host else ways[1:]:
        # Of a datagram socket, connect() sends nothing: it asks the table of routes.
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect((far, 9))
            return str(asking.getsockname()[0])
    return LOOPBACK
