"""A Delta table as a transactional spout: a batch is a range of its versions.

Versions are immutable, so a replay reads the same rows: exactly the files that these versions
added, found in the log without a Spark job. If the table records its changes, updates and deletes
can be read as well (`changes=True`, Delta's change data feed).

If another topology writes the table, each of its committed rows comes once, even if that topology
is killed between publishing and committing: see `spouts.delta.plan`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

from spouts._schemas import NewColumns, as_struct, check_new_columns, check_same
from spouts._sizes import BatchSize, Size
from spouts._uris import plain
from spouts.delta.batch import DeltaBatch, DeltaVersion, sum_if_known
from spouts.delta.log import AddedFile, SourceLog, SourceVersion, TableNow
from spouts.delta.plan import (
    Candidate,
    Rules,
    final_version,
    next_batch,
    only_adds,
)
from spouts.delta.read import scan, struct_of
from spouts.delta.versions import PlannedVersions
from txn.attempts import TransactionAttempt
from txn.errors import (
    FailedException,
    SourceChangedError,
    SourceUnavailableError,
    TopologyError,
)
from txn.interfaces import Lag, Spout, SpoutKind
from txn.spark.catalog import SparkCatalog
from txn.spark.names import quoted
from txn.spark.origins import unnoted
from txn.spark.rows import no_rows
from txn.storage.catalog_names import as_location, located

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["DeltaBatch", "DeltaSpout", "DeltaVersion"]

_PASSED_AT_MOST = 100
"""After this many versions without rows (OPTIMIZE, properties) an empty batch moves the position
on, so that the log before it may be cleaned up."""
# Reader features that do not change how the files of an appending version are read.
_READABLE = frozenset(["deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"])


class DeltaSpout(Spout[DeltaBatch]):
    """Reads the rows that are appended to a Delta table, version by version.

    OPTIMIZE and changes of properties are skipped. A version that removes or rewrites rows, or
    changes the columns, stops the topology when its turn comes, unless `changes=True`. A
    partitioned table takes one scan per partition that a batch touches. All columns of the table
    are emitted, also the `txid` of a table that a topology writes: rename or drop it before it
    reaches another such table.

    Args:
        path: the table's folder, a local path or an object-store URI; or its name in Spark's
            catalog, "catalog.schema.table". While there is no table, there is nothing to read.
        start: where the first batch begins: "first" (version 0), "latest" (after the newest
            version at the time of the first plan; that batch is empty), or a version.
        changes: read Delta's change data feed: the columns of the table and `_change_type`,
            `_commit_version`, `_commit_timestamp`. The table must record it
            (`delta.enableChangeDataFeed`).
        versions_per_batch: most versions with rows in one txid; (least, most): at most `least`
            while the topology is caught up, and up to `most` while it is behind.
        bytes_per_batch: most bytes in the files of a batch, or a range (least, most); a batch has
            at least one version. None: no limit.
        storage_options: credentials and endpoints, by object_store's names (`aws_endpoint_url`);
            what they leave out comes from the environment.
        look_every_secs: in an object store or on HDFS, seconds at least from a look that found
            nothing to the next one.
        schema: columns of the table, DDL or StructType, for a topology that may start before the
            table exists: then a batch of another stream that is joined with this one need not
            wait. A table with other columns is refused.
        new_columns: what becomes of columns that the table gets later: "fail" stops at the version
            that brings them, "ignore" never reads them, "add" reads them from the next start on;
            they are NULL in the versions before.

    Raises:
        TopologyError: an unknown `start` or `new_columns`, a limit below 1, or an invalid range.
    """

    kind = SpoutKind.TRANSACTIONAL
    metadata_type = DeltaBatch

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        start: Literal["first", "latest"] | int = "first",
        changes: bool = False,
        versions_per_batch: Size = 1,
        bytes_per_batch: Size | None = None,
        storage_options: Mapping[str, str] | None = None,
        look_every_secs: float = 1.0,
        schema: str | StructType | None = None,
        new_columns: NewColumns = "fail",
    ) -> None:
        self._given = location = as_location(path)
        self._name = f"DeltaSpout({location!r})"
        is_version = isinstance(start, int) and not isinstance(start, bool) and start >= 0
        if not is_version and start not in ("first", "latest"):
            raise TopologyError(
                f"{self._name} cannot start at {start!r}. Give 'first', 'latest' or a version of "
                "the table, 0 or more.",
                number="TXN-413",
            )
        check_new_columns(new_columns, self._name)
        self._new_columns = new_columns
        self._adopted: str | None = None
        """The columns that batches have since this start, those of older plans included."""
        self._options, self._look_every = storage_options, look_every_secs
        self._place(location)
        self._start = start
        self._schema = schema
        self._changes = changes
        self._versions = BatchSize(versions_per_batch, self._name, "versions_per_batch")
        self._left = 0
        """The number of versions after the last planned one."""
        self._monotonic = time.monotonic
        self._next_poll = float("-inf")
        """Time of the next poll, after one that found nothing."""
        self._bytes = None
        if bytes_per_batch is not None:
            self._bytes = BatchSize(bytes_per_batch, self._name, "bytes_per_batch")

    def _place(self, location: str) -> None:
        """Be the spout of the table at a location."""
        self._location = location
        self._log = SourceLog(location, self._options)
        self._stored = PlannedVersions(self._name, self._log)
        self._every = 0.0 if self._log.storage.is_local else self._look_every

    def __repr__(self) -> str:
        """Return the path or name that it reads."""
        return self._name

    def locations(self) -> tuple[str, ...]:
        """Return the table's folder."""
        return (self._location,)

    # --- plan --------------------------------------------------------------------------------

    def open(self, spark: SparkSession, previous: DeltaBatch | None) -> StructType | None:
        """Return the table's columns; while there is no table, the declared ones, if any.

        Raises:
            TopologyError: the table cannot be read correctly, or earlier runs read it differently.
            SourceChangedError: it is gone or damaged, or is not the table that earlier runs read.
            SourceUnavailableError: the storage does not answer.
        """
        location = located(self._given, SparkCatalog(spark))
        if location != self._location:
            self._place(location)
        self._next_poll = float("-inf")
        if previous is not None and previous.changes != self._changes:
            raise TopologyError(
                f"{self._name} was read with changes={previous.changes} so far, but now has "
                f"changes={self._changes}. Leave it as it was, or start over under a new topology "
                "name.",
                number="TXN-411",
            )
        try:
            table = self._table(previous)
        except OSError as error:
            raise SourceUnavailableError(f"{self._name} could not be opened: {error}") from error
        declared = self._declared()
        if table is None:
            return declared
        self._adopted = self._with_new(previous, table)
        columns = self._emitted(self._adopted or table.schema)
        if declared is not None and columns is not None:
            check_same(declared, columns, f"{self._name} (schema= and the table's own)")
        return columns

    def _with_new(self, previous: DeltaBatch | None, table: TableNow) -> str | None:
        """Return the columns to read; None before the first plan, which takes the table's own."""
        if previous is None:
            return None
        adds = only_adds(previous.read_schema, table.schema, table.schema)
        return table.schema if adds and self._new_columns == "add" else previous.read_schema

    def find_schema(self, spark: SparkSession) -> StructType | None:
        """Do as `open`, once the table exists."""
        return self.open(spark, None)

    def _declared(self) -> StructType | None:
        if self._schema is None:
            return None
        return struct_of(as_struct(self._schema, self._name).json(), changes=self._changes)

    def batch_size_in_words(self) -> str:
        """Return how large a txid is, in words."""
        size = self._versions.in_words("version")
        return size if self._bytes is None else f"{size}; {self._bytes.in_words('byte')}"

    def set_batch_target(self, share: float) -> None:
        """Move within the ranges of `versions_per_batch` and `bytes_per_batch`."""
        for size in (self._versions, self._bytes):
            if size is not None:
                size.set_target(share)

    def initialize_transaction(
        self, attempt: TransactionAttempt, previous: DeltaBatch | None
    ) -> DeltaBatch | None:
        """Plan the versions after the previous batch, as many as fit; None: no new version.

        Raises:
            SourceChangedError: the next version cannot be read, or is no longer in the log, or
                the table was replaced.
            FailedException: the storage does not answer.
        """
        if self._monotonic() < self._next_poll:
            return None
        try:
            table = self._table(previous)
            planned = None if table is None else self._plan(table, previous)
        except OSError as error:
            raise FailedException(
                f"{self._name} could not read its table's log for {attempt}: {error}. It will try "
                "again."
            ) from error
        self._left = 0 if table is None or planned is None else table.version - planned.last_version
        if planned is None:
            self._next_poll = self._monotonic() + self._every
        return planned

    def _plan(self, table: TableNow, previous: DeltaBatch | None) -> DeltaBatch | None:
        read_schema = previous.read_schema if previous else table.schema
        rules = self._rules(table, self._adopted or read_schema)
        if previous is None and self._start == "latest":
            newest = table.version
            if rules.waits:
                newest = final_version(self._backwards(table.version), table.version)
            return self._batch(rules, (), newest, 0)
        first = self._first_version() if previous is None else previous.last_version + 1
        commits = self._commits(first, table.version, is_first=previous is None)
        batch = next_batch(commits, rules, previous.source_txid if previous else 0)
        if not batch.versions and batch.passed < _PASSED_AT_MOST:
            return None
        return self._batch(rules, batch.versions, batch.last_version, batch.txid, batch.passed)

    def _batch(
        self, rules: Rules, versions: Sequence[Candidate], last: int, txid: int, passed: int = 0
    ) -> DeltaBatch:
        return DeltaBatch(
            table_id=rules.table_id,
            last_version=last,
            versions=tuple(self._planned(candidate) for candidate in versions),
            passed=passed,
            source_txid=txid,
            read_schema=rules.schema,
            changes=self._changes,
        )

    def _planned(self, candidate: Candidate) -> DeltaVersion:
        if self._changes:
            return DeltaVersion(version=candidate.version, files=0, size=0, rows=None)
        files = candidate.files
        return DeltaVersion(
            version=candidate.version,
            files=len(files),
            size=candidate.size,
            rows=sum_if_known(file.rows for file in files),
            below=candidate.below,
        )

    def _first_version(self) -> int:
        return self._start if isinstance(self._start, int) else 0

    def _commits(self, first: int, newest: int, *, is_first: bool) -> Iterator[SourceVersion]:
        for version in range(first, newest + 1):
            commit = self._log.read(version)
            if commit is None:
                oldest_kept = next(
                    (v for v in range(version, newest + 1) if self._log.read(v)), newest
                )
                raise SourceChangedError(
                    f"{self._name} needs version {version}, but versions {version} to "
                    f"{oldest_kept - 1} are no longer in the table's log: it was cleaned up. "
                    + (
                        f"Load the table's rows as of version {oldest_kept - 1} by hand, and set "
                        f"start={oldest_kept}."
                        if is_first
                        else "Restore the commit files from a backup, or start over under a new "
                        "topology name; a topology must not fall behind "
                        "delta.logRetentionDuration."
                    ),
                    number="TXN-412",
                )
            yield commit

    def _backwards(self, newest: int) -> Iterator[SourceVersion]:
        for version in range(newest, -1, -1):
            commit = self._log.read(version)
            if commit is None:
                return
            yield commit

    # --- emit --------------------------------------------------------------------------------

    @unnoted()
    def emit_batch(
        self, spark: SparkSession, attempt: TransactionAttempt, metadata: DeltaBatch
    ) -> DataFrame:
        """Return the rows that the planned versions added, or their recorded changes.

        Raises:
            SourceChangedError: a commit file or a data file is gone or has changed.
            SourceUnavailableError: the storage does not answer.
        """
        files = self._planned_files(attempt, metadata)
        schema = self._adopted or metadata.read_schema
        if not metadata.versions:
            return no_rows(spark, struct_of(schema, changes=self._changes))
        if self._changes:
            # Delta gives the columns that the table has now; those that came later are not read.
            names = struct_of(schema, changes=True).fieldNames()
            return self._stored.changes(spark, attempt, metadata).select(*map(quoted, names))
        paths = [(self._log.storage.url(file.path), file.partition) for file in files]
        return scan(spark, paths, struct_of(schema), self._log.storage.hadoop)

    def readable(self, attempt: TransactionAttempt, metadata: DeltaBatch) -> DeltaBatch:
        """Return the batch, if its versions and their files are there; raises as `emit_batch`."""
        self._planned_files(attempt, metadata, replay=True)
        return metadata

    def _planned_files(
        self, attempt: TransactionAttempt, metadata: DeltaBatch, *, replay: bool = False
    ) -> list[AddedFile]:
        """Find the files with the planned rows; checks those with changes only before a replay."""
        try:
            self._table(metadata)
            files = [] if self._changes else self._stored.files(metadata)
            self._stored.require_stored(files, metadata, attempt)
            if self._changes and replay:
                self._stored.require_changes(metadata, attempt)
        except OSError as error:
            raise SourceUnavailableError(
                f"{self._name} could not be read for {attempt}: {error}. The batch waits for it."
            ) from error
        return files

    def planned_parts(self, metadata: DeltaBatch) -> Sequence[str]:
        """Return one part per version with rows."""
        return [f"version {planned.version}" for planned in metadata.versions]

    def parts_read(self, batch: DataFrame, metadata: DeltaBatch) -> Sequence[str]:
        """Return the versions whose every file is in Spark's plan of `batch`."""
        if self._changes:
            return self.planned_parts(metadata)
        read = {plain(unquote(uri)) for uri in batch.inputFiles()}
        return [
            f"version {planned.version}"
            for planned in metadata.versions
            if all(
                plain(self._log.storage.url(f.path)) in read for f in self._stored.files_of(planned)
            )
        ]

    def planned_rows(self, metadata: DeltaBatch) -> int | None:
        """Return the rows of the planned files, if the log has statistics of all of them."""
        return sum_if_known(planned.rows for planned in metadata.versions)

    def planned_bytes(self, metadata: DeltaBatch) -> int:
        """Return the bytes of the planned files."""
        return sum(planned.size for planned in metadata.versions)

    def lag(self, newest: DeltaBatch | None) -> Lag:
        """Return the versions after the newest batch, with rows or without, as it was planned.

        Their rows and bytes are unknown: every commit file would have to be read.
        """
        return Lag(versions=self._left)

    def planned_lag(self, metadata: DeltaBatch) -> Lag:
        """Return the versions that the batch takes, with rows or without."""
        return Lag(versions=len(metadata.versions) + metadata.passed)

    # --- requirements of the table -----------------------------------------------------------

    def _table(self, previous: DeltaBatch | None) -> TableNow | None:
        """Load the table, and check that it is still the same one and can be read correctly."""
        table = self._log.load()
        if previous is not None and (table is None or table.table_id != previous.table_id):
            state = "is gone" if table is None else f"was replaced (id {table.table_id})"
            raise SourceChangedError(
                f"{self._name}: the table with id {previous.table_id}, read up to version "
                f"{previous.last_version}, {state}. Put it back, or start over under a new "
                "topology name.",
                number="TXN-412",
            )
        if table is not None:
            self._refuse_unreadable(table)
        return table

    def _refuse_unreadable(self, table: TableNow) -> None:
        kind = table.properties.get("txn.kind")
        if kind not in (None, "append"):
            raise TopologyError(
                f"{self._name} is a state table of topology '{table.properties['txn.topology']}': "
                "its files are rewritten by every commit and hold no new rows. In that topology "
                "send persistent_aggregate(...).new_values() to an AppendTable, and read that one.",
                number="TXN-413",
            )
        if self._changes:
            if (table.properties.get("delta.enableChangeDataFeed") or "").lower() != "true":
                raise TopologyError(
                    f"{self._name} has changes=True, but the table records no changes. Set its "
                    "property delta.enableChangeDataFeed to true, and start at a later version.",
                    number="TXN-413",
                )
            return
        feature = next(iter(sorted(table.reader_features - _READABLE)), None)
        if (table.properties.get("delta.columnMapping.mode") or "none") != "none":
            feature = "columnMapping"
        if feature:
            raise TopologyError(
                f"{self._name}: the table uses the Delta feature '{feature}', so its files "
                "cannot be read one by one. Drop the feature, or read the table's change data "
                "feed with changes=True.",
                number="TXN-413",
            )

    def _rules(self, table: TableNow, schema: str) -> Rules:
        semantics = table.properties.get("txn.semantics")
        return Rules(
            name=self._name,
            table_id=table.table_id,
            schema=schema,
            newest=table.schema,
            waits=semantics in ("opaque", "non_transactional"),
            replaces=semantics == "opaque",
            changes=self._changes,
            versions_per_batch=self._versions.now,
            bytes_per_batch=None if self._bytes is None else self._bytes.now,
            new_columns=self._new_columns,
        )

    def _emitted(self, schema: str) -> StructType | None:
        """Return the columns of batches; None: only Spark knows them (nested, with changes)."""
        fields = json.loads(schema)["fields"]
        if self._changes and any(isinstance(field["type"], dict) for field in fields):
            return None
        return struct_of(schema, changes=self._changes)
