"""What a Kafka spout decides without a cluster: shares, positions, settings."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.kafka import KafkaSpout
from spouts.kafka.cluster import Snapshot, Topic
from spouts.kafka.options import client_settings
from spouts.kafka.plan import Position, fair_shares, next_start, stored_positions
from txn.errors import ProgressUnreadableError, TopologyError
from txn.interfaces import SpoutKind

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    r'username="me" password="a\"b;c";'
)


@given(
    st.dictionaries(st.text("abc", min_size=1), st.integers(0, 50), max_size=6),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 60),
)
def test_a_batch_is_full_and_fair(
    available: dict[str, int], per_partition: int | None, per_batch: int | None
) -> None:
    """A batch takes all it may, and nobody gets less than another but for having less."""
    shares = fair_shares(available, per_partition, per_batch, {}).records
    wanted = {n: min(count, per_partition or 50) for n, count in available.items()}
    assert set(shares) == set(available)
    assert sum(shares.values()) == min(sum(wanted.values()), per_batch or 10**9)
    assert all(0 <= shares[n] <= wanted[n] for n in wanted)
    short = [n for n in wanted if shares[n] < wanted[n]]
    assert all(shares[n] >= max(shares.values()) - 1 for n in short)


@given(
    st.integers(1, 7),
    st.integers(1, 4),
    st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=25),
    st.lists(st.integers(1, 9), min_size=25, max_size=25),
)
def test_no_partition_waits_longer_than_a_round(
    partitions: int, cap: int, arrivals: list[list[int]], caps: list[int]
) -> None:
    """Whatever arrives where, a partition with records is read within ceil(partitions / cap)."""
    waiting = {f"t-{n}": 0 for n in range(partitions)}
    turns: dict[str, int] = {}
    since = dict.fromkeys(waiting, 0)
    for arrived, now in zip(arrivals, caps, strict=False):
        for n, name in enumerate(waiting):
            waiting[name] += arrived[n]
        limit = max(cap, now)
        planned = fair_shares(waiting, None, limit, turns)
        again = fair_shares(dict(reversed(waiting.items())), None, limit, dict(turns))
        assert again == planned, "a replay's plan differs"
        for name, share in planned.records.items():
            since[name] = 0 if share or not waiting[name] else since[name] + 1
            assert since[name] < -(-partitions // cap), f"{name} waits for {since[name]} batches"
            waiting[name] -= share
        turns |= {name: planned.turn for name, share in planned.records.items() if share}


def look(topic_id: str = "a", earliest: int = 0, latest: int = 10) -> Snapshot:
    """A look at a topic t of one partition."""
    return Snapshot({"t": Topic(topic_id, 1)}, {("t", 0): earliest}, {("t", 0): latest})


@pytest.mark.parametrize(
    ("seen", "offset", "reason"),
    [
        (look(), 5, None),
        (look(earliest=5), 5, None),
        (look(latest=5), 5, None),
        (look(earliest=6), 6, "retention"),
        (look(latest=4), 4, "truncated"),
        (look(topic_id="b", earliest=2), 2, "recreated"),
    ],
)
def test_where_a_partition_goes_on(seen: Snapshot, offset: int, reason: str | None) -> None:
    """Reading goes on after the last offset; where it cannot, the reason and the place are told."""
    start = next_start(("t", 0), Position(start=0, end=5, topic_id="a"), seen)
    assert start.offset == offset
    assert (start.lost.skipped.reason if start.lost else None) == reason
    if start.lost:
        assert (start.lost.skipped.first, start.lost.skipped.next) == (5, offset)
        assert "t" in start.lost.words


def test_a_position_is_kept_without_its_defaults() -> None:
    """Two multis a batch carry every partition's position: what is default is left out."""
    position = Position(start=3, end=5, topic_id="a")
    assert position.to_json() == {"start": 3, "end": 5, "topic_id": "a"}
    assert Position.model_validate(position.to_json()) == position


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "topics.*or pattern"),
        ({"topics": ["a"], "pattern": "b"}, "topics.*or pattern"),
        ({"topics": "a"}, "topics.*or pattern"),
        ({"topics": [""]}, "topics.*or pattern"),
        ({"corrections": ""}, "corrections='', which is not a local folder"),
        ({"corrections": "s3://b/c"}, "corrections='s3://b/c', which is not a local folder"),
        ({"pattern": "("}, "not a regular expression"),
        ({"kind": "non_transactional"}, "kind='non_transactional'.*opaque, transactional"),
        ({"first_poll": "newest"}, "first_poll='newest'.*earliest, latest"),
        ({"on_data_loss": "ignore"}, "on_data_loss='ignore'.*error, skip"),
        ({"first_poll": "timestamp"}, "timestamp.*need a start_timestamp"),
        ({"start_timestamp": 5}, "uncommitted_earliest.*start_timestamp=5"),
        (
            {"first_poll": "timestamp", "start_timestamp": datetime(2026, 1, 1)},
            "without a time zone",
        ),
        ({"max_records_per_batch": 0}, "max_records_per_batch of 1 or more"),
        ({"max_records_per_partition": -1}, "max_records_per_partition of 1 or more"),
        ({"options": {"kafka.client.id": "x"}}, "Write 'client.id'"),
        ({"options": {"group.id": "x"}}, "'group.id'.*kept by the coordinator"),
        ({"options": {"isolation.level": "none"}}, "isolation.level 'none'.*read_committed"),
        (
            {"options": {"ssl.truststore.location": "x.jks"}},
            "ssl.truststore.location.*client_options.*ssl.ca.location",
        ),
        (
            {"options": {"sasl.jaas.config": "a.b.OAuthBearerLoginModule required;"}},
            "sasl.jaas.config.*client_options.*sasl.password",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    """A setting that cannot be meant is refused where it is written, with the choices."""
    subscribed = not arguments or {"topics", "pattern"} & set(arguments)
    if not subscribed:
        arguments = {"topics": ["a"], **arguments}
    with pytest.raises(TopologyError, match=named):
        KafkaSpout("localhost:1", **arguments)


@pytest.mark.parametrize("servers", ["", ",", "broker", "a:1,broker", ":1", "a:", "a:x", "a:65536"])
def test_brokers_that_nobody_can_reach_are_refused_at_once(servers: str) -> None:
    """A host or a port is missing: the error says which, and how to write it."""
    wrong = servers.rpartition(",")[2]
    with pytest.raises(TopologyError, match=f"no broker and port in '{wrong}'. Write every .* as"):
        KafkaSpout(servers, topics=["a"])


@pytest.mark.parametrize("servers", ["a:1", "a:1, b:2,", "[::1]:9092", "SASL_SSL://a:65535"])
def test_brokers_as_kafkas_clients_take_them(servers: str) -> None:
    """Spaces, a comma at the end, a protocol, IPv6."""
    assert servers in repr(KafkaSpout(servers, topics=["a"]))


def test_the_kind_is_opaque_unless_told() -> None:
    """Retention makes a Kafka topic opaque by nature; transactional is for who asks for it."""
    assert KafkaSpout("localhost:1", topics=["a"]).kind is SpoutKind.OPAQUE
    spout = KafkaSpout("localhost:1", topics=["a"], kind="transactional")
    assert spout.kind is SpoutKind.TRANSACTIONAL


def test_a_datetime_is_milliseconds_to_kafka() -> None:
    """An aware datetime and its milliseconds mean the same start."""
    when = datetime(2026, 1, 2, 3, tzinfo=timezone.utc)
    spout = KafkaSpout("localhost:1", topics=["a"], first_poll="timestamp", start_timestamp=when)
    assert spout._start_ms == 1767322800000


def test_settings_reach_both_clients_in_their_own_spelling() -> None:
    """Kafka's names go to Spark as they are, and to librdkafka translated; Java's own do not."""
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": JAAS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "fetch.max.bytes": "1000",
    }
    settings = client_settings("b:1", options, {"ssl.key.pem": "k"}, "spout")
    assert {n: v for n, v in settings.librdkafka.items() if n.startswith(("s", "b", "f"))} == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "me",
        "sasl.password": 'a"b;c',
        "ssl.ca.location": "/ca.pem",
        "ssl.key.pem": "k",
    }
    given_to_spark = {f"kafka.{name}": value for name, value in options.items()}
    assert given_to_spark.items() <= settings.spark.items()
    assert settings.spark["kafka.bootstrap.servers"] == "b:1"
    assert settings.spark["kafka.isolation.level"] == "read_committed"


def test_secrets_are_not_shown() -> None:
    """Neither the spout nor its settings show a password when they are printed."""
    spout = KafkaSpout("b:1", topics=["a"], options={"sasl.jaas.config": JAAS})
    shown = f"{spout!r} {spout} {spout._settings!r} {spout._cluster!r}"
    assert "a\\" not in shown
    assert "JAAS" not in shown
    assert "KafkaSpout('b:1', topics=['a'])" in shown


@pytest.mark.parametrize(
    "stored",
    [
        {"topic": {"start": 0, "end": 1, "topic_id": "x"}},
        {"to/pic-0": {"start": 0, "end": 1, "topic_id": "x"}},
        {"topic-01": {"start": 0, "end": 1, "topic_id": "x"}},
        {"topic-0": {"start": 0}},
        {"topic-0": 7},
        {"topic-0": {"start": -1, "end": 1, "topic_id": "x"}},
    ],
)
def test_stored_positions_that_are_none_are_refused(stored: dict[str, object]) -> None:
    """Positions come back out of ZooKeeper, and are read as strictly as its nodes."""
    with pytest.raises(ProgressUnreadableError, match="stored positions of KafkaSpout"):
        stored_positions(stored, "KafkaSpout")
