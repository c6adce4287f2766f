"""A simulated ZooKeeper: an ensemble that agrees, sessions, servers that lag, a lossy network.

`Session` stands in for `txn.zookeeper.client.connection._Session`, so everything from `Connection`
upwards is real. The ensemble has one history of transactions; what a session reads is that history
up to what its server has applied. A write, or its refusal, is answered by that server after it has
applied it, so a session never sees the time before its own writes. Sources: ZooKeeper's
"Consistency Guarantees"; kazoo's `TransactionRequest` and `Client`, as far as
`txn.zookeeper.client.connection` uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)

from tests.simulation.kernel import Process
from tests.simulation.world import World, current_world

__all__ = ["Ensemble", "Session"]


@dataclass(frozen=True)
class Stat:
    """`ZnodeStat`, as far as it is used."""

    version: int
    ephemeralOwner: int = 0  # noqa: N815 - kazoo's name


@dataclass(frozen=True)
class Znode:
    """One node at one time."""

    data: bytes
    version: int
    owner: int = 0

    @property
    def stat(self) -> Stat:
        return Stat(self.version, self.owner)


@dataclass(frozen=True)
class Op:
    """One operation of a multi."""

    kind: str
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False


@dataclass(eq=False)
class Server:
    """What the ensemble knows of one session."""

    id: int
    process: Process
    expired: bool = False
    behind: int | None = None
    """The zxid up to which its server has applied; None: it is up to date."""


class Ensemble:
    """The nodes, their history, and who is connected."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.nodes: dict[str, Znode] = {}
        self.zxid = 0
        self.restores = 0
        self.away_until = 0.0
        self._history: dict[str, list[tuple[int, Znode | None]]] = {}
        self._sessions = 0
        self._watches: dict[str, list[Callable[[], None]]] = {}

    # --- sessions ----------------------------------------------------------------------------

    def connect(self, process: Process) -> Server:
        world = self._world
        self._sessions += 1
        server = Server(self._sessions, process)
        # What is damaged must be seen to be refused.
        seen = world.books.damaged is None
        if self.zxid and seen and world.faults.strikes("zk server behind"):
            server.behind = max(0, self.zxid - world.random.randrange(1, 12))
            world.kernel.at(
                world.kernel.now + world.random.uniform(0.05, 3), server_catches_up(server)
            )
        return server

    def expire(self, server: Server) -> None:
        """The session is over: its ephemeral nodes go."""
        if server.expired:
            return
        server.expired = True
        self._world.trace(f"zk session {server.id} of {server.process} expired")
        gone = [path for path, node in self.nodes.items() if node.owner == server.id]
        if gone:
            self.zxid += 1
        for path in gone:
            self._set(path, None)

    # --- requests ----------------------------------------------------------------------------

    def lag(self, server: Server) -> None:
        """Its server applies nothing more for a while."""
        world = self._world
        if server.behind is None and world.faults.strikes("zk server behind"):
            server.behind = self.zxid
            later = world.kernel.now + world.random.uniform(0.05, 3)
            world.kernel.at(later, server_catches_up(server))

    def read(self, server: Server, path: str) -> Znode | None:
        if server.behind is None:
            return self.nodes.get(path)
        found = None
        for zxid, node in self._history.get(path, ()):
            if zxid > server.behind:
                break
            found = node
        return found

    def children(self, server: Server, path: str) -> list[str]:
        prefix = f"{path}/"
        cut = len(prefix)
        paths = self.nodes if server.behind is None else self._history
        names = [p[cut:] for p in paths if p.startswith(prefix) and "/" not in p[cut:]]
        if server.behind is not None:
            names = [name for name in names if self.read(server, prefix + name) is not None]
        return names

    def multi(self, server: Server, ops: list[Op]) -> list[Any]:
        """Carry out all or nothing; what kazoo would return."""
        self.zxid += 1
        server.behind = None if server.behind is None else max(server.behind, self.zxid)
        changed: dict[str, Znode | None] = {}
        results: list[Any] = []
        for number, op in enumerate(ops):
            node = changed[op.path] if op.path in changed else self.nodes.get(op.path)
            error = self._refusal(op, node, changed)
            if error is not None:
                before = [RolledBackError() for _ in range(number)]
                after = [RuntimeInconsistency() for _ in ops[number + 1 :]]
                return [*before, error, *after]
            results.append(self._apply(op, node, changed, server))
        for path, new in changed.items():
            self._set(path, new)
        return results

    def _refusal(
        self, op: Op, node: Znode | None, changed: dict[str, Znode | None]
    ) -> Exception | None:
        if op.kind == "create":
            parent = op.path.rpartition("/")[0]
            if parent and (changed.get(parent) or self.nodes.get(parent)) is None:
                return NoNodeError()
            return None if node is None else NodeExistsError()
        if node is None:
            return NoNodeError()
        if op.version not in (-1, node.version):
            return BadVersionError()
        return None

    @staticmethod
    def _apply(op: Op, node: Znode | None, changed: dict[str, Znode | None], server: Server) -> Any:
        if op.kind == "create":
            changed[op.path] = Znode(op.data, 0, server.id if op.ephemeral else 0)
            return op.path
        assert node is not None
        if op.kind == "set":
            changed[op.path] = Znode(op.data, node.version + 1, node.owner)
            return Stat(node.version + 1)
        if op.kind == "delete":
            changed[op.path] = None
        return True

    def _set(self, path: str, node: Znode | None) -> None:
        if node is None:
            self.nodes.pop(path, None)
        else:
            self.nodes[path] = node
        self._history.setdefault(path, []).append((self.zxid, node))
        for watch in self._watches.pop(path, ()):
            self._world.kernel.at(self._world.kernel.now + 0.005, watch)

    def restore(self, prefix: str, backup: dict[str, bytes]) -> None:
        """Somebody puts the nodes below `prefix` as they were."""
        self.zxid += 1
        self.restores += 1
        for path in [path for path in self.nodes if path.startswith(prefix)]:
            if path not in backup:
                self._set(path, None)
        for path, data in backup.items():
            if path.startswith(prefix):
                node = self.nodes.get(path)
                self._set(path, Znode(data, 0 if node is None else node.version + 1))

    def overwrite(self, path: str, data: bytes) -> None:
        """Somebody writes into a node by hand."""
        self.zxid += 1
        self._set(path, Znode(data, self.nodes[path].version + 1))

    def watch(self, path: str, told: Callable[[Any], None]) -> None:
        self._watches.setdefault(path, []).append(lambda: told(None))


def server_catches_up(server: Server) -> Callable[[], None]:
    def catch_up() -> None:
        server.behind = None

    return catch_up


@dataclass(eq=False)
class Request:
    """A request under way; `get` sends it and waits for the answer."""

    session: Session
    carry_out: Callable[[], Any]
    is_write: bool = False
    ops: list[Op] = field(default_factory=list)

    def get(self, timeout: float | None = None) -> Any:
        world, session = current_world(), self.session
        world.step("zk")
        kernel, faults, server = world.kernel, world.faults, session.server
        if not session.connected:
            kernel.sleep(min(0.05, timeout or 0.05))
            raise ConnectionLoss
        fault = None
        if self.is_write:
            fault = faults.first("zk request lost", "zk answer lost", "zk write late")
        elif faults.on:
            fault = faults.first("zk request lost")
        if fault is not None:
            world.note(fault, session.process)
        if fault == "zk request lost":
            kernel.sleep(world.random.uniform(0.01, 0.3))
            raise ConnectionLoss
        restores = world.ensemble.restores
        if fault == "zk write late":
            late = world.random.choice((0.05, 0.3, 1.0, 3.0)) * world.random.uniform(0.5, 2)
            kernel.at(kernel.now + late, lambda: self._arrive([], restores))
            kernel.sleep(world.random.uniform(0.01, 0.2))
            raise ConnectionLoss
        answer: list[Any] = []
        if self.is_write:
            # What is sent arrives, whatever becomes of the sender meanwhile.
            soon = kernel.now + world.random.uniform(0.0005, 0.004)
            kernel.at(soon, lambda: self._arrive(answer, restores))
            kernel.sleep(0.0045 + world.random.uniform(0, 0.003))
            if session.server.expired and not answer:
                raise SessionExpiredError
        else:
            kernel.sleep(world.random.uniform(0.0005, 0.003))
            if server.expired:
                session.notice()
                raise SessionExpiredError
            answer.append(self.carry_out())
            world.ensemble.lag(server)
        if fault == "zk answer lost":
            raise ConnectionLoss
        if not answer:
            raise ConnectionLoss
        return answer[0]

    def _arrive(self, answer: list[Any], restores: int) -> None:
        world = current_world()
        if world.ensemble.restores != restores:
            return  # what was under way to the servers is gone with their data
        if self.session.server.expired:
            self.session.notice()
            return
        if not world.zookeeper_reachable:
            return
        result = world.ensemble.multi(self.session.server, self.ops)
        done = not any(isinstance(one, Exception) for one in result)
        world.books.zookeeper_multi(self.session.process, self.ops, done=done)
        answer.append(result)


class Transaction:
    """`TransactionRequest`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ops: list[Op] = []

    def check(self, path: str, version: int) -> None:
        self._ops.append(Op("check", path, b"", version))

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        self._ops.append(Op("create", path, data, ephemeral=ephemeral))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        self._ops.append(Op("set", path, data, version))

    def delete(self, path: str, version: int) -> None:
        self._ops.append(Op("delete", path, b"", version))

    def commit_async(self) -> Request:
        return Request(self._session, lambda: None, is_write=True, ops=self._ops)


class Session:
    """In place of `txn.zookeeper.client.session.Session`: one kazoo client and its session."""

    def __init__(self, hosts: str, options: Any, on_state: Callable[[str], None]) -> None:
        del hosts, options
        world = current_world()
        self.lost = False
        self.refused = False
        self.untrusted = None
        self.reason = ""
        self.synced = False
        self.client = self
        self.process = world.kernel.alive().process
        self.server = world.ensemble.connect(self.process)
        self._on_state = on_state
        self._stopped = False
        self.broken_until = world.kernel.now + world.random.uniform(0.001, 0.02)
        world.sessions.append(self)

    # --- what `Connection` asks --------------------------------------------------------------

    @property
    def connected(self) -> bool:
        world = current_world()
        up = world.zookeeper_reachable and world.kernel.now >= self.broken_until
        if up and self.server.expired and not self._stopped:
            self.notice()
        return up and not self.lost

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self.server.id, b""

    def stop(self) -> None:
        """End the session; the server hears of it if it can be reached."""
        self._stopped = True
        world = current_world()
        if world.zookeeper_reachable:
            world.ensemble.expire(self.server)
        else:
            world.expire_later(self.server)

    def notice(self) -> None:
        """The client learns that its session has expired."""
        if not self.lost and not self.process.dead:
            self.lost = True
            self._on_state("LOST")

    def transaction(self) -> Transaction:
        return Transaction(self)

    def get_async(self, path: str, watch: Callable[[Any], None] | None = None) -> Request:
        def look() -> tuple[bytes, Stat]:
            ensemble = current_world().ensemble
            node = ensemble.read(self.server, path)
            if node is None:
                raise NoNodeError
            if watch is not None:
                ensemble.watch(path, watch)
            return node.data, node.stat

        return Request(self, look)

    def get_children_async(self, path: str, watch: None = None) -> Request:
        def look() -> list[str]:
            ensemble = current_world().ensemble
            if ensemble.read(self.server, path) is None:
                raise NoNodeError
            return ensemble.children(self.server, path)

        return Request(self, look)

    def sync_async(self, path: str) -> Request:
        def catch_up() -> str:
            self.server.behind = None
            return path

        return Request(self, catch_up)
