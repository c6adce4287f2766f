"""Serve the page: its address, its readers, and its end."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from txn.dashboard.watching.topologies import Watch
from txn.errors import SetupError, UserError
from txn.machine.listening import Address, is_any, is_loopback, reached_at, refusal

__all__ = ["given_token", "serve"]

TOKEN = "TXN_DASHBOARD_TOKEN"  # noqa: S105 - the name of the variable
TOKEN_FILE = "TXN_DASHBOARD_TOKEN_FILE"  # noqa: S105
_LEAST_TOKEN = 8
_OTHER_PORT = (
    "Give another port (--port, or --dashboard HOST:PORT in a run), or 0 for any that is free."
)


def given_token(environment: Mapping[str, str]) -> str | None:
    """Return the token that readers have to show, from a file or a variable; None: none is set.

    Raises:
        UserError: the file cannot be read, or the token is too short.
    """
    path, text = environment.get(TOKEN_FILE), environment.get(TOKEN)
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            # Do not repeat a decoding error: it would show bytes of the token.
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UserError(
                f"{TOKEN_FILE} names '{path}', which cannot be read: {why}. Correct the path, or "
                "the file's owner and mode.",
                number="TXN-120",
            ) from error
    if text is not None and len(text) < _LEAST_TOKEN:
        raise UserError(
            f"The token of the page has fewer than {_LEAST_TOKEN} characters ({TOKEN_FILE} or "
            f"{TOKEN}). Make one: openssl rand -hex 24.",
            number="TXN-120",
        )
    return text


def serve(
    watch: Watch,
    address: Address,
    announce: Callable[[str], None],
    *,
    names: Sequence[str] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Serve the page until this process is asked to end.

    Args:
        watch: an entered watch.
        announce: called with the page's address once it answers; others can open that address too,
            if they can reach the page.
        names: further names under which a proxy may ask for it.
        is_over: called several times a second; True ends the server.

    Raises:
        SetupError: the extra is not installed, or the address cannot be listened on.
        UserError: a token is needed and cannot be taken.
    """
    try:
        from txn.dashboard.app import page
        from txn.dashboard.endable import EndableServer
        from txn.dashboard.guard import LOOPBACK, host_name
    except ImportError as error:
        raise SetupError(
            f"The page needs {error.name or 'packages'} of the extra 'dashboard'. Install it: "
            "pip install 'txn-spark[dashboard]'.",
            number="TXN-211",
        ) from error
    token = given_token(os.environ)
    if token is None and not is_loopback(address.host):
        token = secrets.token_urlsafe(24)
    listening = _listen(address)
    port = listening.getsockname()[1]
    hosts = {*LOOPBACK, *(host_name(name) for name in (str(address), *names))}
    every_name = token is not None and is_any(address.host)
    app = page(watch, None if every_name else hosts, token)
    shown = Address(reached_at(address.host), port)
    url = f"http://{shown}/" + (f"?token={quote(token, safe='')}" if token else "")
    try:
        EndableServer(app, lambda: announce(url), is_over).run(sockets=[listening])
    finally:
        listening.close()


def _listen(address: Address) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, _, _, where = addresses[0]
        with contextlib.ExitStack() as refused:
            listening = refused.enter_context(socket.socket(family, kind))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            refused.pop_all()
    except (OSError, UnicodeError) as error:
        raise SetupError(
            f"The page cannot listen on {address}: {refusal(error, _OTHER_PORT)}",
            number="TXN-216",
        ) from error
    return listening
