"""Plan the offsets of a Kafka spout's partitions: pure, from positions and one look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spouts.kafka.cluster import Look, Partition
from txn.errors import ProgressUnreadableError

__all__ = [
    "CORRECTIONS",
    "Left",
    "Lost",
    "Position",
    "Shares",
    "Skipped",
    "Start",
    "fair_shares",
    "going_on",
    "name_of",
    "parsed",
    "stored_positions",
    "what_is_left",
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
    skipped: Skipped | None = None
    """The offsets that were skipped just before `start`."""
    turn: int = Field(default=0, ge=0)
    """The number of the partition's last turn, while batches are smaller than the number of
    partitions; 0: none since all of them were read together."""

    def to_json(self) -> dict[str, Any]:
        """Return the stored form: without default values."""
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True)
class Lost:
    """Records that should have been read and are gone."""

    skipped: Skipped
    words: str


@dataclass(frozen=True)
class Start:
    """The beginning of a partition's next batch."""

    offset: int
    lost: Lost | None = None
    durable: bool = False
    """Store it even if there is nothing to read: a later look would give another offset."""


@dataclass(frozen=True)
class Shares:
    """The number of records that each partition gives to a batch."""

    records: dict[str, int]
    turn: int = 0
    """The number of this turn, if partitions take turns; 0 if each has a share."""


def going_on(partition: Partition, stored: Position, snapshot: Look) -> Start:
    """Return the start after `stored`, with `lost` if records are gone."""
    topic, part = snapshot.topics[partition[0]], name_of(partition)
    earliest, latest = snapshot.earliest[partition], snapshot.latest[partition]
    if topic.id != stored.topic_id:
        words = (
            f"topic {partition[0]!r} was deleted and created again (its id was {stored.topic_id} "
            f"and is {topic.id}), so offsets of {part} from {stored.end} on now name other records"
        )
        return _lost("recreated", stored.end, earliest, words)
    if stored.end < earliest:
        words = (
            f"offsets {stored.end} to {earliest - 1} of {part} were deleted before they were read, "
            "by the topic's retention or by hand"
        )
        return _lost("retention", stored.end, earliest, words)
    if stored.end > latest:
        words = (
            f"{part} ends at offset {latest}, but was read up to offset {stored.end}: brokers "
            "have lost records"
        )
        return _lost("truncated", stored.end, latest, words)
    return Start(stored.end)


@dataclass(frozen=True)
class Left:
    """The planned offsets of a partition that still exist."""

    position: Position
    words: str
    """The offsets that are gone, and why; empty: none."""


def what_is_left(partition: Partition, planned: Position, snapshot: Look) -> Left:
    """Return the planned offsets that still exist; `end` equals `start` if none do."""
    part = name_of(partition)
    nothing = planned.model_copy(update={"start": planned.end})
    if partition[0] not in snapshot.topics or partition not in snapshot.latest:
        return Left(nothing, f"{part} is gone")
    lost = going_on(partition, planned.model_copy(update={"end": planned.start}), snapshot).lost
    if lost is None:
        end = min(planned.end, snapshot.latest[partition])
        gone = f"{part} ends at offset {end}, before the planned {planned.end}"
        return Left(planned.model_copy(update={"end": end}), gone * (end < planned.end))
    start = (
        min(lost.skipped.next, planned.end) if lost.skipped.reason == "retention" else planned.end
    )
    skipped = lost.skipped.model_copy(update={"next": start})
    end = max(start, min(planned.end, snapshot.latest[partition]))
    return Left(
        planned.model_copy(update={"start": start, "end": end, "skipped": skipped}), lost.words
    )


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
        return Shares({n: int(n in chosen) for n in limited}, 1 + max(turns.values(), default=0))
    shares: dict[str, int] = {}
    budget = per_batch
    for name in sorted(limited, key=lambda name: (limited[name], name)):
        shares[name] = min(limited[name], budget // (len(limited) - len(shares)))
        budget -= shares[name]
    return Shares(shares)


def name_of(partition: Partition) -> str:
    """Return the durable name of a partition: "topic-number", as Kafka itself writes it."""
    return f"{partition[0]}-{partition[1]}"


def parsed(name: str) -> Partition:
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


def _lost(reason: Reason, first: int, following: int, words: str) -> Start:
    return Start(following, Lost(Skipped(reason=reason, first=first, next=following), words))
