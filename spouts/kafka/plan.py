"""Plan the offsets that a Kafka spout reads, from stored positions and one snapshot. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spouts.kafka.cluster import Partition, Snapshot
from txn.errors import ProgressUnreadableError

__all__ = [
    "CORRECTIONS",
    "Lost",
    "Position",
    "Remaining",
    "Shares",
    "Skipped",
    "Start",
    "fair_shares",
    "find_loss",
    "find_remaining",
    "name_of",
    "next_start",
    "parse_name",
    "stored_positions",
]

CORRECTIONS = "corrections/"
"""The key of corrected records' files among positions; no topic can have this name."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}-(0|[1-9][0-9]{0,9})")
"""A valid topic name, and a number."""

Reason = Literal["retention", "recreated", "truncated"]


class Skipped(BaseModel):
    """Offsets that were skipped, as `on_data_loss="skip"` asks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Reason
    """"retention": deleted before they were read; "recreated": the topic was deleted and created
    again; "truncated": the partition ends before the last offset that was read."""
    first: int
    """The first offset that was not read."""
    next: int
    """The offset at which reading continued (in the new topic, if it was created again)."""


class Position(BaseModel):
    """The offsets of one partition that a txid reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int = Field(ge=0)
    """First offset."""
    end: int = Field(ge=0)
    """The offset after the last; equal to `start` if the txid only records the position."""
    topic_id: str
    """Kafka's id of the topic to which the offsets belong."""
    deployment: str = ""
    """The `deployment` of the spout that planned it."""
    skipped: Skipped | None = None
    """The offsets that were skipped just before `start`."""
    turn: int = Field(default=0, ge=0)
    """The number of the partition's last turn, while partitions take turns (`fair_shares`); 0: it
    has had none since all were read together."""

    def to_json(self) -> dict[str, Any]:
        """Return the stored form: without default values."""
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True)
class Lost:
    """Records that should have been read and are gone."""

    skipped: Skipped
    words: str
    """The reason, for a message."""


@dataclass(frozen=True)
class Start:
    """The beginning of a partition's next batch."""

    offset: int
    lost: Lost | None = None
    durable: bool = False
    """Store it even if there is nothing to read: a later snapshot would give another offset."""


@dataclass(frozen=True)
class Shares:
    """The number of records that each partition gives to a batch."""

    records: dict[str, int]
    turn: int = 0
    """The number of this turn, if partitions take turns; 0 if each has a share."""


@dataclass(frozen=True)
class Remaining:
    """The planned offsets of a partition that still exist."""

    position: Position
    words: str
    """The offsets that are gone, and why; empty: none."""


def next_start(partition: Partition, stored: Position, snapshot: Snapshot) -> Start:
    """Return the start after `stored`, with `lost` if records are gone."""
    lost = find_loss(partition, stored.topic_id, stored.end, snapshot)
    return Start(stored.end if lost is None else lost.skipped.next, lost)


def find_loss(partition: Partition, topic_id: str, offset: int, snapshot: Snapshot) -> Lost | None:
    """Return the records at and after `offset` that are gone; None if none are.

    Args:
        topic_id: Kafka's id of the topic to which the offset belongs.
    """
    topic, name = snapshot.topics[partition[0]], name_of(partition)
    earliest, latest = snapshot.earliest[partition], snapshot.latest[partition]
    if topic.id != topic_id:
        return Lost(
            Skipped(reason="recreated", first=offset, next=earliest),
            f"topic {partition[0]!r} was deleted and created again (its id was {topic_id} and is "
            f"{topic.id}), so offsets of {name} from {offset} on now name other records",
        )
    if offset < earliest:
        return Lost(
            Skipped(reason="retention", first=offset, next=earliest),
            f"offsets {offset} to {earliest - 1} of {name} were deleted before they were read, by "
            "the topic's retention or by hand",
        )
    if offset > latest:
        return Lost(
            Skipped(reason="truncated", first=offset, next=latest),
            f"{name} ends at offset {latest}, but was read up to offset {offset}: brokers have "
            "lost records",
        )
    return None


def find_remaining(partition: Partition, planned: Position, snapshot: Snapshot) -> Remaining:
    """Return the planned offsets that still exist; `end` equals `start` if none do."""
    name = name_of(partition)
    if partition[0] not in snapshot.topics or partition not in snapshot.latest:
        return Remaining(planned.model_copy(update={"start": planned.end}), f"{name} is gone")
    latest = snapshot.latest[partition]
    lost = find_loss(partition, planned.topic_id, planned.start, snapshot)
    if lost is None:
        if planned.end <= latest:
            return Remaining(planned, "")
        words = f"{name} ends at offset {latest}, before the planned {planned.end}"
        return Remaining(planned.model_copy(update={"end": latest}), words)
    start = planned.end
    if lost.skipped.reason == "retention":  # otherwise the later offsets are gone, too
        start = min(lost.skipped.next, planned.end)
    end = max(start, min(planned.end, latest))
    skipped = lost.skipped.model_copy(update={"next": start})
    position = planned.model_copy(update={"start": start, "end": end, "skipped": skipped})
    return Remaining(position, lost.words)


def fair_shares(
    available: Mapping[str, int],
    per_partition: int | None,
    per_batch: int | None,
    turns: Mapping[str, int],
) -> Shares:
    """Share a batch among the partitions.

    If a partition has less than its share, the others get the rest, so a batch is full as long as
    there is enough to read. If a batch is smaller than the number of partitions with records,
    those whose last turn was longest ago give one record each. So each partition is read within
    ceil(partitions / per_batch) batches.

    Args:
        available: the number of records that each partition has.
        turns: `Position.turn` of each partition.
    """
    limited = {
        name: count if per_partition is None else min(count, per_partition)
        for name, count in available.items()
    }
    if per_batch is None:
        return Shares(limited)
    waiting = [name for name in limited if limited[name]]
    if len(waiting) > per_batch:
        waiting.sort(key=lambda name: (turns.get(name, 0), name))
        chosen = set(waiting[:per_batch])
        records = {name: 1 if name in chosen else 0 for name in limited}
        return Shares(records, turn=1 + max(turns.values(), default=0))
    shares: dict[str, int] = {}
    budget = per_batch
    # The smallest first: what they leave of their shares goes to the larger ones.
    for name in sorted(limited, key=lambda name: (limited[name], name)):
        shares[name] = min(limited[name], budget // (len(limited) - len(shares)))
        budget -= shares[name]
    return Shares(shares)


def name_of(partition: Partition) -> str:
    """Return the durable name of a partition: "topic-number", as Kafka itself writes it."""
    return f"{partition[0]}-{partition[1]}"


def parse_name(name: str) -> Partition:
    """Return the partition of a durable name."""
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def stored_positions(stored: Mapping[str, Any], spout: str) -> dict[str, Position]:
    """Parse the stored positions of partitions, without that of corrected records' files.

    Raises:
        ProgressUnreadableError: another spout wrote them.
    """
    stored = {name: position for name, position in stored.items() if name != CORRECTIONS}
    try:
        for name in stored:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} names no partition")
        return {name: Position.model_validate(position) for name, position in stored.items()}
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProgressUnreadableError(
            f"The stored positions of {spout} are not in its format: {error}. Run the spout that "
            "wrote them, or give the stream a new name.",
            number="TXN-416",
        ) from error
