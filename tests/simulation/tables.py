"""The real committers, with the pure model in place of the rows that Spark computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from txn.interfaces import Committer, Semantics, State, StoredRows

__all__ = [
    "RowReader",
    "SimCompactedRows",
    "SimLogReader",
    "SimRewrite",
    "SimTable",
    "SimUpsertReader",
    "ended",
    "from_partials",
    "from_previous_values",
    "from_replaced_rows",
    "generation_rows",
    "joined_by_key",
    "make_committer",
    "merged_by_key",
    "merged_where_certain",
    "renamed_and_cast",
    "shape_of",
    "since_begun",
    "touched",
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
        "expiry": plan.kind(name).ends,
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
        return self._spark

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


def generation_rows(
    rows: Frame, properties: object, layout: Any, spec: object, table: str, watermark: int | None
) -> tuple[Frame, bool]:
    """In place of `committers.generations.state_rows.generation_rows`."""
    return Frame(model.next_generation(layout.at(watermark).living(rows).rows)), False


class SimLogLayout(LogLayout):
    """The real layout: `seams` has the functions that merge partials."""

    def _select(self, rows: Any, *_: Any) -> Any:
        return _seen(rows)


class SimUpsertLayout(UpsertLayout):
    """The real layout, but that the model reverts rows."""

    def revert(self, stored: Any, first_txid: int) -> Any:
        return Frame(model.revert(stored.rows, first_txid))

    def _select(self, rows: Any, *_: Any) -> Any:
        return _seen(rows)


def _seen(rows: Frame) -> Frame:
    """Keys and values as readers see them: whatever order the records of a value came in."""
    return Frame(model.Partial(row.key, model.in_order(row.value), 0) for row in rows.rows)


def merged_by_key(rows: Frame, *_: object, with_txid: bool = False) -> Frame:
    """In place of `committers.state.merging.merged_by_key`."""
    return Frame(model.merge(rows.rows))


def since_begun(rows: Frame, keys: object) -> Frame:
    """In place of `committers.state.expiring.since_begun`."""
    return Frame(model.since_begun(rows.rows))


def merged_where_certain(rows: Frame, *_: object) -> Frame:
    """In place of `committers.state.expiring.merged_where_certain`."""
    return Frame(model.merged_where_certain(rows.rows))


def joined_by_key(rows: Frame, others: Frame, keys: object, how: str) -> Frame:
    """In place of `committers.state.keys.joined_by_key`."""
    assert how == "left_anti"
    known = {row.key for row in others.rows}
    return Frame(row for row in rows.rows if row.key not in known)


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
    """The real reader, but that the model reads files."""

    def rows(self, paths: Sequence[str], below: int | None, session: Any) -> Any:
        current_world().io("query")
        rows = self._read(paths, session).rows
        return Frame(rows if below is None else model.rows_below(rows, below))

    def _read(self, paths: Sequence[str], session: Any) -> Any:
        return Frame(_rows_of(self, paths))

    def _shown(self, rows: Any, paths: list[str], show: Any) -> Any:
        return show(rows), paths, None


class SimCompactedRows(CompactedRows):
    """The real rows of a compaction, but that the model reads files."""

    def whole(self, files: Sequence[ActiveFile], schema: object) -> tuple[Any, int]:
        return Frame(_rows_of(self, [file.path for file in files])), 1


class SimLog(Shaped, LogCommitter):
    """A state table with layout="log"."""

    def values_schema(self, partials: Any) -> Any:
        return partials

    changes_schema = values_schema

    def _no_changes(self) -> StoredRows:
        return StoredRows(Frame(()))

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return _partials(partials, attempt.txid, self._layout)

    def _rows_below(self, mixed: Sequence[str], txid: int) -> Any:
        return Frame(model.rows_below(_rows_of(self, mixed), txid))

    def _reading(self) -> Any:
        return None

    def _table_schema(self) -> Any:
        return self._staged_schema


def touched(
    staged: Frame,
    before: Frame,
    keys: object,
    stored: object,
    merged: Callable[[Any], Any],
    continues: Any,
) -> Frame:
    """In place of `committers.state.merging.touched`."""
    asked = {row.key for row in staged.rows}
    old = merged(Frame(row for row in before.rows if row.key in asked))
    lasting = old if continues is None else old.where(continues)
    return Frame(model.touched(staged.rows, old.rows, lasting.rows))


def from_partials(layout: Any, rows: Frame, removed: object) -> Frame:
    """In place of `committers.state.changes.from_partials`."""
    shown = layout.unended(rows).rows
    return Frame(model.change(row.key, row.value, row.before) for row in shown)


def ended(layout: object, rows: Frame) -> Frame:
    """In place of `committers.state.changes.ended`."""
    return Frame(model.change(row.key, None, row.value) for row in rows.rows)


def from_previous_values(layout: Any, written: Frame, txid: int, former: Any) -> Frame:
    """In place of `committers.state.changes.from_previous_values`."""
    own = [row for row in written.rows if row.txid == txid]
    return from_replaced_rows(layout, Frame(own), Frame(model.revert(own, txid)), txid, former)


def from_replaced_rows(
    layout: Any,
    written: Frame | None,
    replaced: Frame | None,
    txid: int,
    former: Any,
    only: object = None,
) -> Frame:
    """In place of `committers.state.changes.from_replaced_rows`."""
    assert only is None
    after, before = layout.unended(written or Frame(())), former.unended(replaced or Frame(()))
    return Frame(model.changes_between(after.rows, before.rows, txid))


class SimUpsertReader(UpsertReader):
    """The real reader, but that the model reads files."""

    def _rows(self, paths: Sequence[str], revert_from: int | None, session: Any) -> Any:
        current_world().io("query")
        rows = _rows_of(self, paths)
        return Frame(rows if revert_from is None else model.revert(rows, revert_from))

    def _shown(self, rows: Any, paths: list[str], show: Any) -> Any:
        return show(rows), paths, None


class SimJoin:
    """In place of `committers.upsert_layout.join.UpsertJoin`."""

    def __init__(self, layout: UpsertLayout, *_: object) -> None:
        self._keeps_previous = layout.keeps_previous

    def rows(self, pairs: Sequence[tuple[Any, Any]], *, several: bool, in_one_task: bool) -> Frame:
        found: list[Any] = []
        for pair in pairs:
            stored, new = (() if one is None else one.rows for one in pair)
            found += model.join(stored, model.merge(new), keeps_previous=self._keeps_previous)
        return Frame(found)


class SimRewrite(BucketRewrite):
    """The real rewrite, but that the model reads files and joins rows."""

    _stored = _scratch = _staged_columns = None  # type: ignore[assignment]

    @property
    def _join(self) -> Any:
        return SimJoin(self._layout)

    def _read(self, files: Sequence[Any], *_: object) -> Any:
        return Frame(_rows_of(self, [file.path for file in files])) if files else None


class SimState(Shaped, UpsertCommitter):
    """A state table with layout="upsert"."""

    def values_schema(self, partials: Any) -> Any:
        return partials

    def changes_schema(self, partials: Any) -> Any:
        return partials

    def _no_changes(self) -> StoredRows:
        return StoredRows(Frame(()))

    def _reading(self) -> Any:
        return None

    def _rows_of(self, paths: Sequence[str], schema: Any, storage: Any = None) -> Any:
        return Frame(_rows_of(self, paths)) if paths else None

    def required_columns(self) -> Sequence[str]:
        return ()

    def partials(self, batch: Any, count_as: str | None = None) -> Any:
        return batch

    def _stamped(self, partials: Any, attempt: TransactionAttempt) -> Any:
        return _partials(partials, attempt.txid, self._layout)


def _partials(frame: Frame, txid: int, layout: Any) -> Frame:
    keys, expiry, mark = current_world().plan.keys, layout.expiry, frame.watermark
    bound = None if expiry is None or mark is None else expiry.bound(mark)
    keyed = [(record % keys, record) for record in frame.rows]
    return Frame(model.partials(keyed, txid, bound, timed=layout.ends_by_event))


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
        own = SimLogLayout(("key",), {}, expiry=table.ends)
        return SimLog(name, meaning, own, 2, pace, **named)
    opaque = meaning is Semantics.OPAQUE
    buckets = world.plan.buckets_of(name, release)
    layout = SimUpsertLayout(
        ("key",), {}, buckets=buckets, keeps_previous=opaque, expiry=table.ends
    )
    return SimState(name, meaning, layout, **named)
