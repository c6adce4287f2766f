"""`txn doctor`: check everything that a topology needs, and report it.

All changes are cleaned up again: a node in ZooKeeper that ends with its session, and a table beside
the topology's, deleted in the end. A check that cannot run is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from txn.config import TopologyConfig
from txn.config.location import resolve
from txn.doctor.findings import Finding, error, note
from txn.doctor.machine import check_disk, check_machine
from txn.doctor.tables import check_own_log, check_storage, check_table, check_writers
from txn.doctor.zookeeper import check_zookeeper
from txn.errors import TxnError
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.storage.locations import is_local, parent
from txn.text import first_line

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["diagnose", "look"]


def diagnose(
    topology: Topology | None, zookeeper: str, tables: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield every finding as it is made.

    Args:
        topology: the topology whose nodes and tables are checked; None: no topology.
        zookeeper: see `txn.config.location.resolve`.
        tables: further tables to check: local paths or URIs.

    Raises:
        UserError: `zookeeper` is not a valid location.
    """
    config = topology.settings if topology is not None else TopologyConfig()
    name = topology.name if topology is not None else None
    sinks = topology.sinks if topology is not None else ()
    own_logs = {s.name: s.committer for s in sinks if isinstance(s.committer, KeepsOwnLog)}
    storage_options = {s.name: s.committer.storage_options for s in sinks if s.name not in own_logs}
    places = list(dict.fromkeys([*storage_options, *tables]))
    folders: dict[str, Mapping[str, str] | None] = {}
    for table in places:
        folders.setdefault(parent(table), storage_options.get(table))
    yield from _guarded("machine", check_machine)
    local = [Path(), *(Path(folder) for folder in folders if is_local(folder))]
    yield from _guarded("machine", partial(check_disk, local))
    yield from _zookeeper(zookeeper, name, config)
    for table, log in own_logs.items():
        yield from _guarded(f"table {table}", partial(check_own_log, table, log))
    for table in places:
        owner = name if table in storage_options else None
        check = partial(check_table, table, owner, config, storage_options.get(table))
        yield from _guarded(f"table {table}", check)
        yield from check_writers(table)
    for folder, options in folders.items():
        yield from _guarded(f"storage {folder}", partial(check_storage, folder, options))


def look(
    name: str,
    config: TopologyConfig,
    tables: Mapping[str, Mapping[str, str] | None],
    zookeeper: tuple[str, str] | None,
) -> Iterator[Finding]:
    """Yield the findings that need no writes, not even for a moment.

    Args:
        name: the name of the topology.
        tables: table -> its committer's `storage_options`.
        zookeeper: its name for the user, and a connect string; None: it does not answer now.
    """
    yield from _guarded("machine", check_machine)
    folders = {parent(table) for table in tables if is_local(table)}
    local = [Path(), *(Path(folder) for folder in sorted(folders))]
    yield from _guarded("machine", partial(check_disk, local))
    if zookeeper is not None:
        spec, hosts = zookeeper
        area = f"zookeeper {spec}"
        check = partial(check_zookeeper, area, hosts, resolve(spec).folder, name, config)
        yield from _guarded(area, partial(check, writes=False))
    for table, options in tables.items():
        area = f"table {table}"
        yield from _guarded(area, partial(check_table, table, name, config, options))
        yield from _guarded(area, partial(check_writers, table))


def _zookeeper(spec: str, name: str | None, config: TopologyConfig) -> Iterator[Finding]:
    from txn.embedded.service import zookeeper_service

    where = resolve(spec)
    area = f"zookeeper {spec}"
    if where.folder is not None and name is None and not (where.folder / "data").is_dir():
        yield note(
            area,
            "server",
            f"there is no embedded server in '{where.folder.absolute()}' yet",
            "The first run of a topology makes it.",
        )
        return
    if where.folder is not None and not (where.folder / "data").is_dir():
        yield note(area, "server", "no data yet: the topology has not been run with it")
        return
    try:
        with zookeeper_service(spec, share=True, must_exist=True) as hosts:
            yield from check_zookeeper(area, hosts, where.folder, name, config)
    except TxnError as failure:
        yield error(area, "server", str(failure), "No topology can run with it.", "See above.")


def _guarded(area: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield a check's findings; a check that fails is a finding, and the others go on."""
    try:
        yield from check()
    except Exception as failure:  # noqa: BLE001 - storages and libraries raise what they like
        yield error(
            area,
            "check",
            first_line(failure),
            "The check did not finish.",
            "Correct the problem in the message, and run the doctor again.",
        )
