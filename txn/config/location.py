"""The location of ZooKeeper, as a user writes it: one string."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from txn.config.home import TXN_FOLDER, nearest_home
from txn.errors import UserError

__all__ = [
    "HasHome",
    "ZooKeeperSpec",
    "as_option",
    "at_home",
    "home_at",
    "resolve",
    "resolve_shared",
]

Store = TypeVar("Store")

_EMBEDDED = TXN_FOLDER / "zookeeper"
"""The folder of "embedded" in the home (`txn.config.home`)."""

_FORBIDDEN = re.compile("[\\s\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_LONGEST = 4096
"""Most characters of a connect string or a path: no file system allows more."""


@dataclass(frozen=True)
class ZooKeeperSpec:
    """The location of ZooKeeper: a folder for an embedded server, or the hosts of an ensemble."""

    folder: Path | None
    """Folder of an embedded server; None: there are `hosts`."""
    hosts: str
    """Connect string, every host with its port; empty: there is a `folder`."""


def resolve(spec: str) -> ZooKeeperSpec:
    """Parse "embedded", "embedded:FOLDER" or "host:2181,host2:2181/chroot".

    "embedded" alone is the server of the nearest home, from the working directory upwards.

    Raises:
        UserError: it is none of them; the message explains why.
    """
    kind, colon, folder = spec.partition(":")
    if kind == "embedded":
        if colon and not folder.strip():
            raise _bad_spec(spec, 'after "embedded:" comes a folder')
        return ZooKeeperSpec(_folder(folder, spec) if colon else nearest_home() / _EMBEDDED, "")
    if "@" in spec:
        raise _bad_spec(
            "..." + spec[spec.rindex("@") :],
            "a connect string holds no credentials, and a command line is no place for them; set "
            "TXN_ZOOKEEPER_AUTH_FILE (docs/security.md)",
        )
    if len(spec) > _LONGEST:
        raise _bad_spec(f"{spec[:40]}...", f"it has {len(spec)} characters")
    if "://" in spec:
        raise _bad_spec(spec, "a connect string has no scheme such as 'zk://'")
    if not folder[:1].isdecimal() and "." not in kind and _resembles_embedded(kind):
        raise _bad_spec(spec, "did you mean 'embedded'? A host of that name needs its port")
    servers, slash, chroot = spec.partition("/")
    hosts = ",".join(_host_and_port(part.strip(), spec) for part in servers.split(","))
    if slash and chroot.split("/")[0] == "zookeeper":
        raise _bad_spec(spec, "'/zookeeper' is ZooKeeper's own")
    if slash and not all(_is_component(part) for part in chroot.split("/")):
        raise _bad_spec(spec, f"the chroot '/{chroot}' is not a ZooKeeper path")
    return ZooKeeperSpec(None, hosts + slash + chroot)


def resolve_shared(spec: str) -> ZooKeeperSpec:
    """Like `resolve`, for a standby: the server must outlive the leader.

    Raises:
        UserError: also for an embedded server.
    """
    resolved = resolve(spec)
    if resolved.folder is not None:
        raise UserError(
            f"A standby cannot use the embedded ZooKeeper server ({spec!r}): that server ends "
            "together with the leader, so a standby could never see the leader go. Name servers "
            "that outlive every run, as "
            '"host:2181,host2:2181/chroot"; on one machine, let a service manager start the '
            "topology again instead.",
            number="TXN-608",
        )
    return resolved


class HasHome(Protocol):
    """A topology, or what is known of one."""

    @property
    def home(self) -> Path:
        """The folder whose `.txn` has its progress."""


def at_home(spec: Store, topology: HasHome | None) -> Store | str:
    """Return `spec`, with the folder of a topology's home if it is "embedded" alone.

    Args:
        topology: None: only its name is known, and "embedded" is the nearest home's.
    """
    if spec != "embedded" or topology is None:
        return spec
    home = topology.home.absolute()
    return spec if home == nearest_home().absolute() else f"embedded:{home / _EMBEDDED}"


def home_at(spec: str) -> Path | None:
    """Return the home whose server "embedded:FOLDER" names; None: it names no home's."""
    folder = resolve(spec).folder if spec.startswith("embedded:") else None
    if folder is None or folder.absolute().parts[-2:] != _EMBEDDED.parts:
        return None
    return folder.absolute().parents[1]


def _resembles_embedded(name: str) -> bool:
    return bool(difflib.get_close_matches(name.lower(), ["embedded"], cutoff=0.75))


def as_option(spec: str) -> str:
    """Return " --zookeeper SPEC", with which a command finds the same ZooKeeper; "" by default."""
    # A spec with credentials is never valid, and never repeated.
    return "" if spec == "embedded" or "@" in spec else f" --zookeeper {shlex.quote(spec)}"


def _folder(name: str, spec: str) -> Path:
    if "\0" in name:
        raise _bad_spec(spec, "a folder's name has no NUL character")
    if len(name) > _LONGEST:
        raise _bad_spec(f"{spec[:40]}...", f"the folder's name has {len(name)} characters")
    try:
        os.fsencode(name)
        return Path(name).expanduser()
    except (UnicodeEncodeError, RuntimeError) as error:
        raise _bad_spec(spec, f"there cannot be such a folder ({error})") from error


def _host_and_port(part: str, spec: str) -> str:
    """Return `part` as "host:port"; the port is 2181 by default."""
    if not part:
        raise _bad_spec(spec, "a host is missing")
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%a-z]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?", part)
    if match is None:
        hint = ": write an IPv6 address in brackets, [::1]:2181" if part.count(":") > 1 else ""
        raise _bad_spec(spec, f"'{part}' is not host:port{hint}")
    port = int(match[2] or 2181)
    if not 0 < port < 65536:
        raise _bad_spec(spec, f"{port} is not a port")
    return f"{match[1]}:{port}"


def _is_component(part: str) -> bool:
    return part not in ("", ".", "..") and _FORBIDDEN.search(part) is None


def _bad_spec(spec: str, problem: str) -> UserError:
    return UserError(
        f'{spec!r} does not name a ZooKeeper: {problem}. Use "embedded" (a server of our own in '
        f'{_EMBEDDED}), "embedded:FOLDER", or "host:2181,host2:2181/chroot".',
        number="TXN-601",
    )
