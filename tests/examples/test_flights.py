"""The example over two months of the real data, held against Python's csv module."""

from __future__ import annotations

import csv
import runpy
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import flights as example
from examples.prepare_flights import prepare_flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.embedded import EmbeddedZooKeeper

MONTHS = (1, 2)
COLUMNS = [column.split()[0] for column in example.SCHEMA.split(",")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of two months."""
    return prepare_flights(tmp_path_factory.mktemp("demo") / "data" / "flights", MONTHS)


def read(files: list[Path]) -> Iterator[tuple[int, dict[str, str]]]:
    """(txid, row) of every row: a batch a file."""
    for txid, path in enumerate(files, start=1):
        with path.open(encoding="utf-8", newline="") as data:
            for row in csv.DictReader(data):
                yield txid, row


def test_tables_hold_what_the_csv_module_counts(
    spark: SparkSession,
    zookeeper: EmbeddedZooKeeper,
    files: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every flight is in the totals once, and every cancelled one is appended with its txid."""
    monkeypatch.chdir(files[0].parents[2])
    flights = runpy.run_path(example.__file__)
    report = flights["topology"].run(spark, zookeeper=zookeeper.hosts, until="caught_up")
    assert (report.committed_txid, report.replays) == (2, 0)

    counts: Counter[str] = Counter()
    delays: dict[str, float] = defaultdict(float)
    routes: Counter[tuple[str, str]] = Counter()
    cancelled: Counter[tuple[object, ...]] = Counter()
    for txid, row in read(files):
        counts[row["carrier"]] += 1
        delays[row["carrier"]] += float(row["dep_delay"] or 0)
        routes[row["origin"], row["dest"]] += 1
        if not row["dep_time"]:
            cancelled[txid, row["month"], row["day"], row["carrier"], row["flight"]] += 1

    stored = flights["delays"].read(spark).collect()
    assert {r["carrier"]: (r["flights"], r["delay"]) for r in stored} == {
        carrier: (counts[carrier], delays[carrier]) for carrier in counts
    }
    stored = flights["routes"].read(spark).collect()
    assert {(r["origin"], r["dest"]): r["flights"] for r in stored} == routes
    stored = flights["cancelled"].read(spark).collect()
    assert cancelled == Counter(
        (r["txid"], str(r["month"]), str(r["day"]), r["carrier"], str(r["flight"])) for r in stored
    )
    assert len(stored) > 1000


def test_files_have_every_row_of_their_month(files: list[Path]) -> None:
    """Each file has its month's flights in the package's columns, with NA as empty."""
    with files[1].open(encoding="utf-8", newline="") as data:
        rows = list(csv.reader(data))
    assert rows[0] == COLUMNS
    assert len(rows) == 1 + 24951
    assert {row[1] for row in rows[1:]} == {"2"}
    assert not any("NA" in row for row in rows)
    assert any(row[COLUMNS.index("dep_time")] == "" for row in rows)


def test_preparing_again_leaves_files_alone(files: list[Path]) -> None:
    """Files that are there stay as they are: a spout may have planned them."""
    before = [path.stat().st_mtime_ns for path in files]
    assert prepare_flights(files[0].parent, MONTHS) == files
    assert [path.stat().st_mtime_ns for path in files] == before
