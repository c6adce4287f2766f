"""The shared part of append and state tables: a log, a staging area, one guard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from committers import kept_files
from committers.expressions import bigint, with_valid_text
from committers.guard import drop_up_to, held, unfinished
from committers.named_table import NamedTable
from committers.publishing.files import ActiveFile
from committers.publishing.log import MAX_TRIES, AppendFailedError, StaleFilesError
from committers.publishing.rewritten import up_to_date
from committers.staging.area import newest_txid
from txn.attempts import LONGEST_GROUP, TransactionAttempt
from txn.delta.commits import TXID
from txn.errors import (
    CommitConflictError,
    FencedError,
    StagedFileError,
    TableChangedError,
    TopologyError,
)
from txn.interfaces import (
    KeysReader,
    Prepared,
    Publication,
    Published,
    Semantics,
    Staged,
    StoredRows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["TableCommitter"]

R = TypeVar("R")


class TableCommitter(NamedTable):
    """A committer over one Delta table; subclasses define the content of a version."""

    # --- fence -------------------------------------------------------------------------------

    def fence(self) -> None:
        """Shut older leaders out, then delete files that they staged and never published."""
        self._fenced = True
        if self._next is not None:
            self._next.fence()
        if self._log.version < 0:
            return
        # Listed before the fence, deleted after it. The next leader fences the table before it
        # stages anything: then this fence fails, or the list has none of its files. A leader that
        # listed later might be paused in between, and delete files published since.
        folders = self._area.folders()
        # Nobody has staged in a table that this leader has just created.
        if self._log.fence(self._opened.epoch):
            self._sweep(folders)

    def _sweep(self, folders: Sequence[str]) -> None:
        """Delete files in these folders that dead processes staged and never published."""
        last = self._log.last_publication()
        newest = last[1].last_txid if last else 0
        staged = newest_txid(folders)
        used = set(self._log.files)
        if staged > newest:
            newest = max(newest, self._newest_published(staged))
            # A rebuild is no publication, and readers of its version need its files.
            first = last[0] + 1 if last else 0
            commits = map(self._log.read_commit, range(first, self._log.version + 1))
            used.update(add.path for commit in commits if commit for add in commit.adds)
        self._area.sweep(folders, newest, used)

    def _newest_published(self, staged: int) -> int:
        """The newest txid of any version: the last one may be the replay of part of a group.

        Args:
            staged: the result if the commit files that record it were cleaned out of the log: it
                is then unknown, and `VACUUM` has to delete the files.
        """
        last, newest = self._log.last_publication(), 0
        version, first = (last[0], last[1].first_txid) if last else (-1, 0)
        while version >= 0:
            commit = self._log.read_commit(version)
            if commit is None:
                return staged
            if publication := commit.publication:
                if publication.first_txid <= first - LONGEST_GROUP:
                    break
                newest = max(newest, publication.last_txid)
            version -= 1
        return newest

    @abstractmethod
    def _table_schema(self) -> StructType:
        """Columns of the table, bookkeeping included, derived from `_staged_schema`."""

    def _stamped(self, rows: DataFrame, attempt: TransactionAttempt) -> DataFrame:
        """The rows to stage, with the txid."""
        schema = self._known_staged_schema()
        _require_same_columns(schema, rows.schema, self.name)
        if self._checked is None or self._checked[0] is not schema:
            self._checked = schema, with_valid_text(schema, self.name)
        # One job unions the rows of several attempts by the position of their columns.
        return rows.select(*self._checked[1], bigint(attempt.txid).alias(TXID))

    # --- prepare -----------------------------------------------------------------------------

    def prepare(self, staged: Staged, publication: Publication) -> Prepared:
        """Compute the next version's files, applying the guard of `semantics`."""
        if self._log.version < 0 and not staged.files:
            # Nothing was ever staged, so the columns are unknown and the table does not exist.
            return Prepared(staged, (), skipped=True)
        if self.prepare_reads:
            self._check(publication, staged)
        else:
            self._log.require_newer(publication)  # the rest is checked right before the append
        last = self._log.last_publication()
        version, txid = held(last, self.semantics, publication, self.name)
        if txid >= publication.last_txid:
            return Prepared(staged, (), (), version, skipped=True)
        left = drop_up_to(staged, txid)
        prepared = self._up_to_date(lambda: self._prepare(left, publication))
        return replace(prepared, staged=staged)

    def _check(self, publication: Publication, staged: Staged) -> None:
        """Check everything that `prepare` relies on, in one round trip."""
        self._log.check(publication, staged.files)

    @abstractmethod
    def _prepare(self, staged: Staged, publication: Publication) -> Prepared:
        """The next version's files, for the txids that the table does not hold for good."""

    def _unfinished(self, publication: Publication) -> bool:
        """Return whether the table may hold rows of an attempt that never finished."""
        return unfinished(self._log.last_publication(), publication)

    def _up_to_date(self, read: Callable[[], R]) -> R:
        """Call `read` over the table's files; repeat it if they were rewritten meanwhile."""
        with self._as_generation():
            return up_to_date(read, self._log, self._storage)

    def _stored_rows(
        self, rows: DataFrame, paths: Sequence[str], of_keys: KeysReader | None = None
    ) -> StoredRows:
        """Rows read from these files."""
        return StoredRows(rows, lambda: self._storage.first_missing(paths), of_keys)

    # --- publish -----------------------------------------------------------------------------

    def publish(self, prepared: Prepared, publication: Publication) -> Published:
        """Append the prepared version if it is the next one; read it back."""
        if prepared.skipped:
            commit = self._log.read_commit(prepared.read_version)
            adds = commit.adds if commit else ()
            return self._log.published(prepared.read_version, adds, skipped=True)
        for _ in range(MAX_TRIES):
            try:
                return replace(self._publish(prepared, publication), prepared=prepared)
            except StaleFilesError:
                # OPTIMIZE rewrote files that this version would remove: the rows are the same.
                prepared = self.prepare(prepared.staged, publication)
        return replace(self._publish(prepared, publication), prepared=prepared)

    def _publish(self, prepared: Prepared, publication: Publication) -> Published:
        removes = [file for file in prepared.removes if isinstance(file, ActiveFile)]
        self._area.publishing(prepared.adds)
        version, sent = prepared.read_version, self._just_sent()
        try:
            return self._log.publish(prepared.adds, removes, publication, version, sent)
        except AppendFailedError:
            raise  # the request may still land: its files must stay
        except (StagedFileError, CommitConflictError, FencedError, TableChangedError):
            # After these errors nothing has landed for certain; after any other the files stay.
            self._withdraw(prepared)
            raise

    def _just_sent(self) -> Collection[str]:
        """Paths of the files that `prepare` itself has written in this turn."""
        return ()

    def _withdraw(self, prepared: Prepared) -> None:
        """Give the files of a failed version back to their attempts."""
        staged, left = prepared.staged, {file.path: file for file in prepared.adds}
        for member in staged.members:
            own = [left.pop(file.path) for file in member.files if file.path in left]
            self._area.withdraw(member.attempt, own)
        self._area.withdraw(staged.attempt, left.values())

    # --- clean-up ----------------------------------------------------------------------------

    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete the staged files of a dead attempt; leave published files alone."""
        self._area.discard(attempt)

    def committed(self, attempt: TransactionAttempt) -> None:
        """Delete the scratch files of a committed attempt; maintain the log from time to time."""
        self._area.discard(attempt)
        self._checkpoints.run(self._log.version, self._log.properties)
        self._cleanup.run(self._log.version)

    def keep(self, name: str, content: bytes) -> bool:
        """Keep a spout's bytes beside the table; False while the table does not exist."""
        if self._log.version < 0:
            return False
        kept_files.keep(self._storage, name, content)
        return True

    def kept(self, name: str) -> bytes | None:
        """The bytes stored under a name; None if there are none."""
        return kept_files.kept(self._storage, name)

    def settle(self, txid: int) -> None:
        """Mark `txid` as final in the log, if a replay could replace or repeat it.

        A transactional table needs no mark: it skips replays of txids that it holds.

        Raises:
            FencedError: the table holds a newer epoch.
            CommitConflictError: the log could not be appended to.
        """
        if self.semantics is not Semantics.TRANSACTIONAL and self._log.version >= 0:
            self._log.settle(txid, self._opened.epoch)

    def close(self) -> None:
        """Forget the Spark session; the table needs no closing."""
        if self._next is not None:
            self._next.close()
        self._work_session = self._read_session = None


def _require_same_columns(expected: StructType, actual: StructType, table: str) -> None:
    """Refuse rows with other columns than the table was opened with.

    Raises:
        TopologyError: naming the first difference.
    """
    opened = {field.name: field.dataType.simpleString() for field in expected}
    types = {field.name: field.dataType.simpleString() for field in actual}
    for name in (*opened, *types):
        if opened.get(name) != types.get(name):
            raise TopologyError(
                f"Column '{name}' of the rows for table {table} is {types.get(name, 'missing')}, "
                f"but the table was opened with {opened.get(name, 'no such column')}. Make the "
                "transform return the same columns for every batch.",
                number="TXN-114",
            )
