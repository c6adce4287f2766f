"""Durable state without ZooKeeper: `MemoryNodes`, and `MemoryProgress` of one topology.

It keeps the same nodes with the same JSON as ZooKeeper, so values that cannot be stored there fail
here as well. It cannot show the faults of a network; the project's own guarantees are tested on
real servers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime, timezone
from threading import Condition
from typing import TypeVar

from pydantic import BaseModel

from txn.errors import (
    FencedError,
    LeaderExistsError,
    NewerFormatError,
    ProgressUnavailableError,
    ProgressUnreadableError,
    TopologyError,
)
from txn.machine.liveness import this_process
from txn.protocol.backend import ProgressBackend, TopologyStatus, check_quarantined
from txn.protocol.encoding import decode, encode
from txn.protocol.records import (
    BatchRecord,
    ColumnsRecord,
    CommittedRecord,
    DropRequests,
    EpochRecord,
    IncarnationRecord,
    LeaderIdentity,
    NoticesRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
    ReplayRequests,
    RowReplayRecord,
)
from txn.protocol.store import ProgressStore, check_topology_name

__all__ = ["MemoryNodes", "MemoryProgress"]

R = TypeVar("R", bound=BaseModel)

_LOOK_SECS = 0.1
_MODELS: dict[str, type[BaseModel]] = {
    "committed": CommittedRecord,
    "batches": BatchRecord,
    "columns": ColumnsRecord,
    "notices": NoticesRecord,
    "program": ProgramRecord,
    "quarantine": QuarantineRecord,
}
"""First part of a node's name -> its record; a rebuild deletes such nodes if unreadable."""


class MemoryNodes(ProgressBackend):
    """The nodes that outlive a leader: a ZooKeeper in a dictionary. Thread-safe.

    Pass the same object to the next `MemoryProgress`, and it goes on where the last one stopped.
    Functions of `txn.operations` take it as their backend.
    """

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        """Path -> JSON, as docs/zookeeper.md describes it."""
        self.epochs: dict[str, EpochRecord] = {}
        """Topology -> its newest epoch."""
        self.leaders: dict[str, MemoryProgress] = {}
        """Topology -> the store that leads it."""
        self.changed = Condition()
        """Held by every reader and writer."""

    def open(self, topology: str) -> MemoryProgress:
        """Return a new store of a topology."""
        return MemoryProgress(topology, self)

    def close(self) -> None:
        """Do nothing: the nodes stay."""

    def topologies(self) -> list[str]:
        """Return the names of the topologies that had a leader, sorted."""
        with self.changed:
            return sorted(self.epochs)

    def is_led(self, topology: str) -> bool:
        """True if a store leads the topology."""
        return topology in self.leaders

    def status(self, topology: str) -> TopologyStatus:
        """Read the whole state of a topology."""
        with self.changed:
            root, epoch = self._existing(topology), self.epochs[topology]
            quarantine = self.read_below(QuarantineRecord, f"{root}/quarantine")
            replays = self.read(ReplayRequests, f"{root}/quarantine") or ReplayRequests()
            drops = self.read(DropRequests, f"{root}/drops") or DropRequests()
            notices = self.read(NoticesRecord, f"{root}/notices")
            return TopologyStatus(
                topology,
                self.open(topology).peek(),
                epoch.epoch,
                leader=epoch.leader if self.is_led(topology) else None,
                last_leader=epoch.leader,
                quarantine=tuple(quarantine.values()),
                replays_requested=frozenset(replays.replay) & set(quarantine),
                incarnation=self.read(IncarnationRecord, f"{root}/incarnation"),
                notices=notices if notices and notices.epoch >= epoch.epoch else None,
                drops_requested=frozenset(drops.drop) & set(quarantine),
            )

    def request_replays(self, topology: str, txids: Collection[int] | None) -> list[int]:
        """Request the replay of quarantined txids, as `txn quarantine replay` does."""
        with self.changed:
            chosen, path = self._chosen(topology, txids), f"{self._existing(topology)}/quarantine"
            former = self.read(ReplayRequests, path) or ReplayRequests()
            requests = ReplayRequests(replay=sorted({*former.replay, *chosen}))
            self.write(path, requests, "request")
            return chosen

    def request_drops(self, topology: str, txids: Collection[int] | None) -> list[int]:
        """Give quarantined txids up for good, as `txn quarantine drop` does."""
        with self.changed:
            chosen, path = self._chosen(topology, txids), f"{self._existing(topology)}/drops"
            former = self.read(DropRequests, path) or DropRequests()
            self.write(path, DropRequests(drop=sorted({*former.drop, *chosen})), "request")
            return chosen

    def row_replays(self, topology: str) -> dict[str, tuple[RowReplayRecord, ...]]:
        """Read the replays of rows so far: stream -> replays by number."""
        with self.changed:
            parent = f"{self._existing(topology)}/row_replays"
            streams = {path.split("/")[0] for path in self.names_below(parent)}
            return {
                stream: tuple(self.read_below(RowReplayRecord, f"{parent}/{stream}").values())
                for stream in sorted(streams)
            }

    def begin_row_replay(self, topology: str, record: RowReplayRecord) -> RowReplayRecord:
        """Store a replay of rows, unless its number is taken; return the replay of that number."""
        with self.changed:
            path = f"{self._existing(topology)}/row_replays/{record.stream}/{record.number}"
            self.data.setdefault(path, encode(record, "replay of rows"))
            return decode(RowReplayRecord, self.data[path], path)

    def settle_row_replay(self, topology: str, record: RowReplayRecord) -> None:
        """Store that the file of a replay exists."""
        with self.changed:
            path = f"{self._existing(topology)}/row_replays/{record.stream}/{record.number}"
            self.write(path, record.model_copy(update={"placed": True}), "replay of rows")

    def write(self, path: str, record: BaseModel, what: str) -> None:
        """Store a record; raises as `encode`."""
        self.data[path] = encode(record, what)

    def read(self, model: type[R], path: str) -> R | None:
        """Return the record at a path, or None; raises as `decode`."""
        data = self.data.get(path)
        return None if data is None else decode(model, data, path)

    def read_below(self, model: type[R], parent: str) -> dict[int, R]:
        """Return the records of a node's children, which are named by numbers, ascending."""
        numbers = sorted(int(name) for name in self.names_below(parent))
        paths = {number: f"{parent}/{number}" for number in numbers}
        return {number: decode(model, self.data[path], path) for number, path in paths.items()}

    def names_below(self, parent: str) -> Iterator[str]:
        """Yield the paths of all nodes below a node, relative to it."""
        return (p.removeprefix(f"{parent}/") for p in [*self.data] if p.startswith(f"{parent}/"))

    def _existing(self, topology: str) -> str:
        if topology not in self.epochs:
            listed = ", ".join(self.topologies()) or "no topology at all"
            raise TopologyError(
                f"These MemoryNodes know no topology '{topology}', but {listed}. Run it first.",
                number="TXN-607",
            )
        return f"/txn/{topology}"

    def _chosen(self, topology: str, txids: Collection[int] | None) -> list[int]:
        names = self.names_below(f"{self._existing(topology)}/quarantine")
        quarantined = sorted(int(name) for name in names)
        chosen = quarantined if txids is None else sorted(set(txids))
        check_quarantined(topology, chosen, quarantined)
        return chosen


class MemoryProgress(ProgressStore):
    """One topology's durable state in memory. Each method does what its contract says.

    Args:
        nodes: the nodes of earlier leaders; None: no leader came before.

    Raises:
        TopologyError: the name cannot be a node's name.
    """

    def __init__(self, topology: str, nodes: MemoryNodes | None = None) -> None:
        self.nodes = nodes if nodes is not None else MemoryNodes()
        self.on_lost: Callable[[], None] | None = None
        """Called by `lose_session`."""
        self._topology = check_topology_name(topology)
        self._root = f"/txn/{topology}"
        self._epoch: int | None = None
        self._closed = False

    # --- leadership --------------------------------------------------------------------------

    def lead(
        self,
        *,
        wait: bool = False,
        on_waiting: Callable[[LeaderIdentity | None], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        at_least: int = 1,
        program: str = "",
    ) -> int:
        """Take the leadership and the next epoch, or `at_least` if that is larger."""
        with self.nodes.changed:
            newest = self._newest_epoch
            if self._is_taken and not wait:
                raise LeaderExistsError(
                    f"Topology '{self._topology}' is led by another MemoryProgress in epoch "
                    f"{newest.epoch}. Close that one first."
                )
            if self._is_taken and on_waiting is not None:
                on_waiting(newest.leader)
            while self._is_taken and not stopped():
                self.nodes.changed.wait(_LOOK_SECS)
            if self._closed or self._is_taken:
                raise ProgressUnavailableError(f"Topology '{self._topology}' was closed.")
            self._epoch = max(self._newest_epoch.epoch + 1, at_least)
            identity = LeaderIdentity(
                **this_process(),
                started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                epoch=self._epoch,
                token="memory",  # noqa: S106 - no secret
            )
            self.nodes.epochs[self._topology] = EpochRecord(epoch=self._epoch, leader=identity)
            self.nodes.leaders[self._topology] = self
            return self._epoch

    @property
    def _newest_epoch(self) -> EpochRecord:
        return self.nodes.epochs.get(self._topology, EpochRecord(epoch=0))

    @property
    def _is_taken(self) -> bool:
        return not self._closed and self.nodes.leaders.get(self._topology, self) is not self

    @property
    def epoch(self) -> int:
        """The epoch that `lead` returned."""
        if self._epoch is None:
            raise RuntimeError("lead() comes first: without an epoch nothing is read or written")
        return self._epoch

    @property
    def leading(self) -> bool:
        """True if the session is healthy."""
        return self.nodes.leaders.get(self._topology) is self

    def assert_leading(self, seconds: float | None = None) -> None:
        """Return if this object's epoch still holds; renew a lost session."""
        with self.nodes.changed:
            newest = self._newest_epoch.epoch
            if self.epoch != newest:
                raise FencedError(
                    f"Topology '{self._topology}' is led in epoch {newest}; this leader "
                    f"has epoch {self.epoch} and must write nothing more."
                )
            self.nodes.leaders[self._topology] = self

    def lose_session(self) -> None:
        """End the session, as after a long pause: the next leader need not wait."""
        self._leave()
        if self.on_lost is not None:
            self.on_lost()

    def close(self) -> None:
        """Give up leadership. Idempotent."""
        with self.nodes.changed:
            self._closed = True
            self._leave()
            self.nodes.changed.notify_all()

    def _leave(self) -> None:
        with self.nodes.changed:
            if self.leading:
                del self.nodes.leaders[self._topology]
                self.nodes.changed.notify_all()

    # --- reading -----------------------------------------------------------------------------

    def peek(self) -> Progress:
        """Read the durable state without leading."""
        with self.nodes.changed:
            batches = self.nodes.read_below(BatchRecord, f"{self._root}/batches")
            streams = sorted(self.nodes.names_below(f"{self._root}/columns"))
            columns = [self._read(ColumnsRecord, f"columns/{stream}") for stream in streams]
            aside = self.quarantined()
            return Progress(
                committed=self._read(CommittedRecord, "committed") or CommittedRecord(),
                batches=tuple(batches.values()),
                columns={record.stream: record.columns for record in columns if record},
                quarantined_streams=frozenset().union(
                    *(record.streams for record in aside.values())
                ),
                quarantined=frozenset(aside),
                program=self._read(ProgramRecord, "program"),
            )

    def load(self) -> Progress:
        """Return everything that is durable."""
        with self.nodes.changed:
            self.assert_leading()
            return self.peek()

    def incarnation(self) -> IncarnationRecord:
        """Return the incarnation of the topology; the first leader creates it."""
        with self.nodes.changed:
            self.assert_leading()
            record = self._read(IncarnationRecord, "incarnation")
            return record or self._begin_incarnation(())

    def quarantined(self) -> dict[int, QuarantineRecord]:
        """Return the quarantined txids, ascending."""
        with self.nodes.changed:
            return self.nodes.read_below(QuarantineRecord, f"{self._root}/quarantine")

    def requested_replay(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """Return the oldest quarantined txid that a user wants replayed, except `replaying`."""
        with self.nodes.changed:
            requests = self._read(ReplayRequests, "quarantine") or ReplayRequests()
            return self._oldest(requests.replay, replaying)

    def requested_drop(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """Return the oldest quarantined txid that a user has dropped, except `replaying`."""
        with self.nodes.changed:
            requests = self._read(DropRequests, "drops") or DropRequests()
            return self._oldest(requests.drop, replaying)

    def _oldest(
        self, requested: Iterable[int], replaying: Collection[int]
    ) -> QuarantineRecord | None:
        quarantined = self.quarantined()
        due = sorted(set(quarantined) & set(requested) - set(replaying))
        return quarantined[due[0]] if due else None

    def refuse_replay(self, txid: int, why: str) -> None:
        """Withdraw the request to replay a quarantined txid; write the reason into its record."""
        with self.nodes.changed:
            self.assert_leading()
            record = self.quarantined()[txid].refused(why)
            self._write(f"quarantine/{txid}", record, f"quarantine of txid {txid}")
            former = self._read(ReplayRequests, "quarantine") or ReplayRequests()
            left = ReplayRequests(replay=[other for other in former.replay if other != txid])
            self._write("quarantine", left, "request")

    # --- writing -----------------------------------------------------------------------------

    def persist_start(self, record: BatchRecord) -> None:
        """Store the START of an attempt; ValueError also if it leaves a gap."""
        with self.nodes.changed:
            progress = self._may_write(record.epoch)
            newest = progress.committed.txid + len(progress.batches)
            if not progress.committed.txid < record.txid <= newest + 1:
                raise ValueError(f"START of txid {record.txid} after {newest} leaves a gap")
            self._write(f"batches/{record.txid}", record, f"START of txid {record.txid}")

    def drop_open(self) -> None:
        """Delete every START that is not committed."""
        with self.nodes.changed:
            for batch in self._may_write(self.epoch).batches:
                self._delete(f"batches/{batch.txid}")

    def persist_committed(
        self,
        record: CommittedRecord,
        quarantine: QuarantineRecord | None = None,
        replay_of: int | None = None,
    ) -> None:
        """Move `committed` to a txid and delete the batches up to it."""
        with self.nodes.changed:
            self._may_write(record.epoch)
            if quarantine is not None:
                txid = quarantine.txid
                self._write(f"quarantine/{txid}", quarantine, f"quarantine of txid {txid}")
            if replay_of is not None:
                self._delete(f"quarantine/{replay_of}")
            self._write("committed", record, f"COMMITTED {record.txid}")
            for txid in self.nodes.read_below(BatchRecord, f"{self._root}/batches"):
                if txid <= record.txid:
                    self._delete(f"batches/{txid}")

    def persist_columns(self, record: ColumnsRecord) -> None:
        """Store the columns of a stream."""
        with self.nodes.changed:
            self.assert_leading()
            self._write(f"columns/{record.stream}", record, f"columns of stream '{record.stream}'")

    def persist_program(self, record: ProgramRecord) -> None:
        """Store what the run computes."""
        with self.nodes.changed:
            self.assert_leading()
            self._write("program", record, "program")

    def persist_notices(self, record: NoticesRecord) -> None:
        """Store the spouts' notices."""
        with self.nodes.changed:
            self._may_write(record.epoch)
            self._write("notices", record, "notices")

    def rebuild(
        self,
        record: CommittedRecord,
        *,
        at_least: int,
        takes_over: Iterable[int] = (),
        forget: bool = False,
    ) -> int:
        """Lead, and replace `committed` and all batches by `record`."""
        with self.nodes.changed:
            try:
                present = self._read(IncarnationRecord, "incarnation")
            except NewerFormatError:
                raise
            except ProgressUnreadableError:
                present = None  # it is replaced
            removed = [name for name in self._names() if forget or self._is_replaced(name)]
            epoch = self.lead(at_least=at_least)
            for name in removed:
                self._delete(name)
            replaced = [present.id, *present.takes_over] if present else []
            self._begin_incarnation([*takes_over, *replaced])
            self._write("committed", record.model_copy(update={"epoch": epoch}), "COMMITTED record")
            return epoch

    def _is_replaced(self, name: str) -> bool:
        """True if a rebuild deletes a node even without `forget`."""
        kind = name.split("/", maxsplit=1)[0]
        try:
            if name == "quarantine":
                self._read(ReplayRequests, name)
            elif kind in _MODELS:
                self._read(_MODELS[kind], name)
        except NewerFormatError:
            raise
        except ProgressUnreadableError:
            return True
        return kind in ("batches", "drops")

    def _begin_incarnation(self, takes_over: Iterable[int]) -> IncarnationRecord:
        replaced = sorted(set(takes_over) - {0})
        record = IncarnationRecord(id=secrets.randbits(63) or 1, takes_over=replaced)
        self._write("incarnation", record, "incarnation")
        return record

    def _may_write(self, epoch: int) -> Progress:
        if epoch != self.epoch:
            raise ValueError(f"the record has epoch {epoch}, and this leader has {self.epoch}")
        return self.load()

    def _names(self) -> Iterator[str]:
        return self.nodes.names_below(self._root)

    def _read(self, model: type[R], name: str) -> R | None:
        return self.nodes.read(model, f"{self._root}/{name}")

    def _write(self, name: str, record: BaseModel, what: str) -> None:
        self.nodes.write(f"{self._root}/{name}", record, what)

    def _delete(self, name: str) -> None:
        self.nodes.data.pop(f"{self._root}/{name}", None)
