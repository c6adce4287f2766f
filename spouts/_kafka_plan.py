"""Where each partition of a Kafka spout goes on from: pure, out of positions and a look."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spouts._kafka_cluster import Look, Partition
from txn.errors import ProgressUnreadableError

__all__ = [
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
]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}-(0|[1-9][0-9]{0,9})")
"""A topic, as Kafka allows them, and a number."""

Reason = Literal["retention", "recreated", "truncated"]


class Skipped(BaseModel):
    """Offsets that were passed over, because `on_data_loss="skip"` says so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Reason
    """"retention": deleted before they were read; "recreated": the topic was deleted and made
    again; "truncated": the partition ends before what was read."""
    first: int
    """The first offset that was not read."""
    next: int
    """The offset at which reading went on (of the new topic, if it was made again)."""


class Position(BaseModel):
    """What a txid reads of one partition."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int = Field(ge=0)
    """First offset."""
    end: int = Field(ge=0)
    """The offset after the last; equal to `start` where a partition is only taken note of."""
    topic_id: str
    """Kafka's id of the topic that the offsets are about."""
    deployment: str = ""
    skipped: Skipped | None = None
    """What was passed over just before `start`."""
    turn: int = Field(default=0, ge=0)
    """The partition's last turn, counted up while batches are smaller than the number of
    partitions; 0: it has had none since all of them were read together."""

    def to_json(self) -> dict[str, Any]:
        """As it is kept: without what has its default value."""
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True)
class Lost:
    """Records that were to be read and cannot be read any more."""

    skipped: Skipped
    words: str


@dataclass(frozen=True)
class Start:
    """Where a partition's next batch begins."""

    offset: int
    lost: Lost | None = None
    durable: bool = False
    """To be kept even if there is nothing to read: asked for again it would be another one."""


@dataclass(frozen=True)
class Shares:
    """What the partitions give to a batch."""

    records: dict[str, int]
    turn: int = 0
    """The number of this turn, where partitions take turns; 0 where each has a share."""


def going_on(partition: Partition, stored: Position, look: Look) -> Start:
    """Where to go on after `stored`; says so if that is not possible without a loss."""
    topic, part = look.topics[partition[0]], name_of(partition)
    earliest, latest = look.earliest[partition], look.latest[partition]
    if topic.id != stored.topic_id:
        words = (
            f"topic {partition[0]!r} was deleted and made again (its id was {stored.topic_id} and "
            f"is {topic.id}), so offsets of {part} from {stored.end} on are other records now"
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
            f"{part} ends at offset {latest}, before the {stored.end} up to which it was read: "
            "brokers have lost records"
        )
        return _lost("truncated", stored.end, latest, words)
    return Start(stored.end)


def fair_shares(
    available: Mapping[str, int],
    per_partition: int | None,
    per_batch: int | None,
    turns: Mapping[str, int],
) -> Shares:
    """How many records each partition gives to a batch.

    What a short partition leaves of its share goes to the longer ones, so a batch is full as long
    as there is enough to read. Where a batch is smaller than the number of partitions with
    records, those whose last turn was longest ago give one record each, so that each of them is
    read within ceil(partitions / per_batch) batches.

    Args:
        turns: `Position.turn` of each partition.
    """
    wanted = {
        name: count if per_partition is None else min(count, per_partition)
        for name, count in available.items()
    }
    if per_batch is None:
        return Shares(wanted)
    waiting = [name for name in wanted if wanted[name]]
    if len(waiting) > per_batch:
        waiting.sort(key=lambda name: (turns.get(name, 0), name))
        chosen = set(waiting[:per_batch])
        return Shares({n: int(n in chosen) for n in wanted}, 1 + max(turns.values(), default=0))
    shares: dict[str, int] = {}
    budget = per_batch
    for name in sorted(wanted, key=lambda name: (wanted[name], name)):
        shares[name] = min(wanted[name], budget // (len(wanted) - len(shares)))
        budget -= shares[name]
    return Shares(shares)


def name_of(partition: Partition) -> str:
    """The durable name of a partition: "topic-number", as Kafka itself writes it."""
    return f"{partition[0]}-{partition[1]}"


def parsed(name: str) -> Partition:
    """The partition of a durable name."""
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def stored_positions(stored: Mapping[str, Any], whose: str) -> dict[str, Position]:
    """Positions as they were kept.

    Raises:
        ProgressUnreadableError: they are not what this spout writes.
    """
    try:
        for name in stored:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} names no partition")
        return {name: Position.model_validate(position) for name, position in stored.items()}
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProgressUnreadableError(
            f"The stored positions of {whose} are not what it writes: {error}. Run the spout that "
            "wrote them, or give the stream a new name."
        ) from error


def _lost(reason: Reason, first: int, following: int, words: str) -> Start:
    return Start(following, Lost(Skipped(reason=reason, first=first, next=following), words))
