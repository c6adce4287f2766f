"""The committers of a run: open, fence, keep apart, notify and close them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from txn.attempts import TransactionAttempt
from txn.dataflow.expectations import rules_by_stream
from txn.dataflow.graph import Sink
from txn.dataflow.kept import Kept
from txn.engine.base.killpoints import reached
from txn.errors import TableRefusedError
from txn.interfaces import NOTICES, CommitterContext, Publication
from txn.interfaces.committer_capabilities import (
    ChangesShape,
    CleansUp,
    IdentifiesTable,
    MaintainsTable,
    SettlesTxids,
)
from txn.interfaces.published import Publishes
from txn.protocol.recovery import Newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["Committed", "Tables"]

notices = logging.getLogger(NOTICES)


@dataclass(frozen=True)
class Committed:
    """The newest txid that is durable everywhere, and the table versions that hold it."""

    txid: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)


class Tables:
    """The committers of one run."""

    def __init__(self, own: SparkSession, sinks: Sequence[Sink]) -> None:
        self._own = own
        self.all = tuple(sinks)
        """In the order in which they publish."""
        self.early = tuple(sink for sink in sinks if not sink.in_commit_turn)
        """Staged in the processing phase."""
        self.late = tuple(sink for sink in sinks if sink.in_commit_turn)
        """Staged in the commit turn."""
        rules = chain.from_iterable(rules_by_stream(sinks).values())
        self.has_event_time = any(rule.measured for rule in rules)
        """Whether a stream has a watermark."""
        self.in_order = any(isinstance(sink.parent, Kept) for sink in sinks)
        """Whether an attempt is processed only when those of all smaller txids are staged."""
        self.committed = Committed()
        """Replaced as a whole, so that any thread may read it."""
        self._changing = False
        """True once the tables may get the program's shape."""
        self._opened: set[str] = set()
        self._opening = threading.Lock()
        self._context = CommitterContext("", 0)
        self._first_txids: dict[str, int] = {}
        """Table that does not exist yet and gets its history -> its first txid."""

    # --- before the first batch --------------------------------------------------------------

    def attach(self, context: CommitterContext) -> Newest:
        """The newest publication of every table that exists; creates nothing."""
        self._context = context
        newest: dict[str, tuple[int, Publication] | None] = {}
        for sink in self.all:
            sink.committer.open(self._own, context, None)
            newest[sink.name] = sink.committer.last_publication()
        self.require_apart()
        for table in self.published.values():
            table.check(context.topology)
        return newest

    def begin_at(self, first_txids: Mapping[str, int]) -> None:
        """Let tables that do not exist yet begin with an earlier txid than the next one."""
        self._first_txids |= first_txids

    def ids(self) -> dict[str, str]:
        """The id of every table that exists and has one."""
        return {
            sink.name: table_id
            for sink in self.all
            if isinstance(sink.committer, IdentifiesTable)
            and (table_id := sink.committer.physical_id()) is not None
        }

    def require_apart(self) -> None:
        """Refuse two names of one table, such as a bind mount; checks the tables that are open."""
        names: dict[str, str] = {}
        for name, table_id in self.ids().items():
            other = names.setdefault(table_id, name)
            if other != name:
                raise TableRefusedError(
                    f"Tables '{other}' and '{name}' are one table under two names, or one is "
                    f"a copy of the other: both have the id {table_id}. A table holds one "
                    "publication per txid: give each committer a table of its own.",
                    number="TXN-110",
                )

    def fence(self) -> Newest:
        """Shut older leaders out of every table, then read the newest publication of each."""
        for sink in self.all:
            sink.committer.fence()
        return {sink.name: sink.committer.last_publication() for sink in self.all}

    # --- as soon as its columns are known ----------------------------------------------------

    def open(self, sink: Sink, schema: StructType) -> None:
        """Open a table for partials of these columns, once, as `Committer.open`."""
        with self._opening:
            if sink.name not in self._opened:
                first = self._first_txids.get(sink.name, self._context.first_txid)
                context = replace(self._context, first_txid=first)
                sink.committer.open(self._own, context, schema)
                self.require_apart()
                if self._changing:
                    self._change_shapes([sink], {})
                self._opened.add(sink.name)

    def change_shapes(self, held: Mapping[str, int], sinks: Sequence[Sink]) -> None:
        """Give these tables the shape of the program; after all, each as it is opened, too.

        All are staged before the first one changes, so readers see them change together. Nothing
        of a later txid than the committed one may have been published yet.

        Args:
            held: tables that lack committed txids -> the newest one that they hold.
        """
        with self._opening:
            self._change_shapes(sinks, held)
            self._changing = self._changing or sinks is self.all

    def _change_shapes(self, sinks: Sequence[Sink], held: Mapping[str, int]) -> None:
        at = TransactionAttempt(self.committed.txid + 1)
        ready: list[tuple[str, int, Callable[[], tuple[str, ...]]]] = []
        for sink in sinks:
            if isinstance(sink.committer, ChangesShape):
                txid = held.get(sink.name, self.committed.txid)
                publish = sink.committer.change_shape(txid)
                if publish is not None:
                    reached("shape-staged", at)
                    ready.append((sink.name, txid, publish))
        for table, txid, publish in ready:
            for what in publish():
                notices.warning("Table %s, from txid %s on: %s.", table, txid + 1, what)
            reached("shape-changed", at)

    def open_without_columns(self, sink: Sink) -> None:
        """Refuse a table that no columns would fit."""
        with self._opening:
            sink.committer.open(self._own, self._context, None)
            self.require_apart()
            if isinstance(sink.committer, ChangesShape):
                sink.committer.require_shape()

    @property
    def undecided(self) -> list[frozenset[str]]:
        """For each table of the processing phase that is not open yet, the streams that feed it."""
        unopened = [sink for sink in self.early if sink.name not in self._opened]
        return [frozenset(s.name for s in sink.parent.sources()) for sink in unopened]

    # --- how attempts end --------------------------------------------------------------------

    def advance(self, txid: int, versions: Mapping[str, int]) -> None:
        """Let state queries read these table versions, which hold `txid`."""
        self.committed = Committed(txid, dict(versions))

    def clean_up(self, attempt: TransactionAttempt) -> None:
        """Delete the scratch files of a committed attempt."""
        for sink in self.all:
            if isinstance(sink.committer, CleansUp):
                sink.committer.committed(attempt)

    def discard(self, attempt: TransactionAttempt) -> None:
        """Delete a dead attempt's staged files."""
        for sink in self.all:
            sink.committer.discard(attempt)

    def settle(self, txid: int) -> None:
        """Mark `txid` as final in the tables: nothing follows it for now."""
        for sink in self.all:
            if isinstance(sink.committer, SettlesTxids):
                sink.committer.settle(txid)

    # --- beside the batches ------------------------------------------------------------------

    @property
    def maintained(self) -> tuple[str, ...]:
        """The tables that may ever need maintenance beside the commit turns."""
        return tuple(s.name for s in self.all if isinstance(s.committer, MaintainsTable))

    @property
    def published(self) -> Mapping[str, Publishes]:
        """The tables that show keys and values of others, and are kept up beside the turns."""
        return {one.name: one for sink in self.all for one in sink.published}

    def maintain(self, table: str, txid: int) -> Callable[[], None] | None:
        """Let a committer do maintenance, as `MaintainsTable.maintain`."""
        named = (sink.committer for sink in self.all if sink.name == table)
        return next(one for one in named if isinstance(one, MaintainsTable)).maintain(txid)

    def close(self) -> None:
        """Close every committer, even if others raise."""
        for sink in self.all:
            with suppress(Exception):
                sink.committer.close()
