"""Local folders and executors elsewhere: refused, unless declared shared, and then tried.

With a master that is not local, `/data/t` is a folder of each machine's own. What executors write
there this process never sees, and what it does not see it does not miss. So before the first txid
every executor reads files that this process wrote into the table's folder, and this process reads
what each of them wrote there. What comes later, such as another executor, is noticed when a file
that a task has committed is not there (`committers.staging.area`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txn.errors import TopologyError
from txn.storage.locations import identity, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txn.interfaces import Committer

__all__ = ["local_tables", "try_folder"]

_SCRATCH = "_txn"
"""If this process dies here, the next start deletes everything below it in a table's folder."""


def local_tables(committers: Iterable[Committer], shared: Sequence[str], master: str) -> list[str]:
    """The tables in local folders, which are to be tried; names of anything else are passed over.

    Args:
        shared: folders that are declared to be the same for every executor.

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


def try_folder(spark: SparkSession, table: str) -> None:
    """Let every executor read what this process wrote in a table's folder, and the other way round.

    Raises:
        TopologyError: some executor does not share the folder, or it cannot be written to.
    """
    base = Path(local_path(table) or "")
    nonce = secrets.token_hex(8)
    folder = base / _SCRATCH / f"shared-{nonce}"
    # Twice as many as there are slots: Spark reads two of such small files in a task, which makes
    # one task for each slot.
    wanted = {f"{nonce}-{n}" for n in range(2 * spark.sparkContext.defaultParallelism)}
    made = [place for place in (base / _SCRATCH, base) if not place.exists()]
    try:
        (folder / "asked").mkdir(parents=True)
        for line in wanted:
            (folder / "asked" / f"{line}.txt").write_text(f"{line}\n", encoding="ascii")
        answered = _copied(spark, folder / "asked", folder / "answered", table)
    except OSError as error:
        raise TopologyError(
            f"Table '{table}' cannot be made: its folder cannot be written to ({error}). Check "
            "the path and its permissions.",
            number="TXN-206",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for left in made:
            with contextlib.suppress(OSError):  # it has other files
                left.rmdir()
    if answered != wanted:
        raise _not_shared(
            table,
            f"this process sees {len(answered & wanted)} of {len(wanted)} lines that the "
            "executors were to write there",
        )


def _copied(spark: SparkSession, asked: Path, answered: Path, table: str) -> set[str]:
    """The lines of `asked`, after executors have read them and written them to `answered`."""
    from pyspark.errors import PySparkException

    pattern = re.sub(r"([*?{}\[\]\\])", r"\\\1", f"file:{asked}")
    try:
        lines = spark.read.option("ignoreMissingFiles", "false").text(pattern)
        lines.write.option("compression", "none").text(f"file:{answered}")
    except Exception as error:
        if not isinstance(error, PySparkException) and type(error).__module__ != "py4j.protocol":
            raise
        raise _not_shared(
            table, "an executor could not read there what this process has written"
        ) from error
    files = answered.glob("part-*")
    return {line for file in files for line in file.read_text(encoding="ascii").split()}


def _not_shared(table: str, what: str) -> TopologyError:
    return TopologyError(
        f"The folder of table '{table}' is declared shared, but is not: {what}. Nothing was "
        "started. Mount the same file system under this path on every machine that runs an "
        "executor, or put the table on storage that all of them reach.",
        number="TXN-213",
    )
