"""The coordinator's durable state, as its leader reads and writes it: `ZooKeeperProgress`.

Rules, all of them kept by `_write`:

1. Every write is one multi that begins with `check(epoch, version)`: a process that is no longer
   the leader can write nothing, however late its request arrives.
2. Every other operation in it carries the version it was computed from. START also checks the
   version of `committed`, so that a START that was delayed in the network past its own COMMITTED
   cannot bring the batch back.
3. A multi is never assumed to have failed. When the connection breaks before the answer, the same
   multi is sent again after the reconnect; if the first one was carried out, the versions in the
   second do not hold, and reading the node back tells: it holds exactly what we wanted to write,
   one version on (done), or what was there before (again), or anything else (fenced).
4. No wait without an end: `zookeeper_deadline_secs` per call.

Threads: any thread may call anything; one call is served at a time. kazoo's own thread never gets
here: its state changes go through a queue to the keeper thread, which calls `on_lost` and claims
the `leader` node again, so that also an idle leader keeps it.

Source: Trident's `TransactionalState` keeps the same facts, with 4 + 2 x partitions unversioned
writes per batch. docs/zookeeper.md describes every node.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from kazoo.protocol.states import KazooState
from pydantic import BaseModel

from txn.config import TopologyConfig
from txn.errors import (
    FencedError,
    NewerFormatError,
    ProgressUnavailableError,
    ProgressUnreadableError,
    TopologyError,
    TxnError,
)
from txn.protocol.records import (
    BatchRecord,
    ColumnsRecord,
    CommittedRecord,
    IncarnationRecord,
    LeaderIdentity,
    Progress,
    QuarantineRecord,
)
from txn.protocol.store import ProgressStore
from txn.zookeeper.connection import (
    Check,
    Connection,
    Create,
    Delete,
    Operation,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.foundation import repair_topology
from txn.zookeeper.image import Image, Stored, read_at_once, read_requests, removals
from txn.zookeeper.leadership import Leadership, read_incarnation
from txn.zookeeper.status import BASE, read_status
from txn.zookeeper.znodes import Paths, check_topology_name, encode, require, split_parts

__all__ = ["ZooKeeperProgress"]

log = logging.getLogger("txn.zookeeper")

_ORPHANS_PER_MULTI = 100
_LOOKS = 10
_PAUSE_SECS = 0.02
_RELEASE_SECS = 2.0


@dataclass(frozen=True)
class _Written:
    """The node that decides whether a multi was carried out."""

    path: str
    data: bytes
    before: int | None
    """Its version before; None when it did not exist."""

    @property
    def after(self) -> int:
        return 0 if self.before is None else self.before + 1

    @property
    def operation(self) -> Operation:
        if self.before is None:
            return Create(self.path, self.data)
        return Put(self.path, self.data, self.before)


class ZooKeeperProgress(ProgressStore):
    """One topology's durable state in ZooKeeper.

    Call `lead`, then `load`, then `persist_start` and `persist_committed`, and `close` in the end.

    Args:
        hosts: connect string, "host:2181,host2:2181/chroot".
        topology: the topology's name; becomes the node `/txn/<topology>`.
        config: timeouts, credentials, ACL and TLS.
        sleep: used between looks at the connection.
        clock: seconds, monotonic; deadlines are kept by it.
        new_id: a fresh unique string at each call.
        on_lost: see the attribute.

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
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.on_lost = on_lost
        """Called once per lost session while leading, by a thread of ours (not kazoo's): commits
        must stop until `assert_leading` returns; if it raises FencedError, for good."""
        self._hosts = hosts
        self._topology = check_topology_name(topology)
        self._config = config
        self._patience = config.zookeeper_deadline_secs
        self._sleep = sleep
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._states: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._keeper: threading.Thread | None = None
        self._image: Image | None = None
        self._connection = Connection(
            hosts, config, on_state=self._states.put, sleep=sleep, clock=clock
        )
        self._paths = Paths(self._connection.chroot + BASE, topology)
        self._leadership = Leadership(
            self._connection,
            self._paths,
            token=new_id(),
            patience=self._patience,
            sleep=sleep,
            clock=clock,
        )

    # --- leadership --------------------------------------------------------------------------

    def lead(
        self,
        *,
        wait: bool = False,
        on_waiting: Callable[[LeaderIdentity | None], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        at_least: int = 1,
    ) -> int:
        """Take the leadership and the next epoch; creates the topology's nodes the first time.

        Args:
            wait: True: stand by until the present leader is gone; False: refuse.
            on_waiting: called before standing by and whenever another process has come to lead,
                with that leader; None: ZooKeeper is away, and the wait goes on.
            stopped: whether to wait no longer; looked at once a second.
            at_least: an epoch below this one will not do (the tables may know of later ones).

        Returns:
            The epoch, 1 or more, higher than any before.

        Raises:
            LeaderExistsError: another live process leads, and `wait` is False; names it.
            ProgressUnreadableError: nodes of an unknown format, or some are missing.
            ProgressUnavailableError: ZooKeeper did not answer, or the wait was ended.
        """
        with self._exclusive():
            epoch = self._leadership.claim(
                wait=wait,
                on_waiting=on_waiting,
                stopped=lambda: self._stopped.is_set() or stopped(),
                at_least=at_least,
            )
            if self._keeper is None:
                self._keeper = threading.Thread(
                    target=self._keep, name="txn-zk-keeper", daemon=True
                )
                self._keeper.start()
            return epoch

    @property
    def epoch(self) -> int:
        """The epoch that `lead` returned.

        Raises:
            RuntimeError: `lead` was not called.
        """
        if self._leadership.epoch is None:
            raise RuntimeError("lead() comes first: without an epoch nothing is read or written")
        return self._leadership.epoch

    @property
    def leading(self) -> bool:
        """Whether the leader's session is healthy, as far as is known. No request is made."""
        return self._leadership.held and not self._stopped.is_set()

    def assert_leading(self, deadline: float | None = None) -> None:
        """Return once the session is healthy and the server confirms our epoch.

        To be called right before each publication. After a lost session it waits for a new one and
        claims the leadership again, under the same epoch if nobody took another meanwhile.

        Args:
            deadline: seconds to try; None: `zookeeper_deadline_secs`.

        Raises:
            FencedError: a newer leader exists.
            ProgressUnavailableError: ZooKeeper did not answer in time.
        """
        _ = self.epoch
        with self._exclusive(deadline) as end:
            self._leadership.verify(end)

    def close(self) -> None:
        """Give up leadership and session; takes two seconds if ZooKeeper is away. Idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._states.put(None)
        # Not left to the end of the session alone: kazoo does not tell the server about it when
        # the connection happens to be broken at that moment.
        if self._lock.acquire(timeout=_RELEASE_SECS if self._leadership.epoch else 0):
            try:
                with contextlib.suppress(TxnError, RefusedError):
                    self._leadership.release(self._clock() + _RELEASE_SECS)
            finally:
                self._lock.release()
        self._connection.close()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(timeout=5)

    def _keep(self) -> None:
        while (state := self._states.get()) is not None:
            if state != KazooState.LOST or self._stopped.is_set():
                continue
            log.info("[%s] ZooKeeper session lost", self._topology)
            try:
                if self.on_lost is not None:
                    self.on_lost()
                self.assert_leading()
            except TxnError as error:
                if not self._stopped.is_set():
                    log.warning("[%s] %s", self._topology, error)
            except Exception:
                # The observer's own fault; the keeper must outlive it.
                log.exception("[%s] on_lost failed", self._topology)

    # --- reading -----------------------------------------------------------------------------

    def peek(self) -> Progress:
        """Read the durable state without leading, over a session of its own that takes no lock.

        Raises:
            ProgressUnreadableError: as `load`.
            ProgressUnavailableError: no answer within `zookeeper_timeout_secs`.
        """
        try:
            found = read_status(
                self._hosts, self._topology, self._config, sleep=self._sleep, clock=self._clock
            )
        except TopologyError:
            return Progress()  # nobody has led it yet
        return found.progress

    def load(self) -> Progress:
        """Everything that is durable. Removes leftovers of writes that a crash cut short.

        Raises:
            ProgressUnreadableError: a node is missing, unreadable, of an unknown version, or does
                not fit the others; names it. Never read as "no state".
            FencedError, ProgressUnavailableError: as `assert_leading`.
        """
        _ = self.epoch
        with self._exclusive() as deadline:
            image = None
            while image is None:
                self._leadership.verify(deadline)
                image = read_at_once(self._connection, self._paths, deadline)
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
                "guessed: run `txn recover`, which takes a higher epoch."
            )

    def _remove_orphans(self, names: tuple[str, ...], deadline: float) -> None:
        for i in range(0, len(names), _ORPHANS_PER_MULTI):
            deletes = [Delete(self._paths.part(n), 0) for n in names[i : i + _ORPHANS_PER_MULTI]]
            # Harmless if it fails or is done twice: nothing names these parts.
            with contextlib.suppress(OutcomeUnknownError, RefusedError):
                self._leadership.write(deletes, deadline)

    def incarnation(self) -> IncarnationRecord:
        """Which life of the topology this is; made now if no leader of this release has been.

        Raises:
            ProgressUnreadableError: the node is unreadable.
            FencedError, ProgressUnavailableError: as `assert_leading`.
        """
        _ = self.epoch
        with self._exclusive() as deadline:
            found = read_incarnation(self._connection, self._paths, deadline)
            if found is not None:
                return found[0]
            record = self._new_incarnation()
            written = _Written(self._paths.incarnation, encode(record, "incarnation"), None)
            self._write(written, [written.operation], deadline)
            return record

    def _new_incarnation(self, takes_over: Iterable[int] = ()) -> IncarnationRecord:
        digest = hashlib.sha256(self._new_id().encode()).digest()
        # 63 bits, as the version of a Delta application transaction has.
        number = int.from_bytes(digest[:8], "big") >> 1 or 1
        return IncarnationRecord(id=number, takes_over=sorted(set(takes_over) - {0}))

    def requested_replay(self, replaying: Collection[int]) -> QuarantineRecord | None:
        """The oldest quarantined txid that a user wants replayed, but for those of `replaying`.

        Costs nothing while nothing is quarantined, and one read otherwise: this leader alone adds
        and removes quarantined txids, so that only the requests have to be looked up.

        Raises:
            ProgressUnreadableError: somebody else has changed the node.
            ProgressUnavailableError: as `assert_leading`.
        """
        with self._exclusive() as deadline:
            image = self._loaded
            known = sorted(set(image.quarantine) - set(replaying))
            if not known:
                return None
            requests, _ = read_requests(self._connection, self._paths, deadline)
            wanted = next((txid for txid in known if txid in requests.replay), None)
            return None if wanted is None else image.quarantine[wanted].record

    # --- writing -----------------------------------------------------------------------------

    def persist_start(self, record: BatchRecord) -> None:
        """Make START of an attempt durable: one multi (after one per part of a large record).

        Raises:
            FencedError: a newer leader exists, or somebody changed the node.
            ProgressUnavailableError: ZooKeeper was away until the deadline; whether the record is
                durable is unknown, so the topology must be started again.
            BatchError: the metadata is not JSON, or too large.
        """
        self._check_record(record.epoch)
        with self._exclusive() as deadline:
            image = self._loaded
            stem = f"batch-{record.txid}-{record.attempt}-e{record.epoch}"
            data, parts = self._spread(record, stem, f"START of txid {record.txid}", deadline)
            old = image.batches.get(record.txid)
            written = _Written(
                self._paths.batch(record.txid), data, None if old is None else old.version
            )
            checked = Check(self._paths.committed, image.committed.version)
            dropped = _deletes(self._paths, old, keep=parts)
            self._write(written, [checked, written.operation, *dropped], deadline)
            image.batches[record.txid] = Stored(record, written.after, parts)

    def persist_committed(
        self,
        record: CommittedRecord,
        quarantine: QuarantineRecord | None = None,
        replay_of: int | None = None,
    ) -> None:
        """Move `committed` to a txid and drop the batches up to it: one multi.

        Args:
            record: everything up to its txid is in every table.
            quarantine: kept in the same multi, when the txid was committed empty.
            replay_of: the quarantined txid that this one has replayed: its record goes in the
                same multi. One that has no record (any more) changes nothing.

        Raises:
            FencedError, ProgressUnavailableError, BatchError: as `persist_start`.
        """
        self._check_record(record.epoch)
        with self._exclusive() as deadline:
            image = self._loaded
            stem = f"committed-{record.txid}-e{record.epoch}"
            data, parts = self._spread(record, stem, f"COMMITTED {record.txid}", deadline)
            written = _Written(self._paths.committed, data, image.committed.version)
            operations = [written.operation, *_deletes(self._paths, image.committed, keep=parts)]
            done = {t: b for t, b in image.batches.items() if t <= record.txid}
            for txid, batch in done.items():
                operations.append(Delete(self._paths.batch(txid), batch.version))
                operations.extend(_deletes(self._paths, batch))
            kept = dict(image.quarantine)
            replayed = None if replay_of is None else kept.pop(replay_of, None)
            if replayed is not None:
                path = self._paths.quarantined(replayed.record.txid)
                operations.append(Delete(path, replayed.version))
                operations.extend(_deletes(self._paths, replayed))
            if quarantine is not None:
                kept[quarantine.txid], operation = self._quarantined(quarantine, deadline)
                operations.append(operation)
            self._write(written, operations, deadline)
            left = {t: b for t, b in image.batches.items() if t not in done}
            now = Stored(record, written.after, parts)
            self._image = replace(image, committed=now, batches=left, quarantine=kept)

    def persist_columns(self, record: ColumnsRecord) -> None:
        """Make the columns of a stream durable: one multi, when they become known or change.

        Raises:
            FencedError, ProgressUnavailableError, BatchError: as `persist_start`.
        """
        with self._exclusive() as deadline:
            image, path = self._loaded, self._paths.columns_of(record.stream)
            old = image.columns.get(record.stream)
            what = f"columns of stream '{record.stream}'"
            stem = f"columns-{0 if old is None else old.version + 1}-e{self.epoch}"
            data, parts = self._spread(record, stem, what, deadline)
            written = _Written(path, data, None if old is None else old.version)
            operations = [written.operation, *_deletes(self._paths, old, keep=parts)]
            if not image.columns and self._connection.get(self._paths.columns, deadline) is None:
                operations.insert(0, Create(self._paths.columns))
            self._write(written, operations, deadline)
            image.columns[record.stream] = Stored(record, written.after, parts)

    def rebuild(
        self, record: CommittedRecord, *, at_least: int, takes_over: Iterable[int] = ()
    ) -> int:
        """Lead, and replace `committed` and all batches by `record`: for `txn recover`.

        Also where nodes are missing or cannot be read; quarantine records that cannot be read go.
        The topology begins another life: whoever led its tables before is to lead them no more.
        Call `load` afterwards.

        Args:
            record: what the tables say; its `epoch` is replaced by the one taken here.
            at_least: the new epoch must be no lower: the tables' newest epoch + 1.
            takes_over: the incarnations that led the tables; the one that stands here is another.

        Returns:
            The new epoch.

        Raises:
            NewerFormatError: a newer release wrote a node; nothing is replaced.
            LeaderExistsError, ProgressUnreadableError, ProgressUnavailableError: as `lead`.
        """
        with self._exclusive() as deadline:
            repair_topology(self._connection, self._paths, deadline)
            gone = removals(self._connection, self._paths, deadline)
            epoch = self.lead(at_least=at_least)
            record = record.model_copy(update={"epoch": epoch})
            data, _ = self._spread(
                record, f"committed-{record.txid}-e{epoch}", "COMMITTED", deadline
            )
            node = self._connection.get(self._paths.committed, deadline)
            written = _Written(self._paths.committed, data, None if node is None else node.version)
            operations = [written.operation, *gone, self._another_life(takes_over, deadline)]
            for name in require(
                self._connection.children(self._paths.batches, deadline), self._paths.batches
            ):
                path = f"{self._paths.batches}/{name}"
                batch = require(self._connection.get(path, deadline), path)
                operations.append(Delete(path, batch.version))
            self._write(written, operations, deadline)
            return epoch

    def _another_life(self, takes_over: Iterable[int], deadline: float) -> Operation:
        path = self._paths.incarnation
        node = self._connection.get(path, deadline)
        known: list[int] = []
        try:
            if found := read_incarnation(self._connection, self._paths, deadline):
                known = [found[0].id, *found[0].takes_over]
        except NewerFormatError:
            raise
        except ProgressUnreadableError:
            pass  # it is replaced
        data = encode(self._new_incarnation([*takes_over, *known]), "incarnation")
        return Create(path, data) if node is None else Put(path, data, node.version)

    @property
    def _loaded(self) -> Image:
        if self._image is None:
            raise RuntimeError("load() comes first: a write carries the versions that it read")
        return self._image

    def _check_record(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise ValueError(f"the record has epoch {epoch}, and this leader has {self.epoch}")

    def _quarantined(
        self, record: QuarantineRecord, deadline: float
    ) -> tuple[Stored[QuarantineRecord], Operation]:
        stem = f"quarantine-{record.txid}-{record.attempt}-e{self.epoch}"
        data, parts = self._spread(record, stem, f"quarantine of txid {record.txid}", deadline)
        return Stored(record, 0, parts), Create(self._paths.quarantined(record.txid), data)

    def _spread(
        self, record: BaseModel, stem: str, what: str, deadline: float
    ) -> tuple[bytes, tuple[str, ...]]:
        """The content of the record's own node; its parts, if any, are already written."""
        data, parts = split_parts(encode(record, what), stem)
        for name, piece in parts.items():
            written = _Written(self._paths.part(name), piece, None)
            self._write(written, [written.operation], deadline)
        return data, tuple(parts)

    def _write(self, written: _Written, operations: list[Operation], deadline: float) -> None:
        """Carry out `operations` exactly once; see rule 3 above."""
        unexplained = 0
        while True:
            try:
                self._leadership.write(operations, deadline)
            except ProgressUnavailableError:
                # The durable state is unknown: compute nothing more from the image.
                self._image = None
                raise
            except OutcomeUnknownError:
                continue  # sent again; should the first one land, this one is refused
            except RefusedError as refused:
                node = self._connection.get(written.path, deadline)
                if node and (node.data, node.version) == (written.data, written.after):
                    return
                unexplained += 1
                if (node.version if node else None) != written.before or unexplained >= _LOOKS:
                    raise self._changed(refused) from None
                self._sleep(_PAUSE_SECS)  # a lagging server showed us the past: look again
                continue
            return

    def _changed(self, refused: RefusedError) -> FencedError:
        return FencedError(
            f"ZooKeeper node '{refused.operation.path}' is not as this leader left it "
            f"({type(refused.cause).__name__}), although epoch {self.epoch} still stands: "
            "something other than a leader of this topology has changed it. Nothing more is "
            "written. Find out what did, then run the topology again; its start checks every node."
        )

    @contextlib.contextmanager
    def _exclusive(self, seconds: float | None = None) -> Iterator[float]:
        """One call at a time. Yields the deadline, which includes the wait for the lock."""
        seconds = self._patience if seconds is None else seconds
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


def _deletes(
    paths: Paths,
    stored: Stored[BatchRecord]
    | Stored[ColumnsRecord]
    | Stored[CommittedRecord]
    | Stored[QuarantineRecord]
    | None,
    keep: tuple[str, ...] = (),
) -> list[Operation]:
    """The parts that go with a record's old contents. Parts are never changed: version 0."""
    names = stored.parts if stored is not None else ()
    return [Delete(paths.part(name), 0) for name in names if name not in keep]
