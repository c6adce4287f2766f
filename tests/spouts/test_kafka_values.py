"""Kafka records whose values are parsed: each is in a table, dropped or set aside, once."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.kafka import KafkaSpout
from tests.faults.support import rows_of
from tests.spouts.kafka_broker import Broker
from tests.spouts.test_csv_files import VALUES as CSV_VALUES
from tests.spouts.test_kafka_read import plan, read
from txn import Topology, TopologyConfig
from txn.attempts import TransactionAttempt
from txn.errors import BatchError, TopologyError
from txn.interfaces import PartitionPositions
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "k string, v int"
GOOD = {
    "json": ['{"k":"a","v":1}', '{"k":"b"}', '{"v":-2,"k":"c"}', '{"k":"ü","v":4,"more":1}'],
    "csv": ["a,1", "b,", "c,-2", "ü,4\r\n"],
}
ROWS = [("a", 1), ("b", None), ("c", -2), ("ü", 4)]
BAD = {
    "json": [
        "word",
        '{"k":"a","v":"x"}',
        '{"k":"a"',
        "",
        " ",
        "\n",
        "null",
        '[{"k":"a"}]',
        "1",
        '{"k":"a"}{"k":"b"}',
        '{"k":"a"},{"k":"b"}',
        '{"k":"a"}],[{"k":"b"}',
        '{"k":"a"},"x":{}',
    ],
    "csv": ["a,x", "a", "a,1,2", "", " \n", "\n", "a\nb,2", 'a,"1', '"a",1\n"b",2', '"a,1'],
}

_names = itertools.count()


@pytest.fixture
def topic(kafka: Broker) -> str:
    """A topic of this test, with two partitions."""
    return kafka.create(f"values-{next(_names)}", 2)


def topology(spout: KafkaSpout, warehouse: Path, **config: Any) -> Topology:
    """All rows of a spout into one table, what is set aside into another."""
    made = Topology("values", TopologyConfig(**config), bad_rows=AppendTable(warehouse / "bad"))
    made.stream("s", spout).partition_persist(AppendTable(warehouse / "rows"))
    return made


@pytest.mark.parametrize("form", ["json", "csv"])
def test_values_that_do_not_parse_are_set_aside(
    spark: SparkSession, kafka: Broker, topic: str, warehouse: Path, form: Any
) -> None:
    """Once, with topic, partition and offset, the text and a reason; all others are rows."""
    kafka.produce(topic, [*GOOD[form], *BAD[form]], partition=1)
    spout = KafkaSpout(
        kafka.servers, topics=[topic], value_format=form, schema=SCHEMA, bad_rows="set_aside"
    )
    report = run_in_memory(topology(spout, warehouse), spark)
    assert rows_of(warehouse / "rows", "k", "v", "partition", "offset", key=str) == sorted(
        [(*row, 1, n) for n, row in enumerate(ROWS)], key=str
    )
    bad = BAD[form]
    aside = rows_of(warehouse / "bad", "rule", "position", "row", "reason", key=str)
    assert sorted(row[:3] for row in aside) == sorted(
        ("parses", f"{topic}-1:{n}", text) for n, text in enumerate(bad, len(ROWS))
    )
    wrong = "a,x" if form == "csv" else '{"k":"a","v":"x"}'
    said = f"not {form} with the columns of the schema; no value for: v"
    assert [said] == [reason for *_, text, reason in aside if text == wrong]
    assert report.violations == {"s": {"parses": len(bad)}}


def test_values_that_do_not_parse_fail_the_batch_or_are_dropped(
    spark: SparkSession, kafka: Broker, topic: str, warehouse: Path
) -> None:
    """The error names the record and the way out; who takes it gets through."""
    kafka.produce(topic, ['{"k":"a","v":1}', "word", '{"k":"b","v":2}'], partition=0)
    nodes = MemoryNodes()

    def run(**given: Any) -> Any:
        spout = KafkaSpout(
            kafka.servers, topics=[topic], value_format="json", schema=SCHEMA, **given
        )
        return run_in_memory(topology(spout, warehouse), spark, nodes)

    with pytest.raises(BatchError) as caught:
        run()
    assert f"record that does not parse as json with the schema, at {topic}-0:1: word" in str(
        caught.value
    )
    assert "let the spout drop or set aside such records (bad_rows=)" in str(caught.value)
    assert caught.value.number == "TXN-508"
    assert run(bad_rows="drop").violations == {"s": {"parses": 1}}
    assert rows_of(warehouse / "rows", "k", "v") == [("a", 1), ("b", 2)]


def test_a_field_that_the_schema_lacks_fails_the_batch_and_is_added(
    spark: SparkSession, kafka: Broker, topic: str, warehouse: Path
) -> None:
    """With new_columns="fail" nothing of the batch is stored; once the schema has the field, the
    batch is replayed with it, and the rows before have NULL. By default it is not read.
    """
    nodes = MemoryNodes()

    def run(schema: str, **given: Any) -> Any:
        spout = KafkaSpout(
            kafka.servers, topics=[topic], value_format="json", schema=schema, **given
        )
        return run_in_memory(topology(spout, warehouse), spark, nodes)

    kafka.produce(topic, ['{"k":"a","v":1}'], partition=0)
    run(SCHEMA, new_columns="fail")
    kafka.produce(topic, ['{"k":"b","v":2}', '{"k":"c","v":3,"w":[4],"x":0}'], partition=0)
    with pytest.raises(BatchError, match=f"fields that the schema lacks, at {topic}-0:2: w, x. N"):
        run(SCHEMA, new_columns="fail")
    assert rows_of(warehouse / "rows", "k", "v") == [("a", 1)]
    run(f"{SCHEMA}, w array<int>, x int", new_columns="fail")
    expected = [("a", 1, None), ("b", 2, None), ("c", 3, 0)]
    assert rows_of(warehouse / "rows", "k", "v", "x") == expected
    kafka.produce(topic, ['{"k":"d","v":4,"y":1}'], partition=0)
    run(f"{SCHEMA}, w array<int>, x int")
    assert rows_of(warehouse / "rows", "k", "v", "x") == [*expected, ("d", 4, None)]


def test_json_is_what_sparks_parser_takes(spark: SparkSession, kafka: Broker, topic: str) -> None:
    """Numbers that are none, single quotes; with an option for it also comments."""
    kafka.produce(topic, ['{"v":NaN}', "{'v':-Infinity}", '{"v":1.5}', '/**/ {"v":2}', ""])
    counts = []
    for options in ({}, {"allowComments": True}):
        spout = KafkaSpout(
            kafka.servers,
            topics=[topic],
            value_format="json",
            schema="v double",
            bad_rows="drop",
            value_options=options,
        )
        rows = read(spark, spout, plan(spout)).where("txn_text IS NULL").collect()
        counts.append(sorted(str(row.v) for row in rows))
    assert counts == [["-inf", "1.5", "nan"], ["-inf", "1.5", "2.0", "nan"]]


def test_a_value_is_columns_beside_those_of_kafka(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """A tombstone has NULLs; a name that both have is the value's, and Kafka's is told apart."""
    kafka.produce(topic, ['{"k":"a","Timestamp":7,"in":{"x":[1]}}'], key=b"1")
    producer = kafka.producer()
    producer.produce(topic, None, key=b"2", partition=0)
    assert producer.flush(30) == 0
    schema = "k string, Timestamp int, in struct<x: array<int>>"
    spout = KafkaSpout(
        kafka.servers,
        topics=[topic],
        value_format="json",
        schema=schema,
        include_headers=True,
        bad_rows="drop",
    )
    known = spout.open(spark, None)
    assert known.fieldNames() == [
        *("k", "Timestamp", "in", "key", "topic", "partition", "offset", "kafka_timestamp"),
        *("timestampType", "headers", "txn_text", "txn_position", "txn_reason"),
    ]
    batch = read(spark, spout, plan(spout))
    assert batch.schema == known
    rows = sorted(batch.collect(), key=lambda row: bytes(row.key))
    assert [(row.k, row.Timestamp, row["in"] and row["in"].x) for row in rows] == [
        ("a", 7, [1]),
        (None, None, None),
    ]
    assert [row.txn_text for row in rows] == [None, None]
    empty = spout.emit_batch(spark, TransactionAttempt(1), PartitionPositions())
    assert (empty.schema.simpleString(), empty.count()) == (known.simpleString(), 0)


def test_a_replay_neither_loses_nor_doubles_a_record(
    spark: SparkSession, kafka: Broker, topic: str, warehouse: Path
) -> None:
    """Over many batches, of which some are tried again: rows and bad rows are all there, once."""
    values = [f'{{"k":"{n}","v":{n}}}' if n % 7 else f"bad {n}" for n in range(200)]
    for number, value in enumerate(values):
        kafka.produce(topic, [value], partition=number % 2)
    spout = KafkaSpout(
        kafka.servers,
        topics=[topic],
        value_format="json",
        schema=SCHEMA,
        bad_rows="set_aside",
        max_records_per_batch=40,
    )
    made = topology(spout, warehouse, max_spout_pending=2)
    tried = Counter[int]()
    emit = spout.emit_partitions

    def emitted(spark: Any, attempt: TransactionAttempt, positions: Any) -> Any:
        from txn import FailedException

        tried[attempt.txid] += 1
        if attempt.txid % 2 and tried[attempt.txid] == 1:
            raise FailedException("once")
        return emit(spark, attempt, positions)

    spout.emit_partitions = emitted  # type: ignore[method-assign]
    report = run_in_memory(made, spark)
    assert report.replays > 0
    assert [v for (v,) in rows_of(warehouse / "rows", "v")] == [n for n in range(200) if n % 7]
    aside = rows_of(warehouse / "bad", "row", key=str)
    assert sorted(aside) == sorted((f"bad {n}",) for n in range(0, 200, 7))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bad_rows": "drop"}, "those of csv or json, not of bytes. Leave bad_rows out"),
        ({"bad_rows": "skip"}, "bad_rows='skip' is none of 'fail', 'drop' and 'set_aside'"),
        ({"value_format": "json"}, "both value_format='json' (or 'csv') and schema="),
        ({"schema": SCHEMA}, "both value_format='json' (or 'csv') and schema="),
        ({"value_options": {"sep": ";"}}, "value_options only with them"),
        ({"value_format": "avro", "schema": SCHEMA}, "format 'avro'. Formats are: csv, json"),
        (
            {"value_format": "csv", "schema": SCHEMA, "value_options": {"sepp": ";"}},
            "Did you mean sep?",
        ),
        ({"new_columns": "add"}, "new_columns='add'"),
        (
            {"value_format": "csv", "schema": SCHEMA, "new_columns": "fail"},
            "new_columns='fail', which is for value_format='json' only",
        ),
        (
            {"value_format": "csv", "schema": SCHEMA, "value_options": {"Mode": "FAILFAST"}},
            "value option 'Mode', which you must not set",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(given: Any, said: str) -> None:
    """A fate without a format, a format without a schema, options that are not for values."""
    with pytest.raises(TopologyError) as caught:
        KafkaSpout("127.0.0.1:1", topics=["t"], **given)
    assert said in str(caught.value)


def test_a_schema_that_takes_all_of_a_names_is_refused(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """Both a name of Kafka's and what it would be called then."""
    spout = KafkaSpout(
        kafka.servers,
        topics=[topic],
        value_format="json",
        schema="offset int, kafka_offset int",
    )
    with pytest.raises(TopologyError, match="both a column 'offset' and a column 'kafka_offset'"):
        spout.open(spark, None)


def test_options_of_values_are_sparks(spark: SparkSession, kafka: Broker, topic: str) -> None:
    """A separator, a quote around a break of lines, a format of times."""
    kafka.produce(topic, ["a;'x\ny';03.04.2026", "b;;"])
    spout = KafkaSpout(
        kafka.servers,
        topics=[topic],
        value_format="csv",
        schema="a string, b string, c date",
        value_options={"sep": ";", "quote": "'", "dateFormat": "dd.MM.yyyy"},
    )
    rows = read(spark, spout, plan(spout)).select("a", "b", "c").collect()
    assert sorted((r.a, r.b, str(r.c)) for r in rows) == [
        ("a", "x\ny", "2026-04-03"),
        ("b", None, "None"),
    ]


def test_csv_as_python_writes_it_comes_back(spark: SparkSession, kafka: Broker, topic: str) -> None:
    """Quotes, separators and line ends in quotes are a part of the value; an open field is none."""
    texts = []
    for value in CSV_VALUES:
        csv.writer(text := io.StringIO(newline=""), quoting=csv.QUOTE_ALL).writerow([value, "z"])
        texts.append(text.getvalue())
    kafka.produce(topic, texts)
    spout = KafkaSpout(
        kafka.servers, topics=[topic], value_format="csv", schema="a string, b string"
    )
    rows = read(spark, spout, plan(spout)).select("a", "b").collect()
    assert sorted(map(tuple, rows)) == sorted((value, "z") for value in CSV_VALUES)


def test_a_mark_of_the_encoding_is_no_part_of_any_csv_value(
    spark: SparkSession, kafka: Broker, topic: str
) -> None:
    """A BOM before a CSV value is passed over, which Spark does for a task's first value only."""
    kafka.produce(topic, ["\ufeff1,a", "\ufeff2,b", "\ufeff\ufeff3,\ufeffc"])
    spout = KafkaSpout(
        kafka.servers, topics=[topic], value_format="csv", schema="a string, b string"
    )
    rows = read(spark, spout, plan(spout)).collect()
    assert sorted((row.a, row.b) for row in rows) == [("1", "a"), ("2", "b"), ("3", "\ufeffc")]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_values_that_are_not_utf8_do_not_parse(
    spark: SparkSession, kafka: Broker, topic: str, warehouse: Path, form: Any
) -> None:
    """What is set aside of them is UTF-8, so that other readers take the table."""
    value = b'{"k":"caf\xe9","v":1}' if form == "json" else b"caf\xe9,1"
    producer = kafka.producer()
    producer.produce(topic, value, partition=1)
    assert producer.flush(60) == 0
    kafka.produce(topic, [GOOD[form][0]], partition=1)
    spout = KafkaSpout(
        kafka.servers, topics=[topic], value_format=form, schema=SCHEMA, bad_rows="set_aside"
    )
    run_in_memory(topology(spout, warehouse), spark)
    assert rows_of(warehouse / "rows", "k", "v") == [ROWS[0]]
    assert rows_of(warehouse / "bad", "row") == [(value.decode(errors="replace"),)]
