"""Files that cannot be read: each is named, or set aside alone, and the others are delivered."""

from __future__ import annotations

import bz2
import gzip
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from committers.append_table import AppendTable
from spouts.files import FileSpout
from tests.faults.support import rows_of
from txn import Topology, TopologyConfig
from txn.errors import BatchError, TopologyError
from txn.testing import MemoryNodes, run_in_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = {
    "csv": "".join(f"{n}\n" for n in range(5000)).encode(),
    "json": "".join(f'{{"k":"{n}"}}\n' for n in range(5000)).encode(),
    "text": "".join(f"{n}\n" for n in range(5000)).encode(),
}
KEY = {"csv": "k", "json": "k", "parquet": "k", "text": "value"}
PACKED = gzip.compress(TEXT["csv"])
DAMAGED = {
    # name -> (its bytes, what is said)
    "3cut.gz": (PACKED[:-9], "it is not a complete gzip file (Compressed file ended before"),
    "3wrong.gz": (PACKED[:-8] + b"\0" * 8, "it is not a complete gzip file (CRC check failed"),
    "3plain.gz": (TEXT["csv"], "it is not a complete gzip file (Not a gzipped file"),
    "3empty.gz": (b"", "it has no bytes"),
    "3gzip": (PACKED, "it is packed by gzip, which its name does not say as Spark knows it"),
    "3GZ.GZ": (PACKED, "it is packed by gzip, which"),
    "3.lz4": (b"\0\0\0\1\0", "this packing has no mark of its end"),
    "3.snappy": (b"\0\0\0\1\0", "this packing has no mark of its end"),
    "3bz2": (bz2.compress(TEXT["csv"]), "it is packed by bzip2, which"),
}


def spout(folder: Path, form: str, **more: Any) -> FileSpout:
    """Of all files of a folder."""
    schema = None if form == "text" else "k string"
    given: Any = {"files_per_batch": 20, "schema": schema, **more}
    return FileSpout(f"{folder}/*", format=form, **given)


def topology(folder: Path, warehouse: Path, form: str, **more: Any) -> Topology:
    """One table of rows and one of bad rows."""
    config = TopologyConfig(retry_backoff_ms=1)
    made = Topology("read", config, bad_rows=AppendTable(warehouse / "bad", "transactional"))
    stream = made.stream("s", spout(folder, form, **more))
    stream.partition_persist(AppendTable(warehouse / "rows", "transactional"))
    return made


def filled(folder: Path, spark: SparkSession, form: str, damaged: str, content: bytes) -> Path:
    """A folder with two good files before and behind a damaged one."""
    folder.mkdir()
    for name in ("1", "2", "4", "5"):
        if form == "parquet":
            made = folder.parent / name
            spark.sql(f"SELECT '{name}' AS k").coalesce(1).write.parquet(str(made))
            shutil.move(next(made.glob("part-*")), folder / name)
        else:
            (folder / name).write_bytes(TEXT[form][: 10 if form == "csv" else None])
    (folder / damaged).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("form", "damaged"),
    [
        *(("csv", name) for name in DAMAGED),
        *(("json", "3cut.gz"), ("json", "3gzip"), ("text", "3cut.gz"), ("text", "3gzip")),
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside_alone(
    spark: SparkSession, warehouse: Path, tmp_path: Path, form: str, damaged: str
) -> None:
    """A file that cannot be read is set aside alone, and the other files of its txid are delivered.

    The row has its name and size, and the cause.
    By default it fails the batch, which names it.
    """
    content, said = DAMAGED[damaged]
    folder = filled(tmp_path / "in", spark, form, damaged, content)
    nodes = MemoryNodes()
    with pytest.raises(BatchError) as caught:
        run_in_memory(topology(folder, warehouse, form), spark, nodes)
    assert f"{damaged} ({len(content)} bytes): {said}" in str(caught.value)
    assert "bad_rows='set_aside'" in str(caught.value)
    assert caught.value.number == "TXN-424"
    # The batch that failed is replayed; and another life begins with that program.
    for lives in (nodes, MemoryNodes()) if damaged == "3cut.gz" else (nodes,):
        if lives is not nodes:
            shutil.rmtree(warehouse)
        report = run_in_memory(
            topology(folder, warehouse, form, bad_rows="set_aside"), spark, lives
        )
        good = len(rows_of(warehouse / "rows", KEY[form]))
        assert good == 4 * len(TEXT[form][: 10 if form == "csv" else None].splitlines())
        ((txid, rule, position, row, reason),) = rows_of(
            warehouse / "bad", "txid", "rule", "position", "row", "reason"
        )
        assert (txid, rule) == (1, "parses")
        assert position == f"file://{folder}/{damaged}"
        assert row == f"{folder}/{damaged} ({len(content)} bytes)"
        assert reason.startswith(f"the file cannot be read: {said}")
        assert report.violations == {"s": {"parses": 1}}


@pytest.mark.parametrize("form", ["csv", "json", "text"])
@pytest.mark.parametrize("packed", [False, True])
def test_so_is_text_of_another_encoding(
    spark: SparkSession, warehouse: Path, tmp_path: Path, form: str, packed: bool
) -> None:
    """Spark fails at UTF-16 that is none, and does not say in which file."""
    folder = tmp_path / "in"
    folder.mkdir()
    whole = '{"k":"1"}\n'.encode("utf-16-le") if form == "json" else "1\n".encode("utf-16-le")
    (folder / "1").write_bytes(whole)
    name = "2.gz" if packed else "2"
    broken = whole[:-1] + b"\xd8"  # half of a pair
    (folder / name).write_bytes(gzip.compress(broken) if packed else broken)
    given = {"bad_rows": "set_aside", "encoding": "UTF-16LE"}
    run_in_memory(topology(folder, warehouse, form, **given), spark, MemoryNodes())
    assert rows_of(warehouse / "rows", KEY[form]) == [("1",)]
    ((row, reason),) = rows_of(warehouse / "bad", "row", "reason")
    assert row.startswith(f"{folder}/{name} (")
    assert reason.startswith("the file cannot be read: it is not UTF-16LE (")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it has no bytes"),
        (b"PAR1", "it does not begin and end as a Parquet file does"),
        (b"PAR1" + b"x" * 50, "it does not begin and end as a Parquet file does"),
        (TEXT["csv"], "it does not begin and end as a Parquet file does"),
    ],
    ids=["empty", "head", "cut", "text"],
)
def test_so_is_a_parquet_file(
    spark: SparkSession, warehouse: Path, tmp_path: Path, content: bytes, said: str
) -> None:
    """One without a byte is none that has no rows; a replay finds the same as the first attempt."""
    folder = filled(tmp_path / "in", spark, "parquet", "3.parquet", content)
    nodes = MemoryNodes()
    with pytest.raises(BatchError, match="TXN-424|3.parquet") as caught:
        run_in_memory(topology(folder, warehouse, "parquet"), spark, nodes)
    assert f"3.parquet ({len(content)} bytes): {said}" in str(caught.value)
    run_in_memory(topology(folder, warehouse, "parquet", bad_rows="set_aside"), spark, nodes)
    assert rows_of(warehouse / "rows", "k", key=str) == [("1",), ("2",), ("4",), ("5",)]
    assert rows_of(warehouse / "bad", "row") == [(f"{folder}/3.parquet ({len(content)} bytes)",)]


def test_a_whole_batch_may_be_unreadable(
    spark: SparkSession, warehouse: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that cannot be read are dropped and counted, if that is what bad rows are.

    What the first attempt says advises nothing that the spout has already.
    """
    (folder := tmp_path / "in").mkdir()
    for n in range(3):
        (folder / f"{n}.csv.gz").write_bytes(PACKED[: 50 + n])
    report = run_in_memory(topology(folder, warehouse, "csv", bad_rows="drop"), spark)
    assert report.violations == {"s": {"parses": 3}}
    assert ". The next attempt leaves such files to bad_rows." in caplog.text
    assert "Give the spout" not in caplog.text


def test_a_schema_is_inferred_from_the_files_that_can_be_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One that cannot is named, or has no say."""
    (tmp_path / "1.csv.gz").write_bytes(PACKED[:-9])
    (tmp_path / "2.csv").write_text("1,a\n2,b\n")
    with pytest.raises(TopologyError, match=r"1\.csv\.gz \(\d+ bytes\): it is not a complete gzip"):
        spout(tmp_path, "csv", schema=None).open(spark, None)
    found = spout(tmp_path, "csv", schema=None, bad_rows="set_aside").open(spark, None)
    assert found.fieldNames()[:2] == ["_c0", "_c1"]
    (tmp_path / "0.csv").write_bytes(PACKED)
    with pytest.raises(TopologyError, match=r"0\.csv \(\d+ bytes\): it is packed by gzip"):
        spout(tmp_path, "csv", schema=None).open(spark, None)
    own = spout(tmp_path, "csv", extra_options={"io.compression.codecs": "mine"})
    assert own._unreadable.among({"0.csv": 9}, whole=True) == {}
