"""The real committers, with the pure model in place of the rows that Spark computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from committers.appending import AppendingCommitter
from committers.log_layout.committer import LogCommitter
from committers.log_layout.compacted_rows import CompactedRows
from committers.log_layout.compaction import Pace
from committers.publishing.files import ActiveFile
from committers.publishing.spec import TableSpec
from committers.state.layouts import LogLayout, UpsertLayout
from committers.state.reading import LogReader, UpsertReader
from committers.table_committer import TableCommitter
from committers.upsert_layout.committer import UpsertCommitter
from committers.upsert_layout.rewriting import BucketRewrite
from tests.simulation import rows as model
from tests.simulation.delta import Table
from tests.simulation.plan import JOINS
from tests.simulation.primitives import CLOCK
from tests.simulation.rows import STREAM_SIZE
from tests.simulation.spark import Frame, SparkFault
from tests.simulation.world import World, current_world
from txn.attempts import TransactionAttempt
from txn.delta.commits import TXID
from txn.interfaces import Committer, Publication, Semantics, StagedFile, State, StoredRows

__all__ = [
    "RowReader",
    "SimCompactedRows",
    "SimLogReader",
    "SimRewrite",
    "SimTable",
    "SimUpsertReader",
    "from_previous_values",
    "from_replaced_rows",
    "generation_rows",
    "make_committer",
    "renamed_and_cast",
    "shape_of",
]


def shape_of(world: World, name: str, release: int) -> dict[str, Any]:
    """Columns, keys, values and buckets of a table in a release of the program."""
    plan = world.plan
    kind = plan.kind(name).kind
    renamed, more = plan.rebuilds(name, release), plan.extends(name, release)
    extra = (("extra", "long"),) if more else ()
    if kind == "append":
        record = "entry" if renamed else "record"
        return {"columns": ((record, "long"), *extra, (TXID, "long"))}
    key = "id" if renamed and kind == "log" else "key"
    bucket = (("txn_bucket", "integer"),) if kind == "upsert" else ()
    return {
        "columns": ((key, "long"), ("value", "string"), *extra, (TXID, "long"), *bucket),
        "keys": (key,),
        "values": (("extra", "Sum(extra)"),) if more else (),
        "buckets": plan.buckets_of(name, release) if kind == "upsert" else 0,
    }


WERE = {"append": {"entry": "record"}, "log": {"id": "key"}, "upsert": {}}
"""Kind of a table -> `columns_were`, in every release."""


class Shaped(TableCommitter):
    """What the committers have in common: the shape is that of the program of their process."""

    def _spec(self, schema: Any) -> TableSpec:
        self._staged_schema = self._stored_columns = schema
        world = current_world()
        kind = world.plan.kind(self.name).kind
        shape = shape_of(world, self.name, world.kernel.alive().process.release)
        return TableSpec(self._opened.topology, kind, self.semantics, **shape)

    def _session(self, conf: object) -> Any:
        return None

    def _logged_schema(self) -> Any:
        return ()


class RowReader:
    """In place of a `DataFrameReader` of one table's files."""

    def __init__(self, session: object, schema: object, storage: Any) -> None:
        self._table: Table = storage.table
        self._prefix = storage.url()

    def parquet(self, *urls: str) -> Frame:
        current_world().io("read")
        return Frame(_read(self._table, [url.removeprefix(self._prefix) for url in urls]))


def renamed_and_cast(rows: Frame, types: object, spec: object, table: str) -> Frame:
    """In place of `committers.generations.rows.renamed_and_cast`: columns have no names here."""
    return rows


def generation_rows(rows: Frame, *described: object) -> tuple[Frame, bool]:
    """In place of `committers.generations.state_rows.generation_rows`."""
    return Frame(model.next_generation(rows.rows)), False


class SimAppend(Shaped, AppendingCommitter):
    """An append table."""

    layout = "append"

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def complete(self, batch: Any) -> Any:
        if self._log.version < 0:
            return None
        world = current_world()
        kind = world.plan.kind(self.name)
        # An outer join of which one side, or a query of which the state, is not known yet.
        right = kind.streams[1] if kind.feed in JOINS else None
        return Frame(
            (None, row) if row // STREAM_SIZE == right else (row, None) for row in batch.rows
        )

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return Frame([model.Kept(record, attempt.txid) for record in partials.rows])

    def _rows_below(self, mixed: Sequence[str], txid: int) -> Any:
        return Frame(model.rows_below(_rows_of(self, mixed), txid))


class SimTable(State):
    """A state table, as a query reads it."""

    def __init__(self, world: World, path: str) -> None:
        self.path = path
        self._world = world

    def bind(self, keys: object, aggregates: object) -> Committer:
        raise TypeError("bound already")

    def snapshot(self, spark: object, version: int | None, aggregates: object = None) -> Any:
        raise TypeError("its committer is asked")


class SimLogReader(LogReader):
    """In place of `committers.state.reading.LogReader`: only what the files hold."""

    def as_of(self, txid: int, session: Any, *, exact: bool) -> Any:
        rows, paths = self.before(txid + 1, session)
        return Frame(model.merge(rows.rows)), paths, None

    def rows(self, paths: Sequence[str], below: int | None, session: Any) -> Any:
        current_world().io("query")
        rows = _rows_of(self, paths)
        return Frame(rows if below is None else model.rows_below(rows, below))


class SimCompactedRows(CompactedRows):
    """In place of `committers.log_layout.compacted_rows.CompactedRows`."""

    def rows(
        self,
        files: Sequence[ActiveFile],
        now: object,
        committed: object,
        schema: object,
        watermark: object,
    ) -> Any:
        return Frame(model.merge(_rows_of(self, [file.path for file in files])))


class SimLog(Shaped, LogCommitter):
    """A state table with layout="log"."""

    def values_schema(self, partials: Any) -> Any:
        return partials

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return Frame(model.partials(_keyed(partials), attempt.txid))

    def _rows_below(self, mixed: Sequence[str], txid: int) -> Any:
        return Frame(model.rows_below(_rows_of(self, mixed), txid))

    def _reading(self) -> Any:
        return None

    def _table_schema(self) -> Any:
        return self._staged_schema


def from_previous_values(layout: object, written: Frame, txid: int, former: object) -> Frame:
    """In place of `committers.state.changes.from_previous_values`."""
    return Frame(model.changes_in(written.rows, txid))


def from_replaced_rows(
    layout: object,
    written: Frame | None,
    replaced: Frame | None,
    txid: int,
    former: object,
    only: object = None,
) -> Frame:
    """In place of `committers.state.changes.from_replaced_rows`."""
    assert only is None
    after, before = (() if one is None else one.rows for one in (written, replaced))
    return Frame(model.changes_between(after, before, txid))


class SimUpsertReader(UpsertReader):
    """In place of `committers.state.reading.UpsertReader`: only what the files hold."""

    def _rows(self, paths: Sequence[str], revert_from: int | None, session: Any) -> Any:
        current_world().io("query")
        rows = _rows_of(self, paths)
        return Frame(rows if revert_from is None else model.revert(rows, revert_from))

    def _shown(self, rows: Any, paths: list[str], show: object) -> Any:
        return rows, paths, None


class SimRewrite(BucketRewrite):
    """In place of `committers.upsert_layout.rewriting.BucketRewrite`."""

    def rows(
        self,
        old: Sequence[ActiveFile],
        new: Sequence[StagedFile],
        publication: Publication,
        reverts: bool,
        url_of: Any,
        on_disk: bool,
        watermark: int | None,
    ) -> Any:
        stored = _rows_of(self, [file.path for file in old])
        if reverts:
            stored = model.revert(stored, publication.first_txid)
        fresh = model.merge(_rows_of(self, [file.path for file in new]))
        return Frame(model.join(stored, fresh, keeps_previous=self._layout.keeps_previous))


class SimState(Shaped, UpsertCommitter):
    """A state table with layout="upsert"."""

    groups = True

    def values_schema(self, partials: Any) -> Any:
        return partials

    def changes_schema(self, partials: Any) -> Any:
        return partials

    def _no_changes(self) -> StoredRows:
        return StoredRows(Frame(()))

    def _reading(self) -> Any:
        return None

    def _rows_of(self, paths: Sequence[str], schema: Any) -> Any:
        return Frame(_rows_of(self, paths)) if paths else None

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return Frame(model.partials(_keyed(partials), attempt.txid))


def _keyed(frame: Frame) -> list[tuple[int, int]]:
    keys = current_world().plan.keys
    return [(record % keys, record) for record in frame.rows]


def _rows_of(reader: Any, paths: Sequence[str]) -> list[Any]:
    return _read(reader._storage.table, paths)


def _read(table: Table, paths: Iterable[str]) -> list[Any]:
    gone = [path for path in paths if path not in table.blobs]
    if gone:
        raise SparkFault("FAILED_READ_FILE.FILE_NOT_EXIST", f"File {gone[0]} does not exist")
    return [row for path in paths for row in table.blobs[path].rows]


def make_committer(world: World, name: str, release: int) -> Committer:
    """The committer of one table, as a new process makes it."""
    table = world.plan.tables[name]
    kind, meaning = table.kind, Semantics(table.semantics)
    named: Any = {"new_id": world.new_id, "columns_were": WERE[kind]}
    if kind == "append":
        return SimAppend(name, meaning, **named)
    if kind == "log":
        pace = Pace(1.0, CLOCK.monotonic)
        return SimLog(name, meaning, LogLayout(("key",), {}), 2, pace, **named)
    opaque = meaning is Semantics.OPAQUE
    buckets = world.plan.buckets_of(name, release)
    layout = UpsertLayout(("key",), {}, buckets=buckets, keeps_previous=opaque)
    return SimState(name, meaning, layout, **named)
