"""Writes to ZooKeeper that happen exactly once, and only while their writer leads.

1. Every write is one multi that begins with `check(epoch, version)`: a process that is no longer
   the leader can write nothing, however late its request arrives.
2. Every other operation in it carries the version it was computed from.
3. A multi is never assumed to have failed. When the connection breaks before the answer, the same
   multi is sent again after the reconnect; if the first one was carried out, the versions in the
   second do not hold, and reading the node back tells: it holds exactly what we wanted to write,
   one version on (done), or what was there before (again), or anything else (fenced).

A record that is too large for one node has its parts written first. Parts are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from txn.errors import FencedError
from txn.zookeeper.connection import (
    Connection,
    Create,
    Delete,
    Operation,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.image import Stored
from txn.zookeeper.leadership import Leadership
from txn.zookeeper.znodes import Paths, encode, split_parts

__all__ = ["NodeWrite", "RecordWriter", "Revision", "part_deletes"]

R = TypeVar("R", bound=BaseModel)

_LOOKS = 10
_PAUSE_SECS = 0.02


@dataclass(frozen=True)
class NodeWrite:
    """New contents of one node, which tell whether their multi was carried out."""

    path: str
    data: bytes
    before: int | None
    """The node's version before; None when it did not exist."""

    @property
    def after(self) -> int:
        """The node's version when this is written."""
        return 0 if self.before is None else self.before + 1

    @property
    def operation(self) -> Operation:
        """What writes it, on condition that the node is as it was before."""
        if self.before is None:
            return Create(self.path, self.data)
        return Put(self.path, self.data, self.before)


@dataclass(frozen=True)
class Revision(Generic[R]):
    """A record that is to take the place of an older one; `operations` do it in one multi."""

    node: NodeWrite
    stored: Stored[R]
    """The record as it stands in ZooKeeper when this is written."""
    operations: tuple[Operation, ...]
    """What writes the node, and deletes the parts that go with the older record."""


class RecordWriter:
    """Writes the records of one topology. Not thread-safe: the caller serialises.

    Args:
        sleep: used between looks at a node.
    """

    def __init__(
        self,
        connection: Connection,
        paths: Paths,
        leadership: Leadership,
        sleep: Callable[[float], None],
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._leadership = leadership
        self._sleep = sleep

    def revise(
        self, path: str, record: R, old: Stored[R] | None, stem: str, what: str, deadline: float
    ) -> Revision[R]:
        """Prepare a record to take the place of an older one. Writes its parts, if it is large.

        Args:
            path: of the record's own node.
            old: what stands there; None: nothing.
            stem: begins the names of the parts.
            what: the record in words, for errors.

        Raises:
            BatchError: the record is not JSON, or too large.
            FencedError, ProgressUnavailableError: as `write`.
        """
        data, pieces = split_parts(encode(record, what), stem)
        for name, piece in pieces.items():
            part = NodeWrite(self._paths.part(name), piece, None)
            self.write(part, [part.operation], deadline)
        node = NodeWrite(path, data, None if old is None else old.version)
        dropped = () if old is None else part_deletes(self._paths, old, keep=tuple(pieces))
        stored = Stored(record, node.after, tuple(pieces))
        return Revision(node, stored, (node.operation, *dropped))

    def write(self, node: NodeWrite, operations: Sequence[Operation], deadline: float) -> None:
        """Carry out `operations` exactly once: rule 3.

        Args:
            node: that of `operations` which tells whether they were carried out.

        Raises:
            FencedError: a newer leader exists, or somebody changed a node.
            ProgressUnavailableError: no answer before `deadline`; what is durable is unknown.
        """
        unexplained = 0
        while True:
            try:
                self._leadership.write(operations, deadline)
            except OutcomeUnknownError:
                continue  # sent again; should the first one land, this one is refused
            except RefusedError as refused:
                found = self._connection.get(node.path, deadline)
                if found and (found.data, found.version) == (node.data, node.after):
                    return
                unexplained += 1
                if (found.version if found else None) != node.before or unexplained >= _LOOKS:
                    raise self._changed(refused) from None
                self._sleep(_PAUSE_SECS)  # a lagging server showed us the past: look again
                continue
            return

    def _changed(self, refused: RefusedError) -> FencedError:
        return FencedError(
            f"ZooKeeper node '{refused.operation.path}' is not as this leader left it "
            f"({type(refused.cause).__name__}), although epoch {self._leadership.epoch} still "
            "stands: something other than a leader of this topology has changed it. Nothing more "
            "is written. Find out what did, then run the topology again; its start checks every "
            "node."
        )


def part_deletes(paths: Paths, stored: Stored[R], keep: Sequence[str] = ()) -> list[Operation]:
    """The parts that go with a record. They are never changed, so their version is 0."""
    return [Delete(paths.part(name), 0) for name in stored.parts if name not in keep]
