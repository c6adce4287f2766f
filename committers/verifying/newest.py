"""Read the newest versions of a table's log for a topology that opens it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from committers.verifying.foreign_commits import ForeignCommits
from txn.delta.commits import Commit
from txn.interfaces import Publication

__all__ = ["NewestVersions"]


@dataclass(frozen=True)
class NewestVersions:
    """The newest versions, from the last one back to the newest of the topology.

    That is far enough: its versions without a publication repeat the last one. So it reads few
    files.
    """

    foreign: ForeignCommits
    """Versions of others after the topology's newest one."""
    last: tuple[int, Publication] | None
    """(version, publication) of the newest publication."""
    settled: int
    """The newest txid that a later mark calls final."""
    is_known: bool
    """False if the commit files that record the last publication are gone."""
    fingerprints: tuple[int, ...]
    """Fingerprints of these commit files, the newest last; empty if the newest one is gone."""

    @classmethod
    def of(cls, backwards: Iterable[Commit], table: str) -> NewestVersions:
        """Read the newest versions.

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
