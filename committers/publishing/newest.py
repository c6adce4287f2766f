"""Reading a Delta log commit file by commit file, newest first: what a table tells of us."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from committers.publishing.foreign_commits import Strangers
from committers.publishing.loading import is_there, load
from committers.publishing.storage import Storage
from committers.publishing.versions import Commit, commit_path, fingerprint_of, parse_commit
from txn.delta.retrying import retried
from txn.errors import StorageUnavailableError
from txn.interfaces import Publication

__all__ = ["LogReader", "Told"]


@dataclass
class Told:
    """What the newest versions of a log tell."""

    strangers: Strangers
    """Versions of others behind the newest one of ours."""
    last: tuple[int, Publication] | None = None
    """(version, publication) of the newest publication."""
    settled: int = 0
    """The newest txid that a mark behind it calls final."""
    is_known: bool = False
    """False: the commit files that would say what was published last are gone."""
    fingerprint: int | None = None
    """Of the newest version's commit file; None: it is gone."""
    _seen: list[Commit] = field(default_factory=list)

    def look_at(self, commit: Commit) -> bool:
        """Take in one version, newest first; whether that settles it."""
        if not self._seen:
            self.fingerprint = commit.fingerprint
        self._seen.append(commit)
        if commit.publication is not None:
            self.last = (commit.version, commit.publication)
        elif commit.mark is not None:
            self.settled = max(self.settled, commit.settled_txid)
            if commit.last is not None:
                publication = Publication.model_validate(commit.last["publication"])
                self.last = (int(commit.last["version"]), publication)
        self.is_known = self.is_known or commit.is_ours
        return commit.is_ours

    def end(self) -> None:
        """No more versions: put the strangers' in order."""
        for commit in reversed(self._seen):
            self.strangers.take(commit)
        self._seen.clear()


class LogReader:
    """The commit files of one table.

    Args:
        options: credentials and endpoints for delta-rs.
    """

    def __init__(self, storage: Storage, options: Mapping[str, str]) -> None:
        self._storage = storage
        self._options = dict(options)

    def commit(self, version: int) -> Commit | None:
        """One version, from its commit file; None when that does not exist (any more)."""
        text = self._storage.read(commit_path(version))
        return None if text is None else parse_commit(version, text, self._storage.location)

    def backwards(self, version: int | None = None) -> Iterator[Commit]:
        """Versions from this (None: the newest) down to the first whose file is gone."""
        if version is None:
            version = self.load().version()
        while version >= 0 and (commit := self.commit(version)) is not None:
            yield commit
            version -= 1

    def publications(self, limit: int | None = None) -> Iterator[tuple[int, Publication, int]]:
        """(version, publication, milliseconds since 1970), newest first, as far as the log goes."""
        count = 0
        for commit in self.backwards():
            if limit is not None and count >= limit:
                return
            if commit.publication is not None:
                count += 1
                yield commit.version, commit.publication, commit.timestamp_ms

    def told(self, version: int) -> Told:
        """What is told up to a version. Other versions of ours carry the publication: few files."""
        told = Told(Strangers(self._storage.location))
        for commit in self.backwards(version):
            if told.look_at(commit):
                break
        told.end()
        return told

    def instead_of(self, table: DeltaTable, version: int, fingerprint: int | None) -> str | None:
        """What is there instead of a table that had come to `version`; None: it is still there.

        Args:
            table: as it was loaded.
            fingerprint: of the version's commit file; None: it was cleaned out of the log before.
        """
        text = self._storage.read(commit_path(version))
        if text is not None and fingerprint is not None:
            same = fingerprint_of(text) == fingerprint
            return None if same else f"version {version} in its log is another one"
        try:
            found = self.load()
        except TableNotFoundError:
            return "there is no table now"
        same = found.metadata().id == table.metadata().id
        if not same or not self._comes_to(version, found):
            return f"the table that is there now has come to version {found.version()}"
        return None

    def _comes_to(self, version: int, found: DeltaTable) -> bool:
        """Whether the log goes so far, whatever a listing says that is behind for a moment."""

        def look() -> None:
            if found.version() < version:
                found.update_incremental()
            if found.version() < version:
                raise _BehindError(errno.ESTALE, f"its listing ends at version {found.version()}")

        try:
            retried(look, f"list the log of table {self._storage.location} up to version {version}")
        except StorageUnavailableError as error:
            if isinstance(error.__cause__, _BehindError):
                return False
            raise
        return True

    def load(self) -> DeltaTable:
        """The table as it is now."""
        return load(self._storage, self._options)

    def exists(self) -> bool:
        """Whether there is a Delta table."""
        return is_there(self._storage, self._options)


class _BehindError(OSError):
    """A log was listed without its newest versions."""
