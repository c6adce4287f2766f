"""The optional capabilities of committers, found as those of spouts are (`spout_capabilities`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from txn.attempts import TransactionAttempt
from txn.changes import TableShape
from txn.errors import TopologyError
from txn.interfaces.committer import Committer, StoredRows
from txn.interfaces.publication import Prepared, Publication, Staged, TablePublication

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


__all__ = [
    "FIRST_AT",
    "ChangesShape",
    "ChecksChanges",
    "CleansUp",
    "CompletesColumns",
    "DescribesState",
    "FindsTable",
    "HoldsRows",
    "IdentifiesTable",
    "KeepsBeside",
    "KeepsBytes",
    "KeepsGenerations",
    "KeepsOwnLog",
    "MaintainsTable",
    "ReadableTable",
    "ReadsAsOf",
    "RecallsRows",
    "ReportsChanges",
    "SettlesTxids",
    "ShowsPartials",
    "StagesTogether",
    "reporting_changes",
]


@runtime_checkable
class IdentifiesTable(Protocol):
    """Returns an id of the table itself, the same for any path; None if it is missing or unknown.

    A run refuses two committers with the same id: they would be two names of one table.
    """

    def physical_id(self) -> str | None: ...


@runtime_checkable
class FindsTable(Protocol):
    """Finds the folder of a table that the program knows by a name of Spark's catalog.

    Called when a run, a filling or a preview begins, before anything else; `name` is the folder
    from then on. States have it as well as committers.

    Raises:
        TopologyError: there can be no table of that name.
    """

    def find_table(self, spark: SparkSession) -> None: ...


@runtime_checkable
class ChangesShape(Protocol):
    """Lets a program change the shape of an existing table, between two txids."""

    def shape(self) -> TableShape:
        """Return the table that the program needs; without Spark, so without types.

        It may be called before `open`.
        """

    def require_shape(self) -> None:
        """Refuse a table that the program cannot use, whatever columns its rows have.

        Called after `open` without a schema, for a table whose columns are not known yet: txids
        without rows are published in it.

        Raises:
            TableRefusedError: naming all differences that are not allowed.
        """

    def change_shape(self, committed: int) -> Callable[[], tuple[str, ...]] | None:
        """Stage the table in its new shape, if `open` has accepted a difference.

        Called once per run after `fence`, while every table holds exactly `committed`; or, if the
        columns become known only with a batch, right after `open`. Files staged here must be
        harmless if they are never published.

        Returns:
            A function that appends the change to the log and returns what was changed, as clauses;
            None: the table has the shape already. It raises FencedError if the table holds a newer
            epoch, and CommitConflictError if the log could not be appended to.

        Raises:
            TableRefusedError: the rows do not fit the new shape.
        """


@runtime_checkable
class KeepsGenerations(Protocol):
    """Lets a table's next generation be filled beside the running topology.

    Once `open` has accepted it, `change_shape` lets it take the table's place.
    """

    def generation(self, *, begin: bool) -> Committer | None:
        """Return the committer of the next generation, attached; None if there is none.

        Args:
            begin: also if there is none yet.
        """

    def newest_before(self, committed: int) -> tuple[int, Publication] | None:
        """(version, publication) of the table's newest txid up to `committed`."""

    def fill_generation(self, version: int, publication: Publication) -> None:
        """Write the rows as of a version into the next generation, which has none yet.

        Raises:
            TableRefusedError: they do not fit its shape.
        """


@runtime_checkable
class HoldsRows(Protocol):
    """Has every row of its stream, so that other tables can be computed from it."""

    def first_txid(self) -> int:
        """Return the first txid whose rows it has."""

    def newest_before(self, committed: int) -> tuple[int, Publication] | None:
        """(version, publication) of the table's newest txid up to `committed`."""

    def rows_at(self, version: int) -> DataFrame:
        """Return the rows of a version, with the columns of the stream. Runs no job."""


# --- staging -------------------------------------------------------------------------------------


@runtime_checkable
class StagesTogether(Protocol):
    """Does `stage` for several attempts, in one job if that is cheaper: one result for each.

    Without it, they are staged one after the other.

    Raises:
        Exception: nothing of the group counts as staged; each attempt is then staged alone.
    """

    def stage_together(
        self, group: Sequence[tuple[DataFrame, TransactionAttempt]]
    ) -> list[Staged]: ...


@runtime_checkable
class CompletesColumns(Protocol):
    """Completes `batch` as far as `partials` needs, if some columns of its stream are unknown.

    `batch` has every row; in the missing columns every value is NULL.

    Returns:
        A DataFrame that `partials` takes: `batch` itself if the table needs no further
        columns, or `batch` with NULLs in the columns that the existing table has besides.
        None, and without this method: the batch waits for the missing columns.
    """

    def complete(self, batch: DataFrame) -> DataFrame | None: ...


@runtime_checkable
class ShowsPartials(Protocol):
    """Returns the rows that readers would see if the table held these partials and nothing else.

    For `txn preview`. Without it, readers see the partials.
    """

    def shown(self, partials: DataFrame) -> DataFrame: ...


# --- new values and queries ----------------------------------------------------------------------


@runtime_checkable
class ReportsChanges(Protocol):
    """Has new values for streams below it (Trident: `newValuesStream`)."""

    def changes_schema(self, partials: StructType) -> StructType:
        """Columns of `changes`, given those of the partials."""

    def changes(self, prepared: Prepared, publication: Publication) -> StoredRows:
        """The changes of this txid; between `prepare` and `publish`.

        One row per key that the batch touched: keys, values, `prev_<value>` as of txid - 1 (NULL:
        the key is new). An identical replay that the table skips gives the same rows.
        """


@runtime_checkable
class ChecksChanges(Protocol):
    """Refuses new values that this table cannot supply, when the topology is built.

    Raises:
        TopologyError: two columns of `changes` would have the same name.
    """

    def require_changes(self) -> None: ...


@runtime_checkable
class DescribesState(Protocol):
    """Returns the columns that readers of a state see, given those of the partials.

    A state query finds its columns here; they may include more than keys and values. Without it,
    they are those of `changes_schema`.
    """

    def values_schema(self, partials: StructType) -> StructType: ...


@runtime_checkable
class ReadsAsOf(Protocol):
    """Returns keys and values as of `txid`, the newest committed one, for a query; on any thread.

    They exclude later txids, even if the table holds some already. They are read from the
    newest files that have them, because VACUUM deletes others. If a later txid is committed
    meanwhile, the method is called again.

    Args:
        exact: as of `txid` itself; False: an older committed txid will do.

    Returns:
        None if this committer cannot answer; then, and without it, `State.snapshot` is used.
    """

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows | None: ...


FIRST_AT = "txn_first_at"
"""The column of a table of keys (`KeepsBeside`) with the event time of a key's first row."""


@runtime_checkable
class KeepsBeside(Protocol):
    """Can make a table beside its own for rows that later txids of a stream look up."""

    def keeping(
        self, name: str, keys: Sequence[str], time: str | None, after: int | None, *, whole: bool
    ) -> Committer:
        """Return the committer of such a table, which is not open; it is a `RecallsRows`.

        Args:
            name: of its folder, beside this table's.
            keys: the columns by which rows are looked up.
            time: the event time; None: there is none.
            after: microseconds; what is that much behind the watermark, or more, may be removed.
                None: nothing is.
            whole: keep all columns; False: the keys, each once, with its first event time
                (`FIRST_AT`).
        """


@runtime_checkable
class RecallsRows(Protocol):
    """Returns rows of earlier txids, for attempts that compare theirs with them."""

    def rows_as_of(self, txid: int, staged: Sequence[Staged]) -> StoredRows:
        """The rows of all txids up to `txid`, and those that were staged and not published.

        Called on any thread; `txid` is committed. `StoredRows.of_keys` takes keys several times.
        """


@runtime_checkable
class ReadableTable(Protocol):
    """A table, not its committer, that readers see as of a txid: keys and values, or rows."""

    def read(self, spark: SparkSession, txid: int | None = None) -> DataFrame:
        """Return them as a DataFrame of Spark; None: as of the newest version."""

    def sql(
        self,
        txid: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        dialect: Literal["duckdb", "spark", "trino"] = "duckdb",
        table: str | None = None,
    ) -> str:
        """Return an engine's query for them; `table`: its name in a catalog, None: a default."""

    def to_duckdb(
        self,
        txid: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        connection: Any = None,
    ) -> Any:
        """Return them as a relation of DuckDB."""


def reporting_changes(committer: Committer) -> ReportsChanges:
    """Return the committer, if it has new values.

    Raises:
        TopologyError: it has none.
    """
    if not isinstance(committer, ReportsChanges):
        raise TopologyError(
            f"Table {committer.name} has no new values: only a state table has.", number="TXN-108"
        )
    return committer


# --- after the commit ----------------------------------------------------------------------------


@runtime_checkable
class CleansUp(Protocol):
    """Deletes the scratch files of a txid that is durable everywhere. Best effort."""

    def committed(self, attempt: TransactionAttempt) -> None: ...


@runtime_checkable
class SettlesTxids(Protocol):
    """Marks `txid` in the table as final; nothing follows it for now.

    Called when the run is idle or ends, so that readers of the table's log see that this txid
    will not be replayed. A crash may skip this call.
    """

    def settle(self, txid: int) -> None: ...


@runtime_checkable
class MaintainsTable(Protocol):
    """Does background work on the table, such as compaction; no commit turn waits for it.

    Called again and again on its own thread, never twice at once for one committer; may run
    Spark jobs. Files staged here must be harmless if they are never published, because the
    process may die at any point.

    Args:
        committed: the newest txid that is durable everywhere; do not touch later rows.

    Returns:
        A function that makes the work visible. It is called between two commit turns, on their
        thread, so it must only append to the log. None if no work is due.
    """

    def maintain(self, committed: int) -> Callable[[], None] | None: ...


@runtime_checkable
class KeepsBytes(Protocol):
    """Stores spouts' bytes beside the table (`Keeper`).

    Raises:
        OSError, StorageUnavailableError, StorageRefusedError: the storage does not answer.
    """

    def keep(self, name: str, content: bytes) -> bool:
        """Store a spout's bytes beside the table for good; return False if it cannot, or not yet.

        Does nothing if they are stored already. They are durable when this returns. They are not
        part of the table, and none of its clean-ups deletes them.
        """

    def kept(self, name: str) -> bytes | None:
        """The bytes that `keep` stored under a name, or None."""


# --- for operations, without a run ---------------------------------------------------------------


@runtime_checkable
class KeepsOwnLog(Protocol):
    """A committer whose table is not a Delta table, for operations from outside of a run.

    `txn history`, `status`, `recover`, `doctor` and the page call these on a committer that was
    never opened. Without them, they look for a Delta table at the committer's `name`.
    """

    def publications(self) -> Iterator[TablePublication]:
        """Yield every publication, newest first, as far back as the table keeps them.

        Yields nothing if the table does not exist yet.
        """

    def newest_epoch(self) -> int:
        """Return the newest epoch in the table, of a fence or of a publication; 0: none."""
