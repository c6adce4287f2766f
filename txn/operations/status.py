"""A topology's status from outside: its state, its leader, its standbys, and which still run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from txn.engine.changed_code import program_id
from txn.interfaces.event_time import EventTime
from txn.machine.liveness import is_alive
from txn.operations.quarantine import Quarantined, quarantined_in
from txn.protocol.backend import TopologyStatus
from txn.protocol.records import LeaderIdentity, NoticesRecord, StandbyIdentity
from txn.text import event_time

__all__ = ["StandbyStatus", "Status", "status_of"]


@dataclass(frozen=True)
class StandbyStatus:
    """One process that waits to take over."""

    identity: StandbyIdentity
    alive: bool
    """False: it is gone, and its znode will go with its session."""
    changes_program: bool = False
    """True: its program, or its Python, is not that of the newest run; it takes effect when the
    standby takes over."""

    def to_json(self) -> dict[str, Any]:
        """Return host, process id, start of the wait, `alive` and `changes_program`."""
        fields = self.identity.model_dump(mode="json", include={"host", "pid", "since"})
        return {**fields, "alive": self.alive, "changes_program": self.changes_program}


@dataclass(frozen=True)
class Status:
    """A topology at one moment."""

    found: TopologyStatus
    """The status read from ZooKeeper."""
    leader_alive: bool
    """False with a leader: it is gone, and its znode will go with its session."""
    standbys: tuple[StandbyStatus, ...]
    """The standbys, the longest waiting first."""
    quarantine: tuple[Quarantined, ...]
    """By ascending txid."""

    @property
    def notices(self) -> NoticesRecord | None:
        """The newest run's last notices from its spouts; None: no notices."""
        notices = self.found.notices
        return notices if notices and notices.streams else None

    @property
    def changes(self) -> dict[str, Any] | None:
        """The newest change of the program and its first txid; None: it has not changed."""
        program = self.found.progress.program
        if program is None or not program.changes:
            return None
        return {"since_txid": program.since, "changes": program.changes}

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        status, notices = self.found, self.notices
        committed, batches = status.progress.committed, status.progress.batches
        return {
            "topology": status.topology,
            "committed_txid": committed.txid,
            "epoch": status.epoch,
            "leader": _leader_json(status.leader, self.leader_alive),
            "last_leader": _leader_json(status.last_leader, self.leader_alive),
            "standbys": [standby.to_json() for standby in self.standbys],
            "batches": [batch.model_dump(mode="json", exclude={"version"}) for batch in batches],
            "spouts": committed.spouts,
            "tables": committed.tables,
            "event_time": _event_time_json(committed.event_time),
            "changes": self.changes,
            "notices": notices and notices.model_dump(mode="json", exclude={"version", "epoch"}),
            "quarantined": len(self.quarantine),
            "quarantine": [quarantined.to_json() for quarantined in self.quarantine],
        }


def status_of(status: TopologyStatus, *, served: bool = True) -> Status:
    """Add to a status from ZooKeeper which of its processes still run.

    Args:
        served: True if the server is the one that leaders and standbys use; False: an embedded
            one that was started only for this read. After a reboot it still has the znodes of
            sessions that did not end.
    """
    if not served:
        status = replace(status, leader=None, standbys=())
    newest = status.progress.program and program_id(status.progress.program)
    return Status(
        status,
        is_alive(status.leader),
        tuple(
            StandbyStatus(one, is_alive(one), bool(program and newest and program != newest))
            for one, program in status.standbys
        ),
        quarantined_in(status),
    )


def _event_time_json(time: EventTime | None) -> dict[str, Any] | None:
    """Return the watermark of the next txid, and the newest event of each stream's partitions."""
    if time is None or not time.streams:
        return None
    at = time.watermark(1)
    return {
        "watermark": None if at is None else event_time(at),
        "newest": {
            stream: {part: event_time(event.at) for part, event in of_stream.newest.items()}
            for stream, of_stream in time.streams.items()
        },
    }


def _leader_json(leader: LeaderIdentity | None, alive: bool) -> dict[str, Any] | None:
    if leader is None:
        return None
    fields = leader.model_dump(mode="json", include={"host", "pid", "started", "epoch"})
    return {**fields, "alive": alive}
