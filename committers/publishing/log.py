"""Publication: one conditional append to a Delta log, and the topology's records in it.

The rules that make it exact, whatever crashes, races or comes back from the dead:

1. An append must become the version after the one it was computed from: its commit file is written
   only if none exists (`Store.put_if_absent`). The loser of a race writes nothing.
2. After a lost race the new versions are read one by one. Only commits that changed no row
   (OPTIMIZE, properties) may stand between the version computed from and the version it lands in; a
   newer epoch ends this process's right to publish, and rows that another writer added or removed
   stop it, also between two runs (`committers.verifying.foreign_commits`).
3. Every commit of a topology carries a random token. After an append with an unknown outcome (a
   time-out, a full disk) the log shows whether it has landed; nothing is guessed. If storage failed
   for a moment, the same commit is sent again: it lands once, or finds itself in its place.
4. A publication must be newer than the table's newest: by epoch, and within an epoch by attempt.
5. The commit file is read back from the log, and parsed unless it has the same bytes as the one
   sent. The caller compares its added files with the staged ones, and fails the attempt. A commit
   that lacks one of its removals is refused here: rows would be in the table twice.
6. Every commit of a topology records the fingerprints of the versions before it, so an overwritten
   version is noticed, by any writer (`committers.verifying.chain`).

The file system provides durability. A local commit file is created atomically and not fsynced (nor
does Spark fsync its Parquet files): a power cut may lose the last versions of a table on a local
disk, and recovery then replays them. Object stores acknowledge only durable writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from committers.publishing.append import (
    AppendFailedError,
    StaleFilesError,
    commit_actions,
    commit_text,
    create_table,
    file_actions,
    leading,
    not_appended,
    require_staged,
)
from committers.publishing.files import ActiveFile, Generation
from committers.publishing.followed import FollowedTable, exclusive
from committers.publishing.reshaping import reshaped
from committers.publishing.rules import fenced, judge, require_newer, require_unsettled
from committers.publishing.spec import TableSpec
from committers.staging.area import random_id
from committers.verifying.chain import overwritten
from txn.changes import Change
from txn.delta.commits import (
    BEFORE_KEY,
    TOKEN_KEY,
    Commit,
    commit_path,
    epoch_app,
    fingerprint_of,
    txid_app,
)
from txn.delta.topology_table import ShapePolicy
from txn.errors import CommitConflictError, TableRefusedError
from txn.interfaces import (
    CHANGE_KEY,
    COMPACTION_KEY,
    FENCE_KEY,
    PUBLICATION_KEY,
    SETTLED_KEY,
    Publication,
    Published,
    StagedFile,
)
from txn.storage.retrying import is_momentary, is_refusal, retried
from txn.storage.storage import Storage

__all__ = ["MAX_TRIES", "AppendFailedError", "DeltaLog", "StaleFilesError"]

_NOTHING_ALLOWED = ShapePolicy()
MAX_TRIES = 20
"""Lost races in a row, each against a harmless commit, after which an attempt fails."""


class DeltaLog(FollowedTable):
    """The log of one table: the only way to append to it.

    Args:
        storage: the table's folder.
        new_id: source of commit tokens.
        now_ms: wall clock, milliseconds since 1970, for Delta's own bookkeeping only.
        incarnation: the incarnation of the topology that leads here; 0: unknown, and not checked.
        takes_over: incarnations whose tables it may lead as well.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        new_id: Callable[[], str] = random_id,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        incarnation: int = 0,
        takes_over: Collection[int] = (),
    ) -> None:
        super().__init__(storage, incarnation=incarnation, takes_over=takes_over)
        self._new_id = new_id
        self._now_ms = now_ms

    @exclusive
    def open(
        self, spec: TableSpec, epoch: int, policy: ShapePolicy = _NOTHING_ALLOWED
    ) -> tuple[Change, ...]:
        """Check the table against `spec`, or create it, fenced by `epoch`. Writes no data.

        Returns:
            The changes that `reshape` has to make before anything is published.

        Raises:
            TableRefusedError: naming all differences that are not allowed.
            CommitConflictError: it could not be created.
        """
        if self._loaded is None and not self.attach(spec.topology):
            create_table(self._storage, spec, epoch, self._incarnation)
            if not self.attach(spec.topology):
                raise TableRefusedError(
                    f"Table {self._name} is not there after it was created: something else "
                    "deletes files below this path. Stop it, or choose another path.",
                    number="TXN-308",
                )
        changes = self.changes(spec, policy)
        self._spec = None if changes else spec
        return changes

    @exclusive
    def reshape(
        self,
        spec: TableSpec,
        epoch: int,
        txid: int,
        changes: Sequence[Change],
        generation: Generation | None = None,
    ) -> Commit | None:
        """Append a version with the shape of `spec`; None if the table's files are others by now.

        Args:
            txid: the newest committed txid; later ones have the new shape.
            changes: what differs.
            generation: the files that replace all files of the table; None: they stay.

        Raises:
            StagedFileError: a file to be added is gone or has another size.
            FencedError: the table holds a newer epoch.
            CommitConflictError: the log could not be appended to.
        """
        adds, removes = ((), ()) if generation is None else (generation.adds, generation.removes)
        files = file_actions(adds, removes, self._now_ms(), data_change=False)
        for _ in range(MAX_TRIES):
            self._follow_with(adds, epoch)
            if generation is not None and {f.path for f in removes} != self._files.keys():
                return None
            begins = generation.begins if generation else txid + 1 if self._files else 1
            shape = reshaped(self._definition, spec, self._name, begins, generation)
            more: dict[str, Any] = {
                "txid": txid,
                "changes": [change.what for change in changes],
                "settled": max(self._settled, txid),
                "semantics_were": self._definition.configuration.get("txn.semantics"),
            }
            if landed := self._mark(CHANGE_KEY, epoch, [*shape, *files], **more):
                self._spec = spec
                return landed
        raise self._exhausted("change the shape")

    @exclusive
    def fence(self, epoch: int) -> bool:
        """Append an empty version with `epoch`: appends of older leaders now lose.

        A table that another incarnation led needs a higher epoch, or leaders of both could publish.

        Returns:
            True if it was appended now, which proves that no newer leader existed by then; False
            if the table was created with this epoch.

        Raises:
            FencedError: the table holds a newer epoch.
            RecoveryRefusedError: the topology leads it from another ensemble.
            CommitConflictError: the log could not be appended to.
            StorageUnavailableError: storage was away for longer than the retries take.
        """
        for _ in range(MAX_TRIES):
            self.refresh()
            leader = self._require_leader()
            is_ours = leader == self._incarnation
            if self._epoch > epoch or (self._epoch == epoch and leader and not is_ours):
                raise fenced(self._name, self._topology, self._epoch, epoch)
            if self._epoch == epoch and is_ours:
                return False
            apps = leading(self._topology, epoch, self._incarnation)
            if self._mark(FENCE_KEY, epoch, apps=apps, settled=self._settled):
                return True
        raise self._exhausted("fence")

    @exclusive
    def settle(self, txid: int, epoch: int) -> None:
        """Append an empty version that marks everything up to `txid` as final.

        Appends nothing if the log already shows it: by an earlier mark, by a publication whose
        `first_txid` is later, or because it holds no publication at all.

        Raises:
            FencedError: the table holds a newer epoch.
            CommitConflictError: the log could not be appended to.
            StorageUnavailableError: storage was away for longer than the retries take.
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

    @exclusive
    def compact(
        self,
        adds: Sequence[StagedFile],
        removes: Sequence[ActiveFile],
        epoch: int,
        txids: tuple[int, int],
    ) -> Commit | None:
        """Append a version with the same rows in other files; None if one of `removes` is gone.

        Args:
            txids: the first and last txid of the rows.

        Raises:
            StagedFileError: a file to be added is gone or has another size.
            FencedError: the table holds a newer epoch.
            CommitConflictError: the log could not be appended to.
        """
        actions = file_actions(adds, removes, self._now_ms(), data_change=False)
        for _ in range(MAX_TRIES):
            self._follow_with(adds, epoch)
            if any(file.path not in self._files for file in removes):
                return None
            more: dict[str, Any] = {"txids": list(txids), "settled": self._settled}
            if landed := self._mark(COMPACTION_KEY, epoch, actions, **more):
                return landed
        raise self._exhausted("compact")

    def _follow_with(self, adds: Sequence[StagedFile], epoch: int) -> None:
        """Apply what others appended; refuse a replaced leader, and files that are not there."""
        newest, sizes = self._check_storage(adds)
        self._follow(newest)
        if self._epoch > epoch:
            raise fenced(self._name, self._topology, self._epoch, epoch)
        require_staged(adds, sizes, self._name)

    def _mark(
        self,
        key: str,
        epoch: int,
        actions: Sequence[Mapping[str, Any]] = (),
        apps: Mapping[str, int] | None = None,
        **more: Any,
    ) -> Commit | None:
        """Try once to append a version with a mark, without changing rows.

        The mark repeats the last publication.
        """
        last = self._last and {
            "version": self._last[0],
            "publication": self._last[1],
        }
        mark = {"topology": self._topology, "epoch": epoch, **more, "last": last}
        return self._append(actions, {key: mark}, apps or leading(self._topology, epoch, 0))

    @exclusive
    def publish(
        self,
        adds: Sequence[StagedFile],
        removes: Sequence[ActiveFile],
        publication: Publication,
        read_version: int,
        sent: Collection[str] = (),
    ) -> Published:
        """Append one version, computed from `read_version`, and read it back.

        Three round trips to an object store: one check of all preconditions, the append, and the
        reading back. Versions that others appended meanwhile make the append lose; they are applied
        then.

        Args:
            sent: paths among `adds` that this process itself has written in this turn: they need
                no check.

        Raises:
            StagedFileError: a file to be added is gone or has another size.
            StaleFilesError: a file to be removed was rewritten: prepare again.
            CommitConflictError: another writer changed rows, or this attempt is not the newest.
            FencedError: the log has a newer epoch.
            RecoveryRefusedError: the coordinator's state is older than the table.
            TableChangedError: another writer changed rows, or replaced the table.
        """
        self.check(publication, [file for file in adds if file.path not in sent])
        for version in range(read_version + 1, self._version + 1):
            judge(self.read_commit(version), version, publication, self._name)
        app = {
            txid_app(self._topology): publication.last_txid,
            epoch_app(self._topology): publication.epoch,
        }
        metadata = {PUBLICATION_KEY: publication}
        for _ in range(MAX_TRIES):
            self._require_active(removes)
            actions = file_actions(adds, removes, self._now_ms(), data_change=True)
            landed = self._append(actions, metadata, app)
            if landed is not None:
                return self.published(landed.version, landed.adds)
            for commit in self.refresh():
                judge(commit, commit.version, publication, self._name)
        raise self._exhausted(f"publish txid {publication.last_txid}")

    def _append(
        self,
        actions: Sequence[Mapping[str, Any]],
        metadata: Mapping[str, Any],
        apps: Mapping[str, int],
    ) -> Commit | None:
        """Try once to append `version + 1`; None if another writer won.

        Raises:
            TableChangedError: the commit has this token, but removes other files.
        """
        token, version = self._new_id(), self._version + 1
        written = commit_actions(
            actions,
            apps,
            now_ms=self._now_ms(),
            partition_columns=self._definition.partition_columns,
            info={**metadata, BEFORE_KEY: [*self._recent], TOKEN_KEY: token},
        )
        text = commit_text(written)
        what = f"append version {version} to table {self._name}"
        landed = retried(lambda: self._send(version, text, written), what)
        if landed.token != token:
            return None
        if landed.fingerprint != fingerprint_of(text):
            sent = self._log.parsed(version, text, written)
            if landed.removes != sent.removes:
                raise overwritten(self._name, self._topology, version)
        # From here on the commit stands. The next publish judges other writers' later commits:
        # an error in them must not look like a failure of this one.
        self._apply(landed)
        return landed

    def _send(self, version: int, text: bytes, written: Sequence[Mapping[str, Any]]) -> Commit:
        """Send a commit file once, and read the file now in its place.

        The same file may be sent again: the first one lands, and later ones find it in place.

        Args:
            written: the actions of the text.
        """
        failure = None
        try:
            self._storage.put_if_absent(commit_path(version), text)
        except Exception as error:  # noqa: BLE001 - lost, failed, or landed: the log knows
            failure = error
        content = self._log.text(version)
        if content is None:
            if failure is not None and (is_momentary(failure) or is_refusal(failure)):
                raise failure
            raise not_appended(version, self._name, failure) from failure
        return self._log.parsed(version, content, written if content == text else None)

    # --- refusals ----------------------------------------------------------------------------

    def _require_active(self, removes: Sequence[ActiveFile]) -> None:
        for remove in removes:
            if remove.path not in self._files:
                raise StaleFilesError(
                    f"File {remove.path} of table {self._name} was rewritten after it was read "
                    f"(now at version {self._version}). The batch is prepared again."
                )

    @exclusive
    def check(self, publication: Publication, files: Sequence[StagedFile]) -> None:
        """Check all preconditions of a publication, in one round trip.

        The table is the one that was opened, staged files exist unchanged, and `require_newer`.
        """
        newest, sizes = self._check_storage(files)
        if newest > self._version:
            self._follow(newest)
        self.require_newer(publication)
        require_staged(files, sizes, self._name)

    def require_newer(self, publication: Publication) -> None:
        """Refuse a publication that is not newer than the table's newest one (rule 4)."""
        self._refuse_foreign()
        require_newer(publication, self._last, self._epoch, self._name)
        require_unsettled(publication, self._settled, self._name)

    def _exhausted(self, what: str) -> CommitConflictError:
        return CommitConflictError(
            f"Table {self._name}: {MAX_TRIES} appends in a row lost against other writers "
            f"({what}). Pause the other jobs that write to this table; the batch is tried again."
        )
