"""Add the batch to log records, and format them as JSON.

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)

`txn run --log-format json` does the same. Every record of a thread that works on a batch has its
ids, whether this project, a library or your own transform makes it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ParamSpec, TypeVar

from txn.attempts import TransactionAttempt

__all__ = [
    "WAITING",
    "BatchFields",
    "JsonFormatter",
    "Work",
    "carried",
    "current_work",
    "fields_of",
    "working_on",
]

WAITING = "txn.zookeeper.waiting"
"""The logger of warnings that a user sees at once: the program waits for ZooKeeper."""

P = ParamSpec("P")
R = TypeVar("R")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_IDS = ("topology", "epoch", "txid", "attempt", "attempts", "station", "table")


@dataclass(frozen=True)
class Work:
    """The work of a thread."""

    topology: str
    epoch: int = 0
    """0: this process does not lead yet."""
    attempts: tuple[TransactionAttempt, ...] = ()
    """One attempt, or those of a group, in txid order."""
    station: str = ""
    """`txn.observers.Station`."""
    table: str | None = None


_work: ContextVar[Work | None] = ContextVar("txn_work", default=None)


def current_work() -> Work | None:
    """Return this thread's work; None if it works for no run."""
    return _work.get()


@contextlib.contextmanager
def working_on(work: Work) -> Iterator[None]:
    """Mark the body, in this thread, as this work, so that its log records have its fields."""
    token = _work.set(work)
    try:
        yield
    finally:
        _work.reset(token)


def carried(job: Callable[P, R]) -> Callable[P, R]:
    """Return a job for another thread that does the present work of this thread."""
    work = _work.get()
    if work is None:
        return job

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with working_on(work):
            return job(*args, **kwargs)

    return run


def fields_of(*attempts: TransactionAttempt) -> dict[str, Any]:
    """Return `extra` for a record about other attempts than its thread's own."""
    if not attempts:
        return {}
    last = attempts[-1]
    ids: dict[str, Any] = {"txid": last.txid, "attempt": last.attempt_id}
    if len(attempts) > 1:
        ids["attempts"] = [str(attempt) for attempt in attempts]
    return ids


class BatchFields(logging.Filter):
    """Adds to every record `topology`, `epoch`, `txid`, `attempt`, `station` and `table`.

    For your own formats ("%(txid)s %(message)s"), and for a `QueueHandler`, whose records another
    thread formats. A field that does not apply is None. For a group that shares a job or a commit
    turn, `txid` and `attempt` are those of its last attempt, and `attempts` lists all.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields, and let the record pass."""
        for name, value in _ids(record).items():
            setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object.

    `time` (ISO 8601, UTC), `level`, `logger` and `message` are always present; `topology`, `epoch`,
    `txid`, `attempt`, `station` and `table` if they apply, as in `BatchFields`; `exception` has a
    traceback. The program's `extra` values are fields too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record in one line."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        values: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        values |= {name: value for name, value in _ids(record).items() if value is not None}
        others = vars(record).keys() - _STANDARD - set(_IDS) - values.keys()
        values |= {name: vars(record)[name] for name in sorted(others)}
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            values["stack"] = record.stack_info
        return json.dumps(values, default=str, skipkeys=True)


def _ids(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record: its own, or else those of its thread's work."""
    record_ids = {name: vars(record)[name] for name in _IDS if name in vars(record)}
    ids: dict[str, Any] = dict.fromkeys(_IDS)
    work = _work.get()
    if work is not None:
        ids |= {"topology": work.topology, "epoch": work.epoch or None}
        # The station belongs to the attempts of the work.
        if "txid" not in record_ids:
            ids |= {**fields_of(*work.attempts), "station": work.station or None}
            ids["table"] = work.table
    return ids | record_ids
