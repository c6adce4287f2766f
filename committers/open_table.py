"""A table as a leader opens it: its log, the shape that the program gives it, its next generation.

What its txids do to it is in `TableCommitter`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, NoReturn

from committers.guard import parse_semantics
from committers.publishing.checkpoints import Checkpoints
from committers.publishing.cleanup import LogCleanup
from committers.publishing.files import BUCKET, ActiveFile, Generation, load_files
from committers.publishing.log import MAX_TRIES, AppendFailedError, DeltaLog
from committers.publishing.spec import TableSpec
from committers.publishing.txid_bounds import measured
from committers.staging.area import StagingArea, random_id
from committers.table_rows import strict_reader
from txn.changes import (
    IN_NEXT_GENERATION,
    Change,
    TableShape,
    Verdict,
    clauses,
    half_published,
    is_taken_back,
)
from txn.delta.folders import next_generation
from txn.delta.loading import is_there, load
from txn.delta.log import TableLog
from txn.delta.topology_table import ShapePolicy, refuse_differences
from txn.errors import (
    CommitConflictError,
    FencedError,
    StagedFileError,
    TableChangedError,
    TableRefusedError,
    TopologyError,
)
from txn.interfaces import (
    Committer,
    CommitterContext,
    Publication,
    Semantics,
    StagedFile,
)
from txn.spark.lazy import st
from txn.spark.own_session import computing_session, own_session, settings_of
from txn.storage.asking import in_parallel
from txn.storage.catalog_names import as_location
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["OpenTable", "Properties"]

Properties = Mapping[str, str | None]
"""A table's Delta properties."""


class OpenTable(Committer):
    """One Delta table as a leader opens it.

    Args:
        path: the table's folder, a local path or an object-store URI; or a name of Spark's catalog.
        semantics: the replays that the table absorbs.
        storage_options: credentials and endpoints, by object_store's names (`aws_endpoint_url`),
            for all reads and writes of the table, Spark's included.
        new_id: source of folder names and commit tokens.
        keys: columns whose values together occur only once in a file; empty if there are none.
        columns_were: column -> its former name in the table.
    """

    lies_in_folder = True

    def __init__(
        self,
        path: str | PathLike[str],
        semantics: Semantics | str,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
        keys: Sequence[str] = (),
        columns_were: Mapping[str, str] | None = None,
    ) -> None:
        self._columns_were = dict(columns_were or {})
        self._unique = keys[0] if len(keys) == 1 else None
        self.semantics = parse_semantics(semantics)
        self.storage_options = dict(storage_options or {})
        self._new_id = new_id
        self._owner: OpenTable | None = None
        """The table whose next generation this is."""
        self._comments: Mapping[str, str] = {}
        self._place(as_location(path))

    def _place(self, path: str) -> None:
        """Be the committer of the table at a path, which is not open yet."""
        self.name = path
        self._storage = Storage(path, self.storage_options)
        self.publish_waits = not self._storage.is_local
        self._context: CommitterContext | None = None
        self._staged_schema: StructType | None = None
        """Columns of the staged rows, without their txid; None until opened with a schema."""
        self._checked: tuple[StructType, list[Column]] | None = None
        """The staged columns, and the expressions that compute them."""
        self._begin()

    def _begin(self) -> None:
        """Forget the last run."""
        context = self._context or CommitterContext("", 0)
        self._log = DeltaLog(
            self._storage,
            new_id=self._new_id,
            incarnation=context.incarnation,
            takes_over=context.takes_over,
        )
        self._area = StagingArea(
            self._storage,
            session=lambda: self._spark,
            new_id=self._new_id,
            unique=self._unique,
        )
        self._checkpoints = Checkpoints(self._storage, self._log.verify)
        self._cleanup = LogCleanup(self._storage)
        self._work_session: SparkSession | None = None
        self._read_session: SparkSession | None = None
        self._users: SparkSession | None = None
        self._fenced = False
        self._spec_now: TableSpec | None = None
        """The shape of the program; None until opened with a schema."""
        self._pending: tuple[Change, ...] | None = None
        """What differs from it until the next txid; None: nothing is to be changed."""
        self._next: OpenTable | None = None
        """The next generation, if there is one."""

    # --- open --------------------------------------------------------------------------------

    def open(
        self, spark: SparkSession, context: CommitterContext, schema: StructType | None
    ) -> None:
        """Create the table, or check the existing one; without a schema only attach to it."""
        if context != self._context:
            self._context = context
            self._begin()
        if spark is not self._users:
            self._users, self._spark = spark, own_session(spark)
        if schema is None:
            if self._log.version < 0:
                self._log.attach(context.topology)
            return
        spec = self._spec_now = replace(
            self._spec(schema),
            settings=tuple(sorted(settings_of(self._spark).items())),
            first_txid=context.first_txid,
            columns_were=self._columns_were,
            comments=self._comments,
        )
        with self._as_generation():
            changes = self._log.open(spec, context.epoch, self._policy())
        self._refuse_other_shape(changes)
        self._pending = changes if changes or self._next else None
        if self._fenced:
            # Opened after `fence` was called: the table may be slightly older than this leader.
            self._log.fence(context.epoch)

    def _policy(self) -> ShapePolicy:
        """The changes of the table's shape that the settings allow."""
        context = self._opened
        policy = ShapePolicy.of(self.name, context.dropped_columns, context.rebuilt_tables)
        # The refusal of a next generation has no advice that would help its table only.
        return replace(policy, refilled=self._next is not None or self._owner is not None)

    # --- change the shape --------------------------------------------------------------------

    @abstractmethod
    def shape(self) -> TableShape:
        """Return the table that the program needs, without the types of its columns."""

    def require_shape(self) -> None:
        """Refuse a table that no columns of the rows would make fit."""
        if self._log.version >= 0:
            with self._as_generation():
                changes = self._log.require_shape(self.shape(), self._policy())
            self._refuse_other_shape(changes)

    def change_shape(self, committed: int) -> Callable[[], tuple[str, ...]] | None:
        """Write the table's rows in the shape of the program, if they need another one.

        Returns:
            A function that appends the change in one version, and returns what was changed; None:
            the table has the shape already.

        Raises:
            TableRefusedError: a former run left the next txid in this table alone, or the rows do
                not fit the new shape.
        """
        spec = self._spec_now
        if spec is None or self._pending is None:
            return None
        # A dead leader's rows may have come since `open`: the table is not empty any more.
        changes = self._pending = self._log.changes(spec, self._policy())
        if not changes and self._next is None:
            return None
        if (other := self._next) is not None:
            # Its own columns may have been unknown, or doubted, when it was to be opened.
            assert self._users is not None
            other.open(self._users, other._opened, self._known_staged_schema())
        rebuilds = self._next is not None or any(c.verdict is Verdict.REBUILD for c in changes)
        self._refuse_unfinished(committed, spec, rebuilds=rebuilds)
        generation = self._new_generation(spec, committed) if rebuilds else None
        return lambda: self._publish_shape(spec, committed, changes, generation)

    def _publish_shape(
        self,
        spec: TableSpec,
        committed: int,
        changes: Sequence[Change],
        generation: Generation | None,
    ) -> tuple[str, ...]:
        """Append the change; if an OPTIMIZE has rewritten files meanwhile, write them again."""
        for _ in range(MAX_TRIES):
            if self._reshape(spec, committed, changes, generation):
                self._pending = None
                taken = () if self._next is None else (self._retire_next(generation),)
                return (*(change.what for change in changes), *taken)
            generation = self._new_generation(spec, committed)
        raise CommitConflictError(
            f"The files of table {self.name} were rewritten {MAX_TRIES} times while its shape was "
            "changed. Stop the OPTIMIZE that does so, then run the topology again."
        )

    def _reshape(
        self,
        spec: TableSpec,
        committed: int,
        changes: Sequence[Change],
        generation: Generation | None,
    ) -> bool:
        """Append the change; return False if the files that it replaces were rewritten."""
        if generation is None:
            return bool(self._log.reshape(spec, self._opened.epoch, committed, changes))
        self._leave(generation.adds)
        try:
            landed = self._log.reshape(spec, self._opened.epoch, committed, changes, generation)
        except AppendFailedError:
            raise  # it may still land
        except (StagedFileError, CommitConflictError, FencedError, TableChangedError):
            self._drop(generation)
            raise
        if landed is None:
            self._drop(generation)
        return landed is not None

    def _leave(self, adds: Sequence[StagedFile]) -> None:
        """Leave these files to the next start from now on: a version may refer to them."""
        self._area.publishing(adds)

    def _drop(self, generation: Generation) -> None:
        """Delete the files of a generation that is in no version, and that a start makes again."""
        if not generation.is_filled:
            self._storage.delete_files(file.path for file in generation.adds)

    def _refuse_unfinished(self, committed: int, spec: TableSpec, *, rebuilds: bool) -> None:
        """Refuse to change a table with rows of a txid that other tables may lack."""
        if not any(file.may_hold(committed + 1) for file in self._log.files_now()):
            return
        stored = self._log.properties.get("txn.semantics")
        if not is_taken_back(stored, spec.semantics.value, rebuilds=rebuilds):
            refuse_differences(self.name, [half_published(self.name, committed + 1)])

    def _new_generation(self, spec: TableSpec, committed: int) -> Generation:
        """Return the next generation's files; write the table's rows anew if there is none."""
        files = self._log.files_now()
        if self._next is not None:
            return Generation(self._next_files(), files, self._next.first_txid(), is_filled=True)
        stored = self._rows_in(files, self._turn_session())
        watermark = self._log.watermark_as_of(committed)
        adds = self._write_anew(stored, self._log.properties, spec, committed, watermark)
        return Generation(adds, files, committed + 1)

    def _rows_in(self, files: Sequence[ActiveFile], session: SparkSession) -> DataFrame:
        """The rows of these files, without their buckets."""
        columns = [field for field in self._logged_schema() if field.name != BUCKET]
        reader = strict_reader(session, st.StructType(columns), self._storage)
        return reader.parquet(*(self._storage.read_url(file.path) for file in files))

    @abstractmethod
    def _write_anew(
        self,
        stored: DataFrame,
        properties: Properties,
        spec: TableSpec,
        committed: int,
        watermark: int | None,
    ) -> tuple[StagedFile, ...]:
        """Write rows of the former generation anew, in the shape of `spec`.

        Args:
            properties: of the table that has the rows.
            committed: the newest txid of the rows.
            watermark: that of `committed`.
        """

    def _turn_session(self) -> SparkSession:
        """The session of a commit turn."""
        return self._session({})

    # --- the next generation, filled beside the running topology -----------------------------

    def generation(self, *, begin: bool) -> OpenTable | None:
        """Return the committer of the table's next generation, attached; None if there is none.

        It lies in a folder of the table's own, as a table of its own, and takes the table's place
        with `change_shape`, once it holds the same txids.

        Args:
            begin: also if there is none yet.
        """
        if self._next is None and self._log.version >= 0:
            other = copy.copy(self)
            other._owner = self
            other._columns_were = {}  # it is filled under the new names
            other._place(next_generation(self.name, self._log.properties))
            if begin or is_there(other._storage):
                assert self._users is not None
                other.open(self._users, self._opened, None)
                self._next = other
        return self._next

    def first_txid(self) -> int:
        """Return the table's first txid: 1, unless it was created after others had committed."""
        return TableLog(self._storage).first_txid

    def newest_before(self, committed: int) -> tuple[int, Publication] | None:
        """(newest version, publication) of the newest txid up to `committed`; None without one."""
        table = load(self._storage)
        version = table.version()  # the log may not go back to that of the publication
        for entry in TableLog(self._storage, table).publications():
            if entry.publication.last_txid <= committed and not entry.publication.is_lost:
                return version, entry.publication
            version = entry.version - 1
        return None

    def fill_generation(self, version: int, publication: Publication) -> None:
        """Write the table's rows as of a version into its next generation, which has none yet.

        Args:
            publication: the newest one of that version.

        Raises:
            TableRefusedError: the rows do not fit the new shape.
        """
        other = self._next
        assert other is not None
        assert other._spec_now is not None
        spec = replace(other._spec_now, columns_were=self._columns_were)
        epoch = other._opened.epoch
        policy = ShapePolicy.of(self.name, self._opened.dropped_columns, (self.name,))
        self._log.changes(spec, policy)
        files = tuple(load_files(load(self._storage, version)).values())
        adds: tuple[StagedFile, ...] = ()
        if files:
            stored = self._rows_in(files, other._turn_session())
            adds = other._write_anew(
                stored,
                self._log.properties,
                spec,
                publication.last_txid,
                publication.watermark,
            )
        other._leave(adds)
        own = publication.model_copy(update={"epoch": epoch, "filled_by": ""})
        other._log.publish(adds, (), own, other._log.version)

    def _next_files(self) -> tuple[StagedFile, ...]:
        """The files of the next generation, as files of this table."""
        other = self._next
        assert other is not None
        files = other._log.files_now()
        folder = other.name.rpartition("/")[2]
        measures = in_parallel(lambda file: measured(file, other._storage), files)
        for file, one in zip(files, measures, strict=True):
            if one is None:
                other._refuse_generation(f"its file {file.path} is gone")
        return tuple(replace(one, path=f"{folder}/{one.path}") for one in measures if one)

    def _retire_next(self, generation: Generation | None) -> str:
        """Delete what the next generation has beside its files, which are this table's now."""
        other, self._next = self._next, None
        assert other is not None
        assert generation is not None
        other.close()
        kept = {file.path for file in generation.adds}
        folder = other.name.rpartition("/")[2]
        # Its log at once: a filling that still goes on must not find the table.
        paths = [f"{folder}/{entry.path}" for entry in other._storage.store.walk()]
        self._storage.delete_files(path for path in paths if path not in kept)
        return "its next generation has taken its place"

    @contextmanager
    def _as_generation(self) -> Iterator[None]:
        """Let a refusal name the table, and the way out, if this is its next generation."""
        try:
            yield
        except (TableRefusedError, TableChangedError) as error:
            if self._owner is not None:
                self._refuse_generation(str(error))
            raise

    def _refuse_other_shape(self, changes: tuple[Change, ...]) -> None:
        """Refuse a next generation that another program has begun, even one without rows."""
        if changes and self._owner is not None:
            self._refuse_generation(clauses(changes).replace(IN_NEXT_GENERATION, ""))

    def _refuse_generation(self, why: str) -> NoReturn:
        assert self._owner is not None
        table = self._owner.name
        now = load(self._owner._storage).metadata().configuration
        if next_generation(table, now) != self.name:
            # Its folder has the table's own files now.
            raise TableChangedError(
                f"The next generation of table {table} has taken the table's place "
                "meanwhile: another process runs a program with it. Start again; nothing was lost."
            )
        raise TableRefusedError(
            f"The next generation of table {table} cannot take its place: "
            f"{why.rstrip('.')}. Another program may have filled it, or VACUUM has deleted files. "
            f"Nothing was changed. End every `txn backfill` of the table, delete the folder "
            f"{self.name}, and fill it again with `txn backfill`.",
            number="TXN-304",
        )

    # --- what the table is -------------------------------------------------------------------

    def last_publication(self) -> tuple[int, Publication] | None:
        """(table version, publication) of the newest publication in the log; None without one."""
        return self._log.last_publication()

    def physical_id(self) -> str | None:
        """Delta's own id of the table; None while the table does not exist."""
        return self._log.table_id

    @property
    def _opened(self) -> CommitterContext:
        if self._context is None:
            raise TopologyError(
                f"Table {self.name} is used before it was opened.", number="TXN-116"
            )
        return self._context

    def _known_staged_schema(self) -> StructType:
        if self._staged_schema is None:
            raise TopologyError(
                f"Table {self.name} is staged into before it was opened.", number="TXN-116"
            )
        return self._staged_schema

    def _logged_schema(self) -> st.StructType:
        """Columns of the table, bookkeeping included, as recorded in its log.

        Raises:
            TopologyError: the table was not opened, or does not exist.
        """
        columns = self._log.columns()
        if columns is None:
            raise TopologyError(
                f"Table {self.name} is read before it was opened.", number="TXN-116"
            )
        return st.StructType.fromJson(columns)

    @abstractmethod
    def _spec(self, schema: StructType) -> TableSpec:
        """The shape of the table for partials of `schema`, which becomes `_staged_schema`."""

    # --- Spark -------------------------------------------------------------------------------

    def _session(self, conf: Mapping[str, str]) -> SparkSession:
        """A separate session over the same executors: the user's settings stay untouched."""
        if self._work_session is None:
            self._work_session = computing_session(self._spark, conf)
        return self._work_session

    def _reading(self) -> SparkSession:
        """The session that reads the table for queries."""
        if self._read_session is None:
            # Listing a few hundred files takes less time than starting a Spark job for it.
            threshold = "spark.sql.sources.parallelPartitionDiscovery.threshold"
            # Decides the type of a mean of decimals, which must be the one of the user's session.
            digits = "spark.sql.decimalOperations.allowPrecisionLoss"
            conf = {threshold: "1000", digits: str(self._spark.conf.get(digits))}
            self._read_session = computing_session(self._spark, conf)
        return self._read_session
