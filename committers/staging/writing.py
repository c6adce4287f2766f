"""Run one Spark job that writes rows as Parquet, and get its files from its tasks' commits.

Never from a listing: it may lag, it shows leftovers of a dead task, and if executors have another
disk under the same path, it is short or empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txn.errors import StagedFileError
from txn.spark.differences import no_partitions_in_files
from txn.spark.file_writer import FileWriter, WrittenFile
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROW_GROUPS", "RowWriter", "throw_away_table", "write_options"]

ROW_GROUPS = {"parquet.block.size": str(8 * 1024 * 1024)}
"""Options for a file that one task writes and several tasks read: a row group is never split.
Spark's default row groups are sixteen times as large."""

# Hadoop's usual file system writes a checksum file beside each file, and starts `chmod` twice for
# both; this one starts it once. Not from Hadoop's cache, whose key is the scheme's name alone.
_LOCAL = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
_LOG = "_delta_log"
_COMMIT = f"{_LOG}/{0:020}.json"


class RowWriter:
    """Writes rows into folders of a table that are not in its log. Thread-safe.

    Args:
        storage: the table's folder.
        options: the result of `write_options`.
    """

    def __init__(self, storage: Storage, options: Mapping[str, str]) -> None:
        self._storage = storage
        self._options = options
        self._writer: FileWriter | None = None

    def write(
        self, rows: DataFrame, folder: str, partition_by: str | None = None
    ) -> list[WrittenFile]:
        """Run one job; returns its files, perhaps some without rows.

        Args:
            folder: a new folder below the table's.
        """
        if self._writer is None:
            self._writer = FileWriter(self._storage.url(), self._options)
        files = self._writer.write(rows, folder, partition_by)
        if files is None:
            return throw_away_table(rows, self._storage, folder, partition_by, self._options)
        return files


def throw_away_table(
    rows: DataFrame,
    storage: Storage,
    folder: str,
    partition_by: str | None,
    options: Mapping[str, str],
) -> list[WrittenFile]:
    """Do the same as `RowWriter.write` with `DataFrameWriter` alone: a Delta table in the folder.

    Takes the files from its only commit, and deletes that. Costs five times the requests.

    Raises:
        StagedFileError: this process does not see that commit.
    """
    writer = rows.write.format("delta").options(**options, **no_partitions_in_files())
    if partition_by is not None:
        writer = writer.partitionBy(partition_by)
    writer.save(storage.url(folder))
    commit = storage.read(f"{folder}/{_COMMIT}")
    if commit is None:
        raise StagedFileError(
            f"Spark has written '{folder}' of table {storage.location}, and this process does not "
            "see it. Both use another file system under this path, or something deletes files "
            "below it. The batch is staged again; if this goes on, put the table on storage that "
            "all executors and this process reach."
        )
    storage.delete_folder(f"{folder}/{_LOG}")
    actions = map(json.loads, commit.splitlines())
    adds = (action["add"] for action in actions if "add" in action)
    return [
        WrittenFile(f"{folder}/{add['path']}", add["size"], add["partitionValues"]) for add in adds
    ]


def write_options(storage: Storage, unique: str | None = None) -> dict[str, str]:
    """Options for every Parquet file that is written for a table, including credentials.

    Args:
        unique: a column that has no value twice in a file. A dictionary of its values would fill
            up, be useless, and cost a quarter of the time of writing.
    """
    plain = {} if unique is None else {f"parquet.enable.dictionary#{unique}": "false"}
    return {**plain, **(_LOCAL if storage.is_local else storage.hadoop)}
