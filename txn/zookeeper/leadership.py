"""One leader per topology: its identity, its epoch, and the check before every write.

Two nodes, for two questions:

- `leader`, ephemeral: is a leader alive? It vanishes with its owner's session. It is for
  *liveness* only: no write depends on it.
- `epoch`, lasting: who may write? Taking leadership sets it to epoch + 1, and every later write is
  a multi that begins with `check(epoch, version)`. That is *safety*: a process that wakes up after
  its session has expired carries a version that no longer holds.

Both change in ONE multi, create(leader) + set(epoch), so they never disagree. That is also why
`leader` is a plain ephemeral node and not kazoo's Lock: the recipe queues sequential nodes, can
leave a contender waiting for ever after a lost connection (kazoo #282), and could not be taken
together with the epoch. A standby watches the node, and polls it in case the watch was lost with
its session. All standbys wake at once, and the first multi wins: each of the others spends one
refused multi and one read, and waits for the winner.

A session can be lost without a takeover (ZooKeeper was unavailable for longer than the session
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
from txn.machine.liveness import is_alive, this_process
from txn.protocol.encoding import decode, encode
from txn.protocol.records import EpochRecord, LeaderIdentity
from txn.zookeeper.client.connection import (
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
from txn.zookeeper.standbys import Announcement
from txn.zookeeper.znodes import Paths, require

__all__ = [
    "Leadership",
    "read_epoch",
    "read_leader",
]

_RECHECK_SECS = 1.0
_STANDBY_SECS = 2.0
"""A standby that gets no answer for this time reports that ZooKeeper is away, and tries again."""
_LEADER_ADVICE = (
    "A leader's node disappears with the session that made it. If this one stays, it was made by "
    "hand: find out by whom, and delete it."
)


class Leadership:
    """The claim of one process on one topology. Not thread-safe: the caller serialises.

    Args:
        token: unique for this object; marks our own nodes.
        timeout_secs: `claim` gives up after ZooKeeper was unavailable for this long.
    """

    def __init__(
        self,
        connection: Connection,
        paths: Paths,
        *,
        token: str,
        timeout_secs: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epoch: int | None = None
        """The epoch that we took; None before `claim`."""
        self.version = -1
        """The version of the `epoch` node after we took it, which every write checks."""
        self._connection = connection
        self._paths = paths
        self._token = token
        self._timeout_secs = timeout_secs
        self._sleep = sleep
        self._clock = clock
        self._held = 0

    @property
    def check(self) -> Check:
        """The first operation of every write."""
        return Check(self._paths.epoch, self.version)

    @property
    def held(self) -> bool:
        """True if the session that holds `leader` for us is healthy, as far as is known."""
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
        program: str = "",
    ) -> int:
        """Take the next epoch, at least `at_least`; creates the topology's nodes if necessary.

        Args:
            program: the id of this process's program, for `txn status` while it waits.

        Raises:
            LeaderExistsError: another process leads, and `wait` is False.
            ProgressUnreadableError: nodes of another format, or half of them missing.
            ProgressUnavailableError: ZooKeeper was unavailable for `timeout_secs`, or `stopped`.
                A standby that waits already goes on waiting meanwhile.
        """
        create_topology(self._connection, self._paths, self._clock() + self._timeout_secs)
        report = on_waiting or (lambda _: None)
        announced = Announcement(self._connection, self._paths, self._token, program)
        # The token of the leader that was reported; empty: that ZooKeeper is away; None: nothing.
        reported: str | None = None
        while not stopped():
            try:
                waiting_for = self._try_to_take(at_least, announced, waiting=reported is not None)
            except ProgressUnavailableError:
                if reported is None or stopped():
                    raise
                if reported:
                    report(None)
                reported = ""
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
            if reported != waiting_for.token:
                reported = waiting_for.token
                report(waiting_for)
            self._wait_for_change(announced)
        raise ProgressUnavailableError(
            f"Stopped while waiting for the leadership of topology '{self._paths.topology}'; "
            "nothing was started. Run it again when it is wanted.",
            number="TXN-609",
        )

    def _try_to_take(
        self, at_least: int, announced: Announcement, *, waiting: bool
    ) -> LeaderIdentity | None:
        """Take the leadership if possible. Returns the leader; None: try again."""
        deadline = self._clock() + (_STANDBY_SECS if waiting else self._timeout_secs)
        check_format(self._connection, self._paths, deadline)
        holder = read_leader(self._connection, self._paths, deadline)
        # Our own token: a takeover whose answer was lost, carried out late. The session of a dead
        # leader lasts until its timeout; even if `is_alive` were wrong, the epoch would keep the
        # old leader from writing.
        if holder and holder[0].token != self._token and is_alive(holder[0]):
            return holder[0]
        taken = self._take(holder[1] if holder else None, at_least, deadline)
        if taken is not None:
            # Best effort: the end of the session deletes the node.
            with contextlib.suppress(ProgressUnavailableError):
                announced.withdraw(deadline)
        return taken

    def _take(self, stale: Node | None, at_least: int, deadline: float) -> LeaderIdentity | None:
        current, version = read_epoch(self._connection, self._paths, deadline)
        epoch = max(current.epoch + 1, at_least)
        identity = LeaderIdentity(
            **this_process(),
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            epoch=epoch,
            token=self._token,
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
            return None  # another process was faster; try again
        except OutcomeUnknownError:
            taken, version = read_epoch(self._connection, self._paths, deadline)
            if taken != record:
                return None
            # It was carried out. `hold` makes sure that `leader` belongs to the live session.
            self.epoch, self.version, self._held = epoch, version, 0
            self.hold(deadline)
            return identity
        self.epoch, self.version, self._held = epoch, int(results[0].version), generation
        return identity

    def _wait_for_change(self, announced: Announcement) -> None:
        """Return when the leader's node changes, after a second, or if ZooKeeper is unavailable."""
        deadline = self._clock() + _STANDBY_SECS
        changed = threading.Event()
        with contextlib.suppress(ProgressUnavailableError):  # the next read shows it
            announced.keep(deadline)
            node = self._connection.get(self._paths.leader, deadline, lambda _: changed.set())
            if node is not None:
                changed.wait(_RECHECK_SECS)

    # --- keeping it --------------------------------------------------------------------------

    def hold(self, deadline: float) -> None:
        """Wait until we have a live session that owns `leader`, under our own epoch.

        No request while the session lasts. No proof by itself: writes carry `check`.

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
            # Under our epoch it can only be our own: of a session that has not expired yet, or of
            # this very one (if the answer to our create was lost).
            if holder[0].token != self._token:
                return False  # it belongs to a newer epoch, which the next read of `epoch` shows
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
        """Check on the server that our epoch still holds, by a multi with only the check.

        A multi goes through ZooKeeper's own leader, so no lagging server answers it.

        Raises:
            FencedError: a newer leader has taken the topology.
            ProgressUnavailableError: no answer before `deadline`.
        """
        while True:
            try:
                self.write([], deadline)
            except OutcomeUnknownError:
                continue
            return

    def write(self, operations: Sequence[Operation], deadline: float) -> list[Any]:
        """Try a multi of `check` and `operations` once; return the results of `operations`.

        Raises:
            OutcomeUnknownError: it may have been carried out.
            RefusedError: the condition of one of `operations` does not hold.
            FencedError: our epoch does not hold any more.
            ProgressUnavailableError: no answer before `deadline`.
        """
        self.hold(deadline)
        try:
            return self._connection.multi([self.check, *operations], deadline, self._held)[1:]
        except RefusedError as refused:
            if refused.operation == self.check:
                current, _ = read_epoch(self._connection, self._paths, deadline)
                raise self.fenced(current) from None
            raise

    def release(self, deadline: float) -> None:
        """Give `leader` back, so that a successor need not wait for the session to end.

        Best effort: if it fails, the end of the session deletes the node.
        """
        while self.epoch is not None:
            with contextlib.suppress(OutcomeUnknownError):
                holder = read_leader(self._connection, self._paths, deadline)
                if holder is not None and holder[0].token == self._token:
                    delete = Delete(self._paths.leader, holder[1].version)
                    self._connection.multi([self.check, delete], deadline)
                return

    def fenced(self, current: EpochRecord) -> FencedError:
        """Return the error to raise if `epoch` holds `current`."""
        return FencedError(
            f"Topology '{self._paths.topology}' was taken over: node '{self._paths.epoch}' says "
            f"epoch {current.epoch}, taken by {current.leader or 'nobody'}, and this process had "
            f"epoch {self.epoch}. It writes nothing more; the new leader carries on. Start this "
            "one again as a standby if it is still wanted."
        )


def read_epoch(connection: Connection, paths: Paths, deadline: float) -> tuple[EpochRecord, int]:
    """Return (contents, znode version) of `epoch`."""
    node = require(connection.get(paths.epoch, deadline), paths.epoch)
    return decode(EpochRecord, node.data, paths.epoch), node.version


def read_leader(
    connection: Connection, paths: Paths, deadline: float
) -> tuple[LeaderIdentity, Node] | None:
    """Return the holder of `leader` and the node; None without a leader."""
    node = connection.get(paths.leader, deadline)
    if node is None:
        return None
    return decode(LeaderIdentity, node.data, paths.leader, _LEADER_ADVICE), node
