"""Rows of a table as a notebook shows them."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from txn.delta.commits import Commit

if TYPE_CHECKING:
    import duckdb

__all__ = ["as_html"]

_UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))


def as_html(table: str, newest: Commit, rows: duckdb.DuckDBPyRelation, now: float) -> str:
    """The first rows of a table, under its txid and its age.

    Args:
        newest: the commit of the newest version.
        now: seconds since 1970.
    """
    held = newest.last_publication
    txid = "before its first txid" if held is None else f"as of txid {held[1].last_txid}"
    title = f"{table} {txid}, {_ago(now - newest.timestamp_ms / 1000)}"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows.columns)
    cells = ("".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows.fetchall())
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<p>{escape(title)}</p><table><tr>{head}</tr>{body}</table>"


def _ago(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds // unit:.0f} {name} ago"
    return f"{max(0.0, seconds):.0f} seconds ago"
