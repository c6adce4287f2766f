"""Fill a state table from the rows of an append table, instead of from the sources.

The sources may not go back that far any more; the append table holds every row of its stream.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from txn.attempts import TransactionAttempt
from txn.dataflow.evaluation import Evaluation, Rows, consumers
from txn.dataflow.expectations import Expectation, SetAside
from txn.dataflow.graph import Dimension, Node, Sink, Transform, takes_attempt
from txn.dataflow.stages import code_above
from txn.dataflow.watermarks import Ahead, Watermark
from txn.engine.base.attempt import table_publication
from txn.engine.work.backfill import publish_exactly
from txn.engine.work.staging import Stager
from txn.errors import TopologyError
from txn.interfaces import NOTICES, Publication
from txn.interfaces.committer_capabilities import HoldsRows, ReadsAsOf

__all__ = ["StoredStream", "require_derivable"]

notices = logging.getLogger(NOTICES)


@dataclass(frozen=True)
class StoredStream:
    """The rows of a stream, as an append table holds them up to a committed txid."""

    table: Sink
    version: int
    publication: Publication
    """The newest one of that version."""

    def fill(self, sink: Sink, stager: Stager, epoch: int) -> None:
        """Give a table that is empty all of these rows in one publication.

        Raises:
            TopologyError: columns that the table takes are missing in the rows.
        """
        committer, keeper = sink.committer, self.table.committer
        assert isinstance(keeper, HoldsRows)
        notices.warning(
            "Table %s gets the rows of table %s up to txid %s.",
            sink.name,
            self.table.name,
            self.publication.last_txid,
        )
        attempt = TransactionAttempt(self.publication.last_txid, self.publication.attempt_id)
        streams = frozenset(source.name for source in self.table.parent.sources())
        evaluation = Evaluation({}, consumers([sink]), lambda frame, _: frame, attempt)
        evaluation.done[self.table.parent] = Rows(keeper.rows_at(self.version), streams)
        partials = stager.known_partials(sink, evaluation)
        assert isinstance(partials, Rows)
        staged = committer.stage(partials.frame, attempt)
        last = self.publication.last_txid
        code = code_above(sink)
        alone = {"epoch": epoch, "first_txid": last, "filled_by": code, "members": ()}
        own = table_publication(self.publication.model_copy(update=alone), staged)
        publish_exactly(committer, committer.prepare(staged, own), own)


def require_derivable(sink: Sink, stored: Sink) -> None:
    """Refuse a table that cannot be computed from another one's rows, all at once.

    Raises:
        TopologyError: naming the reason.
    """
    committer = sink.committer
    if not isinstance(stored.committer, HoldsRows) or isinstance(stored.parent, SetAside):
        why = f"'{stored.name}' is no append table of a stream"
    elif not isinstance(committer, ReadsAsOf):
        why = "it is no state table, and its rows would lose their txids"
    elif not committer.groups:
        why = "its values depend on the order of txids"
    elif other := _other_way(sink.parent, stored.parent):
        why = f"its stream also depends on {other}"
    else:
        return
    raise TopologyError(
        f"Table '{sink.name}' cannot be filled from the rows of table '{stored.name}': {why}. "
        "Nothing was changed. Leave --from out: its txids are then read anew from the sources.",
        number="TXN-809",
    )


def _other_way(node: Node, stored: Node) -> str:
    """Name what else a stream depends on than the rows of `stored`; empty if nothing."""
    if node is stored:
        return ""
    if isinstance(node, Dimension):
        return f"table '{node.name}'"
    if isinstance(node, Ahead | Watermark):
        return f"the watermark of '{node.label()}'"
    if not isinstance(node, Transform | Expectation):
        return f"'{node.label()}'"
    if isinstance(node, Transform) and takes_attempt(node.function):
        return f"a transform of '{node.label()}' that takes the attempt"
    return next(filter(None, (_other_way(parent, stored) for parent in node.parents)), "")
