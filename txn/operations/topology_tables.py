"""Which tables a topology has: from its program, or as ZooKeeper knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txn.config import TopologyConfig
from txn.embedded.service import zookeeper_service
from txn.errors import SetupError, TopologyError
from txn.operations.loading import named_topology
from txn.operations.status import Status, gather
from txn.protocol.records import RowReplayRecord
from txn.zookeeper.row_replays import read_row_replays

__all__ = ["TopologyTables", "tables_of"]


@dataclass(frozen=True)
class TopologyTables:
    """The tables of one topology, and how far they are committed."""

    topology: str
    tables: tuple[str, ...]
    committed: int | None
    """The newest committed txid; None: ZooKeeper does not say."""
    storage_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """table -> its `storage_options`, which only a program has."""
    row_replays: tuple[RowReplayRecord, ...] | None = None
    """The replays of rows that were set aside; None: ZooKeeper does not say."""
    is_at_rest: bool = False
    """ZooKeeper says that nobody leads or stands by, and that no batch is open."""
    config: TopologyConfig = field(default_factory=TopologyConfig)


def tables_of(name: str, zookeeper: str) -> TopologyTables:
    """The tables of a topology; no ZooKeeper is needed if the program is named.

    Args:
        name: as on the command line: NAME or FILE.py:TOPOLOGY.
        zookeeper: as for `Topology.run`.

    Raises:
        TxnError: as `named_topology` and, without a program, as `gather`.
    """
    name, config, topology = named_topology(name)
    sinks = topology.sinks if topology else ()
    options = {sink.name: sink.committer.storage_options for sink in sinks}
    try:
        status, replays = _look(name, config, zookeeper)
    except (SetupError, TopologyError):
        if topology is None:
            raise
        return TopologyTables(name, tuple(options), None, options, config=config)
    committed = status.progress.committed
    tables = tuple(options) if topology else tuple(committed.tables)
    at_rest = not (status.leader or status.standbys or status.progress.batches)
    return TopologyTables(name, tables, committed.txid, options, replays, at_rest, config)


def _look(
    name: str, config: TopologyConfig, zookeeper: str
) -> tuple[Status, tuple[RowReplayRecord, ...]]:
    with zookeeper_service(zookeeper, share=True, must_exist=True) as hosts:
        replays = read_row_replays(hosts, name, config)
        status = gather(hosts, name, config)
    return status, tuple(replay for each in replays.values() for replay in each)
