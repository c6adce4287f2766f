"""Every transition of a batch, as one table: its phase, the cause, the next phase, and why.

`txn.protocol.coordinator` decides which of them happens, and when. A batch enters a state, changes
in it and leaves it only through `require_transition`, so a transition that is not in the table is
an error at once. Late events do not get here: the coordinator answers them with the very same
state.

docs/coordinator.md shows the same table, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from txn.protocol.events import Phase

__all__ = ["TRANSITIONS", "Cause", "require_transition"]


class Cause(str, Enum):
    """The cause of a batch's move: a fact about it or an earlier one, or an order now possible."""

    # Facts, by the names of their events. `BatchFailed` may be that of one txid of a group.
    PLAN_MADE = "PlanMade"
    PLAN_FAILED = "PlanFailed"
    PLAN_REFUSED = "PlanRefused"
    BATCH_PROCESSED = "BatchProcessed"
    BATCH_FAILED = "BatchFailed"
    BATCH_PUBLISHED = "BatchPublished"
    GROUP_FAILED = "GroupFailed"
    RETRY_DUE = "RetryDue"
    # Facts about something else.
    RECOVERED = "recovered"
    DROPPED = "dropped"
    # Orders, by their names: given as soon as they are possible.
    PLAN = "Plan"
    PROCESS = "Process"
    PUBLISH = "Publish"


_PLANNED_ANEW: Mapping[Phase | None, str] = {
    Phase.WAITING: "an earlier txid is planned anew: attempt + 1, opaque metadata forgotten"
}
TRANSITIONS: Mapping[Phase | None, Mapping[Cause, Mapping[Phase | None, str]]] = {
    None: {  # the txid is not in the state: not yet, or no longer
        Cause.RECOVERED: {Phase.WAITING: "a run begins, and its START is durable; attempt + 1"},
        Cause.PLAN: {Phase.PLANNING: "a new txid: there is room, and the interval is over"},
    },
    Phase.WAITING: {
        Cause.RETRY_DUE: {Phase.WAITING: "its back-off is over: no longer held"},
        Cause.PLAN: {Phase.PLANNING: "it can be tried again, and some stream must be asked"},
        Cause.PROCESS: {
            Phase.PROCESSING: "it can be tried again, and its metadata is fixed or it is emptied"
        },
        Cause.DROPPED: {
            Phase.WAITING: "an earlier txid is planned anew: opaque metadata forgotten"
        },
    },
    Phase.PLANNING: {
        Cause.PLAN_MADE: {
            Phase.PROCESSING: "there is something to read, or it was started before",
            None: "a new txid with nothing to read: the next question has its attempt id",
        },
        Cause.PLAN_FAILED: {Phase.WAITING: "attempt + 1; held, unless it is emptied"},
        Cause.PLAN_REFUSED: {
            Phase.WAITING: "held for good: the run ends once what is before it is committed"
        },
        Cause.DROPPED: _PLANNED_ANEW,
    },
    Phase.PROCESSING: {
        Cause.BATCH_PROCESSED: {Phase.PROCESSED: "everything is staged and acked"},
        Cause.BATCH_FAILED: {Phase.WAITING: "attempt + 1; held, unless it is emptied"},
        Cause.DROPPED: _PLANNED_ANEW,
    },
    Phase.PROCESSED: {
        Cause.PUBLISH: {Phase.COMMITTING: "it is committed + 1, or goes with that one"},
        Cause.BATCH_FAILED: {Phase.WAITING: "attempt + 1; held, unless it is emptied"},
        Cause.DROPPED: _PLANNED_ANEW,
    },
    Phase.COMMITTING: {
        Cause.BATCH_PUBLISHED: {None: "it is committed"},
        Cause.BATCH_FAILED: {
            Phase.WAITING: "attempt + 1; held, or if it is one of a group, all of it and not held"
        },
        Cause.GROUP_FAILED: {
            Phase.PROCESSED: "no table holds the group: what is staged is used",
            Phase.WAITING: "some table may hold the group: attempt + 1, not held",
        },
    },
}


def require_transition(txid: int, before: Phase | None, cause: Cause, after: Phase | None) -> None:
    """Check that `cause` may bring `txid` from one phase to another; None: it is not in the state.

    Raises:
        RuntimeError: the table does not have this transition.
    """
    if after not in TRANSITIONS[before].get(cause, {}):
        raise RuntimeError(
            f"{cause.value} cannot bring txid {txid} from {_name(before)} to {_name(after)}: "
            "txn.protocol.transitions has no such transition"
        )


def _name(phase: Phase | None) -> str:
    return "nothing" if phase is None else phase.name
