"""The input of the benchmarks: made once, kept in a cache, and counted without Spark as an oracle.

<cache>/<set>/rows/00000.parquet ...   every file is one transaction
<cache>/<set>/warm/...                 the first of them again (hard links), to warm up with
<cache>/<set>/text/00000.txt ...       their words, one a line, for Flink
<cache>/<set>/expected.parquet         word, count: of all files
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from tests.benchmarks.sizes import Rows
from txn.machine.jars import cache_folder
from txn.session import delta_session

__all__ = ["SCHEMA", "DataSet", "count", "default_cache", "make"]

SCHEMA = "offset long, word string, amount int"


@dataclass(frozen=True)
class DataSet:
    """The folders of one set."""

    folder: Path

    @property
    def rows(self) -> Path:
        """All files."""
        return self.folder / "rows"

    @property
    def warm(self) -> Path:
        """The first files."""
        return self.folder / "warm"

    @property
    def text(self) -> Path:
        """The words of all files."""
        return self.folder / "text"

    @property
    def expected(self) -> Path:
        """The counts that every contender must come to."""
        return self.folder / "expected.parquet"


def default_cache() -> Path:
    """`$TXN_BENCH_DATA`, or a folder of the user's cache."""
    given = os.environ.get("TXN_BENCH_DATA")
    return Path(given).expanduser() if given else cache_folder() / "bench" / "data"


def make(cache: Path, size: Rows) -> DataSet:
    """The set, made if it is not there yet; it appears when it is whole."""
    made = DataSet(cache / size.name)
    if not made.folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
        try:
            _make(DataSet(scratch), size)
            scratch.rename(made.folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    _link_warm(made, size)
    return made


def _make(data: DataSet, size: Rows) -> None:
    spark = delta_session("bench-data", "local[*]", {"spark.driver.memory": "2g"})
    word = f"concat('w', cast(floor(power(rand(7), 2.0) * {size.keys}) AS bigint))"
    rows = spark.range(0, size.total, 1, size.files).selectExpr(
        "id AS offset", f"{word} AS word", "cast(rand(11) * 100 AS int) AS amount"
    )
    rows.write.parquet(str(data.folder / "made"))
    spark.stop()
    data.rows.mkdir()
    for number, part in enumerate(sorted((data.folder / "made").glob("part-*.parquet"))):
        part.rename(data.rows / f"{number:05d}.parquet")
    shutil.rmtree(data.folder / "made")
    _write_text(data)
    count(data)


def _write_text(data: DataSet) -> None:
    data.text.mkdir()
    plain = csv.WriteOptions(include_header=False, quoting_style="none")
    for path, words in _words(data):
        csv.write_csv(words, data.text / f"{path.stem}.txt", plain)


def count(data: DataSet) -> None:
    """Write the oracle: Arrow's own count, file by file."""
    counts: pa.Table | None = None
    for _, words in _words(data):
        one = words.group_by("word").aggregate([("word", "count")])
        one = one.rename_columns(["word", "count"])
        both = one if counts is None else pa.concat_tables([counts, one])
        summed = both.group_by("word").aggregate([("count", "sum")])
        counts = summed.rename_columns(["word", "count"])
    parquet.write_table(counts, data.expected)


def _words(data: DataSet) -> Iterator[tuple[Path, pa.Table]]:
    for path in sorted(data.rows.glob("*.parquet")):
        yield path, parquet.read_table(path, columns=["word"])


def _link_warm(data: DataSet, size: Rows) -> None:
    """How many files warm up may change without the set being made anew."""
    wanted = sorted(data.rows.glob("*.parquet"))[: size.warm]
    data.warm.mkdir(exist_ok=True)
    for extra in set(data.warm.iterdir()) - {data.warm / path.name for path in wanted}:
        extra.unlink()
    for path in wanted:
        link = data.warm / path.name
        if not link.exists():
            try:
                link.hardlink_to(path)
            except OSError:  # a file system without hard links
                shutil.copy2(path, link)
