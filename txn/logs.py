"""Log records that say which batch they are about, and a formatter that writes them as JSON.

    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)

`txn run --log-format json` does the same. Every record that is made while a thread works on a
batch has its ids, whoever makes it: this project, a library, or a transform of your own.
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
    "BatchFields",
    "JsonFormatter",
    "Work",
    "carried",
    "current_work",
    "fields_of",
    "working_on",
]

P = ParamSpec("P")
R = TypeVar("R")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_IDS = ("topology", "epoch", "txid", "attempt", "attempts", "station", "table")


@dataclass(frozen=True)
class Work:
    """What a thread is at."""

    topology: str
    epoch: int = 0
    """0: this process does not lead yet."""
    attempts: tuple[TransactionAttempt, ...] = ()
    """One, or those of a group, in txid order."""
    station: str = ""
    """`txn.observers.Station`."""
    table: str | None = None


_work: ContextVar[Work | None] = ContextVar("txn_work", default=None)


def current_work() -> Work | None:
    """What this thread is at; None: nothing of a run."""
    return _work.get()


@contextlib.contextmanager
def working_on(work: Work) -> Iterator[None]:
    """The body, on this thread, is work of this kind; what it logs says so."""
    token = _work.set(work)
    try:
        yield
    finally:
        _work.reset(token)


def carried(job: Callable[P, R]) -> Callable[P, R]:
    """A job for another thread, there at the same work as this thread is now."""
    work = _work.get()
    if work is None:
        return job

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with working_on(work):
            return job(*args, **kwargs)

    return run


def fields_of(*attempts: TransactionAttempt) -> dict[str, Any]:
    """`extra` of a record about other attempts than those that its thread works on."""
    if not attempts:
        return {}
    last = attempts[-1]
    ids: dict[str, Any] = {"txid": last.txid, "attempt": last.attempt_id}
    if len(attempts) > 1:
        ids["attempts"] = [str(attempt) for attempt in attempts]
    return ids


class BatchFields(logging.Filter):
    """Gives every record `topology`, `epoch`, `txid`, `attempt`, `station` and `table`.

    For formats of your own ("%(txid)s %(message)s"), and for a `QueueHandler`, behind which another
    thread formats. A field that does not apply is None. For a group that shares a job or a
    commit turn, `txid` and `attempt` are those of its last, and `attempts` lists all.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, with its fields."""
        for name, value in _ids(record).items():
            setattr(record, name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a record.

    `time` (ISO 8601, UTC), `level`, `logger` and `message` are always there; `topology`, `epoch`,
    `txid`, `attempt`, `station` and `table` as far as the record is about one, as `BatchFields`
    has them; `exception` has a traceback. What a program gives as `extra` is a field, too.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record in one line."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        told: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: value for name, value in _ids(record).items() if value is not None}
        others = vars(record).keys() - _STANDARD - set(_IDS) - told.keys()
        told |= {name: vars(record)[name] for name in sorted(others)}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            told["stack"] = record.stack_info
        return json.dumps(told, default=str, skipkeys=True)


def _ids(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a record: what it has itself, else those of its thread's work."""
    own = {name: vars(record)[name] for name in _IDS if name in vars(record)}
    ids: dict[str, Any] = dict.fromkeys(_IDS)
    work = _work.get()
    if work is not None:
        ids |= {"topology": work.topology, "epoch": work.epoch or None}
        # The station is that of the work's own attempts.
        if "txid" not in own:
            ids |= {**fields_of(*work.attempts), "station": work.station or None}
            ids["table"] = work.table
    return ids | own
