"""Give commands and topologies a ZooKeeper: a named one, or an embedded server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from txn.config import TopologyConfig
from txn.config.home import homes_here
from txn.config.location import resolve
from txn.embedded.folder import IN_USE, ServerFolder, port_of, serves
from txn.embedded.guard import read_credential, require_own_listener
from txn.embedded.server import EmbeddedZooKeeper
from txn.errors import LeaderExistsError, SetupError, TxnError
from txn.machine.liveness import is_alive
from txn.zookeeper.client.access import lend

__all__ = [
    "is_served",
    "refuse_second_run",
    "running_server",
    "zookeeper_of_run",
    "zookeeper_service",
]

_WAIT_SECS = 10.0
"""A run waits this long for a command or a page that has a server on the folder for a moment."""
_POLL_SECS = 0.1


@contextlib.contextmanager
def zookeeper_service(spec: str, *, share: bool = False, must_exist: bool = False) -> Iterator[str]:
    """Yield a connect string for `spec`; starts and stops an embedded server if necessary.

    Args:
        spec: see `resolve`.
        share: True: use the server that another process has on the folder, and leave it running;
            False: raise then.
        must_exist: True: refuse a folder that never had a server, instead of making it.

    Raises:
        UserError: the spec is invalid.
        SetupError: the embedded server could not be started, or its folder is in use.
    """
    where = resolve(spec)
    if where.folder is None:
        yield where.hosts
        return
    if must_exist and not _has_data(where.folder):
        raise SetupError(
            f"There is no ZooKeeper data in '{where.folder.absolute()}': no topology has been run "
            f"with it.{_elsewhere(where.folder)} {_ways_out(spec)}",
            number="TXN-209",
        )
    with contextlib.ExitStack() as resources:
        yield _shared_or_own(where.folder, resources, share=share)


@contextlib.contextmanager
def zookeeper_of_run(
    spec: str,
    topology: str,
    config: TopologyConfig,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """As `zookeeper_service`, for a run: waits for a command or a page that reads the folder.

    Args:
        sleep: called between two tries; may raise.
    """
    with contextlib.ExitStack() as resources:
        deadline = time.monotonic() + _WAIT_SECS
        while True:
            is_last = time.monotonic() >= deadline
            try:
                hosts = resources.enter_context(zookeeper_service(spec))
                break
            except SetupError as error:
                if error.number != IN_USE:
                    raise
                # If the server ends meanwhile, this may outlast the deadline. Then try once more.
                refuse_second_run(spec, topology, config)
                if is_last:
                    raise
            sleep(_POLL_SECS)
        yield hosts


def refuse_second_run(spec: str, topology: str, config: TopologyConfig) -> None:
    """Refuse to run a topology that another process leads with a server on the same folder.

    Raises:
        LeaderExistsError: another live process leads it.
    """
    from txn.zookeeper.status import read_status

    folder = resolve(spec).folder
    hosts = None if folder is None else running_server(folder)
    if hosts is None:
        return
    timeout_secs = min(_WAIT_SECS, config.zookeeper_connect_secs)
    config = config.model_copy(update={"zookeeper_connect_secs": timeout_secs})
    try:
        leader = read_status(hosts, topology, config).leader
    except TxnError:
        return  # the start itself will find out
    if is_alive(leader):
        raise LeaderExistsError(
            f"Topology '{topology}' is led by {leader}. Stop that process first."
        )


def _shared_or_own(folder: Path, resources: contextlib.ExitStack, *, share: bool) -> str:
    running = running_server(folder) if share else None
    if running is not None:
        return running
    try:
        return resources.enter_context(EmbeddedZooKeeper(folder, protect=True)).hosts
    except SetupError:
        # Another program may have been faster by a moment: use its server.
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


def _elsewhere(folder: Path) -> str:
    """Name homes in the working directory that have progress."""
    others = [home for home in homes_here() if not folder.absolute().is_relative_to(home)]
    return f" There is some in {', '.join(map(str, others))}." if others else ""


def _ways_out(spec: str) -> str:
    """What to do when there is no data; a spec with a folder comes from a program, or the user."""
    if spec != "embedded":
        return 'Run the topology first, or name the folder of its data: "embedded:FOLDER".'
    return (
        "Name the program, FILE.py:TOPOLOGY, go to the folder in which it was run, or name its "
        'folder: "embedded:FOLDER".'
    )


def is_served(spec: str) -> bool:
    """True if a process has a server there, answering or not; always True for a named ZooKeeper."""
    folder = resolve(spec).folder
    return folder is None or ServerFolder(folder).is_locked()


def running_server(folder: str | Path, connected: str | None = None) -> str | None:
    """Return the connect string of the server that a live process has on `folder`, or None.

    Afterwards, this process's connections to it have the folder's credential.

    Args:
        connected: the result of an earlier call, to which a connection has been open since. A
            server at that address is not asked again, nor is its owner checked again.
    """
    place = ServerFolder(folder)
    owner = place.owner() if place.is_locked() else None
    if owner is None:
        return None
    if owner.hosts == connected:
        return connected
    if not serves(port_of(owner.hosts)):
        return None
    credential = read_credential(place.path)
    if credential is not None:
        require_own_listener(port_of(owner.hosts))
        lend(owner.hosts, credential)
    return owner.hosts
