"""The coordinator's durable state, as its leader reads and writes it: `ZooKeeperProgress`.

Every write goes through `txn.zookeeper.writing`, which explains why it happens exactly once. START
also checks the version of `committed`, so a START that the network delays past its own COMMITTED
cannot bring the batch back. Every wait ends: `zookeeper_deadline_secs` per call.

Threads: any thread may call any method; one call runs at a time. kazoo's own thread never gets
here: its state changes go to `txn.zookeeper.client.session_watch`, which calls `on_lost` and claims
the `leader` node again, so an idle leader keeps it too.

Source: Trident's `TransactionalState` stores the same facts, with 4 + 2 x partitions unversioned
writes per batch. docs/zookeeper.md describes every node.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from txn.config import TopologyConfig
from txn.errors import (
    ProgressUnavailableError,
    ProgressUnreadableError,
    TopologyError,
    TxnError,
)
from txn.protocol.encoding import encode
from txn.protocol.records import (
    BatchRecord,
    ColumnsRecord,
    CommittedRecord,
    IncarnationRecord,
    LeaderIdentity,
    NoticesRecord,
    ProgramRecord,
    Progress,
    QuarantineRecord,
    ReplayRequests,
)
from txn.protocol.store import ProgressStore, check_topology_name
from txn.zookeeper.client.connection import (
    Check,
    Connection,
    Create,
    Delete,
    Operation,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.client.session_watch import SessionWatch
from txn.zookeeper.foundation import repair_topology
from txn.zookeeper.image import (
    Image,
    Stored,
    clearing_operations,
    read_drops,
    read_in_one_session,
    read_record,
    read_requests,
)
from txn.zookeeper.incarnation import first_life, next_life
from txn.zookeeper.leadership import Leadership
from txn.zookeeper.status import BASE, read_status
from txn.zookeeper.writing import NodeWrite, RecordWriter, Revision, part_deletes
from txn.zookeeper.znodes import Paths, require

__all__ = ["ZooKeeperProgress"]

_ORPHANS_PER_MULTI = 100
_RELEASE_SECS = 2.0


class ZooKeeperProgress(ProgressStore):
    """One topology's durable state in ZooKeeper.

    Each method does what its contract says (`ProgressStore`); here stands what it costs, and how.

    Args:
        hosts: connect string, "host:2181,host2:2181/chroot".
        topology: the topology's name; becomes the node `/txn/<topology>`.
        config: timeouts, credentials, ACL and TLS.
        sleep: called between polls of the connection.
        clock: seconds, monotonic; measures deadlines.
        new_id: a fresh unique string at each call.

    Raises:
        TopologyError: the name cannot be a node's name.
        UserError: settings that contradict each other.
    """

    def __init__(
        self,
        hosts: str,
        topology: str,
        config: TopologyConfig,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self.on_lost: Callable[[], None] | None = None
        """Called while leading, once per session that is lost or got no answer for its timeout, and
        if ZooKeeper returns after the deadline. In our own thread, not kazoo's. Commits must stop
        until `assert_leading` returns; if it raises FencedError, for good."""
        self._hosts = hosts
        self._topology = check_topology_name(topology)
        self._config = config
        self._timeout_secs = config.zookeeper_deadline_secs
        self._sleep = sleep
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._watch = SessionWatch(
            self._topology, self._session_lost, self._session_secs, self._stopped
        )
        self._image: Image | None = None
        """The durable state as read and written here; None: unknown."""
        self._connection = Connection(
            hosts, config, on_state=self._watch.report, sleep=sleep, clock=clock
        )
        self._paths = Paths(self._connection.chroot + BASE, topology)
        self._leadership = Leadership(
            self._connection,
            self._paths,
            token=new_id(),
            timeout_secs=self._timeout_secs,
            sleep=sleep,
            clock=clock,
        )
        self._writer = RecordWriter(self._connection, self._paths, self._leadership, sleep)

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
        """Take the leadership and the next epoch; creates the topology's nodes the first time.

        Args:
            wait: as the contract says.
            on_waiting: called for every new leader, too; with None while ZooKeeper is silent.
            stopped: polled once a second.
            at_least: the smallest epoch to take (the tables may hold later ones).
            program: as the contract says.
        """
        with self._exclusive():
            epoch = self._leadership.claim(
                wait=wait,
                on_waiting=on_waiting,
                stopped=lambda: self._stopped.is_set() or stopped(),
                at_least=at_least,
                program=program,
            )
            self._watch.start()
            return epoch

    @property
    def epoch(self) -> int:
        """The epoch that `lead` returned."""
        if self._leadership.epoch is None:
            raise RuntimeError("lead() comes first: without an epoch nothing is read or written")
        return self._leadership.epoch

    @property
    def leading(self) -> bool:
        """True if the leader's session is healthy, as far as known without a request."""
        return self._leadership.held and not self._stopped.is_set()

    def assert_leading(self, seconds: float | None = None) -> None:
        """Return once the session is healthy and the server confirms our epoch.

        After a lost session it waits for a new one and claims the leadership again, under the same
        epoch if no other leader took one meanwhile.

        Args:
            seconds: the longest time to try; None: `zookeeper_deadline_secs`.
        """
        _ = self.epoch
        seconds = self._timeout_secs if seconds is None else seconds
        end = self._clock() + seconds
        # Outside the lock: other calls wait for ZooKeeper as well, with their own deadlines.
        self._connection.wait(end)
        with self._exclusive(end - self._clock()) as end:
            self._leadership.verify(end)

    def close(self) -> None:
        """Give up leadership and session; takes two seconds without ZooKeeper. Idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._watch.stop()
        # The end of the session alone is not enough: kazoo cannot report it to the server while the
        # connection is broken.
        if self._lock.acquire(timeout=_RELEASE_SECS if self._leadership.epoch else 0):
            try:
                with contextlib.suppress(TxnError, RefusedError):
                    self._leadership.release(self._clock() + _RELEASE_SECS)
            finally:
                self._lock.release()
        self._connection.close()
        self._watch.join()

    def _session_secs(self) -> float:
        return self._connection.session_timeout_secs or self._config.zookeeper_timeout_secs

    def _session_lost(self) -> None:
        if self.on_lost is not None:
            self.on_lost()
        self.assert_leading()

    # --- reading -----------------------------------------------------------------------------

    def peek(self) -> Progress:
        """Read without leading, over a session of its own, for at most `zookeeper_connect_secs`."""
        try:
            status = read_status(
                self._hosts, self._topology, self._config, sleep=self._sleep, clock=self._clock
            )
        except TopologyError:
            return Progress()  # it has had no leader yet
        return status.progress

    def load(self) -> Progress:
        """Return the whole durable state. Removes leftovers of interrupted writes.

        Raises:
            ProgressUnreadableError: a node is missing, unreadable, of an unknown version, or does
                not fit the others; names it. Never read as "no state".
        """
        _ = self.epoch
        with self._exclusive() as deadline:
            image = None
            while image is None:
                self._leadership.verify(deadline)
                image = read_in_one_session(self._connection, self._paths, deadline)
            self._check_epoch(image)
            self._image = image
            self._remove_orphans(image.orphans, deadline)
            return image.progress

    def _check_epoch(self, image: Image) -> None:
        newest = max(
            [image.committed.record.epoch, *(b.record.epoch for b in image.batches.values())]
        )
        if newest > self.epoch:
            raise ProgressUnreadableError(
                f"The nodes under '{self._paths.root}' were written in epoch {newest}, but "
                f"'{self._paths.epoch}' is only at {self.epoch}: it was reset. Nothing is "
                "guessed: run `txn recover`, which takes a higher epoch.",
                number="TXN-803",
            )

    def _remove_orphans(self, names: tuple[str, ...], deadline: float) -> None:
        for i in range(0, len(names), _ORPHANS_PER_MULTI):
            deletes = [Delete(self._paths.part(n), 0) for n in names[i : i + _ORPHANS_PER_MULTI]]
            # Harmless if it fails or happens twice: no record names these parts.
            with contextlib.suppress(OutcomeUnknownError, RefusedError):
                self._leadership.write(deletes, deadline)

    def incarnation(self) -> IncarnationRecord:
        """Return the incarnation of the topology; its first leader creates it."""
        _ = self.epoch
        with self._writing() as deadline:
            path = self._paths.incarnation
            present = read_record(self._connection, IncarnationRecord, path, deadline)
            if present is not None:
                return present.record
            record, node = first_life(self._paths, self._new_id())
            self._writer.write(node, [node.operation], deadline)
            return record

    def requested_replay(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """Return the oldest quarantined txid that a user wants replayed, except `replaying`.

        No request while nothing is quarantined, otherwise one read: only this leader adds and
        removes quarantined txids, so only the requests must be read.
        """
        return self._requested(
            lambda deadline: read_requests(self._connection, self._paths, deadline)[0].replay,
            replaying,
        )

    def requested_drop(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """Return the oldest quarantined txid that a user has dropped; as `requested_replay`."""
        return self._requested(
            lambda deadline: read_drops(self._connection, self._paths, deadline)[0].drop, replaying
        )

    def _requested(
        self, read: Callable[[float], Sequence[int]], replaying: Collection[int]
    ) -> QuarantineRecord | None:
        with self._exclusive() as deadline:
            quarantine = self._loaded.quarantine
            candidates = sorted(set(quarantine) - set(replaying))
            requested = read(deadline) if candidates else ()
            oldest = next((txid for txid in candidates if txid in requested), None)
            return None if oldest is None else quarantine[oldest].record

    # --- writing -----------------------------------------------------------------------------

    def persist_start(self, record: BatchRecord) -> None:
        """Make the START of an attempt durable: one multi, after one per part of a large record."""
        self._check_record(record.epoch)
        with self._writing() as deadline:
            image = self._loaded
            new = self._writer.revise(
                self._paths.batch(record.txid),
                record,
                image.batches.get(record.txid),
                f"batch-{record.txid}-{record.attempt}-e{record.epoch}",
                f"START of txid {record.txid}",
                deadline,
            )
            checked = Check(self._paths.committed, image.committed.version)
            self._writer.write(new.node, [checked, *new.operations], deadline)
            image.batches[record.txid] = new.stored

    def drop_open(self) -> None:
        """Drop the open batches: one multi, which writes `committed` unchanged."""
        with self._writing() as deadline:
            image = self._loaded
            record = image.committed.record
            new = self._revise_committed(record, image.committed, deadline)
            operations = [*new.operations, *self._dropped(image.batches.values())]
            self._writer.write(new.node, operations, deadline)
            self._image = replace(image, committed=new.stored, batches={})

    def persist_committed(
        self,
        record: CommittedRecord,
        quarantine: QuarantineRecord | None = None,
        replay_of: int | None = None,
    ) -> None:
        """Move `committed` to a txid and drop the batches up to it: one multi.

        It also stores `quarantine` and deletes the record of `replay_of`, if there is one.
        """
        self._check_record(record.epoch)
        with self._writing() as deadline:
            image = self._loaded
            new = self._revise_committed(record, image.committed, deadline)
            operations = [*new.operations]
            done = {t: b for t, b in image.batches.items() if t <= record.txid}
            operations.extend(self._dropped(done.values()))
            remaining = dict(image.quarantine)
            replayed = None if replay_of is None else remaining.pop(replay_of, None)
            if replayed is not None:
                path = self._paths.quarantined(replayed.record.txid)
                operations.append(Delete(path, replayed.version))
                operations.extend(part_deletes(self._paths, replayed))
            if quarantine is not None:
                txid = quarantine.txid
                aside = self._writer.revise(
                    self._paths.quarantined(txid),
                    quarantine,
                    None,
                    f"quarantine-{txid}-{quarantine.attempt}-e{self.epoch}",
                    f"quarantine of txid {txid}",
                    deadline,
                )
                remaining[txid] = aside.stored
                operations.extend(aside.operations)
            self._writer.write(new.node, operations, deadline)
            left = {t: b for t, b in image.batches.items() if t not in done}
            self._image = replace(image, committed=new.stored, batches=left, quarantine=remaining)

    def refuse_replay(self, txid: int, why: str) -> None:
        """Write into its record why a txid is not replayed, then withdraw the request: two multis.

        A crash between them leaves the request, which the next leader handles again.
        """
        with self._writing() as deadline:
            image, paths = self._loaded, self._paths
            stored = image.quarantine[txid]
            stem, what = f"refused-{txid}-e{self.epoch}", f"quarantine of txid {txid}"
            new = self._writer.revise(
                paths.quarantined(txid), stored.record.refused(why), stored, stem, what, deadline
            )
            self._writer.write(new.node, new.operations, deadline)
            self._image = replace(image, quarantine={**image.quarantine, txid: new.stored})
            while True:
                requests, version = read_requests(self._connection, paths, deadline)
                if txid not in requests.replay:
                    return
                left = ReplayRequests(replay=[other for other in requests.replay if other != txid])
                with contextlib.suppress(OutcomeUnknownError, RefusedError):  # read again
                    put = Put(paths.quarantine, encode(left, "request"), version)
                    self._leadership.write([put], deadline)

    def _revise_committed(
        self, record: CommittedRecord, old: Stored[CommittedRecord] | None, deadline: float
    ) -> Revision[CommittedRecord]:
        # Our epoch is in the parts' names: an older leader may have written parts of the same txid.
        stem = f"committed-{record.txid}-e{self.epoch}"
        what = f"COMMITTED {record.txid}"
        return self._writer.revise(self._paths.committed, record, old, stem, what, deadline)

    def _dropped(self, batches: Iterable[Stored[BatchRecord]]) -> Iterator[Operation]:
        for batch in batches:
            yield Delete(self._paths.batch(batch.record.txid), batch.version)
            yield from part_deletes(self._paths, batch)

    def persist_columns(self, record: ColumnsRecord) -> None:
        """Make the columns of a stream durable: one multi, when they are first known or change."""
        with self._writing() as deadline:
            image = self._loaded
            old = image.columns.get(record.stream)
            new = self._writer.revise(
                self._paths.columns_of(record.stream),
                record,
                old,
                f"columns-{0 if old is None else old.version + 1}-e{self.epoch}",
                f"columns of stream '{record.stream}'",
                deadline,
            )
            operations = [*new.operations]
            if not image.columns and self._connection.get(self._paths.columns, deadline) is None:
                operations.insert(0, Create(self._paths.columns))
            self._writer.write(new.node, operations, deadline)
            image.columns[record.stream] = new.stored

    def persist_program(self, record: ProgramRecord) -> None:
        """Make the program's record durable: one multi, at the start of a changed program."""
        with self._writing() as deadline:
            image = self._loaded
            # Never in parts: `load` would remove them.
            before = None if image.program is None else image.program.version
            node = NodeWrite(self._paths.program, encode(record, "program"), before)
            self._writer.write(node, [node.operation], deadline)
            self._image = replace(image, program=Stored(record, node.after))

    def persist_notices(self, record: NoticesRecord) -> None:
        """Make the spouts' notices durable: one read and one multi, when they change."""
        self._check_record(record.epoch)
        with self._writing() as deadline:
            path = self._paths.notices
            before = read_record(self._connection, NoticesRecord, path, deadline)
            # Never in parts: `load` would remove them.
            node = NodeWrite(path, encode(record, "notices"), before.version if before else None)
            self._writer.write(node, [node.operation], deadline)

    def rebuild(
        self,
        record: CommittedRecord,
        *,
        at_least: int,
        takes_over: Iterable[int] = (),
        forget: bool = False,
    ) -> int:
        """Lead, and replace `committed` and all batches: one multi after the claim.

        Former leaders of the topology's tables must not lead them again: a new incarnation begins.
        """
        with self._writing() as deadline:
            repair_topology(self._connection, self._paths, deadline)
            gone = clearing_operations(self._connection, self._paths, deadline, forget=forget)
            epoch = self.lead(at_least=at_least)
            record = record.model_copy(update={"epoch": epoch})
            node = self._connection.get(self._paths.committed, deadline)
            # `load` removes the parts of the present record.
            old = None if node is None else Stored(record, node.version)
            new = self._revise_committed(record, old, deadline)
            life = next_life(self._connection, self._paths, takes_over, self._new_id(), deadline)
            operations = [*new.operations, *gone, life.operation]
            for name in require(
                self._connection.children(self._paths.batches, deadline), self._paths.batches
            ):
                path = f"{self._paths.batches}/{name}"
                batch = require(self._connection.get(path, deadline), path)
                operations.append(Delete(path, batch.version))
            self._writer.write(new.node, operations, deadline)
            return epoch

    @property
    def _loaded(self) -> Image:
        if self._image is None:
            raise RuntimeError("load() comes first: a write carries the versions that it read")
        return self._image

    def _check_record(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise ValueError(f"the record has epoch {epoch}, and this leader has {self.epoch}")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[float]:
        """As `_exclusive`, for a call that writes: drops the image if ZooKeeper does not answer."""
        with self._exclusive() as deadline:
            try:
                yield deadline
            except ProgressUnavailableError:
                # The durable state is unknown: compute nothing more from the image.
                self._image = None
                raise

    @contextlib.contextmanager
    def _exclusive(self, seconds: float | None = None) -> Iterator[float]:
        """Run one call at a time. Yields the deadline, which includes the wait for the lock."""
        seconds = self._timeout_secs if seconds is None else seconds
        deadline = self._clock() + seconds
        if not self._lock.acquire(timeout=max(0.0, seconds)):
            raise ProgressUnavailableError(
                f"ZooKeeper has kept another call of topology '{self._topology}' waiting for "
                f"{seconds:g} s. Check that ZooKeeper runs, then run the topology again."
            )
        try:
            yield deadline
        finally:
            self._lock.release()
