"""The answers of the page as JSON values: one function for each view.

The data comes from `txn.dashboard.watching`; this module gives it the names that the page reads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

from txn.config.location import as_option
from txn.dashboard.over_time import series, spark
from txn.dashboard.watching.entries import Filter, IndexedTxid, Part
from txn.dashboard.watching.run_files import RunNote
from txn.dashboard.watching.tables import difference, first_rows
from txn.dashboard.watching.topologies import Watch, Watched
from txn.dashboard.watching.trouble import Trouble, rows_set_aside, state_of, troubles
from txn.dashboard.watching.watched_table import WatchedTable
from txn.delta.log import TableLog
from txn.engine.reporting.report import InFlight
from txn.errors import UserError
from txn.interfaces.publication import Member, Publication, merged_violations
from txn.operations.rows.bad_rows import bad_rows_among, has_bad_rows
from txn.positions import describe
from txn.text import event_time

__all__ = [
    "bad_rows",
    "changes",
    "graph",
    "overview",
    "rows",
    "tables",
    "topology",
    "transaction",
    "transactions",
    "trouble",
    "versions",
]

PAGE = 100
MOST_ROWS = 100
MOMENT_SECS = 0.25
"""Requests within this time share one answer."""
_summaries: WeakKeyDictionary[Watched, tuple[int, float, dict[str, Any]]] = WeakKeyDictionary()
"""Topology -> (revision, time in monotonic seconds, its newest summary)."""
_RATE_SECS = 60
_LONGEST_METADATA = 100_000
_NEWEST_TXIDS = 200
_BAD_ROWS = 50
_NO_BAD_ROWS: dict[str, Any] = {"table": None, "rules": [], "rows": []}


def overview(watch: Watch) -> dict[str, Any]:
    """Return all topologies in short."""
    return {
        "now_ms": _now_ms(),
        "zookeeper": watch.zookeeper,
        "option": as_option(watch.zookeeper),
        "error": watch.look.error,
        "looked_ms": int(watch.look.at * 1000),
        "topologies": [summary(watch.topology(name)) for name in watch.names],
    }


def summary(watched: Watched) -> dict[str, Any]:
    """Return one topology in short. Cached for a moment: a topology is read after the overview."""
    cached, now = _summaries.get(watched), time.monotonic()
    if cached is None or cached[0] != watched.revision or now - cached[1] > MOMENT_SECS:
        _summaries[watched] = cached = watched.revision, now, _summary(watched)
    return cached[2]


def _summary(watched: Watched) -> dict[str, Any]:
    now = _now_ms()
    status, note = watched.status, watched.note if watched.is_live else None
    rows, _, *read = watched.index.rate(now, _RATE_SECS * 1000)
    all_troubles = troubles(watched)
    from_zookeeper = status.to_json() if status else {}
    held_up = note.held_up_by if note else None
    return {
        "name": watched.name,
        "revision": watched.revision,
        "state": state_of(watched),
        "program": watched.program,
        "error": watched.error,
        "live": note is not None,
        "committed": watched.committed,
        "began_ms": watched.index.times_ms()[0],
        "rows_per_s": rows / _RATE_SECS,
        "read_per_s": [None if count is None else count / _RATE_SECS for count in read],
        "last_commit_ms": watched.index.times_ms()[1],
        "lag": note.lags if note else None,
        "planned": note.planned if note else None,
        "held_up_by": held_up,
        "waits": list(note.waits) if note else [],
        "in_flight": len(_in_flight(note)) if note else len(from_zookeeper.get("batches", ())),
        "leader": from_zookeeper.get("leader"),
        "last_leader": from_zookeeper.get("last_leader"),
        "standbys": from_zookeeper.get("standbys", []),
        "troubles": _counted(all_troubles),
        "set_aside": rows_set_aside(watched),
        "worst": next((one.what for one in all_troubles if not one.is_over), None),
        "spark": spark(watched, now),
        "reads_old": watched.reads_old,
    }


def _counted(entries: list[Trouble]) -> dict[str, int]:
    open_ones = [one.level for one in entries if not one.is_over]
    return {level: open_ones.count(level) for level in ("error", "warning", "note")}


# --- one topology ----------------------------------------------------------------------------


def topology(watched: Watched, minutes: int | None = None) -> dict[str, Any]:
    """Return one topology: its graph, batches in flight, state in ZooKeeper.

    Args:
        minutes: the span of its `series`; None: without them.
    """
    from_zookeeper = watched.status.to_json() if watched.status else {}
    note = watched.note if watched.is_live else None
    open_ones = [
        {"txid": b["txid"], "attempt_id": b["attempt"], "phase": "open", "since": 0, "failures": 0}
        for b in from_zookeeper.get("batches", ())
    ]
    return {
        **summary(watched),
        "now_ms": _now_ms(),
        "graph": graph(watched),
        "flights": [asdict(flight) for flight in _in_flight(note)] if note else open_ones,
        "spouts": _short(from_zookeeper.get("spouts", {})),
        "reads": _in_words(from_zookeeper.get("spouts", {})),
        "changes": from_zookeeper.get("changes"),
        "notices": from_zookeeper.get("notices"),
        "settings": [
            setting
            for setting in watched.plan.get("settings", ())
            if not str(setting.get("name", "")).startswith("zookeeper_")
        ],
        "last_run": _last_run(watched),
        "published": _published(watched),
        **({} if minutes is None else {"series": series(watched, minutes)}),
    }


def _in_flight(note: RunNote) -> list[InFlight]:
    """Return the open txids; an idle run's txid in planning is left out."""
    idle = note.held_up_by == "idle"
    return [flight for flight in note.in_flight if not (idle and flight.phase == "planning")]


def _published(watched: Watched) -> list[dict[str, Any]]:
    """Return what published tables show, as the newest run's last note tells it."""
    note, committed = watched.note, watched.committed
    return [
        {"table": table, "txid": txid, "behind": _difference(committed, txid)}
        for table, txid in (note.published.items() if note else ())
    ]


def _difference(committed: int | None, txid: int | None) -> int | None:
    return None if committed is None or txid is None else max(0, committed - txid)


def _last_run(watched: Watched) -> dict[str, Any] | None:
    note = watched.note
    if note is None or note.ended is None:
        return None
    return {"ended": note.ended, "error": note.error, "at_ms": int(note.at * 1000)}


def graph(watched: Watched) -> dict[str, Any]:
    """Return nodes and edges: as the program declares them, or those that ZooKeeper knows."""
    weights = watched.index.rows_by_table(_NEWEST_TXIDS)
    rows_ = {table.name: weights.get(table.number, 0) for table in watched.tables}
    plan = watched.plan
    if not plan.get("streams"):
        status = watched.status
        streams = list(status.found.progress.committed.spouts) if status else []
        sources = [_node(f"s:{name}", "stream", name, "") for name in streams]
        ends = [_node(t.name, "table", t.name, "", rows_[t.name]) for t in watched.tables]
        hub = [_node("topology", "unknown", watched.name, "")] if sources or ends else []
        edges = [[one["id"], "topology"] for one in sources]
        edges += [["topology", one["id"]] for one in ends]
        return {"declared": False, "nodes": [*sources, *hub, *ends], "edges": edges}
    nodes, edges = [], []
    for stream in plan["streams"]:
        words = f"{stream['spout']}, {stream['kind']}"
        nodes.append(_node(stream["id"], "stream", stream["name"], words))
    for stage in plan["stages"]:
        nodes.append(_node(stage["id"], "stage", stage["operation"], stage["detail"]))
        edges += [[parent, stage["id"]] for parent in stage["reads"]]
    for table in plan["tables"]:
        words = ", ".join(filter(None, (table["layout"], table["semantics"], table["guarantee"])))
        weight = rows_.get(table["name"], 0)
        nodes.append(_node(table["name"], "table", table["name"], words, weight, table["why"]))
        edges.append([table["reads"], table["name"]])
    return {"declared": True, "nodes": nodes, "edges": edges}


def _node(
    name: str, kind: str, label: str, words: str, weight: int = 0, why: str = ""
) -> dict[str, Any]:
    return {"id": name, "kind": kind, "label": label, "words": words, "rows": weight, "why": why}


# --- transactions ----------------------------------------------------------------------------


def transactions(
    watched: Watched, conditions: Filter, before: int | None, limit: int = PAGE
) -> dict[str, Any]:
    """Return a page of txids, newest first."""
    span = watched.index.span()  # before the page, which then has all of it
    page = watched.index.page(conditions, before, limit)
    return {
        "txids": [_line(watched, one) for one in page.txids],
        "before": page.before,
        "span": span,
        "reads_old": watched.reads_old,
    }


def _line(watched: Watched, one: IndexedTxid) -> dict[str, Any]:
    return {
        "txid": one.txid,
        "attempt": one.attempt_id,
        "epoch": one.epoch,
        "at_ms": one.at_ms,
        "rows": one.rows,
        "read": one.read,
        "records": one.records,
        "bytes": one.bytes,
        "total_ms": one.total_ms,
        "processing_ms": one.processing_ms,
        "waiting_ms": one.waiting_ms,
        "group": [one.first, one.last] if one.last > one.first else None,
        "quarantined": one.quarantined,
        "replay_of": one.replay_of,
        "broken": one.broken,
        "failures": one.failures,
        "committed": None if watched.committed is None else one.txid <= watched.committed,
    }


def _watermark(member: Member | None) -> str | None:
    at = None if member is None else member.watermark
    return None if at is None else event_time(at)


def transaction(watched: Watched, txid: int) -> dict[str, Any]:
    """Return one txid with all its facts.

    Raises:
        UserError: no log has it, and it is not open.
    """
    indexed = watched.index.txid(txid)
    failures = [
        {"attempt": attempt, "at_ms": at_ms, "error": error}
        for _, attempt, at_ms, error in watched.index.failures(txid)
    ]
    if indexed is None:
        return {**_open_txid(watched, txid), "failures": failures}
    one, parts = indexed
    member = _member(watched, one, parts)
    return {
        **_line(watched, one),
        "timings_ms": dict(one.timings_ms),
        "metadata": _short(member.read if member else {}),
        "reads": _in_words(member.read if member else {}),
        "violations": merged_violations(part.violations for part in parts),
        "watermark": _watermark(member),
        "attempts": failures,
        "tables": [
            {
                "table": watched.tables[part.table].name,
                "version": part.version,
                "rows": part.rows,
                "queries": _queries(watched.tables[part.table], one, part),
            }
            for part in parts
        ],
        "missing": [
            table.name
            for table in watched.tables
            if table.error is None and all(part.table != table.number for part in parts)
        ],
    }


def _open_txid(watched: Watched, txid: int) -> dict[str, Any]:
    """Return a txid that no table holds yet, from ZooKeeper."""
    from_zookeeper = watched.status.to_json() if watched.status else {}
    batch = next((b for b in from_zookeeper.get("batches", ()) if b["txid"] == txid), None)
    span = watched.index.span()
    if batch is None:
        txids = f"Those from {span[0]} to {span[1]} are here." if span else "No txid is here yet."
        older = " Older ones are still being read." if watched.reads_old else ""
        raise UserError(f"No log has txid {txid}, and it is not in flight. {txids}{older}")
    flight = next(
        (f for f in (watched.note.in_flight if watched.note else ()) if f.txid == txid), None
    )
    return {
        "txid": txid,
        "attempt": batch["attempt"],
        "epoch": batch["epoch"],
        "open": True,
        "phase": flight.phase if flight and watched.is_live else "open",
        "blocked": flight.blocked if flight and watched.is_live else None,
        "quarantined": batch["quarantined"],
        "replay_of": batch["replay_of"],
        "metadata": _short(batch["spouts"]),
        "reads": _in_words(batch["spouts"]),
        "attempts": [],
        "tables": [],
    }


def _member(watched: Watched, one: IndexedTxid, parts: tuple[Part, ...]) -> Member | None:
    """Read a txid's own record again from a table's log; None: its file is gone."""
    best = max(parts, key=lambda part: (part.epoch, part.attempt_id), default=None)
    storage = watched.tables[best.table].storage if best else None
    if best is None or storage is None:
        return None
    commit = TableLog(storage).commit(best.version)
    publication: Publication | None = commit.publication if commit else None
    return next((m for m in publication.txids if m.txid == one.txid), None) if publication else None


def _queries(table: WatchedTable, one: IndexedTxid, part: Part) -> list[dict[str, str]]:
    """Return queries for the table as of the txid: in SQL, with Spark, and without Spark."""
    name, version, txid = table.name, part.version, one.txid
    kind, columns = (table.facts.kind, table.facts.columns) if table.facts else ("", {})
    quoted = name.replace("`", "``")
    sql = f"SELECT * FROM delta.`{quoted}` VERSION AS OF {version}"  # noqa: S608 - for people, never run
    plain = f"DeltaTable({name!r}, version={version}).to_pyarrow_table()"
    spark = f"spark.read.format('delta').option('versionAsOf', {version}).load({name!r})"
    which = None
    if kind in ("append", "") or kind.startswith("log"):
        which = f"txid <= {txid}", f"ds.field('txid') <= {txid}"
    elif "txn_removed" in columns:
        alive = "ds.field('txn_removed').is_null() | ~ds.field('txn_removed')"
        which = "txn_removed IS NOT TRUE", alive
    if which is not None:
        sql += f" WHERE {which[0]}"
        spark += f".where('{which[0]}')"
        plain = (
            f"DeltaTable({name!r}, version={version}).to_pyarrow_dataset()"
            f".to_table(filter={which[1]})"
        )
    if kind == "upsert" or kind.startswith("log"):
        spark = f"StateTable({name!r}).read(spark, txid={one.last})"
    return [
        {"title": "SQL", "text": sql},
        {"title": "Spark", "text": spark},
        {"title": "deltalake", "text": plain},
    ]


def _in_words(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {stream: describe(value) for stream, value in metadata.items()}


def _short(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata by stream; long ones are cut and marked."""
    short: dict[str, Any] = {}
    for stream, value in metadata.items():
        text = json.dumps(value, default=str)
        if len(text) > _LONGEST_METADATA:
            value = {"cut": f"{len(text):,} characters", "beginning": text[:2000]}
        short[stream] = value
    return short


# --- tables ----------------------------------------------------------------------------------


def tables(watched: Watched) -> dict[str, Any]:
    """Return the tables of a topology: versions, files, sizes, compaction."""
    status = watched.status
    committed = status.found.progress.committed.tables if status else {}
    listed = []
    for table in watched.tables:
        follower = table.follower
        compaction = next(iter(watched.index.versions(table.number, None, 1, "compaction")), None)
        facts, stored = table.ask_facts(), table.ask_stored()
        span = watched.index.span(table.number)
        newest = watched.index.version_of(table.number, span[1]) if span else None
        listed.append(
            {
                "name": table.name,
                "error": table.error,
                "version": follower.newest if follower and follower.newest >= 0 else None,
                "oldest_version": follower.oldest if follower and follower.newest >= 0 else None,
                "committed_version": committed.get(table.name),
                "span": span,
                "newest": newest and watched.index.published(table.number, newest),
                "facts": asdict(facts) if facts else None,
                "stored": asdict(stored) if stored else None,
                "compacted_ms": compaction.at_ms if compaction else None,
                "compacted_version": compaction.version if compaction else None,
            }
        )
    return {"tables": listed, "reads_old": watched.reads_old}


def versions(watched: Watched, name: str, before: int | None, kind: str | None) -> dict[str, Any]:
    """Return a page of a table's versions, newest first."""
    table = watched.table(name)
    listed = watched.index.versions(table.number, before, PAGE, kind)
    return {
        "versions": [{**asdict(one), "table": name} for one in listed],
        "before": listed[-1].version if len(listed) == PAGE else None,
    }


def rows(watched: Watched, name: str, txid: int | None, limit: int) -> dict[str, Any]:
    """Return the first rows of a table as of a txid; None: of its newest version.

    Raises:
        UserError: the table does not have that txid, or cannot be read without Spark.
    """
    table = watched.table(name)
    version = _version(watched, table, txid)
    assert table.storage is not None
    group = watched.index.published(table.number, version)
    first = first_rows(table.storage, version, txid, min(limit, MOST_ROWS), group)
    return {"txid": txid, **asdict(first)}


def changes(watched: Watched, name: str, first: int, last: int) -> dict[str, Any]:
    """Compare a table as of one txid with a later one.

    Raises:
        UserError: the table does not hold both txids, or not in separate versions, or there is too
            much to compare.
    """
    if first >= last:
        raise UserError("The first txid has to be smaller than the second.")
    table = watched.table(name)
    both = (_version(watched, table, first), _version(watched, table, last))
    groups = [watched.index.published(table.number, version) for version in both]
    assert table.storage is not None
    return asdict(difference(table.storage, both, (first, last), MOST_ROWS, groups))


def _version(watched: Watched, table: WatchedTable, txid: int | None) -> int:
    follower = table.follower
    if table.own_log is not None:
        raise UserError(f"{table.name} is not a Delta table: ask its own program for its rows.")
    if table.storage is None or follower is None or follower.newest < 0:
        raise UserError(f"The table cannot be read: {table.error or 'it is not there yet'}.")
    if txid is None:
        return follower.newest
    version, span = watched.index.version_of(table.number, txid), watched.index.span(table.number)
    if version is None or span is None or txid > span[1]:
        txids = f"It has txids {span[0]} to {span[1]}." if span else "It has none."
        raise UserError(f"The log of the table has no txid {txid}. {txids}")
    return version


# --- trouble ---------------------------------------------------------------------------------


def trouble(watched: Watched) -> dict[str, Any]:
    """Return all troubles, present and past, with the advice."""
    return {
        "state": state_of(watched),
        "troubles": [asdict(one) for one in troubles(watched)],
        "log_read": bool(watched.index.failures(limit=1)) or watched.note is not None,
        "failures_logged": watched.note is None or watched.note.failures_logged,
    }


def bad_rows(watched: Watched) -> dict[str, Any]:
    """Return the rows that rules have set aside: their number by rule, and the newest.

    Raises:
        TxnError, DeltaError, OSError: a table cannot be read.
    """
    table = next((t for t in watched.tables if t.facts and has_bad_rows(t.facts.columns)), None)
    if table is None or table.follower is None:
        return _NO_BAD_ROWS
    # Every reader of the page asks again and again. Txids outside the table do not matter.
    span, committed = watched.index.span(table.number), watched.committed
    shown = committed if committed is None or span is None else min(committed, span[1])
    state = (table.follower.incarnation, table.follower.newest, shown)
    cached = table.bad_rows
    if cached is not None and cached[0] == state:
        return cached[1]
    set_aside = bad_rows_among([table.name], {table.name: table.options}, committed)
    if set_aside is None:
        return _NO_BAD_ROWS
    answer = {
        "table": set_aside.table,
        "rules": [asdict(rule) for rule in set_aside.by_rule()],
        "rows": [asdict(row) for row in set_aside.newest(_BAD_ROWS)],
    }
    table.bad_rows = state, answer
    return answer


def _now_ms() -> int:
    return int(time.time() * 1000)
