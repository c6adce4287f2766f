"""Search an index of txids for those that match a filter, in steps of bounded time."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from txn.dashboard.watching.entries import Filter, IndexedTxid, Page

__all__ = ["COLUMNS", "indexed_txid", "search"]

COLUMNS = (
    "txid, attempt, epoch, at_ms, rows, read, timings, total_ms, processing_ms, waiting_ms, "
    "records, bytes, quarantined, replay_of, broken, first, last, "
    "(SELECT count(*) FROM failures f WHERE f.txid = t.txid)"
)
"""What `indexed_txid` takes, of `txids t`."""
_STEP = 64
"""Txids in the first step of a search: their descriptions may be long."""
_LONGEST_STEP = 4096
_STEP_SECS = 0.02
"""A step that takes longer is followed by a shorter one."""
_SEARCH_SECS = 0.12
"""Most seconds that one request searches; its answer tells where to go on."""


def indexed_txid(row: Sequence[Any]) -> IndexedTxid:
    """Make a txid of a row of `COLUMNS`."""
    txid, attempt, epoch, at_ms, rows, read, timings, *rest = row
    return IndexedTxid(txid, attempt, epoch, at_ms, rows, read, json.loads(timings), *rest)


def search(
    ask: sqlite3.Connection,
    span: tuple[int, int],
    conditions: Filter,
    before: int | None,
    limit: int,
) -> Page:
    """Return a page of matching txids, searched in steps sized by their duration."""
    lowest, highest = span
    where, values = _conditions(conditions)
    top = highest + 1 if before is None else before
    txids: list[IndexedTxid] = []
    now = time.monotonic()
    ends = now + _SEARCH_SECS
    step = _STEP if where else highest + 1
    while top > lowest and len(txids) < limit:
        began, bottom = now, max(lowest, top - step)
        rows = ask.execute(
            f"SELECT {COLUMNS} FROM txids t WHERE txid >= ?1 AND txid < ?2{where} "
            "ORDER BY txid DESC LIMIT ?",
            (bottom, top, *values, limit - len(txids)),
        ).fetchall()
        txids += map(indexed_txid, rows)
        top = txids[-1].txid if len(txids) >= limit else bottom
        now = time.monotonic()
        if now >= ends:
            break
        step = max(1, step // 2) if now - began > _STEP_SECS else min(_LONGEST_STEP, step * 2)
    return Page(tuple(txids), top if top > lowest else None)


def _conditions(conditions: Filter) -> tuple[str, list[Any]]:
    """Return SQL after WHERE, and its values; ?1 is the first txid, ?2 the one after the last."""
    where, values = {
        "all": ("", []),
        "open": (" AND txid > ?", [conditions.committed]),
        "quarantined": (" AND quarantined IS NOT NULL", []),
        "replayed": (" AND (attempt > 0 OR replay_of IS NOT NULL)", []),
        "failed": (" AND EXISTS (SELECT 1 FROM failures f WHERE f.txid = t.txid)", []),
        "broken": (" AND broken > 0", []),
        "grouped": (" AND last > first", []),
    }[conditions.only]
    values = [*values]
    if conditions.table is not None:
        where += " AND EXISTS (SELECT 1 FROM parts p WHERE p.txid = t.txid AND p.tab = ?)"
        values.append(conditions.table)
    text = conditions.text.strip()
    if not text:
        return where, values
    first, dash, last = text.partition("-")
    low, high = _txid(first), _txid(last if dash else first)
    # "2013-01" is not a range but a part of a file's name.
    if low is not None and high is not None and low <= high:
        return f"{where} AND txid BETWEEN ? AND ?", [*values, low, high]
    text = text.casefold()
    where += (
        " AND txid IN (SELECT txid FROM words WHERE txid >= ?1 AND txid < ?2 AND instr(text, ?) "
        "UNION ALL "
        "SELECT txid FROM failures WHERE txid >= ?1 AND txid < ?2 AND instr(casefold(error), ?))"
    )
    return where, [*values, text, text]


def _txid(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
