"""Tables on the screen for `status`, `quarantine`, `history`, `rows`, `recover` and upkeep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txn.cli.words import broken_rules, short_name
from txn.delta.upkeep import UpkeepPlan
from txn.interfaces.event_time import EventTime
from txn.interfaces.publication import processing_ms, waiting_ms
from txn.operations.history import HistoryEntry
from txn.operations.quarantine import Quarantined
from txn.operations.rows.bad_rows import BadRow, RuleRows
from txn.operations.status import Status
from txn.operations.tables.table_status import TableStatus
from txn.positions import describe
from txn.protocol.records import BatchRecord, NoticesRecord, Progress
from txn.text import duration, event_time, printable, size

__all__ = [
    "bad_rows_table",
    "history_table",
    "progress_table",
    "quarantine_table",
    "rule_rows_table",
    "status_table",
    "upkeep_table",
]


_SHOWN_TXIDS = 5


# --- status ----------------------------------------------------------------------------------


def status_table(status: Status, tables: TableStatus, zookeeper: str) -> RenderableType:
    """Return a short overview for people."""
    zookeeper_status = status.found
    committed, open_batches = zookeeper_status.progress.committed, zookeeper_status.progress.batches
    overview = _grid()
    overview.add_row("topology", Text(zookeeper_status.topology, style="bold"))
    overview.add_row("committed", f"txid {committed.txid}" if committed.txid else "nothing yet")
    overview.add_row("in flight", _attempts(zookeeper_status.progress))
    overview.add_row("leader", _leader_text(status))
    overview.add_row("standing by", _standbys_text(status))
    overview.add_row("epoch", str(zookeeper_status.epoch))
    overview.add_row("zookeeper", zookeeper)
    overview.add_row("quarantined", _quarantined(status))
    if (time := committed.event_time) is not None and time.streams:
        overview.add_row("watermark", _watermark(time))
    if tables.txids and tables.violations:
        overview.add_row("broken rules", _broken(tables, tables.txids))
    if changed := status.changes:
        lines = "\n".join(changed["changes"])
        overview.add_row("program", printable(f"from txid {changed['since_txid']} on: {lines}"))
    parts: list[RenderableType] = [overview]
    newest = {**committed.spouts}
    for batch in (b for b in open_batches if b.replay_of is None):
        newest.update({stream: m for stream, m in batch.spouts.items() if m is not None})
    if newest:
        streams = _table("stream", "newest read")
        for stream, metadata in newest.items():
            streams.add_row(printable(stream), describe(metadata))
        parts += [Text(), streams]
    if status.notices:
        parts += [Text(), _notices(status.notices)]
    if committed.tables:
        parts += [Text(), _versions(committed.tables, tables)]
    if tables.published:
        parts += [Text(), _published(tables, committed.txid)]
    return Group(*parts)


def _watermark(time: EventTime) -> str:
    """Tell the watermark of the next txid, and how far it is behind the newest event."""
    at, newest = time.watermark(1), time.newest_at
    if at is None:
        return "none yet"
    behind = "" if newest is None else f", {duration((newest - at) / 1e6)} behind the newest event"
    return f"{event_time(at)}{behind}"


def _leader_text(status: Status) -> Text:
    leader, before = status.found.leader, status.found.last_leader
    if leader is not None and status.leader_alive:
        return Text(printable(str(leader)), style="green")
    if leader is not None:
        return Text(printable(f"none: {leader} is gone, its session ends soon"))
    last = f"none; the last one was {before}" if before else "none"
    return Text(printable(last))


def _standbys_text(status: Status) -> str:
    shown = [
        f"{one.identity}"
        + ("" if one.alive else ", gone")
        + (", with another program" if one.changes_program else "")
        for one in status.standbys
    ]
    return printable("\n".join(shown)) or "nobody"


def _attempts(progress: Progress) -> str:
    return ", ".join(_attempt(batch) for batch in progress.batches) or "nothing"


def _attempt(batch: BatchRecord) -> str:
    notes = ["emptied"] * (batch.quarantined is not None)
    if batch.replay_of is not None:
        notes.append(f"replays {batch.replay_of or 'a quarantined txid'}")
    return f"{batch.txid}:{batch.attempt}" + (f" ({', '.join(notes)})" if notes else "")


def _quarantined(status: Status) -> str:
    txids = [quarantined.record.txid for quarantined in status.quarantine]
    if not txids:
        return "nothing"
    newest = ", ".join(str(txid) for txid in txids[-_SHOWN_TXIDS:])
    more = f" and {len(txids) - _SHOWN_TXIDS} before" if len(txids) > _SHOWN_TXIDS else ""
    return f"{len(txids)}: txid {newest}{more} (txn quarantine list {status.found.topology})"


def _broken(tables: TableStatus, txids: tuple[int, int]) -> str:
    first, last = txids
    rows = broken_rules(tables.violations) or "none"
    return f"{rows}; in txid{f's {first} to {last}' if first < last else f' {last}'}"


def _notices(notices: NoticesRecord) -> Table:
    result = _table("stream", f"noticed when txid {notices.txid} was planned, {notices.at}")
    for stream, lines in notices.streams.items():
        result.add_row(printable(stream), printable("\n".join(lines)))
    if notices.left_out:
        result.add_row("...", f"{notices.left_out} more streams have notices; the log has them")
    return result


def _published(tables: TableStatus, committed: int) -> Table:
    result = _table("published table", "shows", "txids behind")
    for table, txid in tables.published.items():
        shows = tables.unread.get(table, "") if txid is None else f"txid {txid}"
        behind = "?" if txid is None else str(committed - txid)
        result.add_row(printable(table), printable(shows if txid != 0 else "nothing yet"), behind)
    return result


def _versions(versions: Mapping[str, int], tables: TableStatus) -> Table:
    result = _table("table", "version", "first txid", *(["not read"] if tables.unread else []))
    for table, version in versions.items():
        first, unread = tables.first_txids.get(table), tables.unread.get(table)
        cells = (printable(table), str(version), "?" if first is None else str(first))
        result.add_row(*cells, *([printable(unread or "")] if tables.unread else []))
    return result


# --- quarantine ------------------------------------------------------------------------------


def _reads(spouts: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{printable(stream)} {describe(metadata)}"
        for stream, metadata in spouts.items()
        if metadata is not None
    )


def quarantine_table(entries: Sequence[Quarantined]) -> RenderableType:
    """Return a line per quarantined txid, the oldest first."""
    result = _table("txid", "read", "replay", "error")
    for entry in entries:
        record, replay = entry.record, entry.replay or "-"
        result.add_row(
            f"{record.txid}:{record.attempt}",
            _reads(record.spouts) or "nothing",
            replay if isinstance(replay, str) else f"txid {replay}",
            printable(record.error),
        )
    return result


# --- history ---------------------------------------------------------------------------------


def _emptied(entry: HistoryEntry) -> str:
    """Explain why a txid has no rows: its own error, or the txid and input that it gives up."""
    if not entry.gives_up:
        return printable((entry.quarantined or "").partition("\n")[0])
    return f"gives up txid {entry.replay_of}: {_reads(entry.lost) or 'its log is gone'}"


def history_table(entries: Sequence[HistoryEntry]) -> RenderableType:
    """Return a line per txid, the newest first."""
    ruled = any(entry.violations for entry in entries)
    timed = any(entry.watermark is not None for entry in entries)
    emptied = any(entry.quarantined is not None or entry.gives_up for entry in entries)
    columns = ["txid", "epoch", "published", "read", "rows (version)", "processing", "waiting"]
    columns += [*["watermark"] * timed, *["broken rules"] * ruled, *["quarantined"] * emptied]
    result = _table(*columns)
    for entry in entries:
        read = "; ".join(describe(m) for m in entry.read.values() if m is not None) or "nothing"
        rows = ", ".join(
            f"{short_name(table)} {entry.rows[table]:,} (v{version})"
            for table, version in entry.tables.items()
        )
        result.add_row(
            f"{entry.txid}:{entry.attempt_id}{'' if entry.committed else ' open'}",
            str(entry.epoch),
            _local_time(entry.timestamp_ms),
            read,
            rows,
            f"{processing_ms(entry.timings_ms):,.0f} ms",
            f"{waiting_ms(entry.timings_ms):,.0f} ms",
            *["none" if entry.watermark is None else event_time(entry.watermark)] * timed,
            *[broken_rules(entry.violations) or "none"] * ruled,
            *[_emptied(entry)] * emptied,
        )
    return result


# --- rows ------------------------------------------------------------------------------------


def rule_rows_table(rules: Sequence[RuleRows]) -> RenderableType:
    """Return a line per rule."""
    result = _table("stream", "rule", "rows", "txids", "replayed up to", "open")
    for rule in rules:
        first, last = rule.first_txid, rule.last_txid
        txids = str(first) if first == last else f"{first} to {last}"
        still_open = "?" if rule.still_open is None else f"{rule.still_open:,}"
        replayed = "-" if rule.replayed_up_to is None else str(rule.replayed_up_to)
        names = (printable(rule.stream), printable(rule.rule))
        result.add_row(*names, f"{rule.rows:,}", txids, replayed, still_open)
    return result


def bad_rows_table(rows: Sequence[BadRow]) -> RenderableType:
    """Return a line per row, the newest txid first."""
    result = _table("txid", "stream", "rule", "position", "row", "reason")
    for row in rows:
        texts = (row.stream, row.rule, row.position or "-", row.row, row.reason)
        result.add_row(str(row.txid), *map(printable, texts))
    return result


def _local_time(ms: int) -> str:
    if not ms:
        return "-"
    moment = datetime.fromtimestamp(ms / 1000, tz=timezone.utc).astimezone()
    return moment.strftime("%m-%d %H:%M:%S")


# --- recover ---------------------------------------------------------------------------------


def progress_table(topology: str, progress: Progress, zookeeper: str) -> RenderableType:
    """Return the state that `txn recover` will write."""
    committed = progress.committed
    plan = _grid()
    plan.add_row("topology", Text(topology, style="bold"))
    plan.add_row("zookeeper", zookeeper)
    plan.add_row("committed", f"txid {committed.txid}" if committed.txid else "nothing")
    plan.add_row("to replay", _attempts(progress))
    for stream, metadata in committed.spouts.items():
        plan.add_row(printable(f"stream {stream}"), describe(metadata))
    for table, version in committed.tables.items():
        plan.add_row(printable(f"table {short_name(table)}"), f"version {version}")
    return plan


# --- optimize, vacuum ------------------------------------------------------------------------


def upkeep_table(plans: Sequence[UpkeepPlan], *, done: bool = False) -> RenderableType:
    """Return a line per table: what OPTIMIZE or VACUUM will do, or has done."""
    result = _table("table", "files", "bytes", "done" if done else "to do")
    for plan in plans:
        action = plan.skipped or plan.error or _upkeep(plan, done)
        result.add_row(
            printable(plan.table), f"{plan.files:,}", size(plan.bytes), printable(action)
        )
    return result


def _upkeep(plan: UpkeepPlan, done: bool) -> str:
    if not plan.chosen:
        return "nothing"
    what = f"{plan.chosen:,} files ({size(plan.chosen_bytes)})"
    if plan.operation == "vacuum":
        return f"{what} {'deleted' if done else 'to delete, which no version needs'}"
    return f"{what} became {plan.written:,}" if done else f"up to {what} to put together"


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        right = name in ("epoch", "version", "first txid", "processing", "waiting")
        table.add_column(
            name,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or name in ("txid", "published"),
        )
    return table
