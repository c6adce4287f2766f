"""Request to replay or drop quarantined txids, whether their topology runs or not.

A request for a replay is an entry in the parent node of the quarantine records; a request to drop a
txid is an entry in a node of its own. While there are quarantined txids, the leader reads both
before it plans a new txid, and deletes a record with the COMMITTED of the txid that has replayed or
dropped it; this module never changes the records themselves. The leader withdraws the request for a
replay that it refuses, on condition that no user has changed the requests meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from txn.protocol.backend import check_quarantined
from txn.protocol.encoding import encode
from txn.protocol.records import DropRequests, ReplayRequests
from txn.zookeeper.client.connection import (
    Connection,
    Create,
    OutcomeUnknownError,
    Put,
    RefusedError,
)
from txn.zookeeper.image import read_drops, read_requests
from txn.zookeeper.znodes import Paths, require, txid_of

__all__ = ["request_drops", "request_replays"]


def request_replays(
    connection: Connection,
    paths: Paths,
    deadline: float,
    txids: Collection[int] | None,
    *,
    drop: bool = False,
) -> list[int]:
    """Request the replay of quarantined txids; as `ProgressBackend.request_replays`."""
    version: int | None
    while True:
        # Records before requests: only a leader removes records, and a request for a txid that it
        # has replayed between the two reads has no effect.
        names = require(connection.children(paths.quarantine, deadline), paths.quarantine)
        quarantined = {txid_of(name, paths.quarantine) for name in names}
        chosen = quarantined if txids is None else set(txids)
        check_quarantined(paths.topology, chosen, quarantined)
        if drop:
            drops, version = read_drops(connection, paths, deadline)
            path, present = paths.drops, set(drops.drop)
        else:
            replays, version = read_requests(connection, paths, deadline)
            path, present = paths.quarantine, set(replays.replay)
        if chosen <= present:
            return sorted(chosen)
        requested = sorted(chosen | (present & quarantined))
        record = DropRequests(drop=requested) if drop else ReplayRequests(replay=requested)
        data = encode(record, "request")
        write = Create(path, data) if version is None else Put(path, data, version)
        try:
            connection.multi([write], deadline)
        except (OutcomeUnknownError, RefusedError):
            continue  # the next read shows if it was carried out, or if another was faster
        return sorted(chosen)


request_drops = partial(request_replays, drop=True)
"""Give quarantined txids up for good: their records are never read."""
