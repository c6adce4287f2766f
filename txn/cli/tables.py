"""How `txn status`, `history` and `recover` look: text for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txn.cli.live_view import short_name
from txn.operations.history import HistoryEntry, describe
from txn.protocol.records import BatchRecord, Progress
from txn.text import printable
from txn.zookeeper.liveness import is_alive
from txn.zookeeper.status import TopologyStatus
from txn.zookeeper.znodes import LeaderIdentity

__all__ = [
    "history_table",
    "progress_json",
    "progress_table",
    "quarantine_json",
    "quarantine_table",
    "status_json",
    "status_table",
]


_SHOWN_TXIDS = 5


# --- status ----------------------------------------------------------------------------------


def status_json(status: TopologyStatus) -> dict[str, Any]:
    """Everything that ZooKeeper says about a topology."""
    committed = status.progress.committed
    return {
        "topology": status.topology,
        "committed_txid": committed.txid,
        "epoch": status.epoch,
        "leader": _leader_json(status.leader, is_alive(status.leader)),
        "last_leader": _leader_json(status.last_leader, is_alive(status.leader)),
        "standbys": [
            {**s.model_dump(mode="json", include={"host", "pid", "since"}), "alive": is_alive(s)}
            for s in status.standbys
        ],
        "batches": [
            batch.model_dump(mode="json", exclude={"version"}) for batch in status.progress.batches
        ],
        "spouts": committed.spouts,
        "tables": committed.tables,
        "quarantined": len(status.quarantine),
        "quarantine": quarantine_json(status),
    }


def status_table(status: TopologyStatus, zookeeper: str) -> RenderableType:
    """A short overview for people."""
    committed, open_batches = status.progress.committed, status.progress.batches
    overview = _grid()
    overview.add_row("topology", Text(status.topology, style="bold"))
    overview.add_row("committed", f"txid {committed.txid}" if committed.txid else "nothing yet")
    overview.add_row("in flight", _attempts(status.progress))
    overview.add_row("leader", _leader_text(status))
    overview.add_row("standing by", _standbys_text(status))
    overview.add_row("epoch", str(status.epoch))
    overview.add_row("zookeeper", zookeeper)
    overview.add_row("quarantined", _quarantined(status))
    parts: list[RenderableType] = [overview]
    newest = {**committed.spouts}
    for batch in (b for b in open_batches if b.replay_of is None):
        newest.update({stream: m for stream, m in batch.spouts.items() if m is not None})
    if newest:
        streams = _table("stream", "newest read")
        for stream, metadata in newest.items():
            streams.add_row(printable(stream), describe(metadata))
        parts += [Text(), streams]
    if committed.tables:
        parts += [Text(), _versions(committed.tables)]
    return Group(*parts)


def _leader_json(leader: LeaderIdentity | None, alive: bool) -> dict[str, Any] | None:
    if leader is None:
        return None
    fields = leader.model_dump(mode="json", include={"host", "pid", "started", "epoch"})
    return {**fields, "alive": alive}


def _leader_text(status: TopologyStatus) -> Text:
    if status.leader is not None and is_alive(status.leader):
        return Text(printable(str(status.leader)), style="green")
    if status.leader is not None:
        return Text(printable(f"none: {status.leader} is gone, its session ends soon"))
    last = f"none; the last one was {status.last_leader}" if status.last_leader else "none"
    return Text(printable(last))


def _standbys_text(status: TopologyStatus) -> str:
    shown = [f"{one}" + ("" if is_alive(one) else ", gone") for one in status.standbys]
    return printable("\n".join(shown)) or "nobody"


def _attempts(progress: Progress) -> str:
    return ", ".join(_attempt(batch) for batch in progress.batches) or "nothing"


def _attempt(batch: BatchRecord) -> str:
    notes = ["emptied"] * (batch.quarantined is not None)
    if batch.replay_of is not None:
        notes.append(f"replays {batch.replay_of or 'a quarantined txid'}")
    return f"{batch.txid}:{batch.attempt}" + (f" ({', '.join(notes)})" if notes else "")


def _quarantined(status: TopologyStatus) -> str:
    txids = [record.txid for record in status.quarantine]
    if not txids:
        return "nothing"
    newest = ", ".join(str(txid) for txid in txids[-_SHOWN_TXIDS:])
    more = f" and {len(txids) - _SHOWN_TXIDS} before" if len(txids) > _SHOWN_TXIDS else ""
    return f"{len(txids)}: txid {newest}{more} (txn quarantine list {status.topology})"


def _versions(tables: Mapping[str, int]) -> Table:
    result = _table("table", "version")
    for table, version in tables.items():
        result.add_row(printable(table), str(version))
    return result


# --- quarantine ------------------------------------------------------------------------------


def quarantine_json(status: TopologyStatus) -> list[dict[str, Any]]:
    """The quarantined txids; `replay` is None, "requested", or the txid that replays it."""
    replays = _replays(status)
    return [
        {
            **record.model_dump(mode="json", exclude={"version"}),
            "replay": replays.get(record.txid),
        }
        for record in status.quarantine
    ]


def quarantine_table(status: TopologyStatus) -> RenderableType:
    """One line per quarantined txid, the oldest first."""
    result = _table("txid", "read", "replay", "error")
    replays = _replays(status)
    for record in status.quarantine:
        read = "; ".join(
            f"{printable(stream)} {describe(metadata)}"
            for stream, metadata in record.spouts.items()
            if metadata is not None
        )
        replay = replays.get(record.txid, "-")
        result.add_row(
            f"{record.txid}:{record.attempt}",
            read or "nothing",
            replay if isinstance(replay, str) else f"txid {replay}",
            printable(record.error),
        )
    return result


def _replays(status: TopologyStatus) -> dict[int, int | str]:
    """Quarantined txid -> the open txid that replays it, or "requested"."""
    at_work = {b.replay_of: b.txid for b in status.progress.batches if b.replay_of}
    return {**dict.fromkeys(status.replays_requested, "requested"), **at_work}


# --- history ---------------------------------------------------------------------------------


def history_table(entries: Sequence[HistoryEntry]) -> RenderableType:
    """One line per txid, the newest first."""
    result = _table("txid", "epoch", "published", "read", "rows (version)", "processing")
    for entry in entries:
        timings = entry.timings_ms
        processing = sum(timings.get(name, 0.0) for name in ("processing", "staged", "processed"))
        read = "; ".join(f"{describe(metadata)}" for metadata in entry.read.values()) or "nothing"
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
            f"{processing:,.0f} ms",
        )
    return result


def _local_time(ms: int) -> str:
    if not ms:
        return "-"
    moment = datetime.fromtimestamp(ms / 1000, tz=timezone.utc).astimezone()
    return moment.strftime("%m-%d %H:%M:%S")


# --- recover ---------------------------------------------------------------------------------


def progress_json(progress: Progress) -> dict[str, Any]:
    """What `txn recover` writes."""
    return {
        "committed": progress.committed.model_dump(mode="json", exclude={"version"}),
        "batches": [b.model_dump(mode="json", exclude={"version"}) for b in progress.batches],
    }


def progress_table(topology: str, progress: Progress, zookeeper: str) -> RenderableType:
    """What `txn recover` is about to write."""
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


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        right = name in ("epoch", "version", "processing")
        table.add_column(
            name,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=name in ("txid", "epoch", "published", "processing", "version"),
        )
    return table
