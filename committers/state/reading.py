"""Read a state table's files: its rows, or keys and values as of a txid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from committers.publishing.files import BUCKET
from committers.publishing.log import DeltaLog
from committers.reading import strict_reader
from committers.state.keys import keys_reader
from committers.state.shape import StateShape
from txn.interfaces import KeysReader
from txn.spark.rows import no_rows
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["StateReader", "bucket_reader", "without_bucket"]

L = TypeVar("L", bound=StateShape)


class StateReader(ABC, Generic[L]):
    """Reads the newest files of a table that a committer writes.

    Args:
        storage: the table's folder.
        log: the table's log, at the version read last.
        schema: the table's columns.
    """

    def __init__(
        self, layout: L, storage: Storage, log: DeltaLog, schema: Callable[[], StructType]
    ) -> None:
        self._layout = layout
        self._storage = storage
        self._log = log
        self._schema = schema

    @abstractmethod
    def as_of(
        self, txid: int, session: SparkSession, *, exact: bool
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """(keys and values as of `txid`, the files read, a reader of some keys).

        Args:
            exact: as of `txid` itself; False: an older committed txid will do.
        """

    def _read(self, paths: Sequence[str], session: SparkSession) -> DataFrame:
        """The rows of these files."""
        if not paths:
            return no_rows(session, self._schema())
        urls = map(self._storage.read_url, paths)
        return bucket_reader(session, self._schema(), self._storage).parquet(*urls)

    def _shown(
        self, rows: DataFrame, paths: list[str], show: Callable[[DataFrame], DataFrame]
    ) -> tuple[DataFrame, list[str], KeysReader | None]:
        """The result of `as_of`, given the rows and the function that shows them to readers."""
        of_keys = keys_reader(lambda: rows, self._layout.keys, self._log.size, show)
        return show(rows), paths, of_keys


def bucket_reader(session: SparkSession, schema: StructType, storage: Storage) -> DataFrameReader:
    """A reader of files with these columns, except the bucket."""
    return strict_reader(session, without_bucket(schema), storage)


def without_bucket(schema: StructType) -> StructType:
    """The columns in the files: the bucket follows from the keys."""
    from pyspark.sql.types import StructType

    return StructType([f for f in schema if f.name != BUCKET])
