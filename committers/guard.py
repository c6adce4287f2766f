"""The guard of a table's semantics: find the replayed txids that the table already holds.

Pure functions of the last publication in the log. A replay begins at committed + 1, so whatever the
table holds of the replay's txids was written by an attempt that never finished.
"""

from __future__ import annotations

from committers.staging.row_digest import differing_columns
from txn.errors import RecoveryRefusedError, SourceChangedError, TopologyError
from txn.interfaces import Member, Publication, Semantics, Staged

__all__ = ["drop_up_to", "held", "parse_semantics", "unfinished"]

Last = tuple[int, Publication] | None
"""(version, publication) of the newest publication in a table's log; None if it has none."""


def parse_semantics(semantics: Semantics | str) -> Semantics:
    """Parse the name of a semantics.

    Raises:
        TopologyError: the name is unknown.
    """
    try:
        return Semantics(semantics)
    except ValueError:
        names = ", ".join(f'"{member.value}"' for member in Semantics)
        raise TopologyError(
            f"A table cannot have semantics={semantics!r}. Choose one of {names}.", number="TXN-112"
        ) from None


def unfinished(last: Last, publication: Publication) -> bool:
    """Return whether the table may hold rows of an attempt that never finished."""
    return last is not None and last[1].last_txid >= publication.first_txid


def held(last: Last, semantics: Semantics, publication: Publication, table: str) -> tuple[int, int]:
    """Find the part of a publication that the table keeps, so it must not be applied again.

    Returns (version, newest txid) of it. (-1, 0): nothing; only a transactional table keeps any.

    Raises:
        RecoveryRefusedError: the publication begins inside a group of txids that cannot be
            taken back in part.
        SourceChangedError: a txid that the table holds was replayed with other rows.
    """
    if last is None or not unfinished(last, publication):
        return -1, 0
    version, stored = last
    if semantics is Semantics.TRANSACTIONAL:
        members = {member.txid: member for member in stored.txids}
        for member in publication.txids:
            if before := members.get(member.txid):
                _require_identical(member, version, before, table)
        return version, stored.last_txid
    if stored.first_txid < publication.first_txid:
        raise RecoveryRefusedError(
            f"Version {version} of table {table} holds txids {stored.first_txid} to "
            f"{stored.last_txid} as one group, but attempt "
            f"{publication.last_txid}:{publication.attempt_id} would start inside it, at txid "
            f"{publication.first_txid}: a group can only be reverted as a whole. The "
            "coordinator's state does not match the table: run `txn recover`.",
            number="TXN-803",
        )
    return -1, 0


def drop_up_to(staged: Staged, txid: int) -> Staged:
    """Drop the txids up to `txid` from a group."""
    left = [member for member in staged.members if member.attempt.txid > txid]
    return Staged.together(left) if len(left) < len(staged.members) else staged


def _require_identical(member: Member, version: int, before: Member, table: str) -> None:
    """Refuse a replay whose rows or digest differ from those in the table."""
    attempt = f"Attempt {member.txid}:{member.attempt_id}"
    remedy = (
        'Either the source is not transactional (then use an opaque spout and semantics="opaque"), '
        "or the transform depends on more than its rows, such as a clock or a random number."
    )
    if before.rows != member.rows:
        raise SourceChangedError(
            f"{attempt} staged {member.rows} rows for table {table}, but its version {version} "
            f"holds {before.rows} rows of the same txid from attempt {before.attempt_id}. {remedy}",
            number="TXN-419",
        )
    columns = differing_columns(before.digest, member.digest)
    if columns:
        raise SourceChangedError(
            f"{attempt} staged other values in column '{columns[0]}' for table {table} than "
            f"attempt {before.attempt_id} of the same txid, which version {version} holds: the "
            f"nulls and bounds in the Parquet files differ (digests {member.digest} now, "
            f"{before.digest} then). {remedy}",
            number="TXN-419",
        )
