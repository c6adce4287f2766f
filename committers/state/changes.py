"""The changes of a txid in a state table: one row per touched key, with values before and after.

Source: Trident's `newValuesStream`, which has only the new values. With layout="upsert" an opaque
table has the previous values in the very rows that the txid wrote. In other tables they are in the
files that the version replaces, so the written rows are joined with those. With layout="log" the
table has the partials of all txids, so the earlier ones of every staged key are merged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from committers.publishing.log import DeltaLog
from committers.state.layouts import PREV_TXID, LogLayout, UpsertLayout
from committers.state.merging import BEFORE
from committers.state.removal import REMOVED, with_removal
from committers.state.shape import StateShape
from txn.delta.commits import TXID
from txn.errors import TableRefusedError
from txn.interfaces import Publication
from txn.spark.keys import renamed, same_key, side_column, with_keys_of
from txn.spark.lazy import sf
from txn.spark.names import quoted
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = [
    "ended",
    "files_of_held",
    "from_partials",
    "from_previous_values",
    "from_replaced_rows",
    "removed_keys",
]

_AFTER, _BEFORE = "a", "b"

_VACUUMED = (
    "A crash came after this table published the txid and before everything downstream of its "
    "new values did. Restore the files from a backup, or start that part over under a new "
    "topology; keep VACUUM's retention and delta.logRetentionDuration longer than a run may stay "
    "down."
)


def files_of_held(
    version: int, publication: Publication, log: DeltaLog, storage: Storage
) -> tuple[list[str], list[str]]:
    """(files added, files removed) by the version that already holds a publication's txid.

    Raises:
        TableRefusedError: the version was cleaned out of the log, it holds other txids as well, or
            a file of it was vacuumed.
    """
    message = (
        f"The changes of txid {publication.last_txid} in table {storage.location} cannot be read"
    )
    commit = log.read_commit(version)
    held = commit.publication if commit else None
    if commit is None or held is None:
        raise TableRefusedError(
            f"{message} any more: version {version}, which holds them, was cleaned out of the log. "
            f"{_VACUUMED}",
            number="TXN-309",
        )
    if not held.first_txid == held.last_txid == publication.last_txid:
        raise TableRefusedError(
            f"{message}: version {version} holds txids {held.first_txid} to {held.last_txid}. "
            f"{_VACUUMED}",
            number="TXN-309",
        )
    written, replaced = [file.path for file in commit.adds], sorted(commit.removes)
    missing = storage.first_missing([*written, *replaced])
    if missing is not None:
        raise TableRefusedError(
            f"{message} any more: file {missing} of version {version} was vacuumed. {_VACUUMED}",
            number="TXN-309",
        )
    return written, replaced


def from_previous_values(
    layout: UpsertLayout, written: DataFrame, txid: int, former: UpsertLayout
) -> DataFrame:
    """Changes from the files that `txid` wrote into an opaque table.

    Args:
        layout: as of `txid`.
        former: as of the txid before.
    """
    removed = sf.coalesce(sf.col(REMOVED), sf.lit(False)) if layout.keeps_removed else sf.lit(False)
    existed = sf.col(PREV_TXID).isNotNull()
    shown = sf.lit(True)
    if layout.expiry is not None:
        existed &= former.not_ended(written.schema, _previous(layout))
        shown = existed | ~removed
    written = layout.unended(written)
    columns = layout.change_columns(
        [sf.col(quoted(key)) for key in layout.keys],
        lambda name: layout.shown_value(name, sf.col(quoted(name))),
        ~removed,
        lambda name: layout.shown_value(name, sf.col(quoted(f"prev_{name}"))),
        existed,
    )
    return written.where((sf.col(TXID) == txid) & shown).select(*columns)


def ended(layout: StateShape, rows: DataFrame) -> DataFrame:
    """Changes from the stored rows of keys that end: no values, and the last ones as previous."""

    def value(name: str) -> Column:
        return layout.shown_value(name, sf.col(quoted(name)))

    keys = [sf.col(quoted(key)) for key in layout.keys]
    columns = layout.change_columns(keys, value, sf.lit(False), value, sf.lit(True))
    return rows.select(*columns)


def from_replaced_rows(
    layout: UpsertLayout,
    written: DataFrame | None,
    replaced: DataFrame | None,
    txid: int,
    former: UpsertLayout,
    only: DataFrame | None = None,
) -> DataFrame:
    """Changes from the files that `txid` wrote and the files that they replaced.

    Args:
        layout: as of `txid`.
        former: as of the txid before.
        written: None when the version adds no file: every key was removed.
        replaced: None when the version replaces none: every key is new.
        only: rows with the keys to report; None: every key written by `txid`.
    """
    some = written if written is not None else replaced
    if some is None:
        raise ValueError("a version that touches a key adds or removes a file")
    after = written if written is not None else some.limit(0)
    before = replaced if replaced is not None else some.limit(0)
    removes = layout.remove_where is not None
    if not removes:
        # Spark skips files by it while reading; the condition below checks each row.
        after = after.where(sf.col(TXID) == txid)
    names = (*layout.keys, *layout.stored, TXID)
    new, old = _side(after, names, _AFTER), _side(former.unended(before), names, _BEFORE)
    new_column, old_column = partial(side_column, _AFTER), partial(side_column, _BEFORE)
    condition = same_key(layout.keys, new_column, old_column)
    rows = new.join(old, condition, "full" if removes else "left")
    exists, existed = sf.col(_AFTER).isNotNull(), sf.col(_BEFORE).isNotNull()
    columns = layout.change_columns(
        [
            sf.when(exists, new_column(key)).otherwise(old_column(key)).alias(key)
            for key in layout.keys
        ],
        lambda name: layout.shown_value(name, new_column(name)),
        exists,
        lambda name: layout.shown_value(name, old_column(name)),
        existed,
    )
    is_shown = layout.not_ended(after.schema, new_column)
    changed = rows.where(~exists | ((new_column(TXID) == txid) & is_shown)).select(*columns)
    return changed if only is None else with_keys_of(changed, only, layout.keys)


def from_partials(layout: LogLayout, rows: DataFrame, removed: DataFrame | None) -> DataFrame:
    """Changes of a log table.

    Args:
        rows: `committers.state.merging.touched`.
        removed: the keys that the txid removes; None if it removes none.
    """
    before = sf.col(quoted(BEFORE))
    existed = before.isNotNull()
    shown, gone = with_removal(layout.shown_once(rows, before), layout.keys, removed)
    columns = layout.change_columns(
        [sf.col(quoted(key)) for key in layout.keys],
        lambda name: sf.col(quoted(name)),
        ~gone,
        lambda name: layout.shown_value(name, before.getField(name)),
        existed,
    )
    # A key that is new and removed in one txid never existed.
    return shown.where(~gone | existed).select(*columns)


def removed_keys(layout: LogLayout, rows: DataFrame) -> DataFrame:
    """The keys of a log table that satisfy its `remove_where` after their update.

    Args:
        rows: `committers.state.merging.touched`.
    """
    gone = layout.shown_once(rows).where(sf.expr(layout.remove_where or "false"))
    return gone.select(*(sf.col(quoted(key)) for key in layout.keys))


def _previous(layout: UpsertLayout) -> Callable[[str], Column]:
    """Name -> the column with the previous value: that of a key is the key."""

    def column(name: str) -> Column:
        return sf.col(quoted(name if name in layout.keys else f"prev_{name}"))

    return column


def _side(frame: DataFrame, names: Sequence[str], side: str) -> DataFrame:
    """Columns of one side of the join, and a mark for rows of that side."""
    return frame.select(*renamed(side, names), sf.lit(True).alias(side))
