"""One table's newest state in memory, following its log as others append to it.

Its state differs from the log's only by versions that were not read yet. It reads them one by one
and refuses a version that must not be there. delta-rs loads a table once; from then on this module
applies every version from its commit file, up to the last one that exists.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from committers.publishing.files import ActiveFile, active_files, load_files, require_inside
from committers.publishing.rules import led_elsewhere
from committers.publishing.spec import TableSpec
from committers.publishing.txid_bounds import with_bounds
from committers.verifying.chain import MOST_NAMED, newest_texts, require_unbroken
from committers.verifying.foreign_commits import ForeignCommits, accepted_version
from committers.verifying.same_table import require_same
from txn.changes import Change, TableShape, clauses
from txn.delta.commits import (
    LAST_CHECKPOINT,
    Commit,
    checkpoint_version,
    commit_path,
    epoch_app,
    incarnation_app,
    txid_app,
)
from txn.delta.definition import TableDefinition
from txn.delta.delta_rs import DeltaTable
from txn.delta.loading import is_there, load_own
from txn.delta.log import TableLog
from txn.delta.topology_table import (
    ShapePolicy,
    refuse_differences,
    refuse_foreign,
    refuse_foreign_folder,
    refuse_unusable,
    shape_changes,
    with_culprit,
)
from txn.errors import CommitConflictError, TableChangedError, TableRefusedError
from txn.interfaces import Publication, Published, StagedFile
from txn.storage.storage import Storage

__all__ = ["FollowedTable", "exclusive"]

P = ParamSpec("P")
R = TypeVar("R")


def exclusive(method: Callable[P, R]) -> Callable[P, R]:
    """Let one thread in at a time: an append must not miss versions that another thread applies."""

    @functools.wraps(method)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        with args[0]._lock:  # type: ignore[attr-defined]  # self
            return method(*args, **kwargs)

    return waiting


class FollowedTable:
    """A table, as of the newest version of its log that was applied.

    One committer's turn at a time. Other threads may ask for `files_now`, and open the table: with
    the first batch that has rows, while a txid without rows has its turn.

    Args:
        storage: the table's folder.
        incarnation: the incarnation of the topology that leads here; 0: unknown, and not checked.
        takes_over: incarnations whose tables it may lead as well.
    """

    def __init__(
        self, storage: Storage, *, incarnation: int = 0, takes_over: Collection[int] = ()
    ) -> None:
        self._storage = storage
        self._name = storage.location
        self._log = _OwnLog(storage)
        self._incarnation = incarnation
        self._takes_over = frozenset(takes_over)
        self._loaded: TableDefinition | None = None
        self._unchecked = False
        self._spec: TableSpec | None = None
        self._topology = ""
        self._files: dict[str, ActiveFile] = {}
        self._bytes = 0
        self._files_lock = threading.Lock()
        self._lock = threading.RLock()
        self._version = -1
        self._epoch = 0
        self._last: tuple[int, Publication] | None = None
        self._settled = 0
        self._leader = 0
        self._foreign = ForeignCommits(self._name)
        self._recent: tuple[int, ...] = ()
        self._halted: TableChangedError | None = None

    # --- state -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest applied version; -1 before `attach` or `open`."""
        return self._version

    @property
    def table_id(self) -> str | None:
        """Delta's own id of the table; None before `attach` or `open`."""
        return None if self._loaded is None else self._loaded.id

    @property
    def properties(self) -> Mapping[str, str | None]:
        """The table's properties; none before `attach` or `open`."""
        return {} if self._loaded is None else self._loaded.configuration

    @property
    def files(self) -> Mapping[str, ActiveFile]:
        """Path -> file of `version`."""
        return self._files

    def files_now(self) -> tuple[ActiveFile, ...]:
        """The files of `version`, for threads other than that of the commit turns."""
        with self._files_lock:
            return tuple(self._files.values())

    @property
    def size(self) -> int:
        """Bytes of the files of `version`."""
        return self._bytes

    def published(
        self, version: int, adds: Sequence[StagedFile], *, skipped: bool = False
    ) -> Published:
        """The result of a publication, with the table's current size."""
        return Published(
            version,
            tuple(adds),
            skipped,
            table_files=len(self._files),
            table_bytes=self._bytes,
        )

    def last_publication(self) -> tuple[int, Publication] | None:
        """(version, publication) of the newest publication; None without one."""
        return self._last

    @exclusive
    def columns(self) -> dict[str, Any] | None:
        """The table's columns in the JSON of Delta and Spark; None if the table does not exist."""
        return None if self._loaded is None else dict(self._loaded.columns)

    @exclusive
    def files_before(self, txid: int) -> tuple[int, frozenset[str]]:
        """(newest txid, paths) of the newest version that holds nothing of `txid` and later.

        The current ones, unless one of these txids has been published: then walk the commit files
        back and undo each version. This leaves out the paths of later versions by others
        (OPTIMIZE).

        Raises:
            TableRefusedError: the commit files needed were cleaned out of the log.
        """
        paths = frozenset(self._files)
        if self._last is None or self._last[1].last_txid < txid:
            return (0 if self._last is None else self._last[1].last_txid), paths
        before, newest, version = paths, 0, self._version
        while version >= 0:
            commit = self.read_commit(version)
            if commit is None:
                raise self._cleaned(txid - 1, version)
            if _newest_txid(commit) and _newest_txid(commit) < txid:
                break
            paths = (paths - {add.path for add in commit.adds}) | commit.removes
            if commit.publication is not None:
                before, newest = paths, commit.publication.first_txid - 1
            version -= 1
        return newest, before

    @exclusive
    def watermark_as_of(self, txid: int, *, needed: bool = False) -> int | None:
        """The watermark of the newest txid up to this one, as far as the log goes back.

        Args:
            needed: refuse if the log does not go back so far; else it is then None.

        Raises:
            TableRefusedError: it is needed, and was cleaned out of the log.
        """
        if self._last is None or self._last[1].last_txid <= txid:
            return None if self._last is None else self._last[1].watermark
        first = self._version + 1
        for commit in self._log.backwards(self._version):
            first, held = commit.version, commit.last_publication
            members = reversed(held[1].txids if held else ())
            if member := next((one for one in members if one.txid <= txid), None):
                return member.watermark
        if needed and first:
            raise self._cleaned(txid, first - 1)
        return None

    def _cleaned(self, txid: int, version: int) -> TableRefusedError:
        return TableRefusedError(
            f"Table {self._name} cannot be read as of txid {txid}: version {version} was cleaned "
            "out of its log, and later txids are published. Restore that commit file from a "
            "backup; raise delta.logRetentionDuration.",
            number="TXN-309",
        )

    # --- following ---------------------------------------------------------------------------

    @exclusive
    def attach(self, topology: str) -> bool:
        """Load an existing table of this topology; False if the folder has no table.

        Raises:
            TableRefusedError: not a Delta table, or no topology's, or another topology's.
            TableChangedError: another writer has added or removed rows since the last publication.
            RecoveryRefusedError: the topology leads it from another ensemble.
        """
        if not is_there(self._storage):
            entries = self._storage.entries()
            # Unless it was created between the two checks.
            if not entries or not is_there(self._storage):
                refuse_foreign_folder(entries, self._name)
                return False
        table = load_own(self._storage)
        refuse_foreign(TableDefinition.of(table), self._name, topology)
        self._topology = topology
        self._reload(table)
        self._refuse_foreign()
        self._require_leader()
        return True

    @property
    def _definition(self) -> TableDefinition:
        if self._loaded is None:
            raise TableRefusedError(
                f"There is no table at {self._name} yet: the first batch of its topology makes it.",
                number="TXN-306",
            )
        return self._loaded

    def read_commit(self, version: int) -> Commit | None:
        """One version, from its commit file; None when that does not exist (any more)."""
        return self._log.commit(version)

    @exclusive
    def refresh(self) -> list[Commit]:
        """Apply the versions that others appended; returns them, oldest first.

        Raises:
            TableRefusedError: one of them changed the table's definition.
            TableChangedError: one of them changed rows, or the table was replaced.
            CommitConflictError: their commit files are gone; the state was reloaded.
        """
        newest, _ = self._check_storage()
        return self._follow(newest)

    def _check_storage(self, files: Sequence[StagedFile] = ()) -> tuple[int, list[int | None]]:
        """Check that the table is still the same, and the sizes of files: one round trip.

        Returns:
            The newest version that the table has certainly reached; the sizes.
        """
        if self._halted is not None:
            raise self._halted
        paths = [commit_path(self._version), LAST_CHECKPOINT]
        (text, last), sizes = self._storage.read_many(paths, [file.path for file in files])
        newest = require_same(
            self._storage,
            self._definition.id,
            self._topology,
            self._version,
            fingerprint=self._recent[-1] if self._recent else None,
            text=text,
        )
        # Commit files before a checkpoint may be cleaned out of the log, even the next one: then
        # its name is free, and an append there would be lost.
        return max(newest, checkpoint_version(last) or 0), sizes

    def _follow(self, newest: int) -> list[Commit]:
        """Apply the versions appended since; the table has certainly reached `newest`."""
        commits: list[Commit] = []
        while (commit := self.read_commit(self._version + 1)) is not None:
            self._apply(commit)
            commits.append(commit)
        if self._version < newest:
            missing = self._version + 1
            self._reload(load_own(self._storage))
            self._refuse_foreign()
            raise CommitConflictError(
                f"Version {missing} of table {self._name} is not in its log any more: the log "
                "was cleaned up while this process was behind. The batch is prepared again."
            )
        self._refuse_foreign()
        return commits

    def _apply(self, commit: Commit) -> None:
        definition = self._definition.after(commit, self._name)
        added = active_files(commit.adds)
        if not commit.is_ours:
            added = with_bounds(added, self._storage)
        with self._files_lock:
            for path in (*commit.removes, *added):
                if (removed := self._files.pop(path, None)) is not None:
                    self._bytes -= removed.size
            self._files.update(added)
            self._bytes += sum(file.size for file in added.values())
        self._loaded, self._version = definition, commit.version
        self._unchecked = self._unchecked or commit.metadata_change
        recent = () if commit.is_ours else self._recent
        self._recent = (*recent, commit.fingerprint)[-MOST_NAMED:]
        self._foreign.take(commit)
        self._epoch = max(self._epoch, commit.epoch)
        self._leader = commit.apps.get(incarnation_app(self._topology), self._leader)
        if commit.publication is not None:
            self._last = (commit.version, commit.publication)
        self._settled = max(self._settled, commit.settled_txid)

    def _reload(self, table: DeltaTable) -> None:
        """Replace the state by that of a table; leave it unchanged if storage is away."""
        version, definition = table.version(), TableDefinition.of(table)
        files = with_bounds(load_files(table), self._storage)
        commits = _newest_commits(self._log.backwards(version))
        foreign = ForeignCommits(self._name)
        for commit in commits:
            foreign.take(commit)
        own = commits[0] if commits and commits[0].is_ours else None
        self._require_unbroken(version, definition)
        txid = table.transaction_version(txid_app(self._topology))
        with self._files_lock:
            self._files = files
            self._bytes = sum(file.size for file in files.values())
        self._loaded, self._version, self._unchecked = definition, version, True
        self._epoch = table.transaction_version(epoch_app(self._topology)) or 0
        self._leader = table.transaction_version(incarnation_app(self._topology)) or 0
        self._foreign = foreign
        self._recent = tuple(commit.fingerprint for commit in commits)[-MOST_NAMED:]
        if own is not None:
            self._last, self._settled = own.last_publication, own.settled_txid
        else:
            lost = None if txid is None else (version, Publication.lost(self._topology, txid))
            self._last, self._settled = lost, 0

    def _require_unbroken(self, version: int, definition: TableDefinition) -> None:
        accepted = accepted_version(definition.configuration, self._name)
        texts = newest_texts(self._storage, version)
        require_unbroken(texts, accepted, self._name, self._topology)

    def verify(self) -> None:
        """Check that none of the newest versions was overwritten. For any thread.

        Raises:
            TableChangedError: one was; from now on every other method raises this, too.
        """
        try:
            self._require_unbroken(self._version, self._definition)
        except TableChangedError as error:
            self._halted = error
            raise

    # --- refusals ----------------------------------------------------------------------------

    def changes(self, spec: TableSpec, policy: ShapePolicy) -> tuple[Change, ...]:
        """The changes that the table needs to fit `spec`.

        Raises:
            TableRefusedError: they are not allowed, or somebody else has changed the definition.
        """
        return self._differences(spec.shape, policy, spec)

    @exclusive
    def require_shape(self, shape: TableShape, policy: ShapePolicy) -> tuple[Change, ...]:
        """Return what differs from a program whose columns are not known yet.

        Raises:
            TableRefusedError: as `changes`.
        """
        return self._differences(shape, policy)

    def _differences(
        self, program: TableShape, policy: ShapePolicy, spec: TableSpec | None = None
    ) -> tuple[Change, ...]:
        """Return the differences from the table of a program, if all of them are allowed."""
        table, name, foreign = self._definition, self._name, self._foreign.metadata_changes
        try:
            refuse_unusable(table, name, self._topology, program.kind, program.semantics)
            if spec is not None:
                spec.require_settings(table.configuration, name)
            changes = shape_changes(table, name, program, policy, is_empty=not self._files)
        except TableRefusedError as error:
            raise with_culprit(error, foreign[-1] if foreign else None) from error
        if changes:
            culprit = self._log.foreign_definition(self._foreign.own, foreign)
            refuse_differences(name, changes, culprit)
        return changes

    def _require(self, spec: TableSpec) -> None:
        """Refuse a table that does not fit `spec` any more."""
        if changes := self.changes(spec, ShapePolicy()):
            raise TableRefusedError(
                f"Table {self._name} differs from the program: {clauses(changes)}. It was changed "
                "during the run. Undo that; or start again, if a former leader of the topology did "
                "it.",
                number="TXN-304",
            )

    def _refuse_foreign(self) -> None:
        """Refuse changes by other writers, as long as they last."""
        if self._spec and self._unchecked:
            self._require(self._spec)
        self._unchecked = False
        self._foreign.refuse(self._topology, self._definition.configuration)

    def _require_leader(self) -> int:
        """The incarnation that leads the table, 0 if none is recorded; refuses a foreign one."""
        if not self._incarnation:
            return 0
        leader = self._leader
        if leader and leader != self._incarnation and leader not in self._takes_over:
            raise led_elsewhere(self._name, self._topology, leader, self._incarnation)
        return leader


class _OwnLog(TableLog):
    """Refuses a file outside of the table's folder, which a topology must not read or delete."""

    def parsed(
        self, version: int, text: bytes, written: Sequence[Mapping[str, Any]] | None = None
    ) -> Commit:
        commit = super().parsed(version, text, written)
        require_inside(commit, self._storage.location)
        return commit


def _newest_commits(backwards: Iterable[Commit]) -> list[Commit]:
    """The newest versions, the oldest first, back to the newest one of a topology.

    That is far enough: its versions without a publication repeat the last one. So it reads few
    files.
    """
    commits: list[Commit] = []
    for commit in backwards:
        commits.append(commit)
        if commit.is_ours:
            break
    return commits[::-1]


def _newest_txid(commit: Commit) -> int:
    """The newest txid in the table as of a topology's version; 0 if unknown."""
    if commit.publication is not None:
        return commit.publication.last_txid
    return commit.last[1].last_txid if commit.last else 0
