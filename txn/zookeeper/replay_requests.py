"""Request to replay or drop quarantined txids, whether their topology runs or not.

A request for a replay is an entry in the parent node of the quarantine records; a request to drop a
txid is an entry in a node of its own. While there are quarantined txids, the leader reads both
before it plans a new txid, and deletes a record with the COMMITTED of the txid that has replayed or
dropped it; this module never changes the records themselves. The leader withdraws the request for a
replay that it refuses, on condition that no user has changed the requests meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial

from txn.config import TopologyConfig
from txn.errors import UserError
from txn.protocol.records import DropRequests, ReplayRequests
from txn.zookeeper.client.connection import Create, OutcomeUnknownError, Put, RefusedError
from txn.zookeeper.image import read_drops, read_requests
from txn.zookeeper.status import existing_topology
from txn.zookeeper.znodes import encode, require, txid_of

__all__ = ["request_drops", "request_replays"]


def request_replays(
    hosts: str,
    topology: str,
    config: TopologyConfig,
    txids: Collection[int] | None,
    *,
    drop: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[int]:
    """Request the replay of quarantined txids by the topology's present or next leader.

    Idempotent.

    Args:
        txids: the txids; None: all quarantined ones.
        drop: as `request_drops`.

    Returns:
        The txids, ascending.

    Raises:
        UserError: one of them is not quarantined, or none is at all; nothing is requested then.
        TopologyError: there is no such topology.
        ProgressUnreadableError: the node does not hold requests.
        ProgressUnavailableError: ZooKeeper did not answer.
    """
    with existing_topology(hosts, topology, config, sleep, clock) as (connection, paths, deadline):
        version: int | None
        while True:
            # Records before requests: only a leader removes records, and a request for a txid that
            # it has replayed between the two reads has no effect.
            names = require(connection.children(paths.quarantine, deadline), paths.quarantine)
            quarantined = {txid_of(name, paths.quarantine) for name in names}
            chosen = quarantined if txids is None else set(txids)
            _check(topology, chosen, quarantined)
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


def _check(topology: str, chosen: set[int], quarantined: set[int]) -> None:
    if not quarantined:
        raise UserError(
            f"Topology '{topology}' has no quarantined txids: there is nothing to replay or to "
            "drop. A txid is quarantined when its attempts are used up and on_exhausted is "
            '"quarantine".',
            number="TXN-610",
        )
    unknown = sorted(chosen - quarantined)
    if unknown:
        listed = ", ".join(str(txid) for txid in sorted(quarantined))
        raise UserError(
            f"Txid {unknown[0]} of topology '{topology}' is not quarantined: it never was, or it "
            f"has been replayed or dropped since. The quarantined txids are {listed}. Nothing was "
            f"requested. `txn quarantine list {topology}` shows what they were to read.",
            number="TXN-610",
        )
