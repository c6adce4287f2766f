"""Publication: one conditional append to a Delta log, and what the log says about us.

The rules that make it exact, whatever crashes, races or comes back from the dead:

1. An append is made on condition that it becomes the version after the one it was computed from
   (delta-rs with its own retry off). Who loses writes nothing.
2. After a lost race the new versions are read one by one. Only commits that changed no row
   (OPTIMIZE, properties) may stand between what was computed and the version it lands in; a
   newer epoch ends this process's right to publish, and rows that a stranger brought or took
   stop it, also when they came between two runs (`committers.publishing.foreign_commits`).
3. Every commit of ours carries a random token. Whether an append of which the outcome is unknown
   (a time-out, a full disk) has landed is read from the log, never guessed.
4. A publication must be newer than what the table holds: by epoch, and within an epoch by attempt.
5. What was published is read back out of the log; the caller compares it with what was staged.

Durability is the file system's. delta-rs creates a local commit file atomically and does not
fsync it (nor does Spark its Parquet files): a power cut may take away the last versions of a table
on a local disk, and recovery then replays them. Object stores acknowledge durable writes only.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from committers.publishing.append import (
    AppendFailedError,
    StaleFilesError,
    create_table,
    epoch_app,
    file_actions,
    incarnation_app,
    leading,
    not_appended,
    require_staged,
    txid_app,
)
from committers.publishing.foreign_commits import Strangers, changed_by, replaced
from committers.publishing.newest import LogReader
from committers.publishing.rules import (
    fenced,
    judge,
    led_elsewhere,
    require_newer,
    require_unsettled,
)
from committers.publishing.spec import TableSpec, refuse_foreign, refuse_foreign_folder
from committers.publishing.storage import Storage
from committers.publishing.txid_bounds import with_bounds
from committers.publishing.versions import (
    COMPACTION_KEY,
    TOKEN_KEY,
    ActiveFile,
    Commit,
    active_files,
    load_files,
)
from committers.staging.area import random_id
from txn.delta.retrying import retried
from txn.errors import CommitConflictError, TableRefusedError, TxnError
from txn.interfaces import (
    FENCE_KEY,
    PUBLICATION_KEY,
    SETTLED_KEY,
    Publication,
    Published,
    StagedFile,
)

__all__ = ["MAX_TRIES", "AppendFailedError", "DeltaLog", "StaleFilesError"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_TRIES = 20
"""Lost races in a row, each against a harmless commit, after which an attempt fails."""


def _in_turn(method: Callable[P, R]) -> Callable[P, R]:
    """One thread at a time: what one takes in, an append of another must not pass over unseen."""

    @functools.wraps(method)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        with args[0]._turn:  # type: ignore[attr-defined]  # self
            return method(*args, **kwargs)

    return waiting


class DeltaLog:
    """The log of one table: its newest state in memory, and the only way to append to it.

    One committer's turn at a time. Other threads may ask for `files_now`, and open the table: with
    the first batch that has rows, while a txid without rows has its turn.

    Args:
        storage: the table's folder.
        storage_options: credentials and endpoints for delta-rs.
        new_id: source of commit tokens.
        now_ms: wall clock, milliseconds since 1970, for Delta's own bookkeeping only.
        incarnation: which life of the topology leads here; 0: not known, and not asked for.
        takes_over: those whose tables it may lead as well.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        storage_options: Mapping[str, str] | None = None,
        new_id: Callable[[], str] = random_id,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        incarnation: int = 0,
        takes_over: Collection[int] = (),
    ) -> None:
        self._storage = storage
        self._name = storage.location
        self._options = dict(storage_options or {})
        self._reader = LogReader(storage, self._options)
        self._new_id = new_id
        self._now_ms = now_ms
        self._incarnation = incarnation
        self._takes_over = frozenset(takes_over)
        self._loaded: DeltaTable | None = None
        self._spec: TableSpec | None = None
        self._topology = ""
        self._files: dict[str, ActiveFile] = {}
        self._files_lock = threading.Lock()
        self._turn = threading.RLock()
        self._version = -1
        self._epoch = 0
        self._last: tuple[int, Publication] | None = None
        self._settled = 0
        self._strangers = Strangers(self._name)
        self._fingerprint: int | None = None

    # --- open --------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version that is known here; -1 before `attach` or `open`."""
        return self._version

    @property
    def table_id(self) -> str | None:
        """Delta's own id of the table; None before `attach` or `open`."""
        return None if self._loaded is None else str(self._loaded.metadata().id)

    @property
    def files(self) -> Mapping[str, ActiveFile]:
        """Path -> file, of `version`."""
        return self._files

    def files_now(self) -> tuple[ActiveFile, ...]:
        """The files of `version`, for another thread than that of the commit turns."""
        with self._files_lock:
            return tuple(self._files.values())

    @_in_turn
    def columns(self) -> dict[str, Any] | None:
        """The table's columns as Delta and Spark write them in JSON; None: there is no table."""
        if self._loaded is None:
            return None
        columns: dict[str, Any] = json.loads(self._loaded.schema().to_json())
        return columns

    @_in_turn
    def files_before(self, txid: int) -> tuple[int, frozenset[str]]:
        """(newest txid, paths) of the newest version that holds nothing of `txid` and later.

        What is there now, unless something of these txids has been published: then the commit
        files are walked back, and what each version did is undone. The paths of versions that
        others made since (OPTIMIZE) are left out with it.

        Raises:
            TableRefusedError: the commit files that would tell were cleaned out of the log.
        """
        paths = frozenset(self._files)
        if self._last is None or self._last[1].last_txid < txid:
            return (0 if self._last is None else self._last[1].last_txid), paths
        before, newest, version = paths, 0, self._version
        while version >= 0:
            commit = self.read_commit(version)
            if commit is None:
                raise TableRefusedError(
                    f"Table {self._name} cannot be read as of txid {txid - 1}: version {version} "
                    "was cleaned out of its log, and later txids are published. Restore that "
                    "commit file from a backup; raise delta.logRetentionDuration."
                )
            if _newest_of(commit) and _newest_of(commit) < txid:
                break
            paths = (paths - {add.path for add in commit.adds}) | commit.removes
            if commit.publication is not None:
                before, newest = paths, commit.publication.first_txid - 1
            version -= 1
        return newest, before

    @_in_turn
    def attach(self, topology: str) -> bool:
        """Load an existing table of this topology; False when the folder holds none.

        Raises:
            TableRefusedError: not a Delta table, nobody's or another topology's.
            TableChangedError: somebody else's rows came, or ours went, since we last wrote it.
            RecoveryRefusedError: the topology leads it from another ensemble.
        """
        if not self._reader.exists():
            entries = self._storage.entries()
            # Unless it was made between the two looks.
            if not self._reader.exists():
                refuse_foreign_folder(entries, self._name)
                return False
        table = self._reader.load()
        refuse_foreign(table, self._name, topology)
        self._topology = topology
        self._reload(table)
        self._refuse_strangers()
        self._led_by()
        return True

    @_in_turn
    def open(self, spec: TableSpec, epoch: int) -> None:
        """Check the table against `spec`, or create it, fenced by `epoch`. Writes no data.

        Raises:
            TableRefusedError: naming the first difference.
            CommitConflictError: it could not be created.
        """
        if self._loaded is None and not self.attach(spec.topology):
            create_table(self._storage, spec, epoch, self._options, self._incarnation)
            if not self.attach(spec.topology):
                raise TableRefusedError(
                    f"Table {self._name} is not there after it was created: something else "
                    "deletes files below this path. Stop it, or choose another path."
                )
        self._require(spec)
        self._spec = spec

    def _require(self, spec: TableSpec) -> None:
        try:
            spec.require(self._table, self._name)
        except TableRefusedError as error:
            culprit = self._strangers.last_metadata_change
            if culprit is None:
                raise
            raise TableRefusedError(f"{error} It was changed in {changed_by(culprit)}.") from error

    def _reload(self, table: DeltaTable) -> None:
        """Take a table as it is, or, where storage is away, leave everything as it was."""
        version = table.version()
        files = with_bounds(load_files(table), self._storage)
        told = self._reader.told(version)
        txid = table.transaction_version(txid_app(self._topology))
        with self._files_lock:
            self._files = files
        self._loaded, self._version = table, version
        self._epoch = table.transaction_version(epoch_app(self._topology)) or 0
        self._last, self._settled, self._strangers = told.last, told.settled, told.strangers
        self._fingerprint = told.fingerprint
        if not told.is_known and txid is not None:
            self._last = (version, Publication.lost(self._topology, txid))

    @property
    def _table(self) -> DeltaTable:
        if self._loaded is None:
            raise TableRefusedError(f"Table {self._name} is not there: open it with a schema.")
        return self._loaded

    # --- what the log says -------------------------------------------------------------------

    def last_publication(self) -> tuple[int, Publication] | None:
        """(version, publication) of the newest publication; None if there was none."""
        return self._last

    def read_commit(self, version: int) -> Commit | None:
        """One version, from its commit file; None when that does not exist (any more)."""
        return self._reader.commit(version)

    def publications(self, limit: int | None = None) -> Iterator[tuple[int, Publication, int]]:
        """(version, publication, milliseconds since 1970), newest first, as far as the log goes.

        Works without `open`, on any table. Stops where commit files were cleaned up.
        """
        return self._reader.publications(limit)

    @_in_turn
    def refresh(self) -> list[Commit]:
        """Take in the versions that others appended; returns them, oldest first.

        Raises:
            TableRefusedError: one of them changed the table into something else.
            TableChangedError: one of them changed rows, or the table was replaced.
            CommitConflictError: their commit files are gone; the state was loaded anew.
        """
        self._require_same()
        self._follow(self._table)
        return self._take_in()

    def _follow(self, table: DeltaTable) -> None:
        """Let delta-rs take in what was appended since."""
        retried(table.update_incremental, f"read the log of table {self._name}")

    def _take_in(self) -> list[Commit]:
        """Apply the versions up to the one that delta-rs has loaded and will append to."""
        commits: list[Commit] = []
        if self._table.version() < self._version:
            self._follow(self._table)  # which failed behind the append before
        while self._version < self._table.version():
            version = self._version + 1
            commit = self.read_commit(version)
            if commit is None:
                self._reload(self._reader.load())
                self._refuse_strangers()
                raise CommitConflictError(
                    f"Version {version} of table {self._name} is not in its log any more: the log "
                    "was cleaned up while this process was behind. The batch is prepared again."
                )
            self._apply(commit)
            commits.append(commit)
        if self._spec and any(commit.metadata_change for commit in commits):
            self._require(self._spec)
        self._refuse_strangers()
        return commits

    def _apply(self, commit: Commit) -> None:
        added = active_files(commit.adds)
        if not commit.is_ours:
            added = with_bounds(added, self._storage)
        with self._files_lock:
            for path in commit.removes:
                self._files.pop(path, None)
            self._files.update(added)
        self._version, self._fingerprint = commit.version, commit.fingerprint
        self._strangers.take(commit)
        self._epoch = max(self._epoch, commit.epoch)
        if commit.publication is not None:
            self._last = (commit.version, commit.publication)
        self._settled = max(self._settled, commit.settled_txid)

    # --- append ------------------------------------------------------------------------------

    @_in_turn
    def fence(self, epoch: int) -> bool:
        """Append an empty version carrying `epoch`: appends of older leaders now lose.

        A table that another incarnation led takes a higher epoch, or leaders of both could publish.

        Returns:
            Whether it was appended now, which proves that nobody newer led by then; False: the
            table was made with this epoch.

        Raises:
            FencedError: the table holds a newer epoch.
            RecoveryRefusedError: the topology leads it from another ensemble.
            CommitConflictError: the log could not be appended to.
        """
        for _ in range(MAX_TRIES):
            self.refresh()
            led_by = self._led_by()
            is_ours = led_by == self._incarnation
            if self._epoch > epoch or (self._epoch == epoch and led_by and not is_ours):
                raise fenced(self._name, self._topology, self._epoch, epoch)
            if self._epoch == epoch and is_ours:
                return False
            apps = leading(self._topology, epoch, self._incarnation)
            if self._mark(FENCE_KEY, epoch, apps=apps, settled=self._settled):
                return True
        raise self._exhausted("fence")

    def _led_by(self) -> int:
        """The incarnation that leads the table, 0 if none has said so; refuses a foreign one."""
        if not self._incarnation:
            return 0
        found = self._table.transaction_version(incarnation_app(self._topology)) or 0
        if found and found != self._incarnation and found not in self._takes_over:
            raise led_elsewhere(self._name, self._topology, found, self._incarnation)
        return found

    @_in_turn
    def settle(self, txid: int, epoch: int) -> None:
        """Append an empty version that says that everything up to `txid` is final.

        Nothing is appended when the log says so already: by an earlier mark, by a publication
        whose `first_txid` is later, or because it holds no publication at all.

        Raises:
            FencedError: the table holds a newer epoch.
            CommitConflictError: the log could not be appended to.
        """
        for _ in range(MAX_TRIES):
            self.refresh()
            if self._epoch > epoch:
                raise fenced(self._name, self._topology, self._epoch, epoch)
            newest = 0 if self._last is None else self._last[1].last_txid
            if not self._settled < newest <= txid:
                return
            if self._mark(SETTLED_KEY, epoch, txid=txid):
                return
        raise self._exhausted(f"settle txid {txid}")

    @_in_turn
    def compact(
        self,
        adds: Sequence[StagedFile],
        removes: Sequence[ActiveFile],
        epoch: int,
        txids: tuple[int, int],
    ) -> Commit | None:
        """Append a version with the same rows in other files; None: `removes` are not there now.

        Args:
            txids: the first and last txid of the rows.

        Raises:
            StagedFileError: a file to be added is gone or has another size.
            FencedError: the table holds a newer epoch.
            CommitConflictError: the log could not be appended to.
        """
        actions = file_actions(adds, removes, self._now_ms(), data_change=False)
        for _ in range(MAX_TRIES):
            self.refresh()
            if self._epoch > epoch:
                raise fenced(self._name, self._topology, self._epoch, epoch)
            self.require_staged(adds)
            if any(file.path not in self._files for file in removes):
                return None
            more: dict[str, Any] = {"txids": list(txids), "settled": self._settled}
            if landed := self._mark(COMPACTION_KEY, epoch, actions, **more):
                return landed
        raise self._exhausted("compact")

    def _mark(
        self,
        key: str,
        epoch: int,
        actions: Sequence[AddAction | RemoveAction] = (),
        apps: Sequence[Transaction] = (),
        **more: Any,
    ) -> Commit | None:
        """One try at a version of ours that changes no row, and what it says of itself.

        It carries the last publication (`_find_last`).
        """
        last = self._last and {
            "version": self._last[0],
            "publication": self._last[1].in_log(),
        }
        mark = {"topology": self._topology, "epoch": epoch, **more, "last": last}
        app = list(apps) or leading(self._topology, epoch, 0)
        return self._append(list(actions), {key: mark}, app)

    @_in_turn
    def publish(
        self,
        adds: Sequence[StagedFile],
        removes: Sequence[ActiveFile],
        publication: Publication,
        read_version: int,
    ) -> Published:
        """Append one version, computed from `read_version`, and read it back.

        Raises:
            StagedFileError: a file to be added is gone or has another size.
            StaleFilesError: a file to be removed was rewritten: prepare again.
            CommitConflictError: somebody changed rows, or this attempt is not the newest.
            FencedError: a newer epoch stands in the log.
            RecoveryRefusedError: the coordinator is behind what the table holds.
            TableChangedError: a stranger changed rows, or replaced the table.
        """
        self.require_staged(adds)
        self.require_newer(publication)
        self._take_in()
        for version in range(read_version + 1, self._version + 1):
            judge(self.read_commit(version), version, publication, self._name)
        app = [
            Transaction(txid_app(self._topology), publication.last_txid),
            Transaction(epoch_app(self._topology), publication.epoch),
        ]
        metadata = {PUBLICATION_KEY: publication.in_log()}
        for _ in range(MAX_TRIES):
            self._require_active(removes)
            actions = file_actions(adds, removes, self._now_ms(), data_change=True)
            landed = self._append(actions, metadata, app)
            if landed is not None:
                return Published(landed.version, landed.adds)
            for commit in self.refresh():
                judge(commit, commit.version, publication, self._name)
        raise self._exhausted(f"publish txid {publication.last_txid}")

    def _append(
        self, actions: list[Any], metadata: Mapping[str, Any], app: list[Transaction]
    ) -> Commit | None:
        """One try at `version + 1`: what landed there, or None when somebody else's commit did."""
        token, failure = self._new_id(), None
        table, expected = self._table, self._version + 1
        try:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata={**metadata, TOKEN_KEY: token},
                    max_commit_retries=0,
                    app_transactions=app,
                ),
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=True, cleanup_expired_logs=False
                ),
            )
        except (DeltaError, OSError) as error:
            # Lost, failed, or landed and only the answer (or the checkpoint) failed: the log knows.
            failure = error
        landed = self.read_commit(expected)
        if landed is None:
            raise not_appended(expected, self._name, failure) from failure
        if landed.token != token:
            return None
        # From here on the commit stands. Others' commits behind it are judged by the next publish:
        # whatever is wrong with them must not look like a failure of this one.
        self._apply(landed)
        with contextlib.suppress(TxnError, DeltaError, OSError):
            self._follow(table)
        return landed

    # --- refusals ----------------------------------------------------------------------------

    def require_staged(self, files: Sequence[StagedFile]) -> None:
        """Check that files exist in storage as they were staged; raises as `require_staged`."""
        require_staged(self._storage, files)

    def _require_active(self, removes: Sequence[ActiveFile]) -> None:
        for remove in removes:
            if remove.path not in self._files:
                raise StaleFilesError(
                    f"File {remove.path} of table {self._name} was rewritten after it was read "
                    f"(now at version {self._version}). The batch is prepared again."
                )

    def require_newer(self, publication: Publication) -> None:
        """Refuse a publication that is not newer than what the table holds (rule 4).

        Raises:
            FencedError, CommitConflictError, StateError: as `publish`.
        """
        self._require_same()
        self._refuse_strangers()
        require_newer(publication, self._last, self._epoch, self._name)
        require_unsettled(publication, self._settled, self._name)

    def _refuse_strangers(self) -> None:
        self._strangers.refuse(self._topology, self._table.metadata().configuration)

    def _require_same(self) -> None:
        now = self._reader.instead_of(self._table, self._version, self._fingerprint)
        if now is not None:
            raise replaced(self._name, self._topology, self._version, now)

    def _exhausted(self, what: str) -> CommitConflictError:
        return CommitConflictError(
            f"Table {self._name}: {MAX_TRIES} appends in a row lost against other writers "
            f"({what}). Pause the other jobs that write to this table; the batch is tried again."
        )


def _newest_of(commit: Commit) -> int:
    """The newest txid that the table had come to with a version of ours; 0: it does not say."""
    if commit.publication is not None:
        return commit.publication.last_txid
    return int(commit.last["publication"]["last_txid"]) if commit.last else 0
