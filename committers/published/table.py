"""Keep a published table up: from the keys that changed, beside the commit turns.

What it shows is a function of one committed txid, so a run that dies, or a leader that was replaced
and does not know it yet, can do no harm: the version that it appends is right, or is not appended.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote

from committers.published.feed import changed_rows
from committers.published.log import Change, PublishedLog, Shown
from committers.published.reader import PublishedTable
from committers.published.request import Pace, Request
from committers.published.vectors import Vector, merged, require_library
from committers.publishing.append import AppendFailedError
from committers.publishing.files import ActiveFile
from committers.publishing.storable import storable_columns
from committers.staging.area import StagingArea, random_id
from committers.table_rows import read_table, strict_reader
from txn.delta.folders import DATA
from txn.errors import CommitConflictError, StateError
from txn.interfaces import StagedFile, StoredRows
from txn.spark.keys import joined_by_key, with_keys_of
from txn.spark.lazy import sf, st
from txn.spark.names import passing, quoted
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PublishedState", "Source"]

_FILE, _ROW = passing("file"), passing("row")
_FILE_BYTES = 16 * 1024 * 1024
"""Bytes of a file: small enough that few changed keys rewrite little."""
_MOST_TRIES = 5
_MOST_DELETED = 0.25
"""The share of a file's rows that may be marked as deleted before it is written anew."""
_MOST_SMALL = 32
"""The most small files, before they become one."""
_MOST_BROADCAST = 1_000_000
"""The most keys that every task gets, instead of sorting all published rows by key."""


class Source(Protocol):
    """The committer of the state that is published."""

    name: str

    def topology(self) -> str | None:
        """The topology that has opened it; None: it is not open."""

    def lineage(self) -> Mapping[str, Any]:
        """What identifies its rows: other ones may differ without a later txid."""

    def size(self) -> int:
        """Bytes of its files."""

    def state_as_of(self, txid: int, *, exact: bool) -> StoredRows:
        """Keys and values as of a committed txid."""

    def readable_txid(self, committed: int) -> int:
        """The committed txid as of which its files can be read now: `committed`, or a later one."""

    def changed_after(self, former: int, txid: int) -> tuple[StoredRows, bool]:
        """(keys with rows of later txids than `former`, whether other keys may have gone).

        Besides the keys, the rows may have all values, as readers see them.
        """


class _State(NamedTuple):
    """A state as of a txid: keys and values, and what changed since a former one."""

    txid: int
    rows: DataFrame
    changed: DataFrame
    """Keys, perhaps with all values."""
    more_gone: bool
    """Whether other keys may have gone."""


class PublishedState:
    """One published table: the result of `publish`.

    Args:
        path: the table's folder.
        source: the committer of its state.
        request: the rows that it has.
        pace: how far it may be behind.
        storage_options: credentials and endpoints.
        monotonic: a clock, seconds.
        new_id: source of folder names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        source: Source,
        request: Request,
        pace: Pace,
        storage_options: Mapping[str, str],
        monotonic: Callable[[], float],
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.name = os.fspath(path)
        self.storage_options: Mapping[str, str] = dict(storage_options)
        self.request = request
        if request.deletion_vectors:
            require_library()
        self._source, self._pace, self._monotonic, self._new_id = source, pace, monotonic, new_id
        self._storage = Storage(self.name, self.storage_options)
        self._log = PublishedLog(self._storage)
        self._area = StagingArea(self._storage, new_id=new_id)
        self.shows: int | None = None
        self._asked = 0
        self._last: float | None = None

    def check(self, topology: str) -> int:
        """Return the txid that it shows; 0: it shows none yet.

        Raises:
            TableRefusedError: the folder holds something else.
        """
        shown = self._load(topology)
        self.shows = 0 if shown is None else shown.txid
        return self.shows

    def _load(self, topology: str) -> Shown | None:
        return self._log.load(topology, self._source.name, self.request.properties)

    def reader(self) -> PublishedTable:
        """Return the table for readers."""
        return PublishedTable(self.name, storage_options=self.storage_options)

    def maintain(self, committed: int, *, now: bool = False) -> Callable[[], None] | None:
        """Compute the version that shows `committed`, if it is due, or nothing else is to be done.

        Args:
            now: whether or not it is due.

        Returns:
            A function that appends it; None: there is nothing to append.
        """
        if self.shows is None and (topology := self._source.topology()) is not None:
            self.check(topology)
        is_idle, self._asked = self._asked == committed, committed
        behind = committed - (self.shows or 0)
        self._last = self._monotonic() if self._last is None else self._last
        since = self._monotonic() - self._last
        if behind <= 0 or not (now or is_idle or self._pace.is_due(behind, since)):
            return None
        topology = self._source.topology()
        if topology is None:
            return None
        try:
            return self._next(topology, committed)
        except StateError:
            return None  # a crash has left a group of txids in this state alone: after it

    def _next(self, topology: str, committed: int) -> Callable[[], None] | None:
        shown = self._load(topology)
        if shown is not None:
            self._log.keep_up(shown)
        state = self._state(committed, 0 if shown is None else shown.txid)
        if state is None:
            return None
        columns = _schema_json(state.rows.schema, self.name)
        if shown is None:
            self._log.create(topology, self._source.name, columns, self.request.properties)
            shown = self._load(topology)
            assert shown is not None
        if shown.txid >= state.txid:
            self.shows = shown.txid
            return None
        source = {"lineage": self._source.lineage(), "request": _as_json(self.request)}
        schema = json.loads(columns)
        is_known = bool(shown.txid and shown.files and self.request.keys)
        has_columns = shown.definition.columns == schema
        if is_known and has_columns and shown.source == source and self.request.top is None:
            change = self._changed(state, shown)
        else:
            change = self._whole(state, shown, is_known=is_known and has_columns)
        version = shown.version + 1
        text = self._log.prepare(topology, shown, change, state.txid, source, schema)

        def append() -> None:
            try:
                self._log.append(version, text)
            except AppendFailedError:
                self.shows = None
                raise  # it may still land: its files stay
            except CommitConflictError:
                self._storage.delete_files(file.path for file in (*change.adds, *change.feed))
                self.shows = None
                raise
            self.shows, self._last = state.txid, self._monotonic()

        return append

    def _whole(self, state: _State, shown: Shown, *, is_known: bool) -> Change:
        """The change that writes all rows anew; none if they are the same.

        Args:
            is_known: the shown rows are those of a txid, with the same columns.
        """
        feed: tuple[StagedFile, ...] = ()
        if self.request.change_feed and is_known:
            feed = self._feed(self._living(shown, state.rows), state.rows, state.txid)
            if not feed:
                return Change()
        adds = self._write(state.rows, self._source.size(), state.txid)
        return Change(adds, shown.files, feed=feed)

    def _state(self, committed: int, former: int) -> _State | None:
        """The state as of one committed txid; None: commits came too fast to read it."""
        for _ in range(_MOST_TRIES):
            txid = self._source.readable_txid(committed)
            rows = self.request.of_state(self._source.state_as_of(txid, exact=True).rows)
            changed, more_gone = self._source.changed_after(former, txid)
            if self._source.readable_txid(committed) == txid:
                return _State(txid, rows, changed.rows, more_gone)
        return None

    # --- what changed ------------------------------------------------------------------------

    def _changed(self, state: _State, shown: Shown) -> Change:
        """The change from the shown rows to those of the state."""
        keys, rows, changed = self.request.keys, state.rows, state.changed
        published = self._published(shown.files, rows.schema, rows)
        has_values = not state.more_gone and {*rows.columns} <= {*changed.columns}
        names = rows.columns if has_values else keys
        changed = changed.select(*(sf.col(quoted(name)) for name in names))
        if state.more_gone:
            left = published.select(*(sf.col(quoted(key)) for key in keys))
            gone = joined_by_key(left, rows, keys, "left_anti")
            changed = changed.unionByName(gone).distinct()
        with _held(changed) as number:
            if not number:
                return Change()
            touched = changed.select(*(sf.col(quoted(key)) for key in keys))
            touched = sf.broadcast(touched) if number <= _MOST_BROADCAST else touched
            new = changed if has_values else with_keys_of(rows, touched, keys)
            feed: tuple[StagedFile, ...] = ()
            if self.request.change_feed:
                before = with_keys_of(self._living(shown, rows), touched, keys)
                feed = self._feed(before, new, state.txid)
                if not feed:
                    return Change()
            if self.request.deletion_vectors and number <= _MOST_BROADCAST:
                change = self._marked(state, shown, published, touched, new)
            else:
                some = self._files_with(published, touched, shown.files)
                change = self._rewritten(state, shown, some, touched, new)
            return replace(change, feed=feed)

    def _rewritten(
        self,
        state: _State,
        shown: Shown,
        some: tuple[ActiveFile, ...],
        touched: DataFrame,
        new: DataFrame,
    ) -> Change:
        """The change that writes files anew, without the touched keys and with the new rows."""
        rows = self._living(shown, new, some)
        kept = joined_by_key(rows, touched, self.request.keys, "left_anti")
        size = sum(file.size for file in some)
        return Change(self._write(kept.unionByName(new), size, state.txid), some)

    def _marked(
        self,
        state: _State,
        shown: Shown,
        published: DataFrame,
        touched: DataFrame,
        new: DataFrame,
    ) -> Change:
        """The change that marks the touched keys' rows as deleted, and adds the new rows.

        Files with many deleted rows, and small ones once there are many, are written anew.
        """
        keys = [sf.col(quoted(key)) for key in self.request.keys]
        place = (sf.col("_metadata.file_path"), sf.col("_metadata.row_index"))
        located = published.select(*keys, place[0].alias(_FILE), place[1].alias(_ROW))
        found = with_keys_of(located, touched, self.request.keys)
        positions = sf.collect_list(quoted(_ROW)).alias(_ROW)
        by_path = {_tail(file.path): file for file in shown.files}
        vectors, crowded = {}, dict[str, ActiveFile]()
        read = functools.cache(self._storage.read)
        for url, rows in found.groupBy(quoted(_FILE)).agg(positions).collect():
            file = by_path[_tail(unquote(url))]
            deleted = merged(read, shown.vectors.get(file.path), rows)
            footer = self._storage.footer(file.path, file.size)
            if footer is None or len(deleted) > _MOST_DELETED * footer.num_rows:
                crowded[file.path] = file
            else:
                vectors[file.path] = Vector(deleted, footer)
        small = {file.path: file for file in shown.files if file.size < _FILE_BYTES / 4}
        if len(small) > _MOST_SMALL:
            crowded |= small
        if crowded:
            change = self._rewritten(state, shown, tuple(crowded.values()), touched, new)
        else:
            change = Change(self._write(new, 0, state.txid))
        left = {path: vector for path, vector in vectors.items() if path not in crowded}
        return replace(change, vectors=left)

    def _files_with(
        self, published: DataFrame, touched: DataFrame, files: tuple[ActiveFile, ...]
    ) -> tuple[ActiveFile, ...]:
        """The files that have one of these keys."""
        keys = [sf.col(quoted(key)) for key in self.request.keys]
        located = published.select(*keys, sf.col("_metadata.file_path").alias(_FILE))
        found = with_keys_of(located, touched, self.request.keys)
        rows = found.select(quoted(_FILE)).distinct().collect()
        tails = {_tail(unquote(row[0])) for row in rows}
        return tuple(file for file in files if _tail(file.path) in tails)

    def _feed(self, before: DataFrame, after: DataFrame, txid: int) -> tuple[StagedFile, ...]:
        """Write the changes from some keys and values to others, as Delta's change data feed."""
        changes = changed_rows(before, after, self.request.keys)
        return self._area.write_folder(changes, f"_change_data/{txid}-{self._new_id()}")

    def _living(
        self, shown: Shown, like: DataFrame, some: tuple[ActiveFile, ...] | None = None
    ) -> DataFrame:
        """The rows that the table shows, of all files or some, in the session of `like`."""
        if not shown.vectors:
            return self._published(shown.files if some is None else some, like.schema, like)
        rows = read_table(like.sparkSession, self._storage, shown.version)[0]
        if some is not None:
            names = [file.path.rpartition("/")[2] for file in some]
            rows = rows.where(sf.col("_metadata.file_name").isin(names))
        return rows.select(*map(quoted, like.columns))

    def _published(
        self, files: tuple[ActiveFile, ...], schema: st.StructType, like: DataFrame
    ) -> DataFrame:
        """The rows of some of the table's files, in the session of `like`."""
        session = like.sparkSession
        if not files:
            return like.limit(0)
        urls = [self._storage.read_url(file.path) for file in files]
        return strict_reader(session, schema, self._storage).parquet(*urls)

    def _write(self, rows: DataFrame, size: int, committed: int) -> tuple[StagedFile, ...]:
        laid = self.request.in_files(rows, max(1, math.ceil(size / _FILE_BYTES)))
        return self._area.write_folder(laid, f"{DATA}/{committed}-{self._new_id()}")


@contextmanager
def _held(rows: DataFrame) -> Iterator[int]:
    """Keep rows that several jobs use; yield how many they are."""
    rows.persist()
    try:
        yield rows.count()
    finally:
        rows.unpersist()


def _tail(path: str) -> str:
    """The last two parts of a path or URL: a job has a folder of its own."""
    return "/".join(path.rsplit("/", 2)[-2:])


def _schema_json(schema: st.StructType, table: str) -> str:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in storable_columns(schema, table)
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _as_json(request: Request) -> dict[str, Any]:
    return json.loads(json.dumps(vars(request)))  # type: ignore[no-any-return]
