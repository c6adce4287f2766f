"""A table as it is or was: its files, the first rows as of a txid, what two txids have changed.

Read by delta-rs and Arrow, without Spark, and bounded: what would take too much memory is refused
with the query that a user can run instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from txn.delta.commits import FIRST_TXID, TXID
from txn.delta.delta_rs import DeltaTable
from txn.delta.loading import file_sizes, load
from txn.errors import UserError
from txn.storage.retrying import retried
from txn.storage.storage import Storage
from txn.text import first_said

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

__all__ = ["Change", "Difference", "Rows", "TableFacts", "difference", "first_rows", "table_facts"]

_SMALL_BYTES = 1_000_000
_LARGEST_BYTES = 64_000_000
"""Bytes of files that are read as a whole, to combine partials or to compare two states."""
_LONGEST_CELL = 300
_MERGED = {"Count": "sum", "Sum": "sum", "Min": "min", "Max": "max"}
"""Aggregate -> how Arrow combines its partials; others stay apart."""
_REMOVED = "txn_removed"
_NAN = float("nan")


@dataclass(frozen=True)
class TableFacts:
    """A table at its newest version."""

    version: int
    files: int
    bytes: int
    rows: int | None
    """None: the log has no statistics."""
    small_files: int
    """Files below a megabyte."""
    kind: str
    """"append", "upsert", "log" or "log-with-removal"; "": no topology has made it."""
    semantics: str
    keys: tuple[str, ...]
    values: Mapping[str, str]
    """value column -> its aggregate, as the table describes it."""
    buckets: int
    first_txid: int
    columns: Mapping[str, str]
    """column -> type."""
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    """Delta's own, such as retention."""

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


@dataclass(frozen=True)
class Rows:
    """The first rows of a table as of a txid."""

    version: int
    columns: Mapping[str, str]
    """column -> type."""
    rows: Sequence[Sequence[str | None]]
    """Every value as text; None: NULL."""
    more: bool
    """Whether there are more rows."""
    note: str = ""
    """What a reader has to know of them; empty: nothing."""


@dataclass(frozen=True)
class Change:
    """One key, or one row, that differs between two txids."""

    kind: str
    """"added", "changed" or "removed"."""
    key: Sequence[str | None]
    before: Sequence[str | None] | None
    after: Sequence[str | None] | None


@dataclass(frozen=True)
class Difference:
    """What has changed in a table between two txids."""

    versions: tuple[int, int]
    keys: tuple[str, ...]
    """The columns of `Change.key`; empty for a table without keys."""
    values: tuple[str, ...]
    """The columns of `Change.before` and `Change.after`."""
    changes: Sequence[Change]
    counts: Mapping[str, int] = field(default_factory=dict)
    """kind -> how many; there may be more than `changes` shows."""


# --- the newest version ----------------------------------------------------------------------


def table_facts(storage: Storage) -> TableFacts:
    """A table as it is now.

    Raises:
        DeltaError, OSError, TxnError: it cannot be read.
    """
    table = load(storage)
    said = {name: value or "" for name, value in table.metadata().configuration.items()}
    sizes, rows = _files(table)
    keys, values = _described(said)
    return TableFacts(
        version=table.version(),
        files=len(sizes),
        bytes=sum(sizes),
        rows=rows,
        small_files=sum(size < _SMALL_BYTES for size in sizes),
        kind=said.get("txn.kind", ""),
        semantics=said.get("txn.semantics", ""),
        keys=keys,
        values=values,
        buckets=_number(said.get("txn.buckets")),
        first_txid=_number(said.get(FIRST_TXID)) or 1,
        columns=_columns(table),
        partition_by=tuple(table.metadata().partition_columns),
        properties={k: v for k, v in said.items() if k.startswith("delta.")},
    )


def _files(table: DeltaTable) -> tuple[list[int], int | None]:
    """(bytes of each file, rows of all) of the table's version."""
    actions = pa.table(table.get_add_actions(flatten=True))
    sizes = actions["size_bytes"].to_pylist()
    if "num_records" not in actions.column_names:
        return sizes, None if sizes else 0
    rows = actions["num_records"].to_pylist()
    return sizes, None if any(count is None for count in rows) else sum(rows)


def _described(said: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """(keys, value -> aggregate) as a table's properties say; nothing if they make no sense."""
    try:
        keys = json.loads(said.get("txn.keys") or "[]")
        values = json.loads(said.get("txn.values") or "[]")
        return tuple(str(k) for k in keys), {str(v[0]): str(v[1]) for v in values}
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return (), {}


def _partial(said: Mapping[str, str]) -> list[str]:
    """Value columns of a state that store something else than what readers see.

    The table says so with a second text for the value (`committers.state.shape`).
    """
    try:
        values = json.loads(said.get("txn.values") or "[]")
        return [str(value[0]) for value in values if len(value) > 2]
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return []


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _columns(table: DeltaTable) -> dict[str, str]:
    """Column -> its type in Delta's words."""
    return {f.name: getattr(f.type, "type", None) or _kind(f.type) for f in table.schema().fields}


def _kind(kind: Any) -> str:
    return str(kind).partition("(")[0].removesuffix("Type").lower()


# --- as of a txid ----------------------------------------------------------------------------


def first_rows(
    storage: Storage,
    version: int,
    txid: int | None,
    limit: int,
    group: tuple[int, int] | None = None,
) -> Rows:
    """The first rows of a version, as of a txid where the version holds later ones too.

    Args:
        txid: rows of later txids are left out; None: all of the version.
        group: first and last txid that the version published.

    Raises:
        UserError: Arrow cannot read the table.
        DeltaError, OSError: its version, or files of it, are not there any more.
    """
    table = load(storage, version)
    said = {name: value or "" for name, value in table.metadata().configuration.items()}
    keys, values = _described(said)
    data, columns, wanted = _dataset(table), _columns(table), None
    note = ""
    if said.get("txn.kind") == "upsert":
        wanted, note = _alive(columns), _about_state(said, txid, group)
    elif txid is not None and TXID in columns:
        wanted = dataset.field(TXID) <= txid
    what = f"read rows of table {storage.location}"
    if not said.get("txn.kind", "").startswith("log"):
        found = retried(lambda: data.head(limit + 1, filter=wanted), what)
        return Rows(version, columns, _texts(found.slice(0, limit)), found.num_rows > limit, note)
    apart = _why_apart(values, said, sum(_files(table)[0]), data.schema)
    if apart:
        found = retried(lambda: data.head(limit + 1, filter=wanted), what)
        rows = _texts(found.slice(0, limit))
        return Rows(version, columns, rows, found.num_rows > limit, apart)
    whole = _combined(retried(lambda: data.to_table(filter=wanted), what), keys, values)
    shown = {name: columns.get(name, "") for name in whole.column_names}
    return Rows(version, shown, _texts(whole.slice(0, limit)), whole.num_rows > limit)


def _alive(columns: Mapping[str, str]) -> dataset.Expression | None:
    """Which rows of a state are there: keys that were removed may still be stored."""
    removed = dataset.field(_REMOVED)
    return removed.is_null() | ~removed if _REMOVED in columns else None


def _about_state(said: Mapping[str, str], txid: int | None, group: tuple[int, int] | None) -> str:
    """What a reader has to know of the rows of a state; empty: nothing."""
    told = []
    if txid is not None and group is not None and txid < group[1]:
        told.append(
            f"Txids {group[0]} to {group[1]} were published together, as one version: this is the "
            f"state after txid {group[1]}."
        )
    if partial := _partial(said):
        told.append(
            f"{', '.join(partial)}: what is stored to go on from, and not the result, which "
            "StateTable(...).read(spark) shows."
        )
    return " ".join(told)


def _dataset(table: DeltaTable) -> Dataset:
    try:
        return table.to_pyarrow_dataset()
    except Exception as error:
        raise UserError(
            f"Arrow cannot read this version of the table: {first_said(error)}. Read it with "
            "Spark; the txid's page has the query."
        ) from error


def _why_apart(
    values: Mapping[str, str], said: Mapping[str, str], size: int, schema: pa.Schema
) -> str:
    """Why partial aggregates of a log table are shown as they are stored; empty: they are not."""
    keys = _described(said)[0]
    others = [
        f"{name} ({aggregate})"
        for name, aggregate in values.items()
        if not _is_merged(aggregate, schema.field(name).type)
    ]
    others += [name for name in keys if pa.types.is_nested(schema.field(name).type)]
    reason = ""
    if others:
        reason = f"only Spark can combine {', '.join(others)}"
    elif said.get("txn.kind") != "log":
        reason = "keys may have been removed"
    elif size > _LARGEST_BYTES:
        reason = f"the table has more than {_LARGEST_BYTES // 1_000_000} MB"
    return reason and (
        f"These are partial aggregates, one row for each key and txid or fold, because {reason}. "
        "StateTable(...).read(spark) combines them."
    )


def _is_merged(aggregate: str, kind: pa.DataType) -> bool:
    """Whether Arrow can combine the partials of an aggregate of that type."""
    return aggregate.partition("(")[0] in _MERGED and not pa.types.is_nested(kind)


def _combined(rows: pa.Table, keys: Sequence[str], values: Mapping[str, str]) -> pa.Table:
    """Keys and values of a log table, as readers see them."""
    # By number: "c_sum", as Arrow names the sum of c, may be the name of a key.
    columns = {str(place): rows[name] for place, name in enumerate((*keys, *values))}
    ways = {
        str(place): _MERGED[aggregate.partition("(")[0]]
        for place, aggregate in enumerate(values.values(), len(keys))
    }
    # NaN is the greatest number, and Arrow passes it over.
    floats = [n for n, way in ways.items() if way == "max" and _is_float(columns[n].type)]
    nans = {f"nan {name}": pc.is_nan(columns[name]) for name in floats}
    grouped = pa.table({**columns, **nans}).group_by([*columns][: len(keys)])
    found = grouped.aggregate([*ways.items(), *((name, "any") for name in nans)])
    order = [found[name] for name in [*columns][: len(keys)]]
    for name, way in ways.items():
        column = found[f"{name}_{way}"]
        if name in floats:
            nan = pa.scalar(float("nan"), column.type)
            column = pc.if_else(pc.fill_null(found[f"nan {name}_any"], False), nan, column)
        order.append(column)
    return pa.table(order, names=[*keys, *values])


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


# --- between two txids -----------------------------------------------------------------------


def difference(
    storage: Storage,
    versions: tuple[int, int],
    txids: tuple[int, int],
    limit: int,
    groups: Sequence[tuple[int, int] | None] = (),
) -> Difference:
    """What has changed in a table from one txid to a later one.

    Of a state by key: only the files that one version has and the other has not are read. Of an
    append table: the rows of the txids in between.

    Args:
        groups: first and last txid that each of the versions published.

    Raises:
        UserError: there is too much to compare here, or a txid of a state was published together
            with later ones.
        DeltaError, OSError: a version, or files of it, are not there any more.
    """
    older, newer = load(storage, versions[0]), load(storage, versions[1])
    said = {name: value or "" for name, value in newer.metadata().configuration.items()}
    keys, values = _described(said)
    kind, columns = said.get("txn.kind", ""), _columns(newer)
    between = (dataset.field(TXID) > txids[0]) & (dataset.field(TXID) <= txids[1])
    if kind == "upsert":
        _refuse_parts(txids, groups)
        new, old = _only_in(newer, older), _only_in(older, newer)
        before = _shown(old.to_table(), columns, keys, values)
        after = _shown(new.to_table(), columns, keys, values)
        return _compared(versions, before, after, keys, limit)
    data = _dataset(newer)
    if kind == "log" and not _why_apart(values, said, sum(_files(newer)[0]), data.schema):
        before, after = (
            _combined(_dataset(table).to_table(filter=dataset.field(TXID) <= txid), keys, values)
            for table, txid in ((older, txids[0]), (newer, txids[1]))
        )
        return _compared(versions, before, after, keys, limit)
    if TXID not in columns:
        raise UserError(
            "The table has no column txid, so its rows cannot be told apart by transaction. "
            "Compare the two versions with Spark: EXCEPT ALL of one and the other."
        )
    shown = tuple(columns)
    found = data.head(limit, filter=between)
    rows = [Change("added", (), None, row) for row in _texts(found.select(list(shown)))]
    return Difference(versions, (), shown, rows, {"added": data.count_rows(filter=between)})


def _refuse_parts(txids: tuple[int, int], groups: Sequence[tuple[int, int] | None]) -> None:
    """A version has the state after the last txid that it published, and none in between."""
    for txid, group in zip(txids, groups, strict=False):
        if group is not None and txid < group[1]:
            raise UserError(
                f"Txids {group[0]} to {group[1]} were published together, as one version, so what "
                f"each of them changed in a state cannot be told apart. Compare {group[0] - 1} "
                f"with {group[1]}."
            )


def _only_in(table: DeltaTable, other: DeltaTable) -> Dataset:
    """The rows of the files that one version has and the other has not."""
    own, others = file_sizes(table), file_sizes(other)
    paths = [path for path in own if path not in others]
    total = sum(own[path] for path in paths)
    if total > _LARGEST_BYTES:
        raise UserError(
            f"The states differ in files of {total // 1_000_000} MB, more than the "
            f"{_LARGEST_BYTES // 1_000_000} MB that are compared here. Choose txids that are "
            "nearer to each other, or compare what StateTable(...).read(spark, txid=...) returns."
        )
    whole = _dataset(table)
    wanted = set(paths)
    fragments = [f for f in whole.get_fragments() if _is_one_of(f.path, wanted)]
    return dataset.FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)


def _is_one_of(path: str, wanted: Iterable[str]) -> bool:
    return path in wanted or any(path.endswith(f"/{one}") for one in wanted)


def _shown(
    rows: pa.Table, columns: Mapping[str, str], keys: Sequence[str], values: Iterable[str]
) -> pa.Table:
    """Keys and values without bookkeeping, of the keys that are not removed."""
    if _REMOVED in rows.column_names:
        rows = rows.filter(pc.invert(pc.fill_null(rows[_REMOVED], False)))
    return rows.select([name for name in columns if name in {*keys, *values}])


def _compared(
    versions: tuple[int, int], before: pa.Table, after: pa.Table, keys: Sequence[str], limit: int
) -> Difference:
    """Two states, key by key. Both fit into memory."""
    values = tuple(name for name in after.column_names if name not in keys)
    old, new = _by_key(before, keys, values), _by_key(after, keys, values)
    counts = {"added": 0, "changed": 0, "removed": 0}
    changes: list[Change] = []
    for key in (*new, *(key for key in old if key not in new)):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        kind = "added" if was is None else "removed" if now is None else "changed"
        counts[kind] += 1
        if len(changes) < limit:
            told = (None if row is None else [_text(value) for value in row] for row in (was, now))
            changes.append(Change(kind, [_text(part) for part in key], *told))
    return Difference(versions, tuple(keys), values, changes, counts)


def _by_key(
    rows: pa.Table, keys: Sequence[str], values: Sequence[str]
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    columns = [_compared_values(rows[name]) for name in (*keys, *values)]
    split = len(keys)
    found = zip(*columns, strict=True)
    return {tuple(map(_hashable, row[:split])): row[split:] for row in found}


def _hashable(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else value


def _compared_values(column: pa.ChunkedArray) -> list[Any]:
    found = _values(column)
    if _is_float(column.type) or pa.types.is_nested(column.type):
        return [_one_nan(value) for value in found]
    return found


def _one_nan(value: Any) -> Any:
    """The value with the same object for every NaN in it, by which Python finds them equal."""
    if isinstance(value, list | tuple):
        return [_one_nan(each) for each in value]
    if isinstance(value, dict):
        return {name: _one_nan(each) for name, each in value.items()}
    return _NAN if isinstance(value, float) and math.isnan(value) else value


# --- values as text --------------------------------------------------------------------------


def _texts(rows: pa.Table) -> list[list[str | None]]:
    columns = [_values(column) for column in rows.columns]
    return [[_text(value) for value in row] for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Python's values; text for those that Python cannot have."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_value(each) for each in column]


def _value(one: pa.Scalar) -> Any:
    """A value of Spark's may be a date after the year 9999, or a string that is no UTF-8."""
    try:
        return one.as_py()
    except (OverflowError, ValueError):
        pass
    if isinstance(one, pa.StringScalar | pa.LargeStringScalar):
        return one.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
    try:
        return pc.cast(one, pa.string()).as_py()
    except pa.ArrowException:
        return f"{one.type}: Python has no such value"


def _text(value: Any) -> str | None:
    """A value for people; long ones are cut."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, bytes):
        text = value[:_LONGEST_CELL].hex()
    elif isinstance(value, datetime | date):
        text = value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    elif isinstance(value, dict | list):
        text = json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}..."
