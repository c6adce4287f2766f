"""Detect overwritten versions of a table's log by a chain of fingerprints.

Delta's log is a sequence of files that are never written twice; conditional writes ensure that. A
writer without them (Spark on S3) may overwrite a version that a topology has committed, and both
believe that their version is in the log. So each commit of a topology records the fingerprints of
the versions before it, back to its own last one, as they were when it was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from txn.delta.commits import ACCEPTED, BEFORE_KEY, BROKEN, commit_path, fingerprint_of
from txn.errors import TableChangedError
from txn.storage.locations import normal
from txn.storage.storage import Storage

__all__ = ["CHAIN", "MOST_NAMED", "newest_texts", "overwritten", "require_unbroken"]

CHAIN = 25
"""The newest versions to compare with the fingerprints in later ones, at a start and before a
checkpoint: as many as between two checkpoints."""
MOST_NAMED = 64
"""The most versions of other writers whose fingerprints one commit records."""


def newest_texts(storage: Storage, version: int) -> dict[int, bytes]:
    """Read the commit files from `version` back to the first one that is gone, at most `CHAIN`.

    One round trip.
    """
    versions = range(version, max(-1, version - CHAIN), -1)
    contents, _ = storage.read_many([*map(commit_path, versions)])
    texts: dict[int, bytes] = {}
    for number, text in zip(versions, contents, strict=True):
        if text is None:
            break
        texts[number] = text
    return texts


def require_unbroken(texts: Mapping[int, bytes], accepted: int, table: str, topology: str) -> None:
    """Refuse a log in which a version differs from its fingerprint in a later one.

    Args:
        texts: version -> content of its commit file.
        accepted: the version up to which a user accepts other writers' changes.

    Raises:
        TableChangedError: naming the first such version.
    """
    for version in sorted(texts):
        for back, fingerprint in enumerate(
            reversed(_recorded_fingerprints(texts[version])), start=1
        ):
            before = texts.get(version - back)
            if before is None or version - back <= accepted:
                continue
            if fingerprint_of(before) != fingerprint:
                raise overwritten(table, topology, version - back)


def overwritten(table: str, topology: str, version: int) -> TableChangedError:
    """The error for a version whose commit file is not the one that this topology read or wrote."""
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


def _recorded_fingerprints(text: bytes) -> list[int]:
    """The fingerprints that a commit file records; none if it is not a topology's."""
    try:
        info = json.loads(text.partition(b"\n")[0])["commitInfo"]
        return [int(one) for one in info.get(BEFORE_KEY, ())]
    except BROKEN:
        return []
