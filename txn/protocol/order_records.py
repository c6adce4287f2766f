"""Turn the coordinator's orders into records for ZooKeeper and publications for the tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from txn.interfaces import Member, Publication
from txn.protocol.events import Metadata, PersistCommitted, PersistStart, Publish
from txn.protocol.records import (
    BatchRecord,
    CommittedRecord,
    NoticesRecord,
    QuarantineRecord,
)

__all__ = [
    "committed_record",
    "notices_record",
    "publication_of",
    "quarantine_record",
    "start_record",
]

_NOTICES_BYTES = 256 * 1024
"""Most bytes of all notices as JSON, so that they fit into one node."""


def start_record(order: PersistStart, epoch: int, opaque: Collection[str]) -> BatchRecord:
    """Return the START of an attempt."""
    return BatchRecord(
        txid=order.attempt.txid,
        attempt=order.attempt.attempt_id,
        epoch=epoch,
        spouts=dict(order.metadata),
        opaque=sorted(opaque),
        quarantined=order.quarantined,
        replay_of=order.replay_of,
        watermark=order.watermark,
        dimensions=dict(order.dimensions),
    )


def publication_of(
    order: Publish,
    topology: str,
    epoch: int,
    timings_ms: Mapping[str, float],
    *,
    quarantined: str | None = None,
    replay_of: int | None = None,
) -> Publication:
    """Return the record of a commit turn for the tables' logs."""
    members = tuple(
        Member(
            txid=attempt.txid,
            attempt_id=attempt.attempt_id,
            read=dict(metadata),
            watermark=order.watermarks.get(attempt.txid),
            dimensions=dict(order.dimensions.get(attempt.txid, {})),
        )
        for attempt, metadata in order.members
    )
    return Publication(
        topology=topology,
        epoch=epoch,
        first_txid=members[0].txid,
        last_txid=order.attempt.txid,
        attempt_id=order.attempt.attempt_id,
        spouts=dict(order.positions),
        read=dict(order.metadata),
        timings_ms=dict(timings_ms),
        quarantined=quarantined,
        replay_of=replay_of,
        watermark=members[-1].watermark,
        dimensions=members[-1].dimensions,
        event_time=order.event_time,
        members=members if len(members) > 1 else (),
    )


def notices_record(
    epoch: int, txid: int, at: str, notices: Mapping[str, Sequence[str]]
) -> NoticesRecord:
    """Return the record of the spouts' notices; counts the streams whose notices do not fit."""
    streams: dict[str, list[str]] = {}
    room = _NOTICES_BYTES
    for stream, lines in notices.items():
        room -= len(json.dumps({stream: list(lines)}))
        if room < 0:
            break
        streams[stream] = list(lines)
    left_out = len(notices) - len(streams)
    return NoticesRecord(epoch=epoch, txid=txid, at=at, streams=streams, left_out=left_out)


def committed_record(order: PersistCommitted, epoch: int) -> CommittedRecord:
    """Return the COMMITTED of a txid."""
    return CommittedRecord(
        txid=order.attempt.txid,
        epoch=epoch,
        spouts=dict(order.positions),
        tables=dict(order.tables),
        event_time=order.event_time,
    )


def quarantine_record(order: PersistCommitted, read: Metadata) -> QuarantineRecord | None:
    """Return the quarantine record of a txid that is committed empty; None for others."""
    if order.quarantined is None:
        return None
    txid, attempt_id = order.attempt.txid, order.attempt.attempt_id
    return QuarantineRecord(
        txid=txid, attempt=attempt_id, spouts=dict(read), error=order.quarantined
    )
