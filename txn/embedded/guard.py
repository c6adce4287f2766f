"""Restrict an embedded ZooKeeper server to its owner: a credential, and an ACL on every node.

Each user of the machine can connect to a port on the loopback interface. So the server's folder
(mode 700) has a file `credential` (mode 600) with a random password, made once. The server's
configuration has its hash as that of ZooKeeper's superuser, who owns every node, the root included:
without it nothing can be listed, read, created, changed or deleted. A start with a new credential
takes over nodes that are open, or that belong to a former credential.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from txn.errors import SetupError

__all__ = [
    "CREDENTIAL",
    "guard",
    "guard_setting",
    "make_credential",
    "read_credential",
    "require_own_listener",
]

CREDENTIAL = "credential"
"""Name of the file, which holds `digest:txn:PASSWORD` as for `TXN_ZOOKEEPER_AUTH_FILE`."""

_BYTES = 32
_FORM = re.compile(r"digest:(txn:[0-9a-f]{64})")
_CONNECT_SECS = 15.0
_LISTENS = "0A"
"""A listening socket, in the kernel's tables."""
_CHANGES = 2 | 4 | 8 | 16
"""Permission to write, create, delete and administer."""


def make_credential(folder: Path) -> str:
    """Return the folder's credential, "txn:PASSWORD" for the scheme digest; creates it if missing.

    Raises:
        SetupError: the file cannot be written, or does not hold a credential.
    """
    present = read_credential(folder)
    if present is not None:
        return present
    credential = f"txn:{secrets.token_hex(_BYTES)}"
    temporary = folder / f"{CREDENTIAL}.new"
    try:
        temporary.unlink(missing_ok=True)
        # Created with its mode, so no other user can open it at any moment.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"digest:{credential}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / CREDENTIAL)
    except OSError as error:
        raise SetupError(
            f"The credential of the ZooKeeper server in '{folder}' cannot be written: "
            f"{error.strerror}. Make the folder writable, or name another one.",
            number="TXN-206",
        ) from error
    return credential


def read_credential(folder: Path) -> str | None:
    """Return the folder's credential; None without one.

    Raises:
        SetupError: the file cannot be read, or holds something else.
    """
    path = folder / CREDENTIAL
    try:
        with path.open("rb") as file:
            text = file.read(200).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SetupError(
            f"'{path}' cannot be read: {error.strerror}. Without it the ZooKeeper server of its "
            "folder lets nobody in. Run this as the user that runs the topology.",
            number="TXN-206",
        ) from error
    form = _FORM.fullmatch(text)
    if form is None:
        raise SetupError(
            f"'{path}' no longer holds a credential that this program wrote. Restore it from a "
            "backup; or, with no program running on the folder, delete it: the next start makes "
            "a new one, which takes over what the old one owned.",
            number="TXN-206",
        )
    return form[1]


def guard_setting(credential: str) -> str:
    """Return the line of `zoo.cfg` with the superuser's credential: a hash, not the password."""
    from kazoo.security import make_digest_acl_credential

    user, _, password = credential.partition(":")
    hashed = make_digest_acl_credential(user, password)
    return f"DigestAuthenticationProvider.superDigest={hashed}\n"


def guard(hosts: str, credential: str) -> None:
    """Take over every node that others may change, the root last, which marks the end.

    Raises:
        SetupError: the server refuses.
    """
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.security import make_digest_acl

    user, _, password = credential.partition(":")
    logger = logging.getLogger("txn.zookeeper.guard")
    logger.setLevel(logging.CRITICAL)  # at DEBUG kazoo logs requests, credentials included
    client = KazooClient(hosts, auth_data=[("digest", credential)], logger=logger)
    try:
        client.start(timeout=_CONNECT_SECS)
        if _is_open(client, "/"):
            _take_over(client, "/", make_digest_acl(user, password, all=True))
    except (KazooException, KazooTimeoutError) as error:
        raise SetupError(
            f"The nodes of the ZooKeeper server at {hosts} could not be restricted to their "
            f"owner: {type(error).__name__}. See its server.log.",
            number="TXN-208",
        ) from error
    finally:
        client.stop()
        client.close()


def require_own_listener(port: int, tables: Iterable[str] | None = None) -> None:
    """Check that our user's process listens on a port, before sending it the credential.

    Another user could have taken the port in the moment before our server did.

    Args:
        tables: contents of `/proc/net/tcp` and `tcp6`; None: the kernel's. Without them, as on
            macOS, nothing is checked.

    Raises:
        SetupError: another user listens on the port.
    """
    for table in _socket_tables() if tables is None else tables:
        for row in (line.split() for line in table.splitlines()[1:]):
            is_listener = len(row) > 7 and row[3] == _LISTENS
            if is_listener and row[1].endswith(f":{port:04X}") and int(row[7]) != os.geteuid():
                raise SetupError(
                    f"Another user of this machine (user id {row[7]}) listens on port {port} of "
                    "127.0.0.1, not our ZooKeeper server. Nothing was sent to it. Find out who "
                    "that is; to use another port, delete the file 'port' in the server's folder.",
                    number="TXN-210",
                )


def _socket_tables() -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            yield Path(f"/proc/net/{name}").read_text("ascii")


def _take_over(client: Any, path: str, owner: Any) -> None:
    from kazoo.exceptions import NoNodeError

    with contextlib.suppress(NoNodeError):  # it went with its session meanwhile
        for child in client.get_children(path):
            _take_over(client, f"{path.rstrip('/')}/{child}", owner)
        if _is_open(client, path):
            client.set_acls(path, [owner])


def _is_open(client: Any, path: str) -> bool:
    """True if anybody may change the node."""
    acls, _ = client.get_acls(path)
    return any(acl.id.scheme == "world" and acl.perms & _CHANGES for acl in acls)
