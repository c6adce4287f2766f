"""The incarnation of a topology: the node whose id tells its tables which leader to follow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from txn.errors import NewerFormatError, ProgressUnreadableError
from txn.protocol.encoding import decode, encode
from txn.protocol.records import IncarnationRecord
from txn.zookeeper.client.connection import Connection
from txn.zookeeper.writing import NodeWrite
from txn.zookeeper.znodes import Paths

__all__ = ["first_life", "next_life"]


def first_life(paths: Paths, seed: str) -> tuple[IncarnationRecord, NodeWrite]:
    """Return the first incarnation, and the write that creates it.

    Args:
        seed: a fresh unique string.
    """
    record = _incarnation(seed)
    return record, NodeWrite(paths.incarnation, encode(record, "incarnation"), None)


def next_life(
    connection: Connection, paths: Paths, takes_over: Iterable[int], seed: str, deadline: float
) -> NodeWrite:
    """Return the write that begins a new incarnation, even if the present one is unreadable.

    Args:
        takes_over: other incarnations that led the topology's tables.
        seed: a fresh unique string.
    """
    node = connection.get(paths.incarnation, deadline)
    replaced: list[int] = []
    try:
        if node is not None:
            present = decode(IncarnationRecord, node.data, paths.incarnation)
            replaced = [present.id, *present.takes_over]
    except NewerFormatError:
        raise
    except ProgressUnreadableError:
        pass  # it is replaced
    data = encode(_incarnation(seed, [*takes_over, *replaced]), "incarnation")
    return NodeWrite(paths.incarnation, data, None if node is None else node.version)


def _incarnation(seed: str, takes_over: Iterable[int] = ()) -> IncarnationRecord:
    digest = hashlib.sha256(seed.encode()).digest()
    # 63 bits, like the version of a Delta application transaction.
    number = int.from_bytes(digest[:8], "big") >> 1 or 1
    return IncarnationRecord(id=number, takes_over=sorted(set(takes_over) - {0}))
