"""Which tables a topology has: from its program, or as ZooKeeper knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txn.config import TopologyConfig
from txn.embedded.service import zookeeper_service
from txn.errors import SetupError, TopologyError
from txn.operations.loading import named_topology
from txn.operations.status import gather
from txn.protocol.records import CommittedRecord

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
        record = _committed(name, config, zookeeper)
        return TopologyTables(name, tuple(record.tables), record.txid)
    options = {sink.name: sink.committer.storage_options for sink in topology.sinks}
    return TopologyTables(name, tuple(options), _txid_or_none(name, config, zookeeper), options)


def _txid_or_none(name: str, config: TopologyConfig, zookeeper: str) -> int | None:
    try:
        return _committed(name, config, zookeeper).txid
    except (SetupError, TopologyError):
        return None


def _committed(name: str, config: TopologyConfig, zookeeper: str) -> CommittedRecord:
    with zookeeper_service(zookeeper, share=True, must_exist=True) as hosts:
        return gather(hosts, name, config).progress.committed
