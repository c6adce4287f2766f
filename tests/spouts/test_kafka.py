"""What a Kafka spout plans, against a real broker; nothing is read here."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from spouts.kafka import KafkaSpout
from tests.children import wait_until
from tests.spouts.kafka_broker import PASSWORD, USER, Broker
from txn.attempts import TransactionAttempt
from txn.errors import SourceChangedError, SourceUnavailableError, TopologyError
from txn.interfaces import Lag, PartitionPositions

JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="{}" password="{}";'
)

THEN = int(time.time() * 1000) - 3_600_000
"""An hour ago, in Kafka's milliseconds: within the retention of a topic."""

LIST_OFFSETS = AdminClient.list_offsets

_names = itertools.count()


@pytest.fixture
def topic(kafka: Broker) -> str:
    """A topic of this test, with one partition."""
    return kafka.create(f"plan-{next(_names)}")


def plan(spout: KafkaSpout, previous: PartitionPositions | None = None) -> Any:
    """The metadata of the next txid, as it comes back from ZooKeeper."""
    planned = spout.initialize_transaction(TransactionAttempt(1, 0), previous)
    return planned and PartitionPositions.model_validate_json(planned.model_dump_json())


def planned_at_last(spout: KafkaSpout, previous: PartitionPositions | None = None) -> Any:
    """`plan`, asked again as a run does while the brokers are away: a minute at most."""
    found: list[Any] = []

    def answered() -> bool:
        with contextlib.suppress(SourceUnavailableError):
            found.append(plan(spout, previous))
        return bool(found)

    wait_until(answered, "the brokers answer")
    return found[0]


def spans(planned: PartitionPositions) -> dict[str, tuple[int, int]]:
    """Partition number -> (start, end) of what is to be read."""
    return {name.rpartition("-")[2]: (p["start"], p["end"]) for name, p in planned.read.items()}


def only(planned: PartitionPositions) -> tuple[int, int]:
    """(start, end) of the only partition."""
    return spans(planned)["0"]


@pytest.mark.parametrize(
    ("strategy", "start"),
    [("earliest", 2), ("latest", 9), ("timestamp", 5)],
)
@pytest.mark.parametrize("prefix", ["", "uncommitted_"])
def test_first_poll(kafka: Broker, topic: str, strategy: str, start: int, prefix: str) -> None:
    """A topic without positions begins where the strategy says; what comes then follows on.

    Trident row 71.
    """
    for second in range(9):
        kafka.produce(topic, [second], timestamp=THEN + 1000 * second)
    kafka.expire(topic, 0, 2)
    when = THEN + 4500 if strategy == "timestamp" else None
    spout = KafkaSpout(
        kafka.servers, topics=[topic], first_poll=prefix + strategy, start_timestamp=when
    )
    first = plan(spout)
    assert only(first) == (start, 9)
    assert plan(spout, first) is None
    kafka.produce(topic, ["more"])
    assert only(plan(spout, first)) == (9, 10)


def test_a_timestamp_after_the_last_record_begins_at_the_end(kafka: Broker, topic: str) -> None:
    """With no record at or after the timestamp, reading begins with the next one that comes."""
    kafka.produce(topic, [1], timestamp=THEN)
    spout = KafkaSpout(
        kafka.servers, topics=[topic], first_poll="timestamp", start_timestamp=THEN + 1
    )
    assert only(plan(spout)) == (1, 1)


@pytest.mark.parametrize(
    ("strategy", "restarted", "deployed"),
    [
        ("earliest", (4, 5), (0, 5)),
        ("latest", (4, 5), (5, 5)),
        ("timestamp", (4, 5), (2, 5)),
        ("uncommitted_earliest", (4, 5), (4, 5)),
        ("uncommitted_latest", (4, 5), (4, 5)),
        ("uncommitted_timestamp", (4, 5), (4, 5)),
    ],
)
def test_stored_positions_count_within_a_deployment(
    kafka: Broker,
    topic: str,
    strategy: str,
    restarted: tuple[int, int],
    deployed: tuple[int, int],
) -> None:
    """A restart goes on; a new deployment begins anew, but for the uncommitted strategies."""
    for second in range(4):
        kafka.produce(topic, [second], timestamp=THEN + 1000 * second)
    when = THEN + 2000 if strategy.endswith("timestamp") else None

    def spout(deployment: str) -> KafkaSpout:
        return KafkaSpout(
            kafka.servers,
            topics=[topic],
            first_poll=strategy,
            start_timestamp=when,
            deployment=deployment,
        )

    first = plan(spout("one"))
    kafka.produce(topic, ["more"], timestamp=THEN + 9000)
    assert only(plan(spout("one"), first)) == restarted
    assert only(plan(spout("two"), first)) == deployed


@pytest.mark.parametrize("strategy", ["uncommitted_earliest", "latest"])
def test_a_partition_that_is_added_begins_at_its_beginning(
    kafka: Broker, topic: str, strategy: str
) -> None:
    """A partition added to a Kafka topic is read from its beginning, whatever the strategy."""
    kafka.produce(topic, [1])
    spout = KafkaSpout(kafka.servers, topics=[topic], first_poll=strategy)
    first = plan(spout)
    kafka.grow(topic, 2)
    kafka.produce(topic, [2, 3], partition=1)
    second = plan(spout, first)
    assert spans(second) == {"1": (0, 2)}
    assert set(second.latest) == {f"{topic}-0", f"{topic}-1"}


@pytest.mark.parametrize("strategy", ["uncommitted_earliest", "latest"])
def test_topics_by_pattern(kafka: Broker, strategy: str) -> None:
    """Topics that match are read; one made later from its beginning, whatever the strategy."""
    base = f"pattern{next(_names)}"
    kafka.create(f"{base}-a-not")
    spout = KafkaSpout(
        kafka.servers,
        pattern=rf"{base}-(a|b)",
        first_poll=strategy,
        refresh_interval_secs=0,
    )
    nothing = plan(spout)
    assert nothing == (PartitionPositions() if strategy == "latest" else None)
    for name in ("a", "b"):
        kafka.produce(kafka.create(f"{base}-{name}"), [1, 2])
        nothing = plan(spout, nothing)
        assert list(nothing.read) == [f"{base}-{name}-0"]
        assert only(nothing) == (0, 2)


def test_topic_names_are_asked_for_once_per_interval(kafka: Broker) -> None:
    """A pattern is compared with all names only when the refresh interval has passed."""
    base = f"interval{next(_names)}"
    spout = KafkaSpout(kafka.servers, pattern=f"{base}.*", refresh_interval_secs=3600)
    first = plan(spout)
    kafka.produce(kafka.create(f"{base}-a"), [1])
    assert plan(spout, first) is None
    spout._cluster._refresh_secs = 0
    assert only(plan(spout, first)) == (0, 1)


def test_limits_are_spread_over_the_partitions(kafka: Broker) -> None:
    """A batch takes no more than its limits, fairly, and the rest comes in the next ones."""
    name = kafka.create(f"limits{next(_names)}", 3)
    for partition, count in enumerate((2, 20, 20)):
        kafka.produce(name, range(count), partition=partition)

    def left(*records: int) -> Lag:
        parts = {f"{name}-{partition}": count for partition, count in enumerate(records)}
        return Lag(records=sum(records), partitions=parts)

    both = KafkaSpout(
        kafka.servers, topics=[name], max_records_per_batch=14, max_records_per_partition=5
    )
    assert spans(plan(both)) == {"0": (0, 2), "1": (0, 5), "2": (0, 5)}
    spout = KafkaSpout(kafka.servers, topics=[name], max_records_per_batch=14)
    first = plan(spout)
    assert spans(first) == {"0": (0, 2), "1": (0, 6), "2": (0, 6)}
    assert spout.lag(first) == left(0, 14, 14)
    second = plan(spout, first)
    assert spout.lag(second) == left(0, 7, 7)
    assert spans(second) == {"1": (6, 13), "2": (6, 13)}
    third = plan(spout, second)
    assert spans(third) == {"1": (13, 20), "2": (13, 20)}
    assert plan(spout, third) is None
    assert spout.lag(third) == left(0, 0, 0)
    assert {n.rpartition("-")[2] for n in third.latest} == {"0", "1", "2"}


def test_a_batch_smaller_than_the_partitions_reads_them_in_turn(kafka: Broker) -> None:
    """With fewer records a batch than partitions, each has its turn, over restarts, too."""
    name = kafka.create(f"turns{next(_names)}", 5)
    for partition in range(5):
        kafka.produce(name, range(9), partition=partition)
    read: list[str] = []
    previous = None
    for _ in range(5):  # each by a spout that knows nothing but the position before
        previous = plan(KafkaSpout(kafka.servers, topics=[name], max_records_per_batch=2), previous)
        read += spans(previous)
    assert read == ["0", "1", "2", "3", "0", "4", "1", "2", "0", "3"]
    whole = plan(KafkaSpout(kafka.servers, topics=[name]), previous)
    assert spans(whole) == {"0": (3, 9), "1": (2, 9), "2": (2, 9), "3": (2, 9), "4": (1, 9)}
    assert not any("turn" in position for position in whole.read.values())


def test_records_of_an_open_transaction_wait(kafka: Broker, topic: str) -> None:
    """With read_committed (the default) a batch ends before what is not yet committed."""
    kafka.produce(topic, [1, 2])
    producer = kafka.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"3", partition=0)
    assert producer.flush(30) == 0
    committed = KafkaSpout(kafka.servers, topics=[topic])
    every = KafkaSpout(
        kafka.servers, topics=[topic], options={"isolation.level": "read_uncommitted"}
    )
    assert only(plan(committed)) == (0, 2)
    assert only(plan(every)) == (0, 3)
    producer.commit_transaction(30)
    # The broker ends a transaction in its own time; its end has an offset, too.
    wait_until(lambda: only(plan(committed)) == (0, 4), "the transaction is over")


# --- loss ----------------------------------------------------------------------------------------


def test_records_deleted_unread_stop_the_topology(kafka: Broker, topic: str) -> None:
    """If Kafka records were deleted before they were read, the topology stops and the error names
    their offsets.
    """
    kafka.produce(topic, range(6))
    spout = KafkaSpout(kafka.servers, topics=[topic], max_records_per_batch=2)
    first = plan(spout)
    kafka.expire(topic, 0, 4)
    with pytest.raises(SourceChangedError, match=rf"offsets 2 to 3 of {topic}-0.*on_data_loss"):
        plan(spout, first)


def test_records_deleted_unread_can_be_skipped(
    kafka: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With on_data_loss="skip" reading goes on; the log, the notices and the txid's metadata say
    what is missing.
    """
    kafka.produce(topic, range(6))
    spout = KafkaSpout(kafka.servers, topics=[topic], max_records_per_batch=2, on_data_loss="skip")
    first = plan(spout)
    kafka.expire(topic, 0, 6)
    assert [*spout.notices()] == []
    with caplog.at_level(logging.WARNING, "txn.notices.kafka"):
        second = plan(spout, first)
    position = second.read[f"{topic}-0"]
    assert (position["start"], position["end"]) == (6, 6)
    assert position["skipped"] == {"reason": "retention", "first": 2, "next": 6}
    assert re.search(f"goes on at offset 6: offsets 2 to 5 of {topic}-0", caplog.text)
    assert plan(spout, second) is None
    assert caplog.messages == [*spout.notices()]


@pytest.mark.parametrize("on_loss", ["error", "skip"])
def test_a_topic_made_again_is_not_taken_for_the_old_one(
    kafka: Broker, topic: str, on_loss: str
) -> None:
    """A Kafka topic that was deleted and created again is recognised by its id, even if its offsets
    have passed the old position.
    """
    kafka.produce(topic, range(3))
    spout = KafkaSpout(kafka.servers, topics=[topic], on_data_loss=on_loss)
    first = plan(spout)
    kafka.delete(topic)
    kafka.create(topic)
    kafka.produce(topic, range(7))
    if on_loss == "error":
        with pytest.raises(
            SourceChangedError, match=f"topic '{topic}' was deleted and created again"
        ):
            plan(spout, first)
        return
    second = plan(spout, first)
    assert only(second) == (0, 7)
    skipped = second.read[f"{topic}-0"]["skipped"]
    assert skipped == {"reason": "recreated", "first": 3, "next": 0}


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_quarantined_batch_of_a_topic_that_is_gone_is_not_replayed(
    kafka: Broker, topic: str, kind: str
) -> None:
    """Unlike a batch in flight it does not wait; what another topic still has is read if the spout
    is opaque.
    """
    other = kafka.create(f"kept-{topic}")
    for name in (topic, other):
        kafka.produce(name, [1])
    spout = KafkaSpout(kafka.servers, topics=[topic, other], kind=kind)
    both, attempt = plan(spout), TransactionAttempt(7)
    alone = both.model_copy(update={"read": {f"{topic}-0": both.read[f"{topic}-0"]}})
    assert spout.readable(attempt, both) == both
    kafka.delete(topic)
    with pytest.raises(SourceChangedError, match=f"{topic}-0 is gone"):
        spout.readable(attempt, alone)
    if kind == "transactional":
        with pytest.raises(SourceChangedError, match="is gone.*identically or not at all"):
            spout.readable(attempt, both)
    else:
        assert spout.planned_parts(spout.readable(attempt, both)) == [f"{other}-0"]
        assert f"{topic}-0 is gone" in " ".join(spout.notices())


def test_a_topic_that_is_gone_is_waited_for(kafka: Broker, topic: str) -> None:
    """A Kafka topic that is gone makes the batch wait, by name; with "skip" the others go on
    without it.
    """
    other = kafka.create(f"other-{topic}")
    kafka.produce(topic, [1])
    spout = KafkaSpout(kafka.servers, topics=[topic, other])
    first = plan(spout)
    kafka.delete(topic)
    kafka.produce(other, [1])
    with pytest.raises(SourceUnavailableError, match=f"topic '{topic}' is gone.*waits"):
        plan(spout, first)
    skipping = KafkaSpout(kafka.servers, topics=[topic, other], on_data_loss="skip")
    second = plan(skipping, first)
    assert list(second.read) == [f"{other}-0"]
    assert [*skipping.notices()] == [
        f"{skipping!r} goes on without topic '{topic}', which is gone."
    ]
    without = KafkaSpout(kafka.servers, topics=[other])
    assert plan(without, first).read == second.read


# --- brokers -------------------------------------------------------------------------------------


def test_settings_that_librdkafka_refuses_are_named(kafka: Broker, topic: str) -> None:
    """A setting unknown to the metadata client is named before anything runs."""
    spout = KafkaSpout(kafka.servers, topics=[topic], client_options={"no.such": "1"})
    with pytest.raises(TopologyError, match=r'refuses: .*"no\.such"'):
        plan(spout)


def test_a_password_is_passed_through(kafka: Broker, topic: str) -> None:
    """With the right password (SASL/PLAIN) a secured listener answers."""
    kafka.produce(topic, [1, 2])
    assert only(plan(secure(kafka, topic, PASSWORD))) == (0, 2)


def test_a_wrong_password_is_told_and_not_shown(
    kafka: Broker,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused credentials stop the topology, and the password is in neither message nor log."""
    monkeypatch.setattr("spouts.kafka.cluster.REQUEST_SECS", 2.0)
    with caplog.at_level(logging.DEBUG), pytest.raises(TopologyError, match=" refuse ") as error:
        plan(secure(kafka, topic, "wrong-9152"))
    assert "Authentication failed" in str(error.value)
    assert "wrong-9152" not in f"{error.value} {caplog.text}"


def secure(kafka: Broker, topic: str, password: str) -> KafkaSpout:
    """A spout at the listener that wants a password."""
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS.format(USER, password),
    }
    return KafkaSpout(kafka.secure_servers, topics=[topic], options=options)


def test_brokers_that_do_not_answer_are_waited_for(
    kafka: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is away makes the batch wait; once it is back the same spout goes on.

    That it refuses connections is no reason to wait as long as for an answer.
    """
    monkeypatch.setattr("spouts.kafka.cluster.REQUEST_SECS", 300.0)
    away = f"{re.escape(kafka.servers)} for .*: none of them can be reached"
    kafka.produce(topic, [1])
    spout = KafkaSpout(kafka.servers, topics=[topic])
    new = KafkaSpout(kafka.servers, topics=[topic])
    first = plan(spout)
    with kafka.away():
        for asked in (spout, new):
            with pytest.raises(SourceUnavailableError, match=away):
                plan(asked, first)
    kafka.produce(topic, [2])
    assert only(planned_at_last(spout, first)) == (1, 2)


@pytest.mark.parametrize("answer", [OFFSET_INVALID, OFFSET_END])
@pytest.mark.parametrize("on_loss", ["error", "skip"])
def test_an_offset_that_brokers_do_not_know_yet_is_no_offset(
    kafka: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, on_loss: Any, answer: int
) -> None:
    """An answer without an offset, as of a broker that has only just begun, is asked for again; it
    is neither a loss nor a place to go on at.
    """
    kafka.produce(topic, [1])
    spout = KafkaSpout(kafka.servers, topics=[topic], on_data_loss=on_loss)
    first = plan(spout)
    kafka.produce(topic, [2])
    answered(monkeypatch, [answer])
    assert only(plan(spout, first)) == (1, 2)  # the next client knew
    answered(monkeypatch, [answer] * 4)
    with pytest.raises(SourceUnavailableError, match="not caught up"):
        plan(spout, first)


def test_an_offset_of_a_time_that_brokers_do_not_know_yet_is_waited_for(
    kafka: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first poll by time does not take "not known yet" for "no record since then"."""
    kafka.produce(topic, [1], timestamp=THEN)
    spout = KafkaSpout(kafka.servers, topics=[topic], first_poll="timestamp", start_timestamp=THEN)
    answered(monkeypatch, [None, None, OFFSET_INVALID])
    with pytest.raises(SourceUnavailableError, match="not caught up"):
        plan(spout)
    assert only(plan(spout)) == (0, 1)


def answered(monkeypatch: pytest.MonkeyPatch, answers: list[int | None]) -> None:
    """Have the next questions for offsets answered so for every partition; None: by the brokers."""
    left = iter(answers)

    def asked(
        client: AdminClient, wanted: Mapping[TopicPartition, OffsetSpec], **kwargs: Any
    ) -> Mapping[TopicPartition, Future[Any]]:
        if (answer := next(left, None)) is None:
            return LIST_OFFSETS(client, wanted, **kwargs)
        futures: dict[TopicPartition, Future[Any]] = {where: Future() for where in wanted}
        for future in futures.values():
            future.set_result(SimpleNamespace(offset=answer))
        return futures

    monkeypatch.setattr(AdminClient, "list_offsets", asked)
