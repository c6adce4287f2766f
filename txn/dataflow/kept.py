"""Rows of a stream that its later txids look up, for a table of the topology's own."""

from __future__ import annotations

from dataclasses import dataclass

from txn.dataflow.graph import Derived, Node, promise_of
from txn.errors import TopologyError
from txn.interfaces import SpoutKind

__all__ = ["Kept", "in_name", "own_table", "require_replays"]


@dataclass(frozen=True, eq=False)
class Kept(Derived):
    """The rows of a stream that later txids look up."""

    owner: Node
    """The node that looks it up."""
    side: int
    """Which of the owner's tables it is."""
    name: str
    """Of the table's folder."""
    keys: tuple[str, ...]
    """The columns by which it is looked up."""
    time: str | None
    """The event time; None: there is none."""
    after: int | None
    """Microseconds behind the watermark, up to which it is looked up; None: for ever."""
    whole: bool
    """Whether whole rows are kept; False: the keys, each once."""

    @property
    def operation(self) -> str:
        """Its name in messages."""
        return f"what {self.owner.operation} keeps"


def own_table(node: Node) -> str:
    """The beginning of the name of a node's table: its streams, in an order that never changes."""
    return "-".join(sorted(source.name for source in node.sources()))


def in_name(duration: int) -> str:
    """A duration of so many microseconds, for the name of a table: `1800s`."""
    seconds, rest = divmod(duration, 1_000_000)
    return f"{duration}us" if rest else f"{seconds}s"


def require_replays(node: Node, where: str) -> None:
    """Refuse a stream whose replays may lose rows that later txids look up.

    Args:
        where: the method and its stream.

    Raises:
        TopologyError: it has a non-transactional spout.
    """
    promise = promise_of(node)
    if promise.kind is SpoutKind.NON_TRANSACTIONAL:
        raise TopologyError(
            f"{where}: {promise.why}, so a replay may lose rows that later ones are compared "
            "with. Use a transactional or an opaque spout.",
            number="TXN-106",
        )
