"""Read a table: its files, the first rows as of a txid, the difference of two txids.

Reads with delta-rs and Arrow, without Spark, and in bounded memory: refuses what would take too
much, and names the query that a user can run instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from txn.changes import EXPIRY
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
"""Most bytes of files that are read as a whole, to combine partials or to compare two states."""
_LONGEST_CELL = 300
_MERGED = {"Count": "sum", "Sum": "sum", "Min": "min", "Max": "max"}
"""Aggregate -> Arrow's function that combines its partials; others stay partial."""
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


@dataclass(frozen=True)
class Rows:
    """The first rows of a table as of a txid."""

    version: int
    columns: Mapping[str, str]
    """column -> type."""
    rows: Sequence[Sequence[str | None]]
    """Every value as text; None: NULL."""
    more: bool
    """True if there are more rows."""
    note: str = ""
    """A note for readers of the rows; empty: no note."""


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
    """The changes of a table between two txids."""

    versions: tuple[int, int]
    keys: tuple[str, ...]
    """The columns of `Change.key`; empty for a table without keys."""
    values: tuple[str, ...]
    """The columns of `Change.before` and `Change.after`."""
    changes: Sequence[Change]
    counts: Mapping[str, int] = field(default_factory=dict)
    """kind -> number of changes, which may be more than `changes` has."""


# --- the newest version ----------------------------------------------------------------------


def table_facts(storage: Storage) -> TableFacts:
    """Read the facts of a table's newest version."""
    table = load(storage)
    properties = {name: value or "" for name, value in table.metadata().configuration.items()}
    sizes, rows = _files(table)
    keys, values, _ = _described(properties)
    return TableFacts(
        version=table.version(),
        files=len(sizes),
        bytes=sum(sizes),
        rows=rows,
        small_files=sum(size < _SMALL_BYTES for size in sizes),
        kind=properties.get("txn.kind", ""),
        semantics=properties.get("txn.semantics", ""),
        keys=keys,
        values=values,
        buckets=_number(properties.get("txn.buckets")),
        first_txid=_number(properties.get(FIRST_TXID)) or 1,
        columns=_columns(table),
        partition_by=tuple(table.metadata().partition_columns),
        properties={k: v for k, v in properties.items() if k.startswith("delta.")},
    )


def _files(table: DeltaTable) -> tuple[list[int], int | None]:
    """Return (bytes of each file, rows of all) of the table's version."""
    actions = pa.table(table.get_add_actions(flatten=True))
    sizes = actions["size_bytes"].to_pylist()
    if "num_records" not in actions.column_names:
        return sizes, None if sizes else 0
    rows = actions["num_records"].to_pylist()
    return sizes, None if any(count is None for count in rows) else sum(rows)


def _described(
    properties: Mapping[str, str],
) -> tuple[tuple[str, ...], dict[str, str], list[str]]:
    """Parse a table's properties; empty if they are invalid.

    Returns:
        Keys, value -> aggregate, and the values that are not stored as readers see them: these
        have a second text (`committers.state.properties`).
    """
    try:
        keys = json.loads(properties.get("txn.keys") or "[]")
        values = json.loads(properties.get("txn.values") or "[]")
        partial = [str(value[0]) for value in values if len(value) > 2]
        return tuple(str(k) for k in keys), {str(v[0]): str(v[1]) for v in values}, partial
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return (), {}, []


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _columns(table: DeltaTable) -> dict[str, str]:
    """Return column -> its type, as Delta names it."""
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
    """Read the first rows of a version, as of a txid if the version holds later ones too.

    Args:
        txid: leave out rows of later txids; None: read the whole version.
        group: first and last txid that the version published.
    """
    table = load(storage, version)
    properties = {name: value or "" for name, value in table.metadata().configuration.items()}
    keys, values, partial = _described(properties)
    data, columns, condition = _dataset(table), _columns(table), None
    note = ""
    if properties.get("txn.kind") == "upsert":
        ends = EXPIRY in properties
        condition, note = _alive(columns), _state_note(partial, txid, group, ends=ends)
    elif txid is not None and TXID in columns:
        condition = dataset.field(TXID) <= txid
    what = f"read rows of table {storage.location}"
    is_log = properties.get("txn.kind", "").startswith("log")
    if is_log:
        note = _why_partial(values, properties, sum(_files(table)[0]), data.schema)
    if is_log and not note:
        rows = _combined(retried(lambda: data.to_table(filter=condition), what), keys, values)
        columns = {name: columns.get(name, "") for name in rows.column_names}
    else:
        rows = retried(lambda: data.head(limit + 1, filter=condition), what)
    return Rows(version, columns, _texts(rows.slice(0, limit)), rows.num_rows > limit, note)


def _alive(columns: Mapping[str, str]) -> dataset.Expression | None:
    """Return a filter for the rows that exist: a state may still store removed keys."""
    removed = dataset.field(_REMOVED)
    return removed.is_null() | ~removed if _REMOVED in columns else None


def _state_note(
    partial: Sequence[str], txid: int | None, group: tuple[int, int] | None, *, ends: bool
) -> str:
    """Return the note for readers of a state's rows; empty: no note."""
    notes = []
    if txid is not None and group is not None and txid < group[1]:
        notes.append(
            f"Txids {group[0]} to {group[1]} were published together, as one version: this is the "
            f"state after txid {group[1]}."
        )
    if ends:
        notes.append(
            "Keys that have ended may be among these; StateTable(...).read(spark) hides them."
        )
    if partial:
        notes.append(
            f"{', '.join(partial)}: what is stored to go on from, and not the result, which "
            "StateTable(...).read(spark) shows."
        )
    return " ".join(notes)


def _dataset(table: DeltaTable) -> Dataset:
    try:
        return table.to_pyarrow_dataset()
    except Exception as error:
        raise UserError(
            f"Arrow cannot read this version of the table: {first_said(error)}. Read it with "
            "Spark; the txid's page has the query."
        ) from error


def _why_partial(
    values: Mapping[str, str], properties: Mapping[str, str], size: int, schema: pa.Schema
) -> str:
    """Explain why a log table's partial aggregates are shown as stored; empty: they are not."""
    keys = _described(properties)[0]
    others = [
        f"{name} ({aggregate})"
        for name, aggregate in values.items()
        if not _is_merged(aggregate, schema.field(name).type)
    ]
    others += [name for name in keys if pa.types.is_nested(schema.field(name).type)]
    reason = ""
    if others:
        reason = f"only Spark can combine {', '.join(others)}"
    elif properties.get("txn.kind") != "log":
        reason = "keys may have been removed"
    elif EXPIRY in properties:
        reason = "keys may have ended"
    elif size > _LARGEST_BYTES:
        reason = f"the table has more than {_LARGEST_BYTES // 1_000_000} MB"
    return reason and (
        f"These are partial aggregates, one row for each key and txid or fold, because {reason}. "
        "StateTable(...).read(spark) combines them."
    )


def _is_merged(aggregate: str, kind: pa.DataType) -> bool:
    """True if Arrow can combine the partials of an aggregate of that type."""
    return aggregate.partition("(")[0] in _MERGED and not pa.types.is_nested(kind)


def _combined(rows: pa.Table, keys: Sequence[str], values: Mapping[str, str]) -> pa.Table:
    """Combine a log table's partials into the keys and values that readers see."""
    # Numbers for names: "c_sum", Arrow's name for the sum of c, may be the name of a key.
    columns = {str(place): rows[name] for place, name in enumerate((*keys, *values))}
    ways = {
        str(place): _MERGED[aggregate.partition("(")[0]]
        for place, aggregate in enumerate(values.values(), len(keys))
    }
    # To Spark NaN is the greatest number; Arrow ignores it.
    floats = [n for n, way in ways.items() if way == "max" and _is_float(columns[n].type)]
    nans = {f"nan {name}": pc.is_nan(columns[name]) for name in floats}
    grouped = pa.table({**columns, **nans}).group_by([*columns][: len(keys)])
    aggregated = grouped.aggregate([*ways.items(), *((name, "any") for name in nans)])
    order = [aggregated[name] for name in [*columns][: len(keys)]]
    for name, way in ways.items():
        column = aggregated[f"{name}_{way}"]
        if name in floats:
            nan = pa.scalar(float("nan"), column.type)
            column = pc.if_else(pc.fill_null(aggregated[f"nan {name}_any"], False), nan, column)
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
    """Compare a table as of one txid with a later one.

    Compares a state by key, and reads only the files that are in one version alone. For an append
    table, reads the rows of the txids in between.

    Args:
        groups: first and last txid that each of the versions published.
    """
    older, newer = load(storage, versions[0]), load(storage, versions[1])
    properties = {name: value or "" for name, value in newer.metadata().configuration.items()}
    keys, values, _ = _described(properties)
    kind, columns = properties.get("txn.kind", ""), _columns(newer)
    between = (dataset.field(TXID) > txids[0]) & (dataset.field(TXID) <= txids[1])
    if kind == "upsert":
        _refuse_parts(txids, groups)
        new, old = _only_in(newer, older), _only_in(older, newer)
        before = _shown(old.to_table(), columns, keys, values)
        after = _shown(new.to_table(), columns, keys, values)
        return _compared(versions, before, after, keys, limit)
    data = _dataset(newer)
    if kind == "log" and not _why_partial(values, properties, sum(_files(newer)[0]), data.schema):
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
    rows_between = data.head(limit, filter=between)
    rows = [Change("added", (), None, row) for row in _texts(rows_between.select(list(shown)))]
    return Difference(versions, (), shown, rows, {"added": data.count_rows(filter=between)})


def _refuse_parts(txids: tuple[int, int], groups: Sequence[tuple[int, int] | None]) -> None:
    """Refuse a txid inside a group: a version has only the state after its last txid."""
    for txid, group in zip(txids, groups, strict=False):
        if group is not None and txid < group[1]:
            raise UserError(
                f"Txids {group[0]} to {group[1]} were published together, as one version, so what "
                f"each of them changed in a state cannot be told apart. Compare {group[0] - 1} "
                f"with {group[1]}."
            )


def _only_in(table: DeltaTable, other: DeltaTable) -> Dataset:
    """Return the rows of the files that are in one version and not in the other."""
    sizes, others = file_sizes(table), file_sizes(other)
    paths = [path for path in sizes if path not in others]
    total = sum(sizes[path] for path in paths)
    if total > _LARGEST_BYTES:
        raise UserError(
            f"The states differ in files of {total // 1_000_000} MB, more than the "
            f"{_LARGEST_BYTES // 1_000_000} MB that are compared here. Choose txids that are "
            "nearer to each other, or compare what StateTable(...).read(spark, txid=...) returns."
        )
    whole = _dataset(table)
    chosen = set(paths)
    fragments = [f for f in whole.get_fragments() if _ends_with_any(f.path, chosen)]
    return dataset.FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)


def _ends_with_any(path: str, paths: Iterable[str]) -> bool:
    return path in paths or any(path.endswith(f"/{end}") for end in paths)


def _shown(
    rows: pa.Table, columns: Mapping[str, str], keys: Sequence[str], values: Iterable[str]
) -> pa.Table:
    """Return keys and values without bookkeeping and without removed keys."""
    if _REMOVED in rows.column_names:
        rows = rows.filter(pc.invert(pc.fill_null(rows[_REMOVED], False)))
    return rows.select([name for name in columns if name in {*keys, *values}])


def _compared(
    versions: tuple[int, int], before: pa.Table, after: pa.Table, keys: Sequence[str], limit: int
) -> Difference:
    """Compare two states key by key. Both fit into memory."""
    values = tuple(name for name in after.column_names if name not in keys)
    old, new = _rows_by_key(before, keys, values), _rows_by_key(after, keys, values)
    counts = {"added": 0, "changed": 0, "removed": 0}
    changes: list[Change] = []
    for key in (*new, *(key for key in old if key not in new)):
        old_values, new_values = old.get(key), new.get(key)
        if old_values == new_values:
            continue
        kind = "added" if old_values is None else "removed" if new_values is None else "changed"
        counts[kind] += 1
        if len(changes) < limit:
            texts = (
                None if row is None else [_text(value) for value in row]
                for row in (old_values, new_values)
            )
            changes.append(Change(kind, [_text(part) for part in key], *texts))
    return Difference(versions, tuple(keys), values, changes, counts)


def _rows_by_key(
    rows: pa.Table, keys: Sequence[str], values: Sequence[str]
) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    columns = [_compared_values(rows[name]) for name in (*keys, *values)]
    split = len(keys)
    values_by_row = zip(*columns, strict=True)
    return {tuple(map(_hashable, row[:split])): row[split:] for row in values_by_row}


def _hashable(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, dict | list) else value


def _compared_values(column: pa.ChunkedArray) -> list[Any]:
    items = _values(column)
    if _is_float(column.type) or pa.types.is_nested(column.type):
        return [_one_nan(value) for value in items]
    return items


def _one_nan(value: Any) -> Any:
    """Replace every NaN in a value by the same object, so that Python finds them equal."""
    if isinstance(value, list | tuple):
        return [_one_nan(item) for item in value]
    if isinstance(value, dict):
        return {name: _one_nan(item) for name, item in value.items()}
    return _NAN if isinstance(value, float) and math.isnan(value) else value


# --- values as text --------------------------------------------------------------------------


def _texts(rows: pa.Table) -> list[list[str | None]]:
    columns = [_values(column) for column in rows.columns]
    return [[_text(value) for value in row] for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return Python's values; text for those that Python cannot represent."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(one: pa.Scalar) -> Any:
    """Convert a value of Spark, also a date after the year 9999 or a string that is not UTF-8."""
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
    """Return a value as text for people; long ones are cut."""
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
