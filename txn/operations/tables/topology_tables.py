"""List a topology's tables: from its program, or from ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from txn.backends import open_backend
from txn.config import TopologyConfig
from txn.config.location import at_home
from txn.errors import SetupError, TopologyError
from txn.interfaces import Committer
from txn.interfaces.committer_capabilities import KeepsOwnLog
from txn.interfaces.published import Publishes
from txn.operations.loading import named_topology
from txn.protocol.backend import ProgressBackend
from txn.protocol.records import RowReplayRecord
from txn.protocol.stream_names import Renamed

if TYPE_CHECKING:
    from txn.topology import Topology

__all__ = ["TopologyTables", "tables_of"]


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
    replays: tuple[RowReplayRecord, ...] | None = None
    """The replays of rows that were set aside; None: not read, or no ZooKeeper answers."""

    published: Mapping[str, Publishes] = field(default_factory=dict)
    """Name of a published table -> the table; only a program has them."""
    renamed: Renamed = field(default_factory=dict)
    """Former name of a stream -> its present name; only a program has them."""

    @classmethod
    def of_program(cls, topology: Topology) -> TopologyTables:
        """List the tables of a program, without ZooKeeper."""
        committers = {sink.name: sink.committer for sink in topology.sinks}
        return cls(
            topology.name,
            tuple(committers),
            None,
            committers,
            config=topology.settings,
            published={one.name: one for sink in topology.sinks for one in sink.published},
            renamed=topology.definition.renamed,
        )

    @property
    def storage_options(self) -> dict[str, Mapping[str, str]]:
        """Return table -> its `storage_options`; only a program has them."""
        return {table: committer.storage_options for table, committer in self.committers.items()}

    @property
    def delta_tables(self) -> tuple[str, ...]:
        """The tables that are not known to have a log of their own."""
        return tuple(t for t in self.tables if not isinstance(self.committers.get(t), KeepsOwnLog))


def tables_of(
    name: str, zookeeper: str | ProgressBackend, *, with_replays: bool = False
) -> TopologyTables:
    """List the tables of a topology; needs no ZooKeeper if the program is named.

    Args:
        name: as on the command line: NAME or FILE.py:TOPOLOGY.
        zookeeper: as for `Topology.run`, or a backend.
        with_replays: read `replays`, too: before the tables, because their rows were committed
            before.

    Raises:
        TxnError: as `named_topology` and, without a program, as `ProgressBackend.status`.
    """
    name, config, topology = named_topology(name)
    known = TopologyTables(name, (), None, config=config)
    if topology is not None:
        known = TopologyTables.of_program(topology)
        zookeeper = at_home(zookeeper, topology)
    try:
        with open_backend(zookeeper, config) as backend:
            replays = backend.row_replays(name) if with_replays else None
            status = backend.status(name)
    except (SetupError, TopologyError):
        if topology is None:
            raise
        return known
    committed = status.progress.committed
    return replace(
        known,
        tables=known.tables if topology else tuple(committed.tables),
        committed=committed.txid,
        is_at_rest=not (status.leader or status.standbys or status.progress.batches),
        replays=None if replays is None else tuple(chain.from_iterable(replays.values())),
    )
