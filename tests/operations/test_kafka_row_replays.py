"""`txn rows export` and `txn rows replay` of a Kafka stream: corrected records lie in a folder."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.faults.support import rows_of
from tests.operations.test_row_replays import World
from tests.spouts.kafka_broker import Broker
from txn.errors import UserError

PROGRAM = """
from committers.append_table import AppendTable
from spouts.kafka import KafkaSpout
from txn import Topology, TopologyConfig

config = TopologyConfig(retry_backoff_ms=1, zookeeper_acl="open")
topology = Topology("{name}", config, bad_rows=AppendTable("{folder}/bad"))
spout = KafkaSpout("{servers}", topics=["{topic}"], kind="{kind}", {parsing} {more})
rows = topology.stream("s", spout).expect("positive", "{rule}", "set_aside")
rows.partition_persist(AppendTable("{folder}/rows"))
"""
PARSING = (
    'value_format="{form}", bad_rows="set_aside", schema="k string, v int, offset decimal(38,18)",'
)
VALUES = {
    "json": [
        '{"k":"a","v":1,"offset":0.5}',
        '{"k":"b",\n"v":"x"}',
        '{"k":"c","v":-3,"offset":12345678901234567890.123456789012345678}',
        "word",
    ],
    "csv": ["a,1,0.5", '"b ""\nx",x,', '"c",-3,12345678901234567890.123456789012345678', "word"],
}

_names = itertools.count()


@pytest.fixture
def topic(kafka: Broker) -> str:
    """A topic of this test."""
    return kafka.create(f"corrected-{next(_names)}", 2)


def program(world: World, kafka: Broker, topic: str, form: str = "json", **given: str) -> None:
    """Write the program."""
    parsing = PARSING.replace("{form}", form)
    names = {"servers": kafka.servers, "topic": topic, "kind": "opaque", "rule": "v > 0"}
    more = {"more": 'corrections="in"', "parsing": parsing}
    world.program(PROGRAM, **{**names, **more, **given})


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
@pytest.mark.parametrize("form", ["json", "csv"])
def test_corrected_records_of_kafka_go_in_again(
    world: World, kafka: Broker, topic: str, form: str, kind: str
) -> None:
    """Once, with the place, the key and every digit that they had; while new records come."""
    program(world, kafka, topic, form, kind=kind, more='corrections="in", include_headers=True')
    headers = [("h", None), ("h", b"\xff")]
    kafka.produce(topic, VALUES[form], key=b"\x00key", partition=1, headers=headers)
    assert world.run() == 1
    exported = world.export()
    assert exported.rules == {"parses": 2, "positive": 1}
    lines = [json.loads(line) for line in (world.folder / "bad.csv").read_text().splitlines()]
    place = {"topic": topic, "partition": 1}
    assert lines[:2] == [
        {**place, "offset": 1, "value": VALUES[form][1]},
        {**place, "offset": 3, "value": "word"},
    ]
    assert lines[2] | {**place, "offset": 2, "key": "AGtleQ=="} == lines[2]
    text = (world.folder / "bad.csv").read_text()
    own = '{"k":"c","v":-3,"offset":12345678901234567890.123456789012345678}'
    assert lines[2]["columns"] == own
    assert lines[2]["headers"] == [{"key": "h", "value": None}, {"key": "h", "value": "/w=="}]
    text = text.replace('\\"v\\":-3', '\\"v\\":3').replace('"word"', '"still\\n bad"')
    good = {"json": '{"k":"b","v":2}', "csv": "b,2,"}[form]
    text = text.replace(json.dumps(VALUES[form][1]), json.dumps(good))
    (world.folder / "bad.csv").write_text(text)
    for _ in range(2):
        world.replay("bad.csv", exported.number, exported.up_to)
    kafka.produce(topic, [VALUES[form][0]])
    assert world.run() == 2
    kafka.produce(topic, [VALUES[form][0]])
    assert world.run() == 3
    columns = ("k", "v", "cast(offset AS string)", "partition", "kafka_offset", "txid")
    rows = world.spark.read.format("delta").load(f"{world.folder}/rows")
    assert sorted(tuple(row) for row in rows.selectExpr(*columns).collect()) == [
        ("a", 1, "0.500000000000000000", 0, 0, 2),
        ("a", 1, "0.500000000000000000", 0, 1, 3),
        ("a", 1, "0.500000000000000000", 1, 0, 1),
        ("b", 2, None, 1, 1, 2),
        ("c", 3, "12345678901234567890.123456789012345678", 1, 2, 2),
    ]
    (again,) = rows.where("k = 'c'").selectExpr("headers").first()
    assert [tuple(header) for header in again] == headers
    (when,) = {row[0] for row in rows.where("k = 'c'").selectExpr("timestamp").collect()}
    before, behind = (
        rows.where(f"kafka_offset = 0 AND partition = {part}").first()["timestamp"]
        for part in (1, 0)
    )
    assert before <= when < behind
    assert rows_of(world.folder / "bad", "txid", "position", "row")[-1] == (
        *(2, f"{topic}-1:3", "still\n bad"),
    )
    assert world.export("again").rules == {"parses": 1}


def test_records_of_bytes_are_corrected_as_text(world: World, kafka: Broker, topic: str) -> None:
    """Of a spout that parses nothing, too; a value that is no text is refused, by name."""
    more = 'corrections="in", include_headers=True'
    program(world, kafka, topic, parsing="", rule="length(value) > 1", more=more)
    kafka.produce(topic, ["ab", "c"], headers=[("h", b"1")])
    assert world.run() == 1
    exported = world.export("open")
    assert json.loads((world.folder / "open").read_text())["value"] == "c"
    (world.folder / "open").write_text((world.folder / "open").read_text().replace('"c"', '"cü"'))
    world.replay("open", exported.number, exported.up_to)
    assert world.run() == 2
    values = world.spark.read.format("delta").load(f"{world.folder}/rows")
    texts = values.selectExpr("cast(value AS string)", "offset").collect()
    assert sorted(map(tuple, texts)) == [("ab", 0), ("cü", 1)]
    assert values.selectExpr("headers[0].value").distinct().collect() == [(b"1",)]
    producer = kafka.producer()
    producer.produce(topic, b"\xff", partition=0)
    assert producer.flush(30) == 0
    assert world.run() == 3
    with pytest.raises(UserError, match="whose value is no UTF-8 text"):
        world.export("none")


REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "no folder given": ({"more": ""}, "{}", "has no folder for corrected records. Give it one"),
    "no folder there": ({"more": 'corrections="on"'}, "{}", "There is no folder '.*/on/', in "),
    "no JSON": ({}, "{}\n{", "Line 2 of the file is not a record for .*: it is no JSON"),
    "no object": ({}, "[1]", "Line 1 .*: it is no JSON object"),
    "an unknown name": ({}, '{"valeu":"x"}', "'valeu' is none of key, value, topic"),
    "a value that is no text": ({}, '{"value":{"k":1}}', "value cannot be "),
    "a wrong key": ({}, '{"key":"?"}', "key cannot be "),
    "a wrong place": ({}, '{"offset":-1}', "offset cannot be -1"),
    "a wrong time": ({}, '{"timestamp":"now"}', 'timestamp cannot be "now"'),
    "columns that are none": ({}, '{"columns":"[1]"}', "columns cannot be "),
    "columns that are no text": ({}, '{"columns":{"v":1}}', "columns cannot be "),
    "both": ({}, '{"value":"x","columns":"{}"}', "it has both a value and columns"),
    "columns of bytes": (
        {"parsing": "", "rule": "offset < 0"},
        '{"columns":"{}"}',
        "is none of key",
    ),
}


def test_what_would_not_go_in_once_is_refused(world: World, kafka: Broker, topic: str) -> None:
    """Before anything is changed, with the line and what is wrong with it."""
    program(world, kafka, topic)
    kafka.produce(topic, VALUES["json"])
    assert world.run() == 1
    for change, text, said in REFUSED.values():
        program(world, kafka, topic, **change)
        (world.folder / "open").write_text(text)
        with pytest.raises(UserError, match=said):
            world.replay("open", 1, 1)
    program(world, kafka, topic, more="")
    assert world.export("nevertheless").rules == {"parses": 2, "positive": 1}
    assert [*(world.folder / "in").iterdir()] == []


def test_a_batch_with_corrected_records_needs_its_folder(
    kafka: Broker, topic: str, world: World
) -> None:
    """Taken out of the program while a batch of it is open: the error says what to do."""
    from spouts.kafka import KafkaSpout
    from txn.attempts import TransactionAttempt
    from txn.errors import TopologyError

    attempt = TransactionAttempt(1, 0)
    (world.folder / "in" / "a.json").write_text('{"value":"a"}\n')
    spout = KafkaSpout(kafka.servers, topics=[topic], corrections="in")
    spout.open(world.spark, None)
    planned: Any = spout.initialize_transaction(attempt, None)
    assert spout.planned_parts(planned) == ["in/a.json"]
    batch = spout.emit_batch(world.spark, attempt, planned)
    assert spout.parts_read(batch, planned) == ["in/a.json"]
    assert [bytes(row.value) for row in batch.collect()] == [b"a"]
    spout.check_read(attempt, planned)
    assert spout.initialize_transaction(TransactionAttempt(2, 0), planned) is None
    with pytest.raises(TopologyError, match="has no `corrections` any more. Give it the folder"):
        KafkaSpout(kafka.servers, topics=[topic]).emit_batch(world.spark, attempt, planned)
