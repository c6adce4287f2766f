"""Which tables a topology has: from its program, or as ZooKeeper knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txn.config import TopologyConfig
from txn.embedded.service import zookeeper_service
from txn.errors import SetupError, TopologyError
from txn.operations.loading import named_topology
from txn.operations.status import gather
from txn.protocol.records import CommittedRecord, RowReplayRecord
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


def tables_of(name: str, zookeeper: str) -> TopologyTables:
    """The tables of a topology; no ZooKeeper is needed if the program is named.

    Args:
        name: as on the command line: NAME or FILE.py:TOPOLOGY.
        zookeeper: as for `Topology.run`.

    Raises:
        TxnError: as `named_topology` and, without a program, as `gather`.
    """
    name, config, topology = named_topology(name)
    if topology is None:
        record, replays = _look(name, config, zookeeper)
        return TopologyTables(name, tuple(record.tables), record.txid, row_replays=replays)
    options = {sink.name: sink.committer.storage_options for sink in topology.sinks}
    try:
        record, replays = _look(name, config, zookeeper)
    except (SetupError, TopologyError):
        return TopologyTables(name, tuple(options), None, options)
    return TopologyTables(name, tuple(options), record.txid, options, replays)


def _look(
    name: str, config: TopologyConfig, zookeeper: str
) -> tuple[CommittedRecord, tuple[RowReplayRecord, ...]]:
    with zookeeper_service(zookeeper, share=True, must_exist=True) as hosts:
        replays = read_row_replays(hosts, name, config)
        committed = gather(hosts, name, config).progress.committed
    return committed, tuple(replay for each in replays.values() for replay in each)
