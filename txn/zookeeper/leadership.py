"""One leader per topology: who leads, since which epoch, and the proof before every write.

Two nodes, for two questions:

- `leader`, ephemeral: is somebody alive? It vanishes with its owner's session. It is a matter of
  *liveness* only: nothing is ever written because it is there.
- `epoch`, lasting: who may write? Taking leadership sets it to epoch + 1, and every later write is
  a multi that begins with `check(epoch, version)`. That is *safety*: a process that was paused past
  its session and wakes up carries a version that no longer holds, whatever it believes.

Both change in ONE multi, create(leader) + set(epoch), so they never disagree. That is also why
`leader` is a plain ephemeral node and not kazoo's Lock: the recipe queues sequential nodes, can
leave a contender waiting for ever after a lost connection (kazoo #282), and could not be taken
together with the epoch. A standby watches the node, and looks again now and then in case
the watch was lost with its session. All standbys wake at once, and the first multi wins: each of
the others spends one refused multi and one read, and waits for the winner.

A session can be lost without anybody taking over (ZooKeeper was away for longer than the session
timeout). Then the epoch is still ours, and `hold` takes `leader` again *under the same epoch*, in a
multi that checks it. If the epoch has moved, we are fenced, for good.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from txn.errors import (
    FencedError,
    LeaderExistsError,
    ProgressUnavailableError,
)
from txn.protocol.records import EpochRecord, LeaderIdentity
from txn.zookeeper.connection import (
    Check,
    Connection,
    Create,
    Delete,
    Node,
    Operation,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.foundation import check_format, create_topology
from txn.zookeeper.liveness import is_alive, this_process
from txn.zookeeper.standbys import Announcement
from txn.zookeeper.znodes import Paths, decode, encode, require

__all__ = [
    "Leadership",
    "read_epoch",
    "read_leader",
]

_RECHECK_SECS = 1.0
_STANDBY_SECS = 2.0
"""How long a standby tries before it reports that ZooKeeper is away and tries again."""
_LEADER_ADVICE = (
    "A leader's node disappears with the session that made it. If this one stays, it was made by "
    "hand: find out by whom, and delete it."
)


class Leadership:
    """The claim of one process on one topology. Not thread-safe: the caller serialises.

    Args:
        token: unique for this object; tells our own nodes from those of others.
        patience: seconds for which ZooKeeper may be away before `claim` gives up.
    """

    def __init__(
        self,
        connection: Connection,
        paths: Paths,
        *,
        token: str,
        patience: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epoch: int | None = None
        """The epoch that we took; None before."""
        self.version = -1
        """Version of the `epoch` node after we took it: what every write checks."""
        self._connection = connection
        self._paths = paths
        self._token = token
        self._patience = patience
        self._sleep = sleep
        self._clock = clock
        self._held = 0

    @property
    def check(self) -> Check:
        """The first operation of every write."""
        return Check(self._paths.epoch, self.version)

    @property
    def held(self) -> bool:
        """Whether the session that holds `leader` for us is healthy, as far as is known."""
        return (
            self.epoch is not None
            and self._held == self._connection.generation
            and self._connection.connected
        )

    # --- taking it ---------------------------------------------------------------------------

    def claim(
        self,
        *,
        wait: bool,
        on_waiting: Callable[[LeaderIdentity | None], None] | None,
        stopped: Callable[[], bool],
        at_least: int = 1,
    ) -> int:
        """Take the next epoch, at least `at_least`; creates the topology's nodes if need be.

        Raises:
            LeaderExistsError: another process leads, and `wait` is False.
            ProgressUnreadableError: nodes of another format, or half of them missing.
            ProgressUnavailableError: ZooKeeper was away for longer than `patience`, or `stopped`.
                A standby that waits already goes on waiting while ZooKeeper is away.
        """
        create_topology(self._connection, self._paths, self._clock() + self._patience)
        tell = on_waiting or (lambda _: None)
        announced = Announcement(self._connection, self._paths, self._token)
        told: str | None = None
        while not stopped():
            try:
                waiting_for = self._try_to_take(at_least, announced, waiting=told is not None)
            except ProgressUnavailableError:
                if told is None or stopped():
                    raise
                if told:
                    tell(None)
                told = ""
                continue
            if waiting_for is None:
                continue
            if self.epoch is not None and waiting_for.token == self._token:
                return self.epoch
            if not wait:
                raise LeaderExistsError(
                    f"Topology '{self._paths.topology}' is led by {waiting_for}: its node is "
                    f"'{self._paths.leader}'. Stop that process first, or start this one as a "
                    "standby, which waits for it to end (`txn run --standby`). If it has just "
                    "died, its session ends within its timeout; try again then."
                )
            if told != waiting_for.token:
                told = waiting_for.token
                tell(waiting_for)
            self._wait_for_change(announced)
        raise ProgressUnavailableError(
            f"Stopped while waiting for the leadership of topology '{self._paths.topology}'; "
            "nothing was started. Run it again when it is wanted.",
            number="TXN-609",
        )

    def _try_to_take(
        self, at_least: int, announced: Announcement, *, waiting: bool
    ) -> LeaderIdentity | None:
        """Take the leadership if it can be had. Who leads then; None: look again."""
        deadline = self._clock() + (_STANDBY_SECS if waiting else self._patience)
        check_format(self._connection, self._paths, deadline)
        holder = read_leader(self._connection, self._paths, deadline)
        # Our own token: a take-over whose answer was lost, carried out late. Of a dead leader the
        # session lingers for its timeout; should `is_alive` ever be wrong, the epoch still keeps
        # the old leader from writing.
        if holder and holder[0].token != self._token and is_alive(holder[0]):
            return holder[0]
        taken = self._take(holder[1] if holder else None, at_least, deadline)
        if taken is not None:
            # Best effort: the session's end does the rest.
            with contextlib.suppress(ProgressUnavailableError):
                announced.withdraw(deadline)
        return taken

    def _take(self, stale: Node | None, at_least: int, deadline: float) -> LeaderIdentity | None:
        current, version = read_epoch(self._connection, self._paths, deadline)
        epoch = max(current.epoch + 1, at_least)
        here = this_process()
        identity = LeaderIdentity(
            host=here.host,
            pid=here.pid,
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            epoch=epoch,
            token=self._token,
            machine=here.machine,
        )
        record = EpochRecord(epoch=epoch, leader=identity)
        operations: list[Operation] = [
            Put(self._paths.epoch, encode(record, "epoch"), version),
            Create(self._paths.leader, encode(identity, "leader"), ephemeral=True),
        ]
        if stale is not None:
            operations.insert(1, Delete(self._paths.leader, stale.version))
        try:
            generation = self._generation(deadline)
            results = self._connection.multi(operations, deadline, generation)
        except RefusedError:
            return None  # somebody was faster; look again
        except OutcomeUnknownError:
            taken, version = read_epoch(self._connection, self._paths, deadline)
            if taken != record:
                return None
            # It was carried out. `hold` sees to it that `leader` belongs to the live session.
            self.epoch, self.version, self._held = epoch, version, 0
            self.hold(deadline)
            return identity
        self.epoch, self.version, self._held = epoch, int(results[0].version), generation
        return identity

    def _wait_for_change(self, announced: Announcement) -> None:
        """Return when the leader's node changes, after a second, or when ZooKeeper is away."""
        deadline = self._clock() + _STANDBY_SECS
        changed = threading.Event()
        with contextlib.suppress(ProgressUnavailableError):  # the next look tells
            announced.keep(deadline)
            node = self._connection.get(self._paths.leader, deadline, lambda _: changed.set())
            if node is not None:
                changed.wait(_RECHECK_SECS)

    # --- keeping it --------------------------------------------------------------------------

    def hold(self, deadline: float) -> None:
        """Return when we have a live session that owns `leader`, under our own epoch.

        Costs nothing while the session lasts. Proves nothing by itself: writes carry `check`.

        Raises:
            FencedError: a newer leader has taken the topology.
            ProgressUnavailableError: no session before `deadline`.
        """
        while self._held != self._generation(deadline):
            generation = self._connection.generation
            if self._reclaim(deadline):
                self._held = generation
            elif self._clock() >= deadline:
                raise ProgressUnavailableError(
                    f"The leader's node '{self._paths.leader}' could not be taken again within the "
                    "deadline after a lost session. Check that ZooKeeper runs, then run the "
                    "topology again: nothing is lost."
                )

    def _generation(self, deadline: float) -> int:
        self._connection.wait(deadline)
        return self._connection.generation

    def _reclaim(self, deadline: float) -> bool:
        current, version = read_epoch(self._connection, self._paths, deadline)
        if current.epoch != self.epoch or version != self.version:
            raise self.fenced(current)
        assert current.leader is not None
        holder = read_leader(self._connection, self._paths, deadline)
        operations: list[Operation] = [self.check]
        if holder is not None:
            # Under our epoch it can only be our own, of a session that has not quite expired yet,
            # or of this very one (when the answer to our create was lost).
            if holder[0].token != self._token:
                return False  # it belongs to a newer epoch: the next look at it says so
            if holder[1].owner == self._connection.session_id:
                return True
            operations.append(Delete(self._paths.leader, holder[1].version))
        data = encode(current.leader, "leader")
        operations.append(Create(self._paths.leader, data, ephemeral=True))
        try:
            self._connection.multi(operations, deadline)
        except (RefusedError, OutcomeUnknownError):
            self._sleep(0.01)
            return False
        return True

    def verify(self, deadline: float) -> None:
        """Ask the server whether our epoch still holds: a multi of nothing but the check.

        A multi goes through ZooKeeper's own leader, so the answer is not that of a lagging server.

        Raises:
            FencedError: it does not.
            ProgressUnavailableError: no answer before `deadline`.
        """
        while True:
            try:
                self.write([], deadline)
            except OutcomeUnknownError:
                continue
            return

    def write(self, operations: Sequence[Operation], deadline: float) -> list[Any]:
        """One try at a multi of `check` and `operations`; the results of the latter.

        Raises:
            OutcomeUnknownError: it may have been carried out.
            RefusedError: one of `operations` did not find what it was conditional on.
            FencedError: our epoch does not hold any more.
            ProgressUnavailableError: no answer before `deadline`.
        """
        self.hold(deadline)
        try:
            return self._connection.multi([self.check, *operations], deadline, self._held)[1:]
        except RefusedError as refused:
            if refused.operation == self.check:
                raise self.fenced_now(deadline) from None
            raise

    def release(self, deadline: float) -> None:
        """Give `leader` back, so that a successor need not wait for the session to end.

        Best effort: whatever prevents it, the session's end does the rest.
        """
        while self.epoch is not None:
            with contextlib.suppress(OutcomeUnknownError):
                holder = read_leader(self._connection, self._paths, deadline)
                if holder is not None and holder[0].token == self._token:
                    delete = Delete(self._paths.leader, holder[1].version)
                    self._connection.multi([self.check, delete], deadline)
                return

    def fenced_now(self, deadline: float) -> FencedError:
        """The error to raise after a check of our epoch has failed; reads who leads now."""
        return self.fenced(read_epoch(self._connection, self._paths, deadline)[0])

    def fenced(self, current: EpochRecord) -> FencedError:
        """The error to raise when `epoch` holds `current`."""
        return FencedError(
            f"Topology '{self._paths.topology}' was taken over: node '{self._paths.epoch}' says "
            f"epoch {current.epoch}, taken by {current.leader or 'nobody'}, and this process had "
            f"epoch {self.epoch}. It writes nothing more; the new leader carries on. Start this "
            "one again as a standby if it is still wanted."
        )


def read_epoch(connection: Connection, paths: Paths, deadline: float) -> tuple[EpochRecord, int]:
    """(contents, znode version) of `epoch`.

    Raises:
        ProgressUnreadableError: it is missing or unreadable.
    """
    node = require(connection.get(paths.epoch, deadline), paths.epoch)
    return decode(EpochRecord, node.data, paths.epoch), node.version


def read_leader(
    connection: Connection, paths: Paths, deadline: float
) -> tuple[LeaderIdentity, Node] | None:
    """The holder of `leader`, and the node; None if nobody holds it."""
    node = connection.get(paths.leader, deadline)
    if node is None:
        return None
    return decode(LeaderIdentity, node.data, paths.leader, _LEADER_ADVICE), node
