"""The coordinator's durable state without ZooKeeper: `MemoryProgress`, and a run over it.

It keeps the same nodes with the same JSON as `txn.zookeeper.progress.ZooKeeperProgress`, so values
that cannot be stored there fail here as well. It cannot show the faults of a network; the project's
own guarantees are tested on real servers.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Condition
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from txn.errors import FencedError, LeaderExistsError, ProgressUnavailableError
from txn.protocol.records import (
    BatchRecord,
    ColumnsRecord,
    CommittedRecord,
    DropRequests,
    IncarnationRecord,
    LeaderIdentity,
    NoticesRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
    ReplayRequests,
)
from txn.protocol.store import ProgressStore
from txn.zookeeper.znodes import Paths, check_topology_name, decode, encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.engine.reporting.report import RunReport
    from txn.observers import Observer
    from txn.topology import Topology, Until

__all__ = ["MemoryNodes", "MemoryProgress", "run_in_memory"]

R = TypeVar("R", bound=BaseModel)

_LOOK_SECS = 0.1


class MemoryNodes:
    """The nodes that outlive a leader: a ZooKeeper in a dictionary. Thread-safe.

    Pass the same object to the next `MemoryProgress`, and it goes on where the last one stopped.
    """

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        """Path -> JSON, as docs/zookeeper.md describes it."""
        self.epoch = 0
        self.leader: MemoryProgress | None = None
        self.changed = Condition()
        """Held by every reader and writer."""


class MemoryProgress(ProgressStore):
    """One topology's durable state in memory.

    Args:
        topology: the topology's name.
        nodes: the nodes of earlier leaders; None: no leader came before.

    Raises:
        TopologyError: the name cannot be a node's name.
    """

    def __init__(self, topology: str, nodes: MemoryNodes | None = None) -> None:
        self.nodes = nodes if nodes is not None else MemoryNodes()
        self.on_lost: Callable[[], None] | None = None
        """Called by `lose_session`."""
        self._topology = check_topology_name(topology)
        self._paths = Paths("/txn", topology)
        self._epoch: int | None = None
        self._closed = False

    # --- leadership --------------------------------------------------------------------------

    def lead(
        self,
        *,
        wait: bool = False,
        on_waiting: Callable[[LeaderIdentity | None], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Take the leadership and the next epoch.

        Raises:
            LeaderExistsError: another process leads, and `wait` is False.
            ProgressUnavailableError: `close` was called meanwhile.
        """
        with self.nodes.changed:
            if self._is_taken and not wait:
                raise LeaderExistsError(
                    f"Topology '{self._topology}' is led by another MemoryProgress in epoch "
                    f"{self.nodes.epoch}. Close that one first."
                )
            if self._is_taken and on_waiting is not None:
                on_waiting(
                    LeaderIdentity(
                        host=socket.gethostname(),
                        pid=os.getpid(),
                        started="before",
                        epoch=self.nodes.epoch,
                        token="memory",  # noqa: S106 - no secret
                    )
                )
            while self._is_taken and not stopped():
                self.nodes.changed.wait(_LOOK_SECS)
            if self._closed or self._is_taken:
                raise ProgressUnavailableError(f"Topology '{self._topology}' was closed.")
            self.nodes.leader = self
            self.nodes.epoch = self._epoch = self.nodes.epoch + 1
            return self._epoch

    @property
    def _is_taken(self) -> bool:
        return not self._closed and self.nodes.leader not in (None, self)

    @property
    def epoch(self) -> int:
        """The epoch that `lead` returned.

        Raises:
            RuntimeError: `lead` was not called.
        """
        if self._epoch is None:
            raise RuntimeError("lead() comes first: without an epoch nothing is read or written")
        return self._epoch

    @property
    def leading(self) -> bool:
        """True if the session is healthy."""
        return self.nodes.leader is self

    def assert_leading(self, seconds: float | None = None) -> None:
        """Return if this object's epoch still holds; renew a lost session.

        Raises:
            FencedError: a newer leader exists.
        """
        with self.nodes.changed:
            if self.epoch != self.nodes.epoch:
                raise FencedError(
                    f"Topology '{self._topology}' is led in epoch {self.nodes.epoch}; this leader "
                    f"has epoch {self.epoch} and must write nothing more."
                )
            self.nodes.leader = self

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
            if self.nodes.leader is self:
                self.nodes.leader = None
                self.nodes.changed.notify_all()

    # --- reading -----------------------------------------------------------------------------

    def peek(self) -> Progress:
        """Read the durable state without leading.

        Raises:
            ProgressUnreadableError: a node was tampered with.
        """
        with self.nodes.changed:
            committed = self._read(CommittedRecord, self._paths.committed) or CommittedRecord()
            batches = self._read_below(BatchRecord, self._paths.batches)
            records = [
                decode(ColumnsRecord, data, path)
                for path, data in self.nodes.data.items()
                if path.startswith(f"{self._paths.columns}/")
            ]
            aside = self.quarantined()
            return Progress(
                committed=committed,
                batches=tuple(batches[txid] for txid in sorted(batches)),
                columns={record.stream: record.columns for record in records},
                quarantined_streams=frozenset().union(
                    *(record.streams for record in aside.values())
                ),
                quarantined=frozenset(aside),
                program=self._read(ProgramRecord, self._paths.program),
            )

    def load(self) -> Progress:
        """Everything that is durable.

        Raises:
            FencedError: a newer leader exists.
            ProgressUnreadableError: a node was tampered with.
        """
        with self.nodes.changed:
            self.assert_leading()
            return self.peek()

    def incarnation(self) -> IncarnationRecord:
        """The life of the topology that these nodes are; made now if no leader came before.

        Raises:
            FencedError: a newer leader exists.
        """
        with self.nodes.changed:
            self.assert_leading()
            record = self._read(IncarnationRecord, self._paths.incarnation)
            if record is None:
                record = IncarnationRecord(id=secrets.randbits(63) or 1)
                self._write(self._paths.incarnation, record, "incarnation")
            return record

    def quarantined(self) -> dict[int, QuarantineRecord]:
        """The quarantined txids."""
        with self.nodes.changed:
            return self._read_below(QuarantineRecord, self._paths.quarantine)

    def notices(self) -> NoticesRecord | None:
        """The last notices of the newest run's spouts; None: no notices so far."""
        with self.nodes.changed:
            record = self._read(NoticesRecord, self._paths.notices)
            return record if record and record.epoch >= self.nodes.epoch else None

    def request_replays(self, txids: Iterable[int]) -> None:
        """Ask for the replay of quarantined txids, as `txn quarantine replay` does."""
        with self.nodes.changed:
            former = self._read(ReplayRequests, self._paths.quarantine) or ReplayRequests()
            requests = ReplayRequests(replay=sorted({*former.replay, *txids}))
            self._write(self._paths.quarantine, requests, "request")

    def request_drops(self, txids: Iterable[int]) -> None:
        """Give quarantined txids up for good, as `txn quarantine drop` does."""
        with self.nodes.changed:
            former = self._read(DropRequests, self._paths.drops) or DropRequests()
            requests = DropRequests(drop=sorted({*former.drop, *txids}))
            self._write(self._paths.drops, requests, "request")

    def requested_replay(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """The oldest quarantined txid that a user wants replayed, except those in `replaying`."""
        with self.nodes.changed:
            requests = self._read(ReplayRequests, self._paths.quarantine) or ReplayRequests()
            return self._oldest(requests.replay, replaying)

    def requested_drop(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """The oldest quarantined txid that a user has given up, except those in `replaying`."""
        with self.nodes.changed:
            requests = self._read(DropRequests, self._paths.drops) or DropRequests()
            return self._oldest(requests.drop, replaying)

    def _oldest(self, asked: Iterable[int], replaying: Collection[int]) -> QuarantineRecord | None:
        quarantined = self.quarantined()
        due = sorted(set(quarantined) & set(asked) - set(replaying))
        return quarantined[due[0]] if due else None

    def refuse_replay(self, txid: int, why: str) -> None:
        """Withdraw the request for the replay of a quarantined txid; its record gets the reason.

        Raises:
            FencedError: a newer leader exists.
        """
        with self.nodes.changed:
            self.assert_leading()
            record = self.quarantined()[txid].refused(why)
            self._write(self._paths.quarantined(txid), record, f"quarantine of txid {txid}")
            former = self._read(ReplayRequests, self._paths.quarantine) or ReplayRequests()
            left = ReplayRequests(replay=[other for other in former.replay if other != txid])
            self._write(self._paths.quarantine, left, "request")

    # --- writing -----------------------------------------------------------------------------

    def persist_start(self, record: BatchRecord) -> None:
        """Make START of an attempt durable.

        Raises:
            FencedError: a newer leader exists.
            BatchError: the metadata is not JSON, or too large.
            ValueError: the record has another epoch, or leaves a gap behind the last txid.
        """
        with self.nodes.changed:
            progress = self._may_write(record.epoch)
            newest = progress.committed.txid + len(progress.batches)
            if not progress.committed.txid < record.txid <= newest + 1:
                raise ValueError(f"START of txid {record.txid} after {newest} leaves a gap")
            path = self._paths.batch(record.txid)
            self._write(path, record, f"START of txid {record.txid}")

    def drop_open(self) -> None:
        """Forget every START that is not committed.

        Raises:
            FencedError: a newer leader exists.
        """
        with self.nodes.changed:
            for batch in self._may_write(self.epoch).batches:
                del self.nodes.data[self._paths.batch(batch.txid)]

    def persist_committed(
        self,
        record: CommittedRecord,
        quarantine: QuarantineRecord | None = None,
        replay_of: int | None = None,
    ) -> None:
        """Move `committed` to a txid and drop the batches up to it.

        Args:
            record: everything up to its txid is in every table.
            quarantine: the record to store with it if the txid was committed empty.
            replay_of: the quarantined txid that this one has replayed; its record is deleted.

        Raises:
            FencedError, BatchError, ValueError: as `persist_start`.
        """
        with self.nodes.changed:
            self._may_write(record.epoch)
            if quarantine is not None:
                path = self._paths.quarantined(quarantine.txid)
                self._write(path, quarantine, f"quarantine of txid {quarantine.txid}")
            if replay_of is not None:
                self.nodes.data.pop(self._paths.quarantined(replay_of), None)
            self._write(self._paths.committed, record, f"COMMITTED {record.txid}")
            for txid in self._read_below(BatchRecord, self._paths.batches):
                if txid <= record.txid:
                    del self.nodes.data[self._paths.batch(txid)]

    def persist_columns(self, record: ColumnsRecord) -> None:
        """Make the columns of a stream durable.

        Raises:
            FencedError, BatchError: as `persist_start`.
        """
        with self.nodes.changed:
            self.assert_leading()
            path = self._paths.columns_of(record.stream)
            self._write(path, record, f"columns of stream '{record.stream}'")

    def persist_program(self, record: ProgramRecord) -> None:
        """Make the run's program durable.

        Raises:
            FencedError, BatchError: as `persist_start`.
        """
        with self.nodes.changed:
            self.assert_leading()
            self._write(self._paths.program, record, "program")

    def persist_notices(self, record: NoticesRecord) -> None:
        """Make the spouts' notices durable.

        Raises:
            FencedError, BatchError, ValueError: as `persist_start`.
        """
        with self.nodes.changed:
            self._may_write(record.epoch)
            self._write(self._paths.notices, record, "notices")

    def _may_write(self, epoch: int) -> Progress:
        if epoch != self.epoch:
            raise ValueError(f"the record has epoch {epoch}, and this leader has {self.epoch}")
        return self.load()

    def _write(self, path: str, record: BaseModel, what: str) -> None:
        self.nodes.data[path] = encode(record, what)

    def _read(self, model: type[R], path: str) -> R | None:
        data = self.nodes.data.get(path)
        return None if data is None else decode(model, data, path)

    def _read_below(self, model: type[R], parent: str) -> dict[int, R]:
        paths = {p: p[len(parent) + 1 :] for p in self.nodes.data if p.startswith(f"{parent}/")}
        return {int(t): decode(model, self.nodes.data[p], p) for p, t in paths.items()}


def run_in_memory(
    topology: Topology,
    spark: SparkSession,
    nodes: MemoryNodes | None = None,
    *,
    until: Until = "caught_up",
    observers: Sequence[Observer] = (),
) -> RunReport:
    """Run a topology without ZooKeeper: real Spark, spouts and tables, progress in memory.

    Args:
        nodes: the nodes of an earlier run; the next run with the same object goes on from there.
        until: as for `Topology.run`; so are `observers`.

    Raises:
        TxnError: the error that ended the run.
    """
    store = MemoryProgress(topology.name, nodes)
    running = topology.start(spark, until=until, store=store, observers=observers)
    return running.await_termination()
