"""What a file spout has read: exact, whatever arrives, and small in every position."""

from __future__ import annotations

import json
import logging
import os
import re
from base64 import b64encode
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from committers.append_table import AppendTable
from spouts.files import FileBatch, FileSpout
from spouts.files.folder.seen import Taken, Taking
from txn.attempts import TransactionAttempt
from txn.engine.work.table_keeper import TableKeeper
from txn.errors import ProgressUnreadableError
from txn.interfaces import CommitterContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "value string"
BOUND = 6_000
"""Bytes of a position besides the files of its own batch."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for the source's files."""
    made = tmp_path / "source"
    made.mkdir()
    return made


def tables(spark: SparkSession, warehouse: Path, *names: str) -> list[AppendTable]:
    """Append tables, made if they are not there, as a run has them when it plans."""
    found = [AppendTable(warehouse / name, "transactional") for name in names]
    for table in found:
        table.open(spark, CommitterContext("t", 1), StructType().add("value", "string"))
    return found


def spout(folder: Path, keeper: TableKeeper | None, per_batch: int, **options: bool) -> FileSpout:
    """A spout as a new process has it."""
    made = FileSpout(str(folder / "*.txt"), format="text", files_per_batch=per_batch, **options)
    if keeper is not None:
        made.keep_with(keeper)
    return made


def fill(folder: Path, names: range) -> list[str]:
    """Empty files, by number."""
    made = [f"{n:06}.txt" for n in names]
    for name in made:
        (folder / name).touch()
    return made


def plan(made: FileSpout, previous: FileBatch | None) -> FileBatch | None:
    """The next batch, as it comes back from ZooKeeper."""
    planned = made.initialize_transaction(TransactionAttempt(1), previous)
    return planned and FileBatch.model_validate_json(planned.model_dump_json())


def names(batch: FileBatch) -> list[str]:
    return [Path(file.path).name for file in batch.files]


def drain(
    spark: SparkSession, made: FileSpout, previous: FileBatch | None
) -> tuple[list[str], FileBatch | None]:
    """Open and plan until there is nothing to read: the names, and the last position."""
    made.open(spark, previous)
    read: list[str] = []
    while (batch := plan(made, previous)) is not None:
        read += names(batch)
        assert len(read) < 20_000, "the same files again and again"
        previous = batch
    return read, previous


def held(batch: FileBatch | None) -> int:
    """Bytes of a position besides its own files, whose digests are 11 bytes each."""
    assert batch is not None
    whole = batch.model_dump(mode="json", exclude={"files"})
    return len(json.dumps(whole)) - 11 * len(batch.files)


def test_a_position_does_not_grow_with_the_files_that_were_read(
    spark: SparkSession, warehouse: Path, folder: Path
) -> None:
    """However many files were read, a position has those of its batch and a few hundred digests."""
    made = fill(folder, range(10, 5010))
    previous: FileBatch | None = None
    read: list[str] = []
    largest = 0
    while True:  # a new process every fourth batch, on whatever machine: it has the tables
        one = spout(folder, TableKeeper("t", tables(spark, warehouse, "a", "b")), 150)
        one.open(spark, previous)
        batches = [b for _ in range(4) if (b := plan(one, previous)) and (previous := b)]
        read += [name for batch in batches for name in names(batch)]
        largest = max([largest, *map(held, batches)])
        if len(batches) < 4:
            break
    assert read == made
    assert largest < BOUND, f"a position has {largest} bytes after {len(made)} files"
    # Late ones: with an older name, with an older time, and one that was there under another name.
    late = fill(folder, range(5))
    os.utime(folder / late[0], (1, 1))
    (folder / "000010.txt").rename(folder / "9-renamed.txt")
    one = spout(folder, TableKeeper("t", tables(spark, warehouse, "a")), 2)
    assert drain(spark, one, previous)[0] == [*late, "9-renamed.txt"]


def test_a_position_of_an_earlier_release_goes_on(
    spark: SparkSession, warehouse: Path, folder: Path
) -> None:
    """A position that still has every digest in itself is read, and becomes small."""
    old = fill(folder, range(3000))
    digests = sorted(blake2b(str(folder / n).encode(), digest_size=8).digest() for n in old)
    stored = {
        "files": [],
        "spelling": "absolute",
        "read_schema": StructType().add("value", "string").json(),
        "seen": b64encode(b"".join(digests)).decode(),
    }
    previous = FileBatch.model_validate(stored)
    new = fill(folder, range(3000, 3003))
    one = spout(folder, TableKeeper("t", tables(spark, warehouse, "a")), 1)
    read, last = drain(spark, one, previous)
    assert read == new
    assert held(last) < 500
    assert drain(spark, spout(folder, one._taking.keeper, 1), last)[0] == []  # type: ignore[arg-type]


def test_what_is_kept_is_found_again_or_its_loss_is_told(
    spark: SparkSession, warehouse: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One whole copy is enough and mends the others; without any the spout refuses to open."""
    fill(folder, range(600))
    keeper = TableKeeper("t", tables(spark, warehouse, "a", "b"))
    _, last = drain(spark, spout(folder, keeper, 600), None)
    last = plan_one_more(spark, spout(folder, keeper, 600), folder, last)
    assert last is not None
    assert last.segments
    vacuum(spark, warehouse / "a")
    (kept,) = (warehouse / "a" / "_txn_progress").iterdir()
    other = warehouse / "b" / "_txn_progress" / kept.name
    whole = kept.read_bytes()
    kept.unlink()
    other.write_bytes(whole[:-1])
    fresh = TableKeeper("t", tables(spark, warehouse, "a", "b"))
    with pytest.raises(ProgressUnreadableError, match=rf"{kept.name}.*_txn_progress.*backup"):
        spout(folder, fresh, 1).open(spark, last)
    kept.write_bytes(whole)
    more = TableKeeper("t", tables(spark, warehouse, "a", "b", "c"))
    assert drain(spark, spout(folder, more, 1), last)[0] == []
    for table in "abc":
        assert (warehouse / table / "_txn_progress" / kept.name).read_bytes() == whole
    assert "damaged" in caplog.text
    alone = spout(folder, None, 1)
    with pytest.raises(ProgressUnreadableError, match="Run it in its topology"):
        alone.open(spark, last)
    hostile = last.model_dump(mode="json")
    hostile["segments"][0]["name"] = "../../" + hostile["segments"][0]["name"][6:]
    with pytest.raises(ValueError, match="segments"):
        FileBatch.model_validate(hostile)


def vacuum(spark: SparkSession, table: Path) -> None:
    """Delete whatever no version refers to, as Spark and as delta-rs do it."""
    key = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(key, "false")
    (table / "stray.parquet").touch()
    spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    assert not (table / "stray.parquet").exists()
    spark.conf.unset(key)
    DeltaTable(str(table)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    )


def plan_one_more(
    spark: SparkSession, made: FileSpout, folder: Path, previous: FileBatch | None
) -> FileBatch | None:
    """The batch of one more file."""
    (folder / f"one-more-{len(list(folder.iterdir()))}.txt").touch()
    return drain(spark, made, previous)[1]


def test_without_a_place_the_position_carries_on(
    spark: SparkSession, warehouse: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No table yet, or a storage that refuses: nothing is lost, and it is kept once that works."""
    made = fill(folder, range(600))
    absent = AppendTable(warehouse / "absent", "transactional")
    absent.open(spark, CommitterContext("t", 1), None)
    read, last = drain(spark, spout(folder, TableKeeper("t", [absent]), 300), None)
    assert read == made
    assert last is not None
    assert not last.segments
    assert not (warehouse / "absent").exists()
    table = tables(spark, warehouse, "a")
    in_the_way = warehouse / "a" / "_txn_progress"
    in_the_way.write_text("no folder")
    with caplog.at_level(logging.WARNING, "txn.keeping"):
        last = plan_one_more(spark, spout(folder, TableKeeper("t", table), 1), folder, last)
    assert last is not None
    assert not last.segments
    assert held(last) > 600 * 10
    assert re.search(r"could not keep 4\d\d\d bytes .*position, which grows", caplog.text)
    in_the_way.unlink()
    last = plan_one_more(spark, spout(folder, TableKeeper("t", table), 1), folder, last)
    assert last is not None
    assert [s.files for s in last.segments] == [601]
    assert held(last) < 500


def test_what_is_gone_is_forgotten_also_out_of_what_is_kept(
    spark: SparkSession, warehouse: Path, folder: Path
) -> None:
    """With `forget_missing` a file that comes back is read again, and no other one is."""
    made = fill(folder, range(700))
    keeper = TableKeeper("t", tables(spark, warehouse, "a"))
    _, last = drain(spark, spout(folder, keeper, 300, forget_missing=True), None)
    for name in made[5:690]:
        (folder / name).unlink()
    (folder / "z.txt").touch()
    read, last = drain(spark, spout(folder, keeper, 300, forget_missing=True), last)
    assert read == ["z.txt"]
    assert last is not None
    assert not last.segments
    assert held(last) < 500
    (folder / made[100]).touch()
    read, last = drain(spark, spout(folder, keeper, 300, forget_missing=True), last)
    assert read == [made[100]]


def test_a_million_names(spark: SparkSession, warehouse: Path) -> None:
    """Of a million names each is taken once, and what a position holds of them stays small."""
    keeper = TableKeeper("t", tables(spark, warehouse, "a"))
    taking = Taking()
    taking.keeper = keeper
    everything = [f"/data/in/part-{n:07}.csv" for n in range(1_000_000)]
    taken: Taken | None = None
    for start in range(0, len(everything), 5000):
        taken = taking.after(taken, everything[start : start + 5000])
    assert taken is not None
    taken = Taken.model_validate_json(taking.after(taken, ["/data/in/late"]).model_dump_json())
    assert len(taken.model_dump_json()) < BOUND
    anew = Taking()
    anew.keeper = keeper
    assert anew.unseen([*everything, "/data/in/late", "/data/in/0"], taken) == ["/data/in/0"]
