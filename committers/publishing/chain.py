"""Whether a version of a table's log was overwritten: a chain of fingerprints.

Delta's log is a sequence of files that are never written twice, and a conditional write sees to
that. A writer without one (Spark on S3) may overwrite a version that a topology has committed, and
both have been told that theirs is there. So each commit of ours names the fingerprints of the
versions before it, back to our last one, as they were when it was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from committers.publishing.foreign_commits import ACCEPTED
from txn.delta.commits import BEFORE_KEY, BROKEN, commit_path, fingerprint_of
from txn.errors import TableChangedError
from txn.storage.locations import normal
from txn.storage.storage import Storage

__all__ = ["CHAIN", "MOST_NAMED", "newest_texts", "overwritten", "require_unbroken"]

CHAIN = 25
"""How many of the newest versions are compared with what later ones say of them, at a start and
before a checkpoint: as many as lie between two checkpoints."""
MOST_NAMED = 64
"""Versions of others that one commit names at most."""


def newest_texts(storage: Storage, version: int) -> dict[int, bytes]:
    """The newest commit files from `version` back to the first one that is gone, `CHAIN` at most.

    One round trip.
    """
    wanted = range(version, max(-1, version - CHAIN), -1)
    found, _ = storage.look([*map(commit_path, wanted)])
    texts: dict[int, bytes] = {}
    for number, text in zip(wanted, found, strict=True):
        if text is None:
            break
        texts[number] = text
    return texts


def require_unbroken(texts: Mapping[int, bytes], accepted: int, table: str, topology: str) -> None:
    """Refuse a log in which a version is not what a later one says of it.

    Args:
        texts: version -> content of its commit file.
        accepted: the version up to which a user lets other writers' changes stand.

    Raises:
        TableChangedError: naming the first such version.
    """
    for version in sorted(texts):
        for back, fingerprint in enumerate(reversed(_named(texts[version])), start=1):
            before = texts.get(version - back)
            if before is None or version - back <= accepted:
                continue
            if fingerprint_of(before) != fingerprint:
                raise overwritten(table, topology, version - back)


def overwritten(table: str, topology: str, version: int) -> TableChangedError:
    """The error for a version whose commit file is not the one that this topology knew."""
    return TableChangedError(
        f"Version {version} of table {table} was overwritten: its file in _delta_log is not the "
        f"one that topology '{topology}' wrote or read there. A writer without conditional writes "
        "does that, such as Spark's Delta on S3; what that version had published is lost to "
        f"readers. Nothing was written on top of it. Put the former {commit_path(version)} back "
        "(a bucket with versioning still has it), and repeat the other writer's statement while "
        "the topology is stopped. To let it stand: ALTER TABLE delta."
        f"`{normal(table)}` SET TBLPROPERTIES ('{ACCEPTED}' = '{version}'); if it had published "
        "the newest txid, only putting it back helps, for a table that lacks a committed txid is "
        "refused (TXN-804).",
        number="TXN-316",
    )


def _named(text: bytes) -> list[int]:
    """The fingerprints that a commit file names; none, if it is not ours."""
    try:
        info = json.loads(text.partition(b"\n")[0])["commitInfo"]
        return [int(one) for one in info.get(BEFORE_KEY, ())]
    except BROKEN:
        return []
