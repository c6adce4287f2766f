"""Where a server of ours listens: HOST:PORT, as a user writes it."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from txn.errors import SetupError

__all__ = ["LOOPBACK", "Address", "is_loopback", "parse_address", "refusal"]

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


def parse_address(text: str) -> Address:
    """Understand "HOST:PORT", ":PORT" or "PORT"; loopback if no host is named.

    Raises:
        SetupError: it is none of them.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65535:
        raise SetupError(
            f"{text!r} is not an address to listen on. Write HOST:PORT, such as {LOOPBACK}:8321 or "
            "[::1]:8321, or a port alone, which is then open to this machine only.",
            number="TXN-217",
        )
    return Address((found["host"] or LOOPBACK).strip("[]"), int(found["port"]))


def refusal(error: OSError | UnicodeError) -> str:
    """Why nobody can listen there; a `UnicodeError` is of what is no name of a host."""
    return getattr(error, "strerror", None) or str(error)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
