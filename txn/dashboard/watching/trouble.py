"""List a topology's troubles, present and past, and what to do about them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Literal

from txn.config.location import as_option
from txn.dashboard.watching.topologies import Watched
from txn.dashboard.watching.watched_table import NOT_YET
from txn.operations.rows.bad_rows import has_bad_rows
from txn.text import duration

__all__ = ["Trouble", "milliseconds", "rows_set_aside", "state_of", "troubles"]

Area = Literal[
    "zookeeper",
    "topology",
    "leader",
    "run",
    "batch",
    "table",
    "failure",
    "quarantine",
    "foreign commit",
    "notice",
    "bad rows",
]
State = Literal["running", "starting", "lost", "standby", "stopped", "died", "absent", "unknown"]
"""running: a process leads it.
starting: ZooKeeper was not asked yet.
lost: its leader is gone, and the leader's znode will go with its session.
standby: no process leads, and one waits to.
stopped: no process leads or waits; the last run reported how it ended, or left no note.
died: no process leads or waits; the last run's process is gone without a report of its end.
absent: ZooKeeper does not know it, because no process has led it yet.
unknown: ZooKeeper cannot be asked."""

_NEWEST = 50
_OLD_BATCH_SECS = 300.0


@dataclass(frozen=True)
class Trouble:
    """One thing that is or was wrong."""

    area: Area
    level: Literal["error", "warning", "note"]
    what: str
    do: str
    """What to do; empty: nothing."""
    command: str = ""
    """A command that helps; empty: none does."""
    at_ms: int = 0
    """Its time in milliseconds since 1970; 0: now, or unknown."""
    txid: int | None = None
    attempt_id: int | None = None
    table: str | None = None
    rows: int = 0
    """The number of rows that it is about."""
    is_over: bool = False
    """True if it is history: there is nothing to do now."""


def state_of(watched: Watched) -> State:
    """Return the state of a topology."""
    status = watched.status
    if status is None and watched.is_absent:
        return "absent"
    if status is None:
        return "unknown" if watched.error else "starting"
    if status.found.leader is not None:
        return "running" if status.leader_alive else "lost"
    if any(standby.alive for standby in status.standbys):
        return "standby"
    has_died = watched.note is not None and watched.note.ended is None and not watched.is_live
    return "died" if has_died else "stopped"


def troubles(watched: Watched) -> list[Trouble]:
    """Return all troubles: those to act on first, then the newest."""
    entries = [
        *_zookeeper(watched),
        *_leader_and_run(watched),
        *_batches(watched),
        *_tables(watched),
        *_quarantine(watched),
        *_foreign(watched),
        *_failures(watched),
        *_set_aside(watched),
        *_notices(watched),
    ]
    rank = {"error": 0, "warning": 1, "note": 2}
    return sorted(entries, key=lambda one: (one.is_over, rank[one.level], -(one.at_ms or inf)))


def _zookeeper(watched: Watched) -> Iterator[Trouble]:
    if watched.is_absent and watched.status is None and watched.program:
        yield Trouble(
            "topology",
            "note",
            "It has not run yet.",
            "It appears here by itself as soon as it runs.",
            _command(watched, f"run {shlex.quote(watched.program)}"),
        )
    elif watched.is_absent and watched.error is not None:
        yield Trouble(
            "topology",
            "warning",
            watched.error,
            "If the name is right, its next run appears here by itself.",
        )
    elif watched.error is not None:
        yield Trouble(
            "zookeeper",
            "error" if watched.status is None else "warning",
            watched.error,
            "The page shows ZooKeeper's last answer, and still reads the tables. Check that "
            "ZooKeeper runs, and its address.",
            _command(watched, "doctor"),
        )


def _leader_and_run(watched: Watched) -> Iterator[Trouble]:
    state, status = state_of(watched), watched.status
    if state == "lost" and status is not None:
        waits = any(standby.alive for standby in status.standbys)
        yield Trouble(
            "leader",
            "error",
            f"The leader is gone: {status.found.leader}.",
            "A standby takes over when its session has ended."
            if waits
            else "Start the topology again: it goes on after the last committed txid.",
        )
    note = watched.note
    if state == "stopped" and note is not None and note.error:
        yield Trouble(
            "run",
            "error",
            f"The last run ended with an error: {note.error}",
            "Correct the cause and start the topology again: it goes on after the last committed "
            "txid.",
            at_ms=int(note.at * 1000),
        )
    if state == "died" and note is not None:
        yield Trouble(
            "run",
            "error",
            f"The last run's process (pid {note.pid}) is gone and has not reported an end: it was "
            "killed, or the machine went down.",
            "The system's log may have the reason, such as too little memory. Start the topology "
            "again: it goes on after the last committed txid.",
            _command(watched, f"run {shlex.quote(note.program)}") if note.program else "",
            at_ms=int(note.at * 1000),
        )


def _command(watched: Watched, words: str) -> str:
    """Return a command of txn that uses the page's ZooKeeper."""
    return f"txn {words}{as_option(watched.zookeeper)}"


def _batches(watched: Watched) -> Iterator[Trouble]:
    note = watched.note
    if note is None or not watched.is_live:
        return
    for flight in note.in_flight:
        if flight.blocked:
            since = flight.blocked_since or flight.since
            yield Trouble(
                "batch",
                "warning",
                f"Has waited {duration(_ago(since))} for a source or storage that does not answer: "
                f"{flight.blocked}",
                "It goes on as soon as that answers. The wait counts as no failed attempt.",
                at_ms=int(since * 1000),
                txid=flight.txid,
                attempt_id=flight.attempt_id,
            )
        elif flight.phase in ("processing", "committing") and _ago(flight.since) > _OLD_BATCH_SECS:
            yield Trouble(
                "batch",
                "note",
                f"Has been {flight.phase} for {duration(_ago(flight.since))}.",
                "Look at Spark's UI for a task that hangs. After message_timeout_secs without "
                "progress the attempt fails and is replayed.",
                at_ms=int(flight.since * 1000),
                txid=flight.txid,
                attempt_id=flight.attempt_id,
            )


def _ago(moment: float) -> float:
    return max(0.0, time.time() - moment)


def _tables(watched: Watched) -> Iterator[Trouble]:
    first_run = watched.is_absent or watched.committed == 0
    for table in watched.tables:
        if table.error is not None and not (first_run and table.error == NOT_YET):
            yield Trouble(
                "table",
                "warning",
                table.error,
                "Check that it was not moved and that its storage can be reached from here. If it "
                "needs storage_options or is not a Delta table, name the program: txn dashboard "
                "FILE.py:TOPOLOGY.",
                table=table.name,
            )


def _quarantine(watched: Watched) -> Iterator[Trouble]:
    for entry in watched.status.quarantine if watched.status else ():
        # `replay`: the txid that replays it, "requested", "drop requested", or None.
        record, replay = entry.record, entry.replay
        indexed = watched.index.txid(record.txid)
        name = shlex.quote(watched.name)
        command = _command(watched, f"quarantine replay {name} {record.txid}")
        do = (
            "Correct the program, start it again, then replay the txid: its records are read in a "
            "txid of their own. A file that it has read must stay as it is, or the replay is "
            "refused (TXN-407): put corrected records into a new file instead, and give the txid "
            f"up with `{_command(watched, f'quarantine drop {name} {record.txid}')}`."
        )
        if replay is not None:
            who = f"txid {replay}" if isinstance(replay, int) else "one of the next txids"
            when = "" if state_of(watched) == "running" else " when the topology runs again"
            do = f"Its replay is requested: {who} reads its records{when}."
            if replay == "drop requested":
                do = f"It is given up: {who} drops its records{when}."
        yield Trouble(
            "quarantine",
            "error" if replay is None else "note",
            f"Committed empty as attempt {record.attempt}: {record.error}",
            do,
            command if replay is None else "",
            at_ms=indexed[0].at_ms if indexed else 0,
            txid=record.txid,
            attempt_id=record.attempt,
        )


def _foreign(watched: Watched) -> Iterator[Trouble]:
    for version in watched.index.strange(_NEWEST):
        name = watched.tables[version.table].name
        if version.kind == "unreadable":
            yield Trouble(
                "foreign commit",
                "error",
                version.operation,  # of an unreadable one: why
                "Restore that file from a backup. A start that needs it is refused.",
                "txn explain TXN-315",
                version.at_ms,
                table=name,
            )
            continue
        yield Trouble(
            "foreign commit",
            "warning",
            f"Version {version.version}: {version.operation} by {version.writer}.",
            "Another program or person changed rows, columns or properties of the table. The "
            "table no longer follows from its sources alone: restore the version before, or make "
            "the same change in the program.",
            "txn explain TXN-307",
            version.at_ms,
            table=name,
            is_over=True,
        )


def rows_set_aside(watched: Watched) -> int:
    """Return the rows in the topology's tables of bad rows as last counted; asks to count again."""
    tables = [t for t in watched.tables if t.facts and has_bad_rows(t.facts.columns)]
    counted = [table.ask_facts() for table in tables]
    return sum(facts.rows or 0 for facts in counted if facts)


def _set_aside(watched: Watched) -> Iterator[Trouble]:
    if rows := rows_set_aside(watched):
        yield Trouble(
            "bad rows",
            "note",
            f"{rows:,} {'row was' if rows == 1 else 'rows were'} set aside: "
            f"{'it' if rows == 1 else 'they'} broke a rule, or did not parse.",
            "The table of bad rows keeps rows also after you replay them. The command tells how "
            "many you have not replayed yet.",
            _command(watched, f"rows list {shlex.quote(watched.name)}"),
            rows=rows,
        )


def _failures(watched: Watched) -> Iterator[Trouble]:
    for txid, attempt, at_ms, error in watched.index.failures(limit=_NEWEST):
        level, do, is_over = _outcome(watched, txid)
        yield Trouble(
            "failure",
            level,
            error,
            do,
            at_ms=at_ms,
            txid=txid,
            attempt_id=attempt,
            is_over=is_over,
        )


def _outcome(watched: Watched, txid: int) -> tuple[Literal["warning", "note"], str, bool]:
    """Return (level, advice, True if it is history) for a failed attempt of `txid`."""
    indexed = watched.index.txid(txid)
    if indexed is not None and indexed[0].quarantined:
        status = watched.status
        if status is None or any(entry.record.txid == txid for entry in status.quarantine):
            return "note", "The txid was committed empty: its rows are in no table.", True
        return "note", "The txid was committed empty, and replayed or given up since.", True
    if watched.status is None:
        span = watched.index.span()
        if span is None or txid > span[1]:
            return (
                "note",
                "Unknown whether the txid was committed since: ZooKeeper does not answer.",
                False,
            )
        return "note", "A later attempt has published the txid. There is nothing to do.", True
    progress = watched.status.found.progress
    if txid <= progress.committed.txid:
        return "note", "A later attempt has committed the txid. There is nothing to do.", True
    # The log of failures outlives a topology that is made anew, whose txids begin again. A txid
    # that this one cannot have reached yet is from before.
    open_ones = max(len(progress.batches), watched.config.max_spout_pending)
    if txid > progress.committed.txid + open_ones + 1:
        return "note", "It is from before the topology was made anew. There is nothing to do.", True
    return "warning", "It is replayed. If it fails again and again, correct the cause.", False


def _notices(watched: Watched) -> Iterator[Trouble]:
    notices = watched.status.notices if watched.status else None
    for stream, lines in notices.streams.items() if notices else ():
        for line in lines:
            yield Trouble(
                "notice",
                "note",
                f"{stream}: {line}",
                "",  # the line itself has the advice, if there is any
                at_ms=milliseconds(notices.at) if notices else 0,
                txid=notices.txid if notices else None,
            )


def milliseconds(moment: str) -> int:
    """Return an ISO time as milliseconds since 1970; 0: it is not one."""
    try:
        return int(datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return 0
