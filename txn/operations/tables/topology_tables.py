"""List a topology's tables: from its program, or from ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txn.backends import open_backend
from txn.config import TopologyConfig
from txn.errors import SetupError, TopologyError
from txn.interfaces import Committer
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.operations.loading import named_topology
from txn.protocol.backend import ProgressBackend
from txn.protocol.records import RowReplayRecord

__all__ = ["TopologyTables", "tables_and_replays", "tables_of"]


@dataclass(frozen=True)
class TopologyTables:
    """The tables of one topology, and how far they are committed."""

    topology: str
    tables: tuple[str, ...]
    committed: int | None
    """The newest committed txid; None: ZooKeeper has none for this topology."""
    committers: Mapping[str, Committer] = field(default_factory=dict)
    """table -> its committer; only a program has them."""
    is_at_rest: bool = False
    """True: ZooKeeper has no leader, no standby and no open batch."""
    config: TopologyConfig = field(default_factory=TopologyConfig)

    @property
    def storage_options(self) -> dict[str, Mapping[str, str]]:
        """Return table -> its `storage_options`; only a program has them."""
        return {table: committer.storage_options for table, committer in self.committers.items()}

    @property
    def delta_tables(self) -> tuple[str, ...]:
        """The tables that are not known to have a log of their own."""
        return tuple(t for t in self.tables if not isinstance(self.committers.get(t), KeepsOwnLog))


def tables_of(name: str, zookeeper: str | ProgressBackend) -> TopologyTables:
    """List the tables of a topology; needs no ZooKeeper if the program is named.

    Args:
        name: as on the command line: NAME or FILE.py:TOPOLOGY.
        zookeeper: as for `Topology.run`, or a backend.

    Raises:
        TxnError: as `named_topology` and, without a program, as `ProgressBackend.status`.
    """
    return _read(name, zookeeper, with_replays=False)[0]


def tables_and_replays(
    name: str, zookeeper: str | ProgressBackend
) -> tuple[TopologyTables, tuple[RowReplayRecord, ...] | None]:
    """Do as `tables_of`, with the replays of rows that were set aside; None: no ZooKeeper answers.

    The replays are read first: their rows were committed before.
    """
    tables, replays = _read(name, zookeeper, with_replays=True)
    if replays is None:
        return tables, None
    return tables, tuple(replay for of_stream in replays.values() for replay in of_stream)


def _read(
    name: str, zookeeper: str | ProgressBackend, *, with_replays: bool
) -> tuple[TopologyTables, Mapping[str, tuple[RowReplayRecord, ...]] | None]:
    name, config, topology = named_topology(name)
    sinks = topology.sinks if topology else ()
    committers = {sink.name: sink.committer for sink in sinks}
    try:
        with open_backend(zookeeper, config) as backend:
            replays = backend.row_replays(name) if with_replays else {}
            status = backend.status(name)
    except (SetupError, TopologyError):
        if topology is None:
            raise
        return TopologyTables(name, tuple(committers), None, committers, config=config), None
    committed = status.progress.committed
    tables = tuple(committers) if topology else tuple(committed.tables)
    at_rest = not (status.leader or status.standbys or status.progress.batches)
    return TopologyTables(name, tables, committed.txid, committers, at_rest, config), replays
