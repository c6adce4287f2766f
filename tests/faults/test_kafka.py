"""Kafka to Delta while drivers are killed and the broker goes away: real processes, a real broker.

The number of records, of killed drivers and of broker restarts can be set:

    TXN_KAFKA_RECORDS=1000000 TXN_KAFKA_KILLS=10 TXN_KAFKA_RESTARTS=2 \
        .venv/bin/python -m pytest -s tests/faults/test_kafka.py -k opaque
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deltalake
import pytest

from tests.faults.harness import Driver, drivers
from tests.faults.kafka_driver import KafkaSpec
from tests.spouts.kafka_broker import Broker, send
from txn.engine.base.killpoints import POINTS

RECORDS = int(os.environ.get("TXN_KAFKA_RECORDS", "40000"))
KILLS = int(os.environ.get("TXN_KAFKA_KILLS", "2"))
RESTARTS = int(os.environ.get("TXN_KAFKA_RESTARTS", "1"))
SEED = int(os.environ.get("TXN_KAFKA_SEED", "0"))
PARTITIONS = 8
KEYS = 1000
BATCHES_PER_ROUND = 4
WAIT_SECS = 300.0


class KafkaDriver(Driver):
    """A driver process that reads Kafka."""

    module = "tests.faults.kafka_driver"


@contextmanager
def producing(kafka: Broker, topic: str, numbers: range) -> Iterator[None]:
    """Write the records of these numbers while the block runs; they are there when it ends."""
    errors: list[BaseException] = []

    def produce() -> None:
        try:
            producer = kafka.producer(**{"message.timeout.ms": 300_000})
            for number in numbers:
                key, value = f"k{number % KEYS}".encode(), str(number).encode()
                send(producer, topic, value, key=key, partition=number % PARTITIONS)
            assert producer.flush(WAIT_SECS) == 0
        except BaseException as error:  # noqa: BLE001 - told to the test below
            errors.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert errors == []


def assert_each_record_once(folder: Path, records: int) -> None:
    """Both tables equal what plain Python makes of the numbers that were produced."""
    rows = deltalake.DeltaTable(str(folder / "rows")).to_pyarrow_table(columns=["k", "v"])
    found = Counter(rows.column("v").to_pylist())
    lost = [number for number in range(records) if number not in found]
    doubled = [number for number, count in found.items() if count > 1]
    print(f"{records} produced, {rows.num_rows} rows: {len(lost)} lost, {len(doubled)} doubled")
    assert (lost[:5], doubled[:5], len(found)) == ([], [], records)
    assert rows.column("k").to_pylist() == [f"k{v % KEYS}" for v in rows.column("v").to_pylist()]
    table = deltalake.DeltaTable(str(folder / "totals"))
    totals = table.to_pyarrow_table(columns=["k", "n", "total"]).to_pylist()
    expected = {
        f"k{key}": (len(range(key, records, KEYS)), sum(range(key, records, KEYS)))
        for key in range(min(KEYS, records))
    }
    assert len(totals) == len(expected)
    assert {row["k"]: (row["n"], row["total"]) for row in totals} == expected


@pytest.mark.parametrize(
    ("kind", "records", "kills", "restarts"),
    [
        ("opaque", RECORDS, KILLS, RESTARTS),
        ("transactional", 8000, 1, 0),
    ],
    ids=["opaque", "transactional"],
)
def test_each_record_of_a_topic_is_in_each_table_once(
    kafka: Broker, tmp_path: Path, kind: str, records: int, kills: int, restarts: int
) -> None:
    """Every record of a Kafka topic lands exactly once, even if drivers are killed and the broker
    restarts during the run.

    Trident row 70.
    """
    began = time.monotonic()
    topic = kafka.create(f"faults-{kind}-{records}-{kills}", PARTITIONS)
    share = -(-records // (kills + 1))
    draw = random.Random(SEED)
    away_in = {kills * (n + 1) // (restarts + 1) for n in range(restarts)}
    spec = KafkaSpec(
        folder=str(tmp_path),
        kind=kind,
        zookeeper=f"embedded:{tmp_path}/zookeeper",
        servers=kafka.servers,
        topic=topic,
        per_batch=max(1, share // BATCHES_PER_ROUND),
    )
    with drivers(KafkaDriver) as start:
        for number in range(kills + 1):
            last = number == kills
            at, fresh = draw.choice(POINTS), draw.random() < 0.5
            faults = {} if last else {"at": at, "fresh": fresh, "until": "forever"}
            some = range(number * share, min(records, (number + 1) * share))
            if last:
                with producing(kafka, topic, some):
                    pass  # all of it, so that "caught up" means all of it
            with producing(kafka, topic, range(0) if last else some):
                driver = start(spec.model_copy(update=faults))
                if number in away_in:
                    driver.wait_for_point("mid-processing")
                    with kafka.away():
                        pass  # down for as long as a start takes
                expected = 0 if last else -signal.SIGKILL
                assert driver.wait(WAIT_SECS) == expected, driver.stderr()[-3000:]
            print(f"{time.monotonic() - began:6.1f} s: driver {number + 1}", *faults.values())
            assert not last or driver.report()["ended"] == "caught_up"
    assert_each_record_once(tmp_path, records)
