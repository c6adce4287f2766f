"""A spout over Kafka topics: Spark reads the records, and the coordinator keeps the offsets.

The offsets of a txid are decided once, from one snapshot of the cluster, and are durable in
ZooKeeper before a record is read. No consumer group is used. Offsets are looked up with
confluent-kafka (`pip install 'txn-spark[kafka]'`); records are read with Spark's own Kafka source,
in batch mode with explicit offsets (`delta_session(..., packages=KafkaSpout.packages)`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from spouts._schemas import as_struct
from spouts._sizes import BatchSize, Size
from spouts.files import FileBatch
from spouts.kafka.arguments import (
    FirstPoll,
    check_servers,
    checked_choice,
    subscription,
    timestamp_ms,
)
from spouts.kafka.cluster import Cluster, Partition, Snapshot
from spouts.kafka.corrections import Corrections, KafkaInlet
from spouts.kafka.options import client_settings
from spouts.kafka.plan import (
    CORRECTIONS,
    Lost,
    Position,
    Start,
    fair_shares,
    find_loss,
    find_remaining,
    name_of,
    next_start,
    parse_name,
    stored_positions,
)
from spouts.kafka.reading import KafkaReader, allow_own_group
from spouts.kafka.relation import offsets_read
from spouts.kafka.values import ValueFormat, Values
from spouts.records.bad_rows import OnBadRows, marks_of
from txn.attempts import TransactionAttempt
from txn.errors import (
    FailedException,
    SourceChangedError,
    SourceUnavailableError,
    TopologyError,
    TxnError,
)
from txn.interfaces import NOTICES, Keeper, Lag, PartitionedSpout, PartitionPositions, SpoutKind
from txn.spark.origins import unnoted
from txn.spark.rows import no_rows
from txn.spark.versions import running_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FirstPoll", "KafkaSpout"]

log = logging.getLogger("txn.spouts.kafka")
notices = logging.getLogger(f"{NOTICES}.kafka")

_LOSS = ("error", "skip")


class _Packages:
    """Spark's Kafka source for the Spark that runs, looked up when somebody asks for it."""

    def __get__(self, spout: object, owner: type) -> tuple[str, ...]:
        return (running_spark().kafka_package,)


class KafkaSpout(PartitionedSpout):
    """Reads Kafka topics, a range of offsets of each partition per txid.

    Columns: `key` and `value` (binary), `topic`, `partition`, `offset`, `timestamp`,
    `timestampType`, and with `include_headers` also `headers`; with `value_format` those of
    `schema` in the place of `value`. Partitions are named
    "topic-number"; a position is {"start", "end", "topic_id"}.

    Source: `KafkaTridentSpoutOpaque`, `KafkaTridentSpoutTransactional`, `KafkaTridentSpoutConfig`.

    Args:
        bootstrap_servers: "host:port,host:port".
        topics: names of topics; each must exist when the topology first starts.
        pattern: instead of `topics`: a regular expression that a topic's whole name matches.
        kind: "opaque" (default: a replay may lack records that retention has deleted meanwhile,
            so it never blocks) or "transactional" (a replay is identical or does not happen).
        first_poll: where a topic without a position begins. With "earliest", "latest" and
            "timestamp" stored positions count only for the same `deployment`; with
            "uncommitted_..." they always count. A partition added to a topic that is read already
            always begins at its beginning.
        start_timestamp: for the two timestamp strategies: milliseconds since 1970 UTC or an aware
            datetime; reading begins with the first record at or after it.
        deployment: an id of this deployment, kept with the positions. A new one makes "earliest",
            "latest" and "timestamp" begin again; a restart with the same one does not.
        max_records_per_partition: offsets of one partition in one txid; None: no limit.
        max_records_per_batch: offsets of all partitions in one txid, spread fairly over them;
            None: no limit. Both may be a range (least, most): at most `least` while the topology is
            caught up, and up to `most` while it is behind.
        on_data_loss: what to do if unread records are gone: "error" stops the topology; "skip"
            goes on with the records left, logs a warning and notes the offsets in the metadata.
        include_headers: add the column `headers`.
        value_format: "json" or "csv": in the place of `value` come the columns of `schema`, parsed
            by Spark. One of Kafka's columns whose name the schema has is then called `kafka_...`.
        schema: of the values: DDL or StructType.
        new_columns: what becomes of fields of JSON values that the schema lacks. "ignore": they are
            not read, without a notice. "fail": the batch fails and names them.
        bad_rows: what becomes of records whose values do not parse or do not fit the schema.
            "fail": the batch fails. "drop" and "set_aside": as for a rule of `Stream.expect`; what
            is set aside has the record's place, "topic-partition:offset", and its own text.
        value_options: of Spark's parser, such as {"timestampFormat": "yyyy-MM-dd"}.
        corrections: a local folder for files of corrected records, which `txn rows replay` puts
            there: they are read as if the topics had them. None: rows can be exported only.
        options: settings of Kafka's client by Kafka's own names (`security.protocol`,
            `sasl.jaas.config`, `isolation.level`, ...), without "kafka.". For both clients: see
            docs/kafka.md. Never logged and never stored.
        client_options: settings of librdkafka by its own names, if `options` has no translation.
        refresh_interval_secs: how often a pattern is compared with the names of all topics.

    Raises:
        TopologyError: settings that are unknown, contradict each other, or must not be set.
    """

    kind = SpoutKind.OPAQUE
    packages = _Packages()

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        kind: SpoutKind | str = SpoutKind.OPAQUE,
        first_poll: FirstPoll = "uncommitted_earliest",
        start_timestamp: int | datetime | None = None,
        deployment: str = "",
        max_records_per_partition: Size | None = None,
        max_records_per_batch: Size | None = 1_000_000,
        on_data_loss: Literal["error", "skip"] = "error",
        include_headers: bool = False,
        value_format: ValueFormat | None = None,
        schema: str | StructType | None = None,
        bad_rows: OnBadRows = "fail",
        new_columns: Literal["fail", "ignore"] = "ignore",
        value_options: Mapping[str, Any] | None = None,
        corrections: str | None = None,
        options: Mapping[str, str] | None = None,
        client_options: Mapping[str, str] | None = None,
        refresh_interval_secs: float = 2.0,
    ) -> None:
        check_servers(bootstrap_servers)
        what = f"topics={list(topics)!r}" if pattern is None and topics else f"pattern={pattern!r}"
        self._name = f"KafkaSpout({bootstrap_servers!r}, {what})"
        self._first_broker = bootstrap_servers.partition(",")[0].strip()
        self.kind = checked_choice(self._name, "kind", kind, ("opaque", "transactional"), SpoutKind)
        self._first_poll = checked_choice(
            self._name, "first_poll", first_poll, get_args(FirstPoll), str
        )
        self._on_loss = checked_choice(self._name, "on_data_loss", on_data_loss, _LOSS, str)
        self._topics, self._pattern = subscription(self._name, topics, pattern)
        self._start_ms = timestamp_ms(self._name, self._first_poll, start_timestamp)
        limits = {
            "max_records_per_partition": max_records_per_partition,
            "max_records_per_batch": max_records_per_batch,
        }
        self._limits = {
            setting: None if limit is None else BatchSize(limit, self._name, setting)
            for setting, limit in limits.items()
        }
        self._deployment = deployment
        self._settings = client_settings(
            bootstrap_servers, options or {}, client_options or {}, self._name
        )
        self._reader = KafkaReader(
            self._name, self._settings.spark, include_headers=include_headers
        )
        new = checked_choice(self._name, "new_columns", new_columns, ("ignore", "fail"), str)
        self._values = self._parser(
            value_format, schema, bad_rows, value_options or {}, fails_for_new=new == "fail"
        )
        self.unparsed = None if self._values is None else self._values.unparsed
        self._corrections = None if corrections is None else Corrections(self._name, corrections)
        is_parsed = value_format is not None
        self._inlet = KafkaInlet(self._name, corrections, self._reader.columns, is_parsed=is_parsed)
        self._cluster = Cluster(
            self._settings, bootstrap_servers, self._name, refresh_interval_secs
        )
        self._decided: dict[str, Position] = {}
        self._left: Mapping[str, int] = {}
        """Partition -> number of offsets after the last planned ones."""
        self._gone: set[str] = set()
        self._losses: dict[str, str] = {}
        """Partition -> the notice of its last loss in this run."""

    def _parser(
        self,
        form: str | None,
        schema: str | StructType | None,
        bad_rows: str,
        options: Mapping[str, Any],
        *,
        fails_for_new: bool,
    ) -> Values | None:
        if fails_for_new and form != "json":
            raise TopologyError(
                f"{self._name} has new_columns='fail', which is for value_format='json' only: a "
                "CSV value with more columns than the schema does not parse.",
                number="TXN-404",
            )
        if (form is None) != (schema is None) or (form is None and options):
            raise TopologyError(
                f"{self._name} parses values if it is given both value_format='json' (or 'csv') "
                "and schema='user string, page int', and value_options only with them. Give both "
                "or none.",
                number="TXN-404",
            )
        if form is None or schema is None:
            marks_of(self._name, bad_rows, None, {}, position="")  # refuses all but "fail"
            return None
        beside = len(self._reader.columns) - 1
        return Values(self._name, form, schema, bad_rows, options, beside, fails_for_new)

    def locations(self) -> tuple[str, ...]:
        """Return each topic, or the pattern, at the first of the brokers."""
        topics = self._topics or (self._pattern,)
        return tuple(f"kafka://{self._first_broker}/{topic}" for topic in topics)

    def inlet(self) -> KafkaInlet:
        """Return the inlet of the folder `corrections`, in which every file is read once."""
        return self._inlet

    def keep_with(self, keeper: Keeper) -> None:
        """Store the names of corrected records' files with the keeper."""
        if self._corrections is not None:
            self._corrections.keep_with(keeper)

    def __repr__(self) -> str:
        """Return brokers and topics; no options, because they may hold secrets."""
        return self._name

    def open(self, spark: SparkSession, previous: PartitionPositions | None) -> StructType:
        """Check that brokers, topics and Spark's Kafka source are there. Reads no record.

        Raises:
            TopologyError: a topic that was never read does not exist; credentials are refused.
            SetupError: the Spark session has no Kafka source.
            SourceUnavailableError: no broker answers, on the very first run.
        """
        try:
            self._check_subscription(previous)
        except SourceUnavailableError as error:
            if previous is None:
                raise
            log.warning("%s", error)  # it has run before: start, and wait for the brokers
        allow_own_group(spark)
        if self._corrections is not None:
            self._corrections.open(spark, _batch(previous and previous.latest.get(CORRECTIONS)))
        nothing = {("txn", 0): Position(start=0, end=0, topic_id="")}
        return self._parsed(self._reader.rows(spark, nothing)).schema

    def _check_subscription(self, previous: PartitionPositions | None) -> None:
        if self._pattern is not None:
            self._cluster.matching(self._pattern)
        latest = previous.latest if previous else {}
        read_before = {parse_name(name)[0] for name in stored_positions(latest, self._name)}
        missing = set(self._topics) - read_before
        missing -= set(self._cluster.snapshot(sorted(missing)).topics)
        if missing:
            raise TopologyError(
                f"{self._name} should read {_listed(missing)}, which the brokers do not have. "
                "Create what is missing, or correct the names.",
                number="TXN-405",
            )

    # --- planning --------------------------------------------------------------------------------

    def batch_size_in_words(self) -> str:
        """Return how large a txid is, in words."""
        words = {"max_records_per_batch": "", "max_records_per_partition": " of a partition"}
        limits = ((limit, words[name]) for name, limit in self._limits.items() if limit)
        return "; ".join(f"{limit.in_words('record')}{of}" for limit, of in limits)

    def set_batch_target(self, share: float) -> None:
        """Move within the ranges of `max_records_per_batch` and `max_records_per_partition`."""
        for limit in self._limits.values():
            if limit is not None:
                limit.set_target(share)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: PartitionPositions | None
    ) -> PartitionPositions | None:
        """Read the cluster once, and spread the batch fairly over all partitions.

        The batch is empty if there is nothing to read, but a first poll at the end of a partition,
        or a skip, must be recorded.

        Raises:
            SourceUnavailableError: no broker answers, or a topic is gone.
            SourceChangedError: records are gone unread, and `on_data_loss` is "error".
        """
        stored = {} if previous is None else self._of_this_deployment(previous.latest)
        self._decided = self._decide(stored, begun=previous is not None)
        planned = super().initialize_transaction(attempt, previous)
        earliest = self._first_poll.endswith("earliest")
        if planned is None and previous is None and self._pattern is not None and not earliest:
            # No topic matches yet. Topics that match later are new and are read from their
            # beginning, so record that this was the first poll.
            return PartitionPositions()
        return planned

    def get_partitions(self) -> list[str]:
        """Return the partitions with a position in the current plan, and the corrected records."""
        return [*sorted(self._decided), *[CORRECTIONS] * (self._corrections is not None)]

    def plan_partition(
        self, attempt: TransactionAttempt, partition: str, previous: Any | None
    ) -> dict[str, Any] | None:
        """Return the position of a partition in the current plan."""
        if partition == CORRECTIONS and self._corrections is not None:
            batch = self._corrections.initialize_transaction(attempt, _batch(previous))
            return None if batch is None else batch.model_dump(mode="json")
        decided = self._decided.get(partition)
        return None if decided is None else decided.to_json()

    def _of_this_deployment(self, latest: Mapping[str, Any]) -> dict[str, Position]:
        positions = stored_positions(latest, self._name)
        if self._first_poll.startswith("uncommitted"):
            return positions
        return {n: p for n, p in positions.items() if p.deployment == self._deployment}

    def _decide(self, stored: Mapping[str, Position], *, begun: bool) -> dict[str, Position]:
        topics: Sequence[str] = self._topics
        if self._pattern is not None:
            topics = self._cluster.matching(self._pattern)
        snapshot = self._cluster.snapshot(topics)
        self._note_gone(topics, snapshot, stored)
        starts: dict[Partition, Start] = {}
        for partition in snapshot.latest:
            if (position := stored.get(name_of(partition))) is not None:
                starts[partition] = next_start(partition, position, snapshot)
        starts |= self._first_starts(snapshot, starts, stored, begun=begun)
        for partition, start in starts.items():
            if start.lost is not None:
                self._note_loss(name_of(partition), start.lost)
        turns = {name: position.turn for name, position in stored.items()}
        available = {name_of(p): max(0, snapshot.latest[p] - s.offset) for p, s in starts.items()}
        shares = fair_shares(
            available,
            self._limit("max_records_per_partition"),
            self._limit("max_records_per_batch"),
            turns,
        )
        records = shares.records
        self._left = {name: count - records[name] for name, count in available.items()}
        return {
            name: Position(
                start=start.offset,
                end=start.offset + records[name],
                topic_id=snapshot.topics[partition[0]].id,
                deployment=self._deployment,
                skipped=start.lost.skipped if start.lost else None,
                turn=shares.turn if records[name] else turns.get(name, 0),
            )
            for partition, start in starts.items()
            if records[name := name_of(partition)] or start.lost or start.durable
        }

    def _limit(self, setting: str) -> int | None:
        limit = self._limits[setting]
        return None if limit is None else limit.now

    def _first_starts(
        self,
        snapshot: Snapshot,
        with_position: Collection[Partition],
        stored: Mapping[str, Position],
        *,
        begun: bool,
    ) -> dict[Partition, Start]:
        """Return the starts of partitions without a position."""
        read_before = {parse_name(name)[0] for name in stored}
        # A topic that appears after the first poll and matches the pattern is all new.
        all_new = self._pattern is not None and begun and (stored or not self._deployment)
        new = [partition for partition in snapshot.latest if partition not in with_position]
        first = [p for p in new if not all_new and p[0] not in read_before]
        starts = {partition: Start(snapshot.earliest[partition]) for partition in new}
        offsets: Mapping[Partition, int] = {}
        if self._start_ms is not None:
            offsets = self._cluster.offsets_at(first, self._start_ms)
        if not self._first_poll.endswith("earliest"):
            starts |= {p: Start(offsets.get(p, snapshot.latest[p]), durable=True) for p in first}
        return starts

    def _note_gone(
        self, topics: Sequence[str], snapshot: Snapshot, stored: Mapping[str, Position]
    ) -> None:
        read = {parse_name(name)[0] for name in stored}
        if self._pattern is not None:
            read = {name for name in read if re.fullmatch(self._pattern, name)}
        else:
            read = set(topics)
        gone = read - set(snapshot.topics)
        if gone and self._on_loss == "error":
            raise SourceUnavailableError(
                f"{self._name}: {_listed(gone)} is gone, perhaps with records that were not read. "
                "The batch waits until it is back. To go on without it, set on_data_loss="
                "'skip' or leave it out of the subscription.",
                number="TXN-406",
            )
        for name in sorted(gone - self._gone):
            notices.warning("%s", self._without(name))
        self._gone = gone

    def _without(self, topic: str) -> str:
        return f"{self._name} goes on without topic {topic!r}, which is gone."

    def _note_loss(self, partition: str, lost: Lost) -> None:
        if self._on_loss == "error":
            raise SourceChangedError(
                f"{self._name} cannot go on: {lost.words}. Set on_data_loss='skip' to go on at "
                f"offset {lost.skipped.next}.",
                number="TXN-406",
            )
        words = f"{self._name} goes on at offset {lost.skipped.next}: {lost.words}."
        notices.warning("%s", words)
        self._losses = {**self._losses, partition: words}
        self._reader.renew_group()

    # --- reading ---------------------------------------------------------------------------------

    @unnoted()
    def emit_partitions(
        self, spark: SparkSession, attempt: TransactionAttempt, positions: Mapping[str, Any]
    ) -> DataFrame:
        """Read the planned offsets, after a check that they still exist in the same topics.

        Raises:
            SourceUnavailableError: no broker answers, or a topic is gone.
            SourceChangedError: planned records of a transactional batch are gone.
            FailedException: planned records of an opaque batch are gone; it is planned again.
        """
        stored = stored_positions(positions, self._name)
        planned = {parse_name(name): p for name, p in stored.items() if p.end > p.start}
        if planned:
            try:
                self._check_there(attempt, planned)
            except TxnError:
                self._reader.renew_group()
                raise
        rows = (
            self._reader.rows(spark, planned)
            if planned
            else no_rows(spark, as_struct(self._reader.schema, self._name))
        )
        if (corrected := self._corrected(positions)) is None:
            return self._parsed(rows)
        files, batch = corrected
        more = files.records(spark, attempt, batch, rows.columns)
        rows = self._parsed(rows.unionAll(more.values))
        if self._values is None:
            return rows
        return rows.unionAll(self._values.parsed(more.columns, as_json=True))

    def _corrected(self, positions: Mapping[str, Any]) -> tuple[Corrections, FileBatch] | None:
        """Return the batch of corrected records at these positions, with its reader."""
        if CORRECTIONS not in positions:
            return None
        if self._corrections is None:
            raise TopologyError(
                f"{self._name} has planned to read corrected records, and has no `corrections` any "
                "more. Give it the folder of before, and run it until the batch is committed.",
                number="TXN-404",
            )
        return self._corrections, FileBatch.model_validate(positions[CORRECTIONS])

    def check_read(self, attempt: TransactionAttempt, metadata: PartitionPositions) -> None:
        """Check that the topics are still the planned ones.

        Spark reads some time after `emit_partitions` has checked them. Records that retention has
        deleted meanwhile do not matter: Spark fails if it misses one.

        Raises:
            SourceUnavailableError: no broker answers.
            FailedException: a topic was deleted, or deleted and made again; other records may
                have been read, so that the batch is replayed.
        """
        stored = stored_positions(metadata.read, self._name)
        planned = {parse_name(name)[0]: p.topic_id for name, p in stored.items() if p.end > p.start}
        if corrected := self._corrected(metadata.read):
            corrected[0].check_read(attempt, corrected[1])
        topics = self._cluster.describe(sorted(planned))
        for topic, topic_id in planned.items():
            if (current_id := topics[topic].id if topic in topics else "gone") != topic_id:
                self._reader.renew_group()
                raise FailedException(
                    f"{self._name} has read batch {attempt} while topic {topic!r} was deleted (its "
                    f"id was {topic_id} and is {current_id}). The batch is replayed."
                )

    def readable(
        self, attempt: TransactionAttempt, metadata: PartitionPositions
    ) -> PartitionPositions:
        """Return the planned offsets that still exist; for a transactional spout all, or none.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceChangedError: records of a transactional txid are gone, or all records of an
                opaque one, or a file of corrected records.
        """
        stored = stored_positions(metadata.read, self._name)
        planned = {parse_name(name): p for name, p in stored.items() if p.end > p.start}
        if corrected := self._corrected(metadata.read):
            corrected[0].readable(attempt, corrected[1])
        snapshot = self._cluster.snapshot(sorted({topic for topic, _ in planned}))
        left = {
            partition: find_remaining(partition, position, snapshot)
            for partition, position in planned.items()
        }
        lost = {name_of(partition): rest.words for partition, rest in left.items() if rest.words}
        if not lost:
            return metadata
        words = (
            f"{self._name} has not all of what {attempt} would replay: {'; '.join(lost.values())}"
        )
        if self.kind is SpoutKind.TRANSACTIONAL:
            raise SourceChangedError(
                f"{words}. A transactional txid is read identically or not at all; kind='opaque' "
                "reads what is left.",
                number="TXN-406",
            )
        if not corrected and all(
            partition.position.end == partition.position.start for partition in left.values()
        ):
            raise SourceChangedError(f"{words}. Nothing of it is left.", number="TXN-406")
        notices.warning("%s. What is left is read.", words)
        self._losses = {**self._losses, **dict.fromkeys(lost, f"{words}.")}
        read = {name_of(partition): rest.position.to_json() for partition, rest in left.items()}
        return PartitionPositions(
            read={**metadata.read, **read}, latest={**metadata.latest, **read}
        )

    def _parsed(self, records: DataFrame) -> DataFrame:
        return records if self._values is None else self._values.parsed(records)

    def planned_parts(self, metadata: PartitionPositions) -> Sequence[str]:
        """Return one edge per partition with records to read, and per file of corrected ones."""
        stored = stored_positions(metadata.read, self._name)
        names = [name for name, p in stored.items() if p.end > p.start]
        if corrected := self._corrected(metadata.read):
            names += corrected[0].planned_parts(corrected[1])
        return sorted(names)

    def lag(self, newest: PartitionPositions | None) -> Lag:
        """Return the offsets after the newest batch, as it was planned.

        Transactions and compaction leave gaps, so there may be fewer records.
        """
        return Lag(records=sum(self._left.values()), partitions=self._left)

    def planned_lag(self, metadata: PartitionPositions) -> Lag:
        """Return the offsets of the batch."""
        stored = stored_positions(metadata.read, self._name)
        spans = {name: position.end - position.start for name, position in stored.items()}
        return Lag(records=sum(spans.values()), partitions=spans)

    def notices(self) -> Sequence[str]:
        """Return notices of lost topics, and of skipped records (`on_data_loss="skip"`)."""
        return [*map(self._without, sorted(self._gone)), *self._losses.values()]

    def parts_read(self, batch: DataFrame, metadata: PartitionPositions) -> Sequence[str]:
        """Return the partitions that Spark's plan of `batch` reads whole."""
        planned = {
            name: (metadata.read[name]["start"], metadata.read[name]["end"])
            for name in self.planned_parts(metadata)
            if name in metadata.read
        }
        read = [
            name
            for offsets in offsets_read(batch)
            for name, span in planned.items()
            if offsets.get(name) == span
        ]
        if corrected := self._corrected(metadata.read):
            read += corrected[0].parts_read(batch, corrected[1])
        return sorted(read)

    def _check_there(
        self, attempt: TransactionAttempt, planned: Mapping[Partition, Position]
    ) -> None:
        topics = sorted({topic for topic, _ in planned})
        snapshot = self._cluster.snapshot(topics)
        gone = set(topics) - set(snapshot.topics)
        if gone:
            raise SourceUnavailableError(
                f"{self._name} cannot read batch {attempt}: {_listed(gone)} is gone. The batch "
                "waits until it is back.",
                number="TXN-406",
            )
        for partition, position in planned.items():
            if partition not in snapshot.latest:
                raise self._changed(attempt, f"{name_of(partition)} is no longer there")
            lost = find_loss(partition, position.topic_id, position.start, snapshot)
            if lost is not None:
                raise self._changed(attempt, lost.words)
            if snapshot.latest[partition] < position.end:
                raise SourceUnavailableError(
                    f"{self._name} cannot read batch {attempt}: {name_of(partition)} ends at "
                    f"offset {snapshot.latest[partition]}, before the planned {position.end}. The "
                    "batch waits until the records are back.",
                    number="TXN-406",
                )

    def _changed(self, attempt: TransactionAttempt, words: str) -> TxnError:
        if self.kind is SpoutKind.TRANSACTIONAL:
            return SourceChangedError(
                f"{self._name} cannot read batch {attempt} as it was planned: {words}. A "
                "transactional batch is replayed identically or not at all. "
                f"{SourceChangedError.LET_GO}",
                number="TXN-406",
            )
        return FailedException(
            f"{self._name} cannot read batch {attempt} as it was planned: {words}. It is planned "
            "again."
        )


def _batch(position: Any | None) -> FileBatch | None:
    return None if position is None else FileBatch.model_validate(position)


def _listed(topics: Collection[str]) -> str:
    names = ", ".join(repr(name) for name in sorted(topics))
    return f"topic {names}" if len(topics) == 1 else f"topics {names}"
