"""Commits by other writers since a topology's last one: harmless, or refused by name.

A table's rows must all come from its topology's publications, or its totals mean nothing. Others
may add versions that add and remove no rows (OPTIMIZE, VACUUM, properties), and versions that
cancel each other (rows added by mistake, and the RESTORE that took them back). Anything else is
refused, at the start as well as during a run, before anything is published on top of it.

The files in the log decide, not operation names, which a writer is free to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txn.delta.commits import ACCEPTED, Commit
from txn.delta.topology_table import changed_by
from txn.errors import TableChangedError
from txn.storage.locations import normal

__all__ = ["ForeignCommits", "accepted_version"]


class ForeignCommits:
    """Versions of others after the topology's newest one, oldest first."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.own: Commit | None = None
        """The topology's newest one."""
        self._commits: list[Commit] = []

    def take(self, commit: Commit) -> None:
        """Record the next version of the log."""
        if commit.is_ours:
            self.own, self._commits = commit, []
        else:
            self._commits.append(commit)

    @property
    def metadata_changes(self) -> list[Commit]:
        """The foreign versions that wrote schema, properties or protocol, oldest first."""
        return [commit for commit in self._commits if commit.metadata_change]

    def refuse(self, topology: str, properties: Mapping[str, str | None]) -> None:
        """Refuse added or removed rows, unless the change was undone or accepted.

        Raises:
            TableChangedError: naming version, operation and writer, and both ways out.
        """
        accepted = accepted_version(properties, self._table)
        commits = [c for c in self._commits if c.version > accepted]
        if not _differs(commits):
            return
        changes = [commit for commit in commits if any(commit.changed)]
        first, newest = changes[0], changes[-1].version
        place = normal(self._table)
        own = "" if self.own is None else f" {self.own.version}"
        more = f" and {len(changes) - 1} later" * (len(changes) > 1)
        raise TableChangedError(
            f"Table {self._table} was changed by somebody else after version{own}, the last one "
            f"of topology '{topology}': {changed_by(first)}{more}. {_effect(first)} Nothing was "
            f"written on top of it. To undo the change: RESTORE TABLE delta.`{place}` TO VERSION "
            f"AS OF{own or ' ...'}. To keep it: ALTER TABLE delta.`{place}` SET TBLPROPERTIES "
            f"('{ACCEPTED}' = '{newest}'). Then run the topology again."
        )


def _differs(commits: Iterable[Commit]) -> bool:
    """Return whether these versions may have changed the rows.

    They have not if no file was added or removed in all, counting either all files or only those
    marked as changing rows: OPTIMIZE marks its files as not changing any.
    """
    whole, changing = _Net(), _Net()
    for commit in commits:
        brought, taken = commit.changed
        whole.take(*_marked_files(commit, (add.path for add in commit.adds), commit.removes))
        changing.take(*_marked_files(commit, brought, taken))
    return not (whole.is_nothing or changing.is_nothing)


def _marked_files(
    commit: Commit, adds: Iterable[str], removes: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Added and removed files, each with its deletion vector.

    A DELETE may remove a file and add it again with another deletion vector.
    """
    marks, former = commit.deletion_vectors, commit.removed_vectors
    return (
        frozenset(path + marks.get(path, "") for path in adds),
        frozenset(path + former.get(path, "") for path in removes),
    )


class _Net:
    """Additions and removals without those that cancel each other."""

    def __init__(self) -> None:
        self._added: set[str] = set()
        self._removed: set[str] = set()

    @property
    def is_nothing(self) -> bool:
        return not self._added and not self._removed

    def take(self, adds: frozenset[str], removes: frozenset[str]) -> None:
        self._removed |= removes - self._added
        self._added -= removes
        self._added |= adds - self._removed
        self._removed -= adds


def _effect(commit: Commit) -> str:
    added, removed = map(len, commit.changed)
    if not removed:
        return f"It added rows ({added} files) that belong to no txid."
    if not added:
        return f"It removed rows ({removed} files)."
    return f"It replaced {removed} files with {added} others."


def accepted_version(properties: Mapping[str, str | None], table: str) -> int:
    """The version up to which a user accepts others' changes; -1 without the property.

    Raises:
        TableChangedError: the property is not a version.
    """
    version = properties.get(ACCEPTED)
    if version is None:
        return -1
    if not (version.isascii() and version.isdecimal()):
        raise TableChangedError(
            f"Property {ACCEPTED} of table {table} is {version!r}, not a version number. Correct "
            "it, or unset it.",
            number="TXN-311",
        )
    return int(version)
