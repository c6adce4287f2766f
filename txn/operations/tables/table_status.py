"""The tables' part of a topology's status: first txids, broken rules, what published ones show.

ZooKeeper has none of it: all is in the tables' logs. A table that cannot be read is listed with
the reason, because people ask for a status mostly when something does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txn.delta.delta_rs import DeltaError
from txn.errors import TxnError
from txn.interfaces import Committer
from txn.interfaces.publication import Violations, merged_violations, summed_violations
from txn.interfaces.published import Publishes
from txn.operations.history import history_of
from txn.operations.table_logs import table_log
from txn.text import first_line

__all__ = ["NEWEST_TXIDS", "TableStatus", "read_tables"]

NEWEST_TXIDS = 20
"""Violations are summed over this many of the newest txids at most."""
_UNREADABLE = (TxnError, DeltaError, OSError, ValueError)


@dataclass(frozen=True)
class TableStatus:
    """The logs of a topology's tables at one moment."""

    first_txids: Mapping[str, int] = field(default_factory=dict)
    """table -> the txid with which it begins; a table that cannot be read is left out."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """table -> why it cannot be read."""
    txids: tuple[int, int] | None = None
    """The first and the last txid that `violations` sums: the newest committed ones, at most
    `NEWEST_TXIDS`. None: no txid is committed."""
    violations: Violations = field(default_factory=dict)
    """stream -> rule -> rows of these txids that broke it (`Stream.expect`)."""
    published: Mapping[str, int | None] = field(default_factory=dict)
    """published table -> the txid that it shows, 0 if none; None: it cannot be read."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as `txn status --json` names them."""
        return {
            "first_txids": dict(self.first_txids),
            "unread_tables": dict(self.unread),
            "violations": {stream: dict(rules) for stream, rules in self.violations.items()},
            "violations_txids": list(self.txids) if self.txids else None,
            "published": dict(self.published),
        }


def read_tables(
    topology: str,
    tables: Iterable[str],
    committed: int,
    committers: Mapping[str, Committer] | None = None,
    published: Mapping[str, Publishes] | None = None,
) -> TableStatus:
    """Read the tables' logs. Changes nothing; raises nothing for a table that it cannot read.

    Args:
        committed: ZooKeeper's committed txid; later ones do not count yet.
        committers: table -> its committer, from a program.
        published: published table -> the table, from a program.
    """
    first: dict[str, int] = {}
    unread: dict[str, str] = {}
    violations: dict[int, list[Violations]] = {}
    for table in tables:
        try:
            log = table_log(table, (committers or {}).get(table))
            entries = history_of(topology, {table: log}, committed, NEWEST_TXIDS)
            first[table] = log.first_txid
        except _UNREADABLE as error:
            unread[table] = first_line(error)
            continue
        for entry in entries:
            if entry.committed:
                violations.setdefault(entry.txid, []).append(entry.violations)
    shown: dict[str, int | None] = {}
    for name, one in (published or {}).items():
        try:
            shown[name] = one.check(topology)
        except _UNREADABLE as error:
            unread[name], shown[name] = first_line(error), None
    newest = sorted(violations)[-NEWEST_TXIDS:]
    total = summed_violations(merged_violations(violations[txid]) for txid in newest)
    return TableStatus(first, unread, (newest[0], newest[-1]) if newest else None, total, shown)
