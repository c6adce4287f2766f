"""Where commands and topologies get a ZooKeeper from: one that is named, or one of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from txn.embedded.folder import ServerFolder, port_of, serves
from txn.embedded.guard import read_credential, require_own_listener
from txn.embedded.server import EmbeddedZooKeeper
from txn.errors import SetupError
from txn.zookeeper.access import lend
from txn.zookeeper.location import resolve

__all__ = ["running_server", "zookeeper_service"]


@contextlib.contextmanager
def zookeeper_service(spec: str, *, share: bool = False, must_exist: bool = False) -> Iterator[str]:
    """A connect string for `spec`; starts and in the end stops an embedded server if need be.

    Args:
        spec: see `resolve`.
        share: True: use the server that another process already has on the folder, and leave it
            running; False: refuse then.
        must_exist: True: refuse a folder in which no server has ever been, instead of making it.

    Raises:
        UserError: the spec means nothing.
        SetupError: the embedded server could not be started, or its folder is in use.
    """
    where = resolve(spec)
    if where.folder is None:
        yield where.hosts
        return
    if must_exist and not _has_data(where.folder):
        raise SetupError(
            f"There is no ZooKeeper data in '{where.folder.absolute()}': no topology has been run "
            "with it. Go to the folder in which the topology was run, or name its folder: "
            '"embedded:FOLDER".',
            number="TXN-209",
        )
    with contextlib.ExitStack() as resources:
        yield _shared_or_own(where.folder, resources, share=share)


def _shared_or_own(folder: Path, resources: contextlib.ExitStack, *, share: bool) -> str:
    running = running_server(folder) if share else None
    if running is not None:
        return running
    try:
        return resources.enter_context(EmbeddedZooKeeper(folder, protect=True)).hosts
    except SetupError:
        # Another program may have been faster by a moment; its server will do as well.
        running = running_server(folder) if share else None
        if running is None:
            raise
        return running


def _has_data(folder: Path) -> bool:
    try:
        return (folder / "data").is_dir()
    except OSError as error:
        raise SetupError(
            f"The ZooKeeper folder '{folder.absolute()}' cannot be read: {error.strerror}. Only "
            "its owner may: run this as the user that runs the topology.",
            number="TXN-206",
        ) from error


def running_server(folder: str | Path) -> str | None:
    """The connect string of the server that some live process has on `folder`; None: no server.

    From then on this process's connections to it have the folder's credential.

    Raises:
        SetupError: the credential cannot be read, or another user listens on the server's port.
    """
    place = ServerFolder(folder)
    owner = place.owner() if place.is_locked() else None
    if owner is None or not serves(port_of(owner.hosts)):
        return None
    credential = read_credential(place.path)
    if credential is not None:
        require_own_listener(port_of(owner.hosts))
        lend(owner.hosts, credential)
    return owner.hosts
