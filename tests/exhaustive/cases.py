"""The scopes that are searched, and in which of them each broken rule shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.exhaustive.model import Scope

__all__ = ["CAUGHT", "FULL", "SMALL", "Case"]

QUIET = Scope(records=2, crashes=0, takeovers=0, failures=0, late=0)
SAME = ("transactional", "transactional")
MIXED = ("transactional", "opaque")

SMALL = {
    "opaque, nothing goes wrong": replace(QUIET, records=4, pending=3),
    "opaque, a crash": replace(QUIET, crashes=1),
    "transactional, a crash and a failure": replace(
        QUIET, kind="transactional", semantics=SAME, crashes=1, failures=1
    ),
    "transactional into both kinds of tables, a crash": replace(
        QUIET, records=3, kind="transactional", semantics=MIXED, crashes=1
    ),
}
"""In the test suite: seconds."""

FULL = {
    **SMALL,
    "opaque, two crashes": replace(QUIET, crashes=2),
    "opaque, three records, a crash": replace(QUIET, records=3, crashes=1),
    "opaque, a crash and a failure": replace(QUIET, crashes=1, failures=1),
    "opaque, a failure with a quarantine": replace(QUIET, attempts=1, quarantine=True, failures=1),
    "opaque, two leaders": replace(QUIET, records=1, takeovers=1),
    "opaque, two leaders and a late append": replace(
        QUIET, records=1, pending=1, takeovers=1, late=1
    ),
    "transactional, two leaders, a late append, a crash": replace(
        QUIET, records=1, kind="transactional", semantics=SAME, takeovers=1, late=1, crashes=1
    ),
    "transactional, three txids, two crashes": replace(
        QUIET, records=3, pending=3, kind="transactional", semantics=SAME, crashes=2
    ),
}
"""`make exhaustive`: minutes."""


@dataclass(frozen=True)
class Case:
    """One broken rule, and the smallest scope that shows it."""

    scope: Scope
    flag: bool = False
    """The rule is one of the shell, and broken in the model of it."""


_OPAQUE = replace(QUIET, crashes=1, failures=1)
_LEADERS = replace(QUIET, records=1, takeovers=1)
_FIXED = replace(QUIET, kind="transactional", semantics=SAME, crashes=1, failures=1)

CAUGHT = {
    "stale-failure": Case(replace(_OPAQUE, crashes=0, ghosts=1)),
    "attempt-counter-lost": Case(replace(QUIET, crashes=1)),
    "emit-before-persist": Case(QUIET),
    "success-before-durable": Case(QUIET),
    "revert-no-files": Case(replace(QUIET, crashes=1), flag=True),
    "transactional-again": Case(_FIXED),
    "zookeeper-epoch": Case(_LEADERS, flag=True),
    "table-epoch": Case(_LEADERS),
    "judge-publications": Case(replace(QUIET, records=1, late=1)),
    "roll-forward-mixed": Case(replace(_OPAQUE, records=1)),
    "later-plans-kept": Case(replace(_OPAQUE, crashes=0)),
    "group-unpublished": Case(
        replace(QUIET, kind="transactional", semantics=("opaque", "opaque"), failures=1), flag=True
    ),
    "no-quarantine-record": Case(
        replace(QUIET, attempts=1, quarantine=True, failures=1), flag=True
    ),
    "published-dropped": Case(
        replace(
            _FIXED, attempts=1, quarantine=True, records=1, semantics=SAME, crashes=1, failures=1
        )
    ),
    "opaque-kept": Case(
        replace(_OPAQUE, attempts=1, quarantine=True, records=2, crashes=1, failures=1)
    ),
    "floors-dropped": Case(replace(_OPAQUE, restores=1)),
}
