"""Read the newest versions of a table's log for a topology that opens it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from committers.publishing.foreign_commits import ForeignCommits
from txn.delta.commits import Commit
from txn.interfaces import Publication

__all__ = ["NewestVersions"]


@dataclass(frozen=True)
class NewestVersions:
    """The newest versions, from the last one back to the first of ours.

    That one is enough: what publishes nothing repeats the publication. So few files are read.
    """

    foreign: ForeignCommits
    """Versions of others behind the newest one of ours."""
    last: tuple[int, Publication] | None
    """(version, publication) of the newest publication."""
    settled: int
    """The newest txid that a mark behind it calls final."""
    is_known: bool
    """False: the commit files that would say what was published last are gone."""
    fingerprints: tuple[int, ...]
    """Fingerprints of these commit files, the newest last; none: the newest one is gone."""

    @classmethod
    def of(cls, backwards: Iterable[Commit], table: str) -> NewestVersions:
        """Read them.

        Args:
            backwards: versions, newest first.
            table: its name, for messages.
        """
        seen: list[Commit] = []
        own: Commit | None = None
        for commit in backwards:
            seen.append(commit)
            if commit.is_ours:
                own = commit
                break
        foreign = ForeignCommits(table)
        for commit in reversed(seen):
            foreign.take(commit)
        return cls(
            foreign,
            last=None if own is None else own.last_publication,
            settled=0 if own is None else own.settled_txid,
            is_known=own is not None,
            fingerprints=tuple(commit.fingerprint for commit in reversed(seen)),
        )
