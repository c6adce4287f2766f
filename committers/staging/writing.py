"""One Spark job that writes rows as Parquet, and what its tasks' commits say of the files.

Never a listing: it may lag, it shows what a dead task left, and where executors have another disk
under the same path, it is short, or empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txn.errors import StagedFileError
from txn.spark.file_writer import PARTITIONS_IN_FILES, FileWriter, WrittenFile
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ROW_GROUPS", "RowWriter", "throw_away_table", "write_options"]

ROW_GROUPS = {"parquet.block.size": str(8 * 1024 * 1024)}
"""Options of a file that one task writes, and that several are to read: a row group is not split.
Spark's own are sixteen times as large."""

# Hadoop's usual file system writes a checksum file beside each file, and starts `chmod` twice for
# either of them; this one starts it once. Not from its cache: that is asked by name alone.
_LOCAL = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
_LOG = "_delta_log"
_COMMIT = f"{_LOG}/{0:020}.json"


class RowWriter:
    """Writes rows into folders of a table that its log does not know. Thread-safe.

    Args:
        storage: the table's folder.
        options: of `write_options`.
    """

    def __init__(self, storage: Storage, options: Mapping[str, str]) -> None:
        self._storage = storage
        self._options = options
        self._writer: FileWriter | None = None

    def write(
        self, rows: DataFrame, folder: str, partition_by: str | None = None
    ) -> list[WrittenFile]:
        """Run one job; its files, some perhaps without rows.

        Args:
            folder: below the table's; new.
        """
        if self._writer is None:
            self._writer = FileWriter(self._storage.url(), self._options)
        found = self._writer.write(rows, folder, partition_by)
        if found is None:
            return throw_away_table(rows, self._storage, folder, partition_by, self._options)
        return found


def throw_away_table(
    rows: DataFrame,
    storage: Storage,
    folder: str,
    partition_by: str | None,
    options: Mapping[str, str],
) -> list[WrittenFile]:
    """As `RowWriter.write` with nothing but `DataFrameWriter`: a Delta table in the folder.

    Its one commit tells of the files, and is deleted. Five times the requests.

    Raises:
        StagedFileError: this process does not see that commit.
    """
    writer = rows.write.format("delta").options(**options, **{PARTITIONS_IN_FILES: "false"})
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
    """Options of every Parquet file that is written for a table, credentials among them.

    Args:
        unique: a column that has no value twice in a file. A dictionary of its values would be
            built, found useless when it is full, and cost a quarter of the time of writing.
    """
    plain = {} if unique is None else {f"parquet.enable.dictionary#{unique}": "false"}
    return {**plain, **(_LOCAL if storage.is_local else storage.hadoop)}
