"""Executors elsewhere: refuse tables in local folders that are not declared shared; try the others.

With a master that is not local, `/data/t` is a folder of each machine's own. This process does not
see the files that executors write there, nor notice that they are missing. So before the first txid
every executor reads files that this process wrote into the table's folder, and this process reads
those that each of them wrote. Later changes, such as another executor, show when a file that
a task has committed is not there (`committers.staging.area`).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txn.delta.folders import SCRATCH
from txn.engine.base.failures import is_lost_work
from txn.errors import TopologyError, TxnError
from txn.spark.causes import cause_line, causes, is_of_spark
from txn.spark.file_writer import FileWriter
from txn.storage.asking import in_parallel
from txn.storage.locations import identity, local_path
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txn.interfaces import Committer

__all__ = ["local_tables", "try_folder"]

log = logging.getLogger("txn")

_TRIES = 3
_NO_FILE = "FAILED_READ_FILE.FILE_NOT_EXIST"


def local_tables(committers: Iterable[Committer], shared: Sequence[str], master: str) -> list[str]:
    """The tables in local folders, which must be tried; other names are skipped.

    Args:
        shared: folders that every executor shares, by declaration.

    Raises:
        TopologyError: one of them is not below any of `shared`.
    """
    tables = [committer.name for committer in committers if committer.lies_in_folder]
    local = [table for table in tables if local_path(table) is not None]
    for table in local:
        place = Path(identity(table))
        if not any(place.is_relative_to(identity(folder)) for folder in shared):
            raise TopologyError(
                f"Table '{table}' lies in the local folder '{place}', but the executors of "
                f"master '{master}' are other processes, perhaps on other machines: txids would "
                "be committed without the rows that they write there. Put the table where all of "
                "them reach it (s3://, abfss://, gs://, hdfs://). If every executor has this "
                "folder under the same path, declare it: "
                f"TopologyConfig(shared_folders=('{place.parent}',)); it is checked before the "
                "first batch.",
                number="TXN-213",
            )
    return local


def try_folder(spark: SparkSession, storage: Storage) -> None:
    """Let every executor read this process's files in a table's folder, and the other way round.

    Raises:
        TopologyError: some executor does not share the folder, or it cannot be written to.
    """
    nonce = secrets.token_hex(8)
    # If this process dies here, the next start deletes everything below scratch.
    folder = f"{SCRATCH}/shared-{nonce}"
    # Two files per slot: Spark reads two of such small files in a task, which makes
    # one task for each slot.
    lines = {f"{nonce}-{n}" for n in range(2 * spark.sparkContext.defaultParallelism)}
    base = Path(storage.uri)
    made = [place for place in (base / SCRATCH, base) if storage.is_local and not place.exists()]
    try:
        asked = {f"{folder}/asked/{line}.txt": f"{line}\n".encode() for line in lines}
        in_parallel(lambda one: storage.write(*one), [*asked.items()])
        answered = _answers(spark, storage, folder)
    except OSError as error:
        raise TopologyError(
            f"Table '{storage.location}' cannot be made: its folder cannot be written to "
            f"({error}). Check the path and its permissions.",
            number="TXN-206",
        ) from error
    finally:
        with contextlib.suppress(OSError, TxnError):  # the next start deletes it
            storage.delete_folder(folder)
        for left in made:
            with contextlib.suppress(OSError):  # it has other files
                left.rmdir()
    if answered != lines:
        raise _not_shared(
            storage,
            f"this process sees {len(answered & lines)} of {len(lines)} lines that the "
            "executors were to write there",
        )


def _answers(spark: SparkSession, storage: Storage, folder: str) -> set[str]:
    """The lines that this process reads in the files of executors.

    An executor that is lost, or cut off from the storage for a moment, proves nothing: the next job
    asks again.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _read_answers(spark, storage, f"{folder}/asked", f"{folder}/answered-{left}")
        except Exception as error:
            if not is_of_spark(error):
                raise
            missing = any(c.condition.startswith(_NO_FILE) for c in causes(error))
            if missing or not is_lost_work(error) or not left:
                what = "an executor could not read there what this process has written"
                raise _not_shared(storage, f"{what} ({cause_line(error)})") from error
            log.warning("Table %s: executors are asked again. %s", storage, cause_line(error))
    raise AssertionError("unreachable")


def _read_answers(spark: SparkSession, storage: Storage, asked: str, answered: str) -> set[str]:
    """The lines that this process reads in the files reported by the tasks that wrote them."""
    reader = spark.read.options(**storage.hadoop).option("ignoreMissingFiles", "false")
    paths = _write_lines(reader.text(storage.read_url(asked)), storage, answered)
    return set().union(*in_parallel(lambda path: _lines(storage, path), paths))


def _write_lines(lines: DataFrame, storage: Storage, folder: str) -> list[str]:
    """The files that tasks have written; if they cannot report them, those that this process finds.

    (In a session without a JVM, or with another Delta.)
    """
    files = FileWriter(storage.url(), storage.hadoop).write(lines, folder)
    if files is not None:
        return [file.path for file in files]
    lines.write.options(**storage.hadoop).parquet(storage.url(folder))
    return [path for path, _ in storage.files(folder)]


def _lines(storage: Storage, path: str) -> set[str]:
    """The lines in an executor's file; none if this process does not see it."""
    from pyarrow import BufferReader, parquet

    content = storage.read(path)
    if content is None:
        return set()
    return set(parquet.read_table(BufferReader(content)).column("value").to_pylist())


def _not_shared(storage: Storage, what: str) -> TopologyError:
    table = storage.location
    if not storage.is_local:
        return TopologyError(
            f"Executors and this process do not see the same files of table '{table}': {what}. "
            "Nothing was started. Make both use the same endpoint and bucket: storage_options and "
            "the environment of this process, Spark's settings and the environment of executors.",
            number="TXN-213",
        )
    return TopologyError(
        f"The folder of table '{table}' is declared shared, but is not: {what}. Nothing was "
        "started. Mount the same file system under this path on every machine that runs an "
        "executor, or put the table on storage that all of them reach.",
        number="TXN-213",
    )
