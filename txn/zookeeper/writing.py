"""Writes to ZooKeeper that happen exactly once, and only while their writer leads.

1. Every write is one multi that begins with `check(epoch, version)`: a process that is no longer
   the leader can write nothing, however late its request arrives.
2. Every other operation in it carries the version it was computed from.
3. A multi is never assumed to have failed. When the connection breaks before the answer, the same
   multi is sent again after the reconnect. If the first one was carried out, the versions in the
   second do not hold, and a read of the node decides: it holds exactly our new contents, one
   version on (done), or the former contents (try again), or anything else (fenced).

A record that is too large for one node has its parts written first. Parts are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from txn.errors import FencedError
from txn.protocol.encoding import encode
from txn.zookeeper.client.connection import (
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
from txn.zookeeper.znodes import Paths, split_parts

__all__ = ["NodeWrite", "RecordWriter", "Revision", "part_deletes"]

R = TypeVar("R", bound=BaseModel)

_READS = 10
_PAUSE_SECS = 0.02


@dataclass(frozen=True)
class NodeWrite:
    """New contents of one node; a read of them proves that their multi was carried out."""

    path: str
    data: bytes
    before: int | None
    """The node's version before; None if it did not exist."""

    @property
    def after(self) -> int:
        """The node's version after this write."""
        return 0 if self.before is None else self.before + 1

    @property
    def operation(self) -> Operation:
        """The operation that writes it, on condition that the node has not changed."""
        if self.before is None:
            return Create(self.path, self.data)
        return Put(self.path, self.data, self.before)


@dataclass(frozen=True)
class Revision(Generic[R]):
    """A record that replaces an older one; `operations` write it in one multi."""

    node: NodeWrite
    stored: Stored[R]
    """The record in ZooKeeper after this write."""
    operations: tuple[Operation, ...]
    """The operations that write the node and delete the parts of the older record."""


class RecordWriter:
    """Writes the records of one topology. Not thread-safe: the caller serialises."""

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
        """Prepare a record that replaces an older one. Writes its parts, if it is large.

        Args:
            path: of the record's own node.
            old: the record to replace; None if the node does not exist.
            stem: the beginning of the names of the parts.
            what: the record in words, for errors.
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
            node: the one of `operations` whose contents prove that they were carried out.

        Raises:
            FencedError: a newer leader exists, or another program changed a node.
            ProgressUnavailableError: no answer before `deadline`; the write may be durable or not.
        """
        unexplained = 0
        while True:
            try:
                self._leadership.write(operations, deadline)
            except OutcomeUnknownError:
                continue  # sent again; if the first one landed, this one is refused
            except RefusedError as refused:
                present = self._connection.get(node.path, deadline)
                if present and (present.data, present.version) == (node.data, node.after):
                    return
                unexplained += 1
                if (present.version if present else None) != node.before or unexplained >= _READS:
                    raise self._changed(refused) from None
                self._sleep(_PAUSE_SECS)  # a lagging server answered: read again
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
    """Return the deletes of a record's parts. Parts are never changed, so their version is 0."""
    return [Delete(paths.part(name), 0) for name in stored.parts if name not in keep]
