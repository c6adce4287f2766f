"""Read the topics of a Kafka cluster, and the first and last offsets of their partitions.

One client is kept. A snapshot costs two round trips, whatever the number of partitions: one for the
first and last offsets of all of them, then one for the topics, whose ids show whether the offsets
still belong to the same topics.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any

from spouts.kafka.options import ClientSettings
from txn.errors import FailedException, SourceUnavailableError, TopologyError

try:
    from confluent_kafka import (
        OFFSET_END,
        IsolationLevel,
        KafkaError,
        KafkaException,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, OffsetSpec
except ImportError as error:
    raise ImportError(
        "The Kafka spout needs confluent-kafka: pip install 'txn-spark[kafka]'"
    ) from error

__all__ = ["Cluster", "Partition", "Snapshot", "Topic"]

log = logging.getLogger("txn.spouts.kafka")

REQUEST_SECS = 10.0
_UNREACHABLE_SECS = 0.5
"""Seconds to wait for an answer without a connection to any broker: brokers may come back, or have
closed idle connections."""
_LOOK_SECS = 0.1
_STALE = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._NOENT,  # "No leaders found"
    }
)
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)
_UNREACHED = frozenset({KafkaError._RESOLVE, KafkaError._SSL, KafkaError._TRANSPORT})
"""Reasons for no connection: the client reports them in the background, and then times out."""
_SNAPSHOT_TRIES = 5

Partition = tuple[str, int]
"""A topic's name and a partition's number."""


@dataclass(frozen=True)
class Topic:
    """The current state of a topic."""

    id: str
    """Kafka's own id: a topic that is deleted and created again gets another one."""
    partitions: int


@dataclass(frozen=True)
class Snapshot:
    """Topics and offsets that belong together."""

    topics: Mapping[str, Topic] = field(default_factory=dict)
    """The topics that exist."""
    earliest: Mapping[Partition, int] = field(default_factory=dict)
    """The first offset that still exists."""
    latest: Mapping[Partition, int] = field(default_factory=dict)
    """The offset after the last readable one."""


class Cluster:
    """The metadata client of one spout. May be used by several threads.

    Its methods raise SourceUnavailableError if no broker answers.

    Args:
        refresh_secs: seconds for which the list of all topics is used before it is read again.
    """

    def __init__(
        self,
        settings: ClientSettings,
        servers: str,
        spout: str,
        refresh_secs: float,
    ) -> None:
        self._settings = settings
        self._refresh_secs = refresh_secs
        self._names: list[str] | None = None
        self._names_at = 0.0
        self._servers = servers
        self._spout = spout
        self._client: AdminClient | None = None
        self._refused: KafkaError | None = None
        self._unreached: KafkaError | None = None
        self._down_since: float | None = None
        """The time since which no broker can be reached, according to the client."""
        self._described: dict[str, Topic] = {}

    def matching(self, pattern: str) -> list[str]:
        """List topics whose whole name matches, without Kafka's own; asks once per interval."""
        now = time.monotonic()
        if self._names is None or now - self._names_at >= self._refresh_secs:
            client = self._connected()
            try:
                topics = client.list_topics(timeout=REQUEST_SECS).topics
            except KafkaException as error:
                raise self._failed(error, "its topics") from error
            self._names, self._names_at = sorted(topics), now
        return [n for n in self._names if not n.startswith("__") and re.fullmatch(pattern, n)]

    def snapshot(self, topics: Sequence[str]) -> Snapshot:
        """Return the existing topics among these, with the offsets of all their partitions.

        Raises:
            SourceUnavailableError: a partition has no leader now or does not know its offsets yet.
            FailedException: the topics changed during each try.
        """
        is_cached = self._client is not None
        try:
            return self._take_snapshot(topics)
        except SourceUnavailableError as error:
            # A client caches leaders for minutes: ask a new client at once.
            if not is_cached or _code(error.__cause__) not in _STALE:
                raise
        return self._take_snapshot(topics)

    def _take_snapshot(self, topics: Sequence[str]) -> Snapshot:
        names = set(topics)
        described = {name: topic for name, topic in self._described.items() if name in names}
        for _ in range(_SNAPSHOT_TRIES):
            partitions = [
                (name, n) for name in described for n in range(described[name].partitions)
            ]
            earliest, latest = self._ends(partitions)
            # Read after the offsets: if nothing has changed, the offsets belong to these topics.
            current = self.describe(topics)
            if current == described and len(latest) == len(partitions):
                self._described = {**self._described, **current}
                return Snapshot(current, earliest, latest)
            described = current
        raise FailedException(
            f"{self._spout} saw its topics change in each of {_SNAPSHOT_TRIES} tries. It will try "
            "again."
        )

    def offsets_at(
        self, partitions: Iterable[Partition], timestamp_ms: int
    ) -> dict[Partition, int]:
        """Return the first offsets at or after a time, of partitions that have such a record."""
        answers = self._ask(partitions, OffsetSpec.for_timestamp(timestamp_ms))
        offsets = self._results(answers, no_record=OFFSET_END)
        return {partition: offset for partition, offset in offsets.items() if offset >= 0}

    def describe(self, topics: Sequence[str]) -> dict[str, Topic]:
        """Return the existing topics among these."""
        if not topics:
            return {}
        client = self._connected()
        described: dict[str, Topic] = {}
        answers = client.describe_topics(
            TopicCollection(list(topics)), request_timeout=REQUEST_SECS
        )
        for name, answer in answers.items():
            try:
                topic = self._answer(answer)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._failed(error, f"topic {name!r}") from error
            else:
                described[name] = Topic(str(topic.topic_id), len(topic.partitions))
        return described

    # --- inside ----------------------------------------------------------------------------------

    def _connected(self) -> AdminClient:
        self._refused = self._unreached = self._down_since = None
        if self._client is None:
            config: dict[str, Any] = {**self._settings.librdkafka, "error_cb": self._note_error}
            try:
                self._client = AdminClient(config, logger=log)
            except (KafkaException, ValueError, TypeError) as error:
                raise TopologyError(
                    f"{self._spout} has a setting that Kafka's client refuses: {_words(error)}.",
                    number="TXN-404",
                ) from error
        return self._client

    def _note_error(self, error: KafkaError) -> None:
        if error.code() in _REFUSED:
            self._refused = error
        elif error.code() in _UNREACHED:
            self._unreached = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since = time.monotonic()

    def _ends(
        self, partitions: Sequence[Partition]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        asked = [self._ask(partitions, s) for s in (OffsetSpec.earliest(), OffsetSpec.latest())]
        earliest, latest = (self._results(answers) for answers in asked)
        return earliest, latest

    def _ask(
        self, partitions: Iterable[Partition], spec: OffsetSpec
    ) -> Mapping[TopicPartition, Future[Any]]:
        specs = {TopicPartition(name, number): spec for name, number in partitions}
        if not specs:
            return {}
        level = (
            IsolationLevel.READ_COMMITTED
            if self._settings.read_committed
            else IsolationLevel.READ_UNCOMMITTED
        )
        return self._connected().list_offsets(
            specs, isolation_level=level, request_timeout=REQUEST_SECS
        )

    def _results(
        self, answers: Mapping[TopicPartition, Future[Any]], no_record: int | None = None
    ) -> dict[Partition, int]:
        """Return the answer for each partition; `no_record` is the one for "no such record"."""
        offsets: dict[Partition, int] = {}
        for where, answer in answers.items():
            try:
                offset = self._answer(answer).offset
                # The partition's broker has just started: OFFSET_INVALID without an error.
                if offset < 0 and offset != no_record:
                    raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
                offsets[where.topic, where.partition] = offset
            except KafkaException as error:
                # The topic was deleted meanwhile; `describe` will notice.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    part = f"{where.topic}-{where.partition}"
                    raise self._failed(error, f"the offsets of {part}") from error
        return offsets

    def _answer(self, answer: Future[Any]) -> Any:
        """Wait for an answer of the brokers, but not for long while none can be reached."""
        while True:
            try:
                return answer.result(_LOOK_SECS)
            except FutureTimeoutError:
                client, down = self._client, self._down_since
                if down is not None and time.monotonic() - down >= _UNREACHABLE_SECS:
                    raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)) from None
                if client is not None:
                    client.poll(0)  # delivers errors that it received in the background

    def _failed(self, error: Exception, what: str) -> Exception:
        """Return the error for an answer: the source is unavailable, or refuses the user."""
        client, self._client = self._client, None
        # The next call uses a new client: this one would keep its cached leaders.
        if client is not None:
            client.poll(0)  # delivers errors that it received in the background
        refused = self._refused or (error.args[0] if _code(error) in _REFUSED else None)
        if refused is not None:
            return TopologyError(
                f"The brokers at {self._servers} refuse {self._spout}: {refused.str()}. "
                "Correct the credentials or the rights of the user.",
                number="TXN-403",
            )
        return SourceUnavailableError(
            f"{self._spout} could not ask the brokers at {self._servers} for {what}: "
            f"{self._why(error)}. Nothing is lost: check that they run and can be reached from "
            "here."
        )

    def _why(self, error: Exception) -> str:
        """Return the client's words, or for a time-out the reason for no connection."""
        if _code(error) == KafkaError._ALL_BROKERS_DOWN:
            why = "none of them can be reached"
        elif _code(error) == KafkaError._TIMED_OUT:
            why = f"no broker answered within {REQUEST_SECS:g} s"
        else:
            return _words(error)
        if self._unreached is None:
            return why
        # Its text ends with the time and the state of the client's wait.
        return f"{why} ({re.sub(r' ?[(]after .*', '', self._unreached.str())})"


def _code(error: BaseException | None) -> int | None:
    first = error.args[0] if error is not None and error.args else None
    return first.code() if isinstance(first, KafkaError) else None


def _words(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return str(first.str() if isinstance(first, KafkaError) else first).rstrip(".")
