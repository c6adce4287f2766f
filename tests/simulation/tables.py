"""The real committers, with the pure model in place of the rows that Spark computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from committers.append_table import AppendingCommitter
from committers.log_actions import TXID, ActiveFile
from committers.log_committer import LogCommitter
from committers.state_committer import StateCommitter
from committers.table_spec import TableSpec
from committers.upsert import StateLayout
from tests.simulation import rows as model
from tests.simulation.primitives import CLOCK
from tests.simulation.spark import Frame
from tests.simulation.world import World, current_world
from txn.attempts import TransactionAttempt
from txn.interfaces import Committer, Publication, Semantics, StagedFile

__all__ = ["make_committer"]


class SimAppend(AppendingCommitter):
    """An append table."""

    layout = "append"

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def _spec(self, schema: Any) -> TableSpec:
        self._rows_schema = schema
        return TableSpec(
            self._opened.topology, "append", self.semantics, (("record", "long"), (TXID, "long"))
        )

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return Frame([model.Kept(record, attempt.txid) for record in partials.rows])

    def _rows_below(self, mixed: Sequence[str], txid: int) -> Any:
        return Frame(model.rows_below(_rows_of(self, mixed), txid))


class SimLog(LogCommitter):
    """A state table with layout="log"."""

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def _spec(self, schema: Any) -> TableSpec:
        self._rows_schema = schema
        columns = (("key", "long"), ("value", "string"), (TXID, "long"))
        return TableSpec(self._opened.topology, "log", self.semantics, columns, ("key",))

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return Frame(model.partials(_keyed(partials), attempt.txid))

    def _rows_below(self, mixed: Sequence[str], txid: int) -> Any:
        return Frame(model.rows_below(_rows_of(self, mixed), txid))

    def _folded(self, files: Sequence[ActiveFile]) -> Any:
        return Frame(model.fold(_rows_of(self, [file.path for file in files])))


class SimState(StateCommitter):
    """A state table with layout="upsert"."""

    groups = True

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def _spec(self, schema: Any) -> TableSpec:
        self._partials_schema = self._table_schema = schema
        columns = (("key", "long"), ("value", "string"), (TXID, "long"), ("txn_bucket", "integer"))
        return TableSpec(
            self._opened.topology,
            "upsert",
            self.semantics,
            columns,
            ("key",),
            (),
            self._layout.buckets,
        )

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return Frame(model.partials(_keyed(partials), attempt.txid))

    def _next_rows(
        self,
        old: Sequence[ActiveFile],
        new: Sequence[StagedFile],
        publication: Publication,
        reverts: bool,
    ) -> Any:
        stored = _rows_of(self, [file.path for file in old])
        if reverts:
            stored = model.revert(stored, publication.first_txid)
        fresh = model.merge(_rows_of(self, [file.path for file in new]))
        return Frame(model.join(stored, fresh, keeps_previous=self._layout.keeps_previous))


def _keyed(frame: Frame) -> list[tuple[int, int]]:
    keys = current_world().plan.keys
    return [(record % keys, record) for record in frame.rows]


def _rows_of(committer: Any, paths: Sequence[str]) -> list[Any]:
    blobs = committer._storage.table.blobs
    return [row for path in paths for row in blobs[path].rows]


def make_committer(world: World, name: str, kind: str, semantics: str, buckets: int) -> Committer:
    """The committer of one table, as a new process makes it."""
    meaning = Semantics(semantics)
    if kind == "append":
        return SimAppend(name, meaning, new_id=world.new_id)
    if kind == "log":
        return SimLog(
            name, meaning, ("key",), {}, 2, 1.0, clock=CLOCK.monotonic, new_id=world.new_id
        )
    layout = StateLayout(("key",), {}, buckets, meaning is Semantics.OPAQUE)
    return SimState(name, meaning, layout, new_id=world.new_id)
