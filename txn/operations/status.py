"""A topology's status from outside: its state, who leads, who waits, and who still runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from txn.config import TopologyConfig
from txn.operations.quarantine import Quarantined, quarantined_in
from txn.protocol.records import LeaderIdentity, NoticesRecord, StandbyIdentity
from txn.zookeeper.liveness import is_alive
from txn.zookeeper.status import TopologyStatus, read_status

__all__ = ["StandbyStatus", "Status", "gather", "status_of"]


@dataclass(frozen=True)
class StandbyStatus:
    """One process that waits to take over."""

    identity: StandbyIdentity
    alive: bool
    """False: it is gone, and its node goes with its session."""

    def to_json(self) -> dict[str, Any]:
        """Host, process id, since when, and whether it is there."""
        said = self.identity.model_dump(mode="json", include={"host", "pid", "since"})
        return {**said, "alive": self.alive}


@dataclass(frozen=True)
class Status:
    """A topology at one moment."""

    found: TopologyStatus
    """What ZooKeeper says."""
    leader_alive: bool
    """False with a leader: it is gone, and its node goes with its session."""
    standbys: tuple[StandbyStatus, ...]
    """The standbys, the longest waiting first."""
    quarantine: tuple[Quarantined, ...]
    """By ascending txid."""

    @property
    def notices(self) -> NoticesRecord | None:
        """What the spouts of the newest run last had for the user; None: nothing."""
        said = self.found.notices
        return said if said and said.streams else None

    @property
    def changes(self) -> dict[str, Any] | None:
        """The newest change of the program: what, and from which txid on; None: there was none."""
        program = self.found.progress.program
        if program is None or not program.changes:
            return None
        return {"since_txid": program.since, "changes": program.changes}

    def to_json(self) -> dict[str, Any]:
        """A JSON-able object with everything in it."""
        found = self.found
        committed, batches = found.progress.committed, found.progress.batches
        return {
            "topology": found.topology,
            "committed_txid": committed.txid,
            "epoch": found.epoch,
            "leader": _leader_json(found.leader, self.leader_alive),
            "last_leader": _leader_json(found.last_leader, self.leader_alive),
            "standbys": [standby.to_json() for standby in self.standbys],
            "batches": [batch.model_dump(mode="json", exclude={"version"}) for batch in batches],
            "spouts": committed.spouts,
            "tables": committed.tables,
            "changes": self.changes,
            "notices": _notices_json(self.notices),
            "quarantined": len(self.quarantine),
            "quarantine": [quarantined.to_json() for quarantined in self.quarantine],
        }


def gather(hosts: str, topology: str, config: TopologyConfig, *, served: bool = True) -> Status:
    """Look at a topology. Takes no lock, changes nothing.

    Args:
        served: as for `status_of`.

    Raises:
        TopologyError: there is no such topology; lists those that there are.
        ProgressUnreadableError: a node cannot be read; names it.
        ProgressUnavailableError: ZooKeeper did not answer.
    """
    return status_of(read_status(hosts, topology, config), served=served)


def status_of(found: TopologyStatus, *, served: bool = True) -> Status:
    """Add to what ZooKeeper says which of the processes it names still run.

    Args:
        served: whether a server runs by which processes lead or wait; False: an embedded one that
            was started only to be asked. After a reboot it still has the nodes of sessions that
            were not ended.
    """
    if not served:
        found = replace(found, leader=None, standbys=())
    return Status(
        found,
        is_alive(found.leader),
        tuple(StandbyStatus(standby, is_alive(standby)) for standby in found.standbys),
        quarantined_in(found),
    )


def _notices_json(notices: NoticesRecord | None) -> dict[str, Any] | None:
    if notices is None:
        return None
    return notices.model_dump(mode="json", exclude={"version", "epoch"})


def _leader_json(leader: LeaderIdentity | None, alive: bool) -> dict[str, Any] | None:
    if leader is None:
        return None
    fields = leader.model_dump(mode="json", include={"host", "pid", "started", "epoch"})
    return {**fields, "alive": alive}
