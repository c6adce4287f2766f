"""Decide which tables are late: they lack committed txids, and may be given them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from txn.interfaces import Member, Publication

__all__ = ["agrees", "is_late"]


def is_late(
    newest: Publication | None,
    committed: int,
    others: Iterable[Publication],
    *,
    attempts: bool,
) -> bool:
    """True if a table lacks committed txids, or holds one as it was not committed.

    Args:
        newest: the table's newest publication; None: it holds nothing.
        committed: the newest committed txid.
        others: publications of tables that hold what was committed.
        attempts: as for `agrees`.
    """
    if newest is None or newest.last_txid < committed:
        return committed > 0
    return not agrees(newest, others, attempts=attempts)


def agrees(publication: Publication, others: Iterable[Publication], *, attempts: bool) -> bool:
    """True if a publication holds its txids as other tables hold them.

    Args:
        attempts: compare attempts; False: all attempts of a txid are alike, unless it was
            committed empty.
    """

    def of(one: Publication, member: Member) -> tuple[int, bool]:
        return (member.attempt_id if attempts else 0, one.quarantined is not None)

    committed = {m.txid: of(one, m) for one in others for m in one.txids}
    held = {member.txid: of(publication, member) for member in publication.txids}
    return all(committed.get(txid, own) == own for txid, own in held.items())
