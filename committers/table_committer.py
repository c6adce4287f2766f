"""What append tables and state tables have in common: a log, a staging area, one guard."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from committers.delta_log import MAX_TRIES, AppendFailedError, DeltaLog, StaleFilesError
from committers.log_actions import ActiveFile
from committers.row_digest import differing_columns
from committers.staging import StagingArea, random_id
from committers.storage import Storage
from committers.table_spec import TableSpec
from txn.attempts import TransactionAttempt
from txn.errors import (
    CommitConflictError,
    FencedError,
    SourceChangedError,
    StagedFileError,
    TableRefusedError,
    TopologyError,
)
from txn.interfaces import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["TableCommitter", "parse_semantics", "read_table", "require_same_columns"]


class TableCommitter(Committer):
    """A committer over one Delta table; subclasses say what a version is made of.

    Args:
        path: the table's folder: a local path or an object-store URI.
        semantics: what the table absorbs.
        storage_options: credentials and endpoints for delta-rs; Spark and pyarrow have their own.
        new_id: source of folder names and commit tokens.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        semantics: Semantics | str,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.name = os.fspath(path)
        self.semantics = parse_semantics(semantics)
        self._storage = Storage(self.name)
        self._options = dict(storage_options or {})
        self._new_id = new_id
        self._context: CommitterContext | None = None
        self._fenced = False
        self._begin()

    def _begin(self) -> None:
        """Forget the last run."""
        self._log = DeltaLog(self._storage, storage_options=self._options, new_id=self._new_id)
        self._area = StagingArea(self._storage, new_id=self._new_id)
        self._work_session: SparkSession | None = None
        self._fenced = False

    # --- open --------------------------------------------------------------------------------

    def open(
        self, spark: SparkSession, context: CommitterContext, schema: StructType | None
    ) -> None:
        """Create the table, or check the existing one; without a schema only attach to it."""
        if context != self._context:
            self._begin()
            self._context = context
        self._spark = spark
        if schema is None:
            if self._log.version < 0:
                self._log.attach(context.topology)
            return
        self._log.open(self._spec(schema), context.epoch)
        if self._fenced:
            # Opened after the fence was asked for: the table may be a moment older than we are.
            self._log.fence(context.epoch)

    def fence(self) -> None:
        """Shut older leaders out, then delete what they staged and never published."""
        self._fenced = True
        if self._log.version < 0:
            return
        self._log.fence(self._opened.epoch)
        last = self._log.last_publication()
        self._area.sweep(last[1].last_txid if last else 0, self._log.files)

    def last_publication(self) -> tuple[int, Publication] | None:
        """(table version, publication) of the newest publication in the log; None if none."""
        return self._log.last_publication()

    @property
    def _opened(self) -> CommitterContext:
        if self._context is None:
            raise TopologyError(f"Table {self.name} is used before it was opened.")
        return self._context

    @abstractmethod
    def _spec(self, schema: StructType) -> TableSpec:
        """The shape of the table for partials of `schema`."""

    # --- prepare -----------------------------------------------------------------------------

    def prepare(self, staged: Staged, publication: Publication) -> Prepared:
        """Compute the next version's files, applying the guard of `semantics`."""
        if self._log.version < 0 and not staged.files:
            # Nothing was ever staged, so the columns are unknown and there is no table yet.
            return Prepared(staged, (), skipped=True)
        self._log.require_newer(publication)
        self._log.require_staged(staged.files)
        held = self._identical_replay(publication)
        if held is not None:
            return Prepared(staged, (), (), held, skipped=True)
        return self._prepare(staged, publication)

    @abstractmethod
    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        """The next version's files, when the table does not hold this txid for good."""

    def _unfinished(self, publication: Publication) -> bool:
        """Whether the table may hold rows of an attempt that never finished."""
        last = self._log.last_publication()
        return last is not None and last[1].last_txid >= publication.first_txid

    def _identical_replay(self, publication: Publication) -> int | None:
        """The version that holds this txid of a transactional table already, else None."""
        last = self._log.last_publication()
        if (
            self.semantics is not Semantics.TRANSACTIONAL
            or last is None
            or last[1].last_txid < publication.first_txid
        ):
            return None
        version, held = last
        span = (publication.first_txid, publication.last_txid)
        if held.last_txid < publication.last_txid:
            raise CommitConflictError(
                f"Table {self.name} holds txids {held.first_txid} to {held.last_txid} of the txids "
                f"{span[0]} to {span[1]} that are to be published together. Publish them one by "
                "one, so that the first can be skipped."
            )
        if (held.first_txid, held.last_txid) == span:
            self._require_identical(publication, version, held)
        return version

    def _require_identical(self, publication: Publication, version: int, held: Publication) -> None:
        """Refuse a replay that can be told from what the table holds: by its rows or digest."""
        attempt = f"Attempt {publication.last_txid}:{publication.attempt_id}"
        remedy = (
            "Either the source is not transactional (then use an opaque spout and "
            'semantics="opaque"), or the transform computes from more than its rows, such as a '
            "clock or a random number."
        )
        if held.rows != publication.rows:
            raise SourceChangedError(
                f"{attempt} staged {publication.rows} rows for table {self.name}, and its version "
                f"{version} holds {held.rows} rows of the same txid from attempt "
                f"{held.attempt_id}. {remedy}"
            )
        columns = differing_columns(held.digest, publication.digest)
        if columns:
            raise SourceChangedError(
                f"{attempt} staged other values in column '{columns[0]}' for table {self.name} "
                f"than its version {version} holds of the same txid from attempt "
                f"{held.attempt_id}, as the nulls and bounds in the Parquet files say (digests "
                f"{publication.digest} now, {held.digest} then). {remedy}"
            )

    # --- publish -----------------------------------------------------------------------------

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Append the prepared version on condition that it is the next one; read it back."""
        if prepared.skipped:
            commit = self._log.read_commit(prepared.read_version)
            return Published(prepared.read_version, commit.adds if commit else (), skipped=True)
        for _ in range(MAX_TRIES):
            try:
                return replace(self._publish(prepared, publication), prepared=prepared)
            except StaleFilesError:
                # OPTIMIZE rewrote what this version would have removed: the rows are the same.
                prepared = self.prepare(prepared.staged, publication)
        return replace(self._publish(prepared, publication), prepared=prepared)

    def _publish(self, prepared: Prepared, publication: Publication) -> Published:
        removes = [file for file in prepared.removes if isinstance(file, ActiveFile)]
        self._area.publishing(prepared.adds)
        try:
            return self._log.publish(prepared.adds, removes, publication, prepared.read_version)
        except AppendFailedError:
            raise  # the request may still land: its files must stay
        except (StagedFileError, CommitConflictError, FencedError):
            # These say for certain that nothing landed; after any other error the files stay.
            self._area.withdraw(prepared.staged.attempt, prepared.adds)
            raise

    # --- clean-up ----------------------------------------------------------------------------

    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete what a dead attempt staged; published files are not touched."""
        self._area.discard(attempt)

    def committed(self, attempt: TransactionAttempt) -> None:
        """Delete the scratch files of a committed attempt."""
        self._area.discard(attempt)

    def settle(self, txid: int) -> None:
        """Mark `txid` as final in the log, where a replay could have replaced or repeated it.

        A transactional table needs no mark: a replay of what it holds is skipped.

        Raises:
            FencedError: the table holds a newer epoch.
            CommitConflictError: the log could not be appended to.
        """
        if self.semantics is not Semantics.TRANSACTIONAL and self._log.version >= 0:
            self._log.settle(txid, self._opened.epoch)

    def close(self) -> None:
        """Forget the Spark session; the table needs no closing."""
        self._work_session = None

    # --- Spark -------------------------------------------------------------------------------

    def _session(self, conf: Mapping[str, str]) -> SparkSession:
        """A session of our own over the same executors: the user's settings stay untouched."""
        if self._work_session is None:
            session = self._spark.newSession()
            own = {
                # A running total that leaves its type's range must raise, not wrap or turn NULL.
                "spark.sql.ansi.enabled": "true",
                # INT96, Spark's default, is a deprecated type that other readers round.
                "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
                "spark.sql.session.timeZone": str(
                    self._spark.conf.get("spark.sql.session.timeZone")
                ),
                **conf,
            }
            for key, value in own.items():
                session.conf.set(key, value)
            self._work_session = session
        return self._work_session


def read_table(
    spark: SparkSession, storage: Storage, options: Mapping[str, str], version: int | None = None
) -> tuple[DataFrame, Mapping[str, str | None]]:
    """(every column of a version, None: the newest now; table properties). Later ones do not show.

    Raises:
        TableRefusedError: there is no Delta table, or no such version.
    """
    from pyspark.errors import AnalysisException

    if not DeltaTable.is_deltatable(storage.uri, dict(options)):
        raise TableRefusedError(
            f"There is no table at {storage.location} yet: it is made by the first batch of its "
            "topology. Run the topology, or correct the path."
        )
    table = DeltaTable(storage.uri, storage_options=dict(options))
    as_of = table.version() if version is None else version
    reader = spark.read.format("delta").option("versionAsOf", as_of)
    try:
        return reader.load(storage.url()), table.metadata().configuration
    except AnalysisException as error:
        raise TableRefusedError(
            f"Version {as_of} of table {storage.location} cannot be read: it was never written, "
            f"or was cleaned out of the log. The newest version is {table.version()}."
        ) from error


def parse_semantics(semantics: Semantics | str) -> Semantics:
    """The enum member of a name.

    Raises:
        TopologyError: an unknown name.
    """
    try:
        return Semantics(semantics)
    except ValueError:
        known = ", ".join(f'"{member.value}"' for member in Semantics)
        raise TopologyError(
            f"A table cannot have semantics={semantics!r}. Choose one of {known}."
        ) from None


def require_same_columns(expected: StructType, found: StructType, table: str) -> None:
    """Refuse rows whose columns are not those that the table was opened with.

    Raises:
        TopologyError: naming the first difference.
    """
    wanted = {field.name: field.dataType.simpleString() for field in expected}
    got = {field.name: field.dataType.simpleString() for field in found}
    for name in (*wanted, *got):
        if wanted.get(name) != got.get(name):
            raise TopologyError(
                f"Column '{name}' of the rows for table {table} is {got.get(name, 'missing')}, and "
                f"the table was opened with {wanted.get(name, 'no such column')}. Make the "
                "transform return the same columns for every batch."
            )
