"""Credentials, TLS, and the ACL of the nodes that we create.

Settings that the `TopologyConfig` leaves out may come from the environment
(`txn.config.settings`). So commands that know only a topology's name can authenticate, and no
secret has to be in a program or on a command line.

An embedded server belongs to everyone who can read its folder. The credential in there is lent to
every connection of this process to that server (`lend`), so no setting has to name it.
"""

from __future__ import annotations

import importlib.util
import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txn.config import TopologyConfig
from txn.config.settings import completed, credentials_in, secrets_of
from txn.errors import SetupError, UserError

__all__ = ["Access", "find_access", "lend", "take_back", "used_credentials"]

_lent: dict[str, str] = {}
"""Servers -> the credential that `lend` gave for them."""
_used: set[str] = set()
"""Every secret that this process has used, so that messages can leave it out."""
_lock = threading.Lock()


@dataclass(frozen=True, repr=False)
class Access:
    """The settings of a connection. Never print it: it holds secrets."""

    acl: tuple[tuple[int, str, str], ...]
    """(permissions, scheme, id) of every node that is created."""
    acl_chosen: bool = True
    """False: nobody chose the ACL, and the nodes are open to everybody; the connection warns."""
    auth: tuple[tuple[str, str], ...] = ()
    """(scheme, credential)."""
    sasl: tuple[str, str] | None = None
    """(user, password) for DIGEST-MD5."""
    tls: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of kazoo's client; empty: no TLS."""

    def options(self) -> dict[str, Any]:
        """Return the arguments of `KazooClient`, without its default ACL."""
        options: dict[str, Any] = {"auth_data": list(self.auth)} if self.auth else {}
        if self.sasl is not None:
            user, password = self.sasl
            options["sasl_options"] = {
                "mechanism": "DIGEST-MD5",
                "username": user,
                "password": password,
            }
        return options | dict(self.tls)


def lend(servers: str, credential: str) -> None:
    """Give this process's future connections to `servers` (host:port) a digest credential."""
    with _lock:
        _lent[servers] = credential
        _used.update(secrets_of(credential))


def take_back(servers: str) -> None:
    """Stop lending: later connections to `servers` do not get the credential."""
    with _lock:
        _lent.pop(servers, None)


def used_credentials() -> frozenset[str]:
    """Return every secret that a connection of this process has used so far.

    To remove them from messages: an old error may hold a credential that was replaced since.
    """
    with _lock:
        return frozenset(_used)


def find_access(
    config: TopologyConfig, servers: str, environ: Mapping[str, str] | None = None
) -> Access:
    """Return the settings of a connection to `servers`.

    Args:
        servers: "host:2181,host2:2181", without a chroot.
        environ: the environment with the settings that `config` leaves out; None: the process's.

    Raises:
        UserError: settings that contradict each other, or a file that is missing or invalid.
        SetupError: the package for SASL is missing.
    """
    config = completed(config, os.environ if environ is None else environ)
    with _lock:
        _used.update(credentials_in(config))
    auth = [(scheme, secret.get_secret_value()) for scheme, secret in config.zookeeper_auth]
    sasl = _sasl([credential for scheme, credential in auth if scheme == "sasl"])
    others = [(scheme, credential) for scheme, credential in auth if scheme != "sasl"]
    tls = _tls(config)
    with _lock:
        lent = _lent.get(servers)
    if lent is not None:
        others.append(("digest", lent))
        # An embedded server's nodes are never open to everybody, whatever the setting.
        config = config.model_copy(update={"zookeeper_acl": "creator"})
    has_identity = bool(auth or lent or tls.get("certfile"))
    acl = _acl(config, has_identity=has_identity)
    acl_chosen = has_identity or config.zookeeper_acl is not None
    return Access(acl, acl_chosen, tuple(others), sasl, tls)


def _sasl(credentials: list[str]) -> tuple[str, str] | None:
    if not credentials:
        return None
    if len(credentials) > 1:
        raise UserError(
            "zookeeper_auth has two credentials for sasl; a connection has one user.",
            number="TXN-604",
        )
    user, _, password = credentials[0].partition(":")
    if not user or not password:
        raise UserError(
            'The credential for sasl in zookeeper_auth is not "user:password".', number="TXN-604"
        )
    if importlib.util.find_spec("puresasl") is None:
        raise SetupError(
            "zookeeper_auth has a credential for sasl, which needs the package pure-sasl. Install "
            "it: pip install 'txn-spark[sasl]'.",
            number="TXN-211",
        )
    return user, password


def _acl(config: TopologyConfig, *, has_identity: bool) -> tuple[tuple[int, str, str], ...]:
    everything, reading = 31, 1  # ZooKeeper's permission bits
    acl = config.zookeeper_acl or ("creator" if has_identity else "open")
    if acl == "creator" and not has_identity:
        raise UserError(
            'zookeeper_acl="creator" gives every node to whoever created it, but there is no '
            'zookeeper_auth. Set it, for example (("digest", "user:password"),).',
            number="TXN-604",
        )
    if acl != "creator" and config.zookeeper_readers:
        raise UserError(
            "zookeeper_readers says who may only read, but without an owner everybody may write. "
            'Give zookeeper_auth, or leave out zookeeper_acl="open" and zookeeper_readers.',
            number="TXN-604",
        )
    if acl == "creator":
        readers = [(reading, scheme, name) for scheme, name in config.zookeeper_readers]
        return ((everything, "auth", ""), *readers)
    return ((everything, "world", "anyone"),)


def _tls(config: TopologyConfig) -> dict[str, Any]:
    """Return kazoo's arguments. Checks the files first: kazoo would retry a bad one for ever."""
    if not config.zookeeper_tls:
        return {}
    for name in ("zookeeper_ca", "zookeeper_certfile", "zookeeper_keyfile"):
        path = getattr(config, name)
        if path is not None and not Path(path).is_file():
            raise UserError(
                f"{name} is '{path}', but there is no such file. Correct it.", number="TXN-603"
            )
    certfile, keyfile = config.zookeeper_certfile, config.zookeeper_keyfile
    if (certfile is None) != (keyfile is None):
        raise UserError(
            "zookeeper_certfile and zookeeper_keyfile go together, and only one of them is set. "
            "Set both, or none.",
            number="TXN-603",
        )
    secret = config.zookeeper_keyfile_password
    # Not None: OpenSSL would ask for it on the terminal.
    password = secret.get_secret_value() if secret else ""
    _check_files(config.zookeeper_ca, certfile, keyfile, password)
    return {
        "use_ssl": True,
        "ca": config.zookeeper_ca,
        "certfile": certfile,
        "keyfile": keyfile,
        "keyfile_password": password,
        "check_hostname": config.zookeeper_check_hostname,
    }


def _check_files(ca: str | None, certfile: str | None, keyfile: str | None, password: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise UserError(
            f"zookeeper_ca is '{ca}', which holds no certificates that can be read: {error}. It "
            "must be PEM text (for a Java key store: keytool -exportcert -rfc).",
            number="TXN-603",
        ) from error
    try:
        if certfile is not None:
            context.load_cert_chain(certfile, keyfile, password)
    except (OSError, ValueError) as error:
        raise UserError(
            f"zookeeper_certfile '{certfile}' and zookeeper_keyfile '{keyfile}' cannot be used: "
            f"{error}. Both must be PEM text and belong together; a key with a password needs "
            "zookeeper_keyfile_password.",
            number="TXN-603",
        ) from error
