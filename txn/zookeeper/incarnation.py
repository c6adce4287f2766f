"""Which life of a topology this is: the node by which its tables know whom they follow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from txn.errors import NewerFormatError, ProgressUnreadableError
from txn.protocol.records import IncarnationRecord
from txn.zookeeper.connection import Connection
from txn.zookeeper.writing import NodeWrite
from txn.zookeeper.znodes import Paths, decode, encode

__all__ = ["first_life", "next_life", "read_incarnation"]


def read_incarnation(
    connection: Connection, paths: Paths, deadline: float
) -> tuple[IncarnationRecord, int] | None:
    """(contents, znode version) of `incarnation`; None where no leader of this release has been.

    Raises:
        ProgressUnreadableError: it is unreadable.
    """
    node = connection.get(paths.incarnation, deadline)
    if node is None:
        return None
    return decode(IncarnationRecord, node.data, paths.incarnation), node.version


def first_life(paths: Paths, seed: str) -> tuple[IncarnationRecord, NodeWrite]:
    """The first incarnation, and what writes it.

    Args:
        seed: a fresh unique string.
    """
    record = _incarnation(seed)
    return record, NodeWrite(paths.incarnation, encode(record, "incarnation"), None)


def next_life(
    connection: Connection, paths: Paths, takes_over: Iterable[int], seed: str, deadline: float
) -> NodeWrite:
    """The write that begins a new incarnation, even if the present one cannot be read.

    Args:
        takes_over: other incarnations that led the topology's tables.
        seed: a fresh unique string.

    Raises:
        NewerFormatError: a newer release wrote the node.
        ProgressUnavailableError: no answer before `deadline`.
    """
    node = connection.get(paths.incarnation, deadline)
    known: list[int] = []
    try:
        if node is not None:
            found = decode(IncarnationRecord, node.data, paths.incarnation)
            known = [found.id, *found.takes_over]
    except NewerFormatError:
        raise
    except ProgressUnreadableError:
        pass  # it is replaced
    data = encode(_incarnation(seed, [*takes_over, *known]), "incarnation")
    return NodeWrite(paths.incarnation, data, None if node is None else node.version)


def _incarnation(seed: str, takes_over: Iterable[int] = ()) -> IncarnationRecord:
    digest = hashlib.sha256(seed.encode()).digest()
    # 63 bits, as the version of a Delta application transaction has.
    number = int.from_bytes(digest[:8], "big") >> 1 or 1
    return IncarnationRecord(id=number, takes_over=sorted(set(takes_over) - {0}))
